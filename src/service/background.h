/*-------------------------------------------------------------------------
 *
 * background.h
 *	  What all background workers of this library have in common.
 *
 * Copyright (c) 2026, the pg_lookahead authors
 *
 *-------------------------------------------------------------------------
 */
#ifndef LA_BACKGROUND_H
#define LA_BACKGROUND_H

#include "postmaster/bgworker.h"

/*
 * Describe a worker that runs a function of this library, with shared memory.
 * It is not restarted and tells nobody, unless the caller asks for that.
 */
static inline void
la_background_describe(BackgroundWorker *worker, const char *function,
					   const char *name)
{
	memset(worker, 0, sizeof(*worker));
	worker->bgw_flags = BGWORKER_SHMEM_ACCESS;
	worker->bgw_start_time = BgWorkerStart_ConsistentState;
	worker->bgw_restart_time = BGW_NEVER_RESTART;
	strlcpy(worker->bgw_library_name, "pg_lookahead", BGW_MAXLEN);
	strlcpy(worker->bgw_function_name, function, BGW_MAXLEN);
	strlcpy(worker->bgw_type, name, BGW_MAXLEN);
	strlcpy(worker->bgw_name, name, BGW_MAXLEN);
}

#endif							/* LA_BACKGROUND_H */
