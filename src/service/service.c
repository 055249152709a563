/*-------------------------------------------------------------------------
 *
 * service.c
 *	  The I/O service's shared memory and its worker processes.
 *
 * The service exists only where the library is preloaded with
 * pg_lookahead.io_workers above zero; la_service is NULL elsewhere, and those
 * who would ask it for blocks use another method.
 *
 *		scan ----ask----> queue of worker 0 ----> worker 0 ---read--> shared
 *			 `----ask---> queue of worker 1 ----> worker 1 ---read--> buffers
 *
 * Each worker has a queue of its own, so that those who ask do not meet on one
 * lock, and so that neighbouring blocks (a stripe) come to the same worker,
 * which joins them into large reads.
 *
 * Copyright (c) 2026, the pg_lookahead authors
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "service/background.h"
#include "service/service.h"
#include "settings.h"
#include "storage/ipc.h"
#include "storage/shmem.h"

#define LA_SERVICE_TRANCHE "pg_lookahead_service"

/* Seconds after which a worker that has died is started again. */
#define LA_RESTART_SECONDS 1

LaService  *la_service = NULL;

/*
 * How many workers is the service to have?
 */
static int
la_nworkers(void)
{
	if (la_io_workers >= 0)
		return la_io_workers;
	return LA_HAVE_SEQ_STREAM ? 0 : LA_USUAL_IO_WORKERS;
}

static Size
la_service_size(void)
{
	return add_size(offsetof(LaService, workers),
					mul_size(la_nworkers(), sizeof(LaWorker)));
}

/*
 * Ask for shared memory.  Called from shmem_request_hook.
 */
void
la_service_shmem_request(void)
{
	if (la_nworkers() == 0)
		return;
	RequestAddinShmemSpace(la_service_size());
	RequestNamedLWLockTranche(LA_SERVICE_TRANCHE, 1);
}

static void
la_worker_init(LaWorker *worker)
{
	uint64		now = la_now_us();

	SpinLockInit(&worker->mutex);
	pg_atomic_init_u64(&worker->serving, 0);
	pg_atomic_init_u32(&worker->sleeping, 0);
	pg_atomic_init_u32(&worker->ring_blocks, 0);
	for (Size i = 0; i < sizeof(worker->counters);
		 i += sizeof(pg_atomic_uint64))
		pg_atomic_init_u64((pg_atomic_uint64 *)
						   ((char *) &worker->counters + i), 0);
	SpinLockInit(&worker->window_mutex);
	worker->window_start_us = now;
}

/*
 * Create or attach to shared memory.  Called from shmem_startup_hook.
 */
void
la_service_shmem_startup(void)
{
	bool		found;

	if (la_nworkers() == 0)
		return;

	LWLockAcquire(AddinShmemInitLock, LW_EXCLUSIVE);
	la_service = ShmemInitStruct("pg_lookahead service", la_service_size(),
								 &found);
	if (!found)
	{
		MemSet(la_service, 0, la_service_size());
		la_service->nworkers = la_nworkers();
		la_service->lock = &(GetNamedLWLockTranche(LA_SERVICE_TRANCHE))->lock;
		pg_atomic_init_u64(&la_service->owners_refused, 0);
		SpinLockInit(&la_service->logged_mutex);
		for (int i = 0; i < LA_MAX_OWNERS; i++)
		{
			LaOwner    *owner = &la_service->owners[i];

			pg_atomic_init_u32(&owner->generation, 0);
			pg_atomic_init_u64(&owner->position, 0);
			pg_atomic_init_u64(&owner->frontier, 0);
			pg_atomic_init_u64(&owner->unused, 0);
			pg_atomic_init_u32(&owner->started, 0);
			pg_atomic_init_u64(&owner->moved_us, 0);
		}
		for (int i = 0; i < la_nworkers(); i++)
			la_worker_init(&la_service->workers[i]);
	}
	LWLockRelease(AddinShmemInitLock);
}

/*
 * Have the postmaster start the workers.  Called while libraries are preloaded.
 */
void
la_service_register(void)
{
	BackgroundWorker worker;

	la_background_describe(&worker, "la_io_worker_main",
						   "pg_lookahead io worker");
	worker.bgw_flags |= BGWORKER_BACKEND_DATABASE_CONNECTION;
	worker.bgw_restart_time = LA_RESTART_SECONDS;
	for (int i = 0; i < la_nworkers(); i++)
	{
		snprintf(worker.bgw_name, BGW_MAXLEN, "pg_lookahead io worker %d", i);
		worker.bgw_main_arg = Int32GetDatum(i);
		RegisterBackgroundWorker(&worker);
	}
}

/*
 * Is there anybody to ask?
 */
bool
la_service_is_running(void)
{
	if (la_service == NULL)
		return false;
	for (int i = 0; i < la_service->nworkers; i++)
		if (la_service->workers[i].pid != 0)
			return true;
	return false;
}
