/*-------------------------------------------------------------------------
 *
 * pg_lookahead.c
 *	  Entry point: settings, shared memory, hooks; nothing else.
 *
 * The library works however it is loaded: shared_preload_libraries,
 * session_preload_libraries or LOAD.  Only the first has shared memory, which
 * the cumulative counters need.
 *
 * Copyright (c) 2026, the pg_lookahead authors
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "compat.h"
#include "extend/extend.h"
#include "hook/hooks.h"
#include "report/counters.h"
#include "service/lookup.h"
#include "service/service.h"
#include "settings.h"
#include "source/maintenance.h"
#include "storage/ipc.h"

PG_MODULE_MAGIC;

void		_PG_init(void);

static shmem_request_hook_type prev_shmem_request = NULL;
static shmem_startup_hook_type prev_shmem_startup = NULL;

static void
la_shmem_request(void)
{
	if (prev_shmem_request)
		prev_shmem_request();
	la_counters_shmem_request();
	la_service_shmem_request();
	la_watcher_shmem_request();
	la_extend_shmem_request();
}

static void
la_shmem_startup(void)
{
	if (prev_shmem_startup)
		prev_shmem_startup();
	la_counters_shmem_startup();
	la_service_shmem_startup();
	la_watcher_shmem_startup();
	la_extend_shmem_startup();
}

void
_PG_init(void)
{
	/* Stage 1: settings.  All are valid in any session. */
	la_settings_define();

	/* Stage 2: shared memory and workers, for a preloaded library only. */
	if (process_shared_preload_libraries_in_progress)
	{
		prev_shmem_request = shmem_request_hook;
		shmem_request_hook = la_shmem_request;
		prev_shmem_startup = shmem_startup_hook;
		shmem_startup_hook = la_shmem_startup;
		la_service_register();
		la_maintenance_register();
	}

	/* Stage 3: hooks. */
	la_executor_hooks_install();
	la_utility_hooks_install();
	la_relation_hooks_install();
	la_explain_hooks_install();
}
