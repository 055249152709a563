/*-------------------------------------------------------------------------
 *
 * worker.c
 *	  Method "worker": the workers of the I/O service read into shared buffers.
 *
 * A run of a window becomes a request.  Nothing is pinned and nothing is waited
 * for here.  What the workers would read of a window that is given up, because
 * the scan begins elsewhere, would keep them from the next one: the owner is
 * restarted.  When the scan is over it is ended.
 *
 * Workers that have much to do come too late.  So while queues are long a
 * window is advised to the kernel instead, and so is the part of a run that no
 * queue takes, and everything if all owners' slots are taken.  With direct I/O
 * the scan reads that itself.
 *
 * Serves direct I/O, where the kernel has nothing to be advised of, and leaf
 * pages where the server has no I/O workers.  Needs the library preloaded.
 *
 * Copyright (c) 2026, the pg_lookahead authors
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "compat.h"
#include "method/method.h"
#include "service/service.h"

/* A worker with this many blocks to read is busy: more than two windows. */
#define LA_BUSY_BLOCKS		512

typedef struct LaWorkerState
{
	LaOwnerRef	ref;
	bool		has_asked;		/* since the owner was begun or restarted */
	bool		is_busy;		/* workers are, for this window */
} LaWorkerState;

/* Two windows are in front of a scan, and must not overwrite each other. */
static int
la_worker_most_blocks(void)
{
	return Max(la_owner_share() / 2, LA_MIN_MAX_DISTANCE);
}

static void
la_worker_open(LaWindow *window)
{
	window->method_state = palloc0(sizeof(LaWorkerState));
}

/*
 * The owner of a window, begun (again) if need be: a subtransaction that is
 * rolled back ends it.
 */
static LaOwnerRef *
la_worker_owner(LaWindow *window)
{
	LaWorkerState *state = window->method_state;
	LaTarget	target;

	if (la_owner_is_valid(&state->ref))
		return &state->ref;
	la_owner_target_of(&target, window->rel, MAIN_FORKNUM);
	target.most_ahead = 2 * window->limit;
	return la_owner_begin(&state->ref, &target, 0, false) ? &state->ref : NULL;
}

static void
la_worker_announce(LaWindow *window)
{
	LaWorkerState *state = window->method_state;

	/* If so the kernel is advised, where it takes advice. */
	state->is_busy = la_may_advise() && la_queues_are_long(LA_BUSY_BLOCKS);
}

static void
la_worker_start(LaWindow *window, const LaRun *run)
{
	LaWorkerState *state = window->method_state;
	LaOwnerRef *ref = state->is_busy ? NULL : la_worker_owner(window);
	LaRun		rest;
	int			n = 0;

	if (ref != NULL)
	{
		pg_atomic_write_u64(&ref->owner->moved_us, la_now_us());
		n = la_owner_ask(ref, run->first, run->nblocks, PG_UINT64_MAX, 0);
		state->has_asked = state->has_asked || n > 0;
	}
	for (int i = 0; i < n; i++)
		la_window_issued(window, la_window_lookup(window, run->first + i));

	rest.first = run->first + n;
	rest.nblocks = run->nblocks - n;
	if (rest.nblocks > 0 && la_may_advise())
		la_method_advice.start(window, &rest);
	else
		window->counters->blocks_dropped_total += rest.nblocks;
}

static void
la_worker_drop(LaWindow *window)
{
	LaWorkerState *state = window->method_state;

	/* The inner side of a nested loop comes here for every outer row. */
	if (state->has_asked)
		la_owner_restart(&state->ref);
	state->has_asked = false;
}

/*
 * The window is closed, or its memory goes.
 */
static void
la_worker_close(LaWindow *window)
{
	LaWorkerState *state = window->method_state;

	if (state->ref.owner != NULL)
		la_owner_end(&state->ref);
}

const LaMethod la_method_worker = {
	.id = LA_METHOD_WORKER,
	.name = "worker",
	.most_blocks = la_worker_most_blocks,
	.open = la_worker_open,
	.announce = la_worker_announce,
	.start = la_worker_start,
	.drop = la_worker_drop,
	.abandon = la_worker_close,
	.close = la_worker_close,
};
