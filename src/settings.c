/*-------------------------------------------------------------------------
 *
 * settings.c
 *	  Every setting of pg_lookahead, in alphabetical order.
 *
 * All of them are USERSET: look-ahead reads only what the session's own query
 * is about to read, so only the caller pays for a bad choice.  They are read
 * when a scan starts and when a window is filled; a change takes effect with
 * the next query.
 *
 * Each has a row in docs/reference.md; a test compares the two lists.
 *
 * Copyright (c) 2026, the pg_lookahead authors
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "compat.h"
#include "settings.h"
#include "utils/guc.h"

bool		la_enabled = true;
int			la_method = LA_METHOD_AUTO;
int			la_max_distance = LA_DEFAULT_MAX_DISTANCE;
int			la_io_concurrency = LA_DEFAULT_IO_CONCURRENCY;
int			la_start_after = LA_DEFAULT_START_AFTER;

static const struct config_enum_entry la_method_options[] =
{
	{"auto", LA_METHOD_AUTO, false},
	{"advice", LA_METHOD_ADVICE, false},
	{"aio", LA_METHOD_AIO, false},
	{"none", LA_METHOD_NONE, false},
	{NULL, 0, false}
};

/*
 * Refuse a method that this server cannot have.
 *
 * Where the method exists but cannot serve (advice under direct I/O), the
 * setting is accepted and method.c falls back: the storage mode is not known
 * for certain at the time a configuration file is read.
 */
static bool
la_check_method(int *newval, void **extra, GucSource source)
{
	if (*newval == LA_METHOD_AIO && !LA_HAVE_AIO)
	{
		GUC_check_errdetail("Method \"aio\" needs the asynchronous I/O of PostgreSQL 18 or later.");
		GUC_check_errhint("Use \"auto\" or \"advice\".");
		return false;
	}
	return true;
}

/*
 * Define the settings and reserve their prefix.  Called once per process.
 */
void
la_settings_define(void)
{
	DefineCustomBoolVariable("pg_lookahead.enabled",
							 "Enables look-ahead in this session.",
							 "If off, no scan is followed and nothing is read ahead. "
							 "Queries that are already running keep what they have.",
							 &la_enabled,
							 true,
							 PGC_USERSET,
							 0,
							 NULL, NULL, NULL);

	DefineCustomIntVariable("pg_lookahead.io_concurrency",
							"Sets the number of reads that one scan keeps in flight.",
							"Used by method \"aio\". The server's io_max_concurrency "
							"limits it further.",
							&la_io_concurrency,
							LA_DEFAULT_IO_CONCURRENCY,
							LA_MIN_IO_CONCURRENCY,
							LA_MAX_IO_CONCURRENCY,
							PGC_USERSET,
							0,
							NULL, NULL, NULL);

	DefineCustomIntVariable("pg_lookahead.max_distance",
							"Sets the largest number of blocks that one scan looks ahead.",
							"A scan starts with a few blocks and doubles while it still "
							"waits for storage. Raise it for storage with a high latency "
							"and a high throughput.",
							&la_max_distance,
							LA_DEFAULT_MAX_DISTANCE,
							LA_MIN_MAX_DISTANCE,
							LA_MAX_MAX_DISTANCE,
							PGC_USERSET,
							GUC_UNIT_BLOCKS,
							NULL, NULL, NULL);

	DefineCustomEnumVariable("pg_lookahead.method",
							 "Sets how blocks are read ahead.",
							 "\"auto\" picks by server, storage mode and table. \"advice\" "
							 "asks the kernel to read into its page cache, \"aio\" uses the "
							 "server's asynchronous I/O (18 and later), \"none\" decides "
							 "what to read but reads nothing.",
							 &la_method,
							 LA_METHOD_AUTO,
							 la_method_options,
							 PGC_USERSET,
							 0,
							 la_check_method, NULL, NULL);

	DefineCustomIntVariable("pg_lookahead.start_after",
							"Sets the number of table blocks a scan visits before look-ahead may start.",
							"Look-ahead starts only if the scan was also seen waiting for "
							"storage. If zero, it starts at the first row of every scan "
							"and without any wait, which is meant for tests.",
							&la_start_after,
							LA_DEFAULT_START_AFTER,
							LA_MIN_START_AFTER,
							LA_MAX_START_AFTER,
							PGC_USERSET,
							0,
							NULL, NULL, NULL);

	MarkGUCPrefixReserved("pg_lookahead");
}
