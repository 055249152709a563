/*-------------------------------------------------------------------------
 *
 * worker.c
 *	  Method "worker": the workers of the I/O service read into shared buffers.
 *
 * A run of a window becomes a request.  Nothing is pinned and nothing is waited
 * for here; what the workers do after the scan has gone on is stopped by ending
 * the owner.  The part of a run that no queue takes is dropped: the kernel is
 * advised of it, or with direct I/O the scan reads it.
 *
 * Serves direct I/O, where the kernel has nothing to be advised of, and servers
 * without asynchronous I/O of their own.  Needs the library preloaded.
 *
 * Copyright (c) 2026, the pg_lookahead authors
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "compat.h"
#include "method/method.h"
#include "service/service.h"

/* Two windows are in front of a scan, and must not overwrite each other. */
static int
la_worker_most_blocks(void)
{
	return Max(la_owner_share() / 2, LA_MIN_MAX_DISTANCE);
}

static void
la_worker_open(LaWindow *window)
{
	window->method_state = palloc0(sizeof(LaOwnerRef));
}

/*
 * The owner of a window, begun (again) if need be: a subtransaction that is
 * rolled back ends it.
 */
static LaOwnerRef *
la_worker_owner(LaWindow *window)
{
	LaOwnerRef *ref = window->method_state;
	LaTarget	target;

	if (la_owner_is_valid(ref))
		return ref;
	la_owner_target_of(&target, window->rel, MAIN_FORKNUM);
	return la_owner_begin(ref, &target, 0) ? ref : NULL;
}

static void
la_worker_start(LaWindow *window, const LaRun *run)
{
	LaOwnerRef *ref = la_worker_owner(window);
	int			n = 0;

	if (ref != NULL)
	{
		pg_atomic_write_u64(&ref->owner->moved_us, la_now_us());
		n = la_owner_ask(ref, run->first, run->nblocks, PG_UINT64_MAX);
	}
	if (n < run->nblocks && !la_direct_io())
	{
		la_file_advise(RelationGetSmgr(window->rel), MAIN_FORKNUM,
					   run->first + n, run->nblocks - n);
		n = run->nblocks;
	}
	for (int i = 0; i < n; i++)
		la_window_issued(window, la_window_lookup(window, run->first + i));
	window->counters->blocks_dropped_total += run->nblocks - n;
}

/*
 * The window is closed, or its memory goes.
 */
static void
la_worker_close(LaWindow *window)
{
	LaOwnerRef *ref = window->method_state;

	if (ref->owner != NULL)
		la_owner_end(ref);
}

const LaMethod la_method_worker = {
	.id = LA_METHOD_WORKER,
	.name = "worker",
	.most_blocks = la_worker_most_blocks,
	.open = la_worker_open,
	.start = la_worker_start,
	.abandon = la_worker_close,
	.close = la_worker_close,
};
