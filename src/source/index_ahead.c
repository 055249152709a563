/*-------------------------------------------------------------------------
 *
 * index_ahead.c
 *	  Looks ahead of one index scan, once index_scan.c has seen it wait.
 *
 * The work of looking ahead is made when it starts first, and goes when the
 * scan has come to its end.  Of a scan that goes on after that, or was started
 * again before, it is kept until the node is done with it:
 *
 *		window			the blocks in front of the scan, their reads, and the
 *						memory of all of it
 *		scout			where they come from: a second scan of the index,
 *		leaf_items		or, of some, the rest of its leaf page
 *		owner			the pins and references of these two, see window/guard.c
 *
 * It ends as window.c says.
 *
 * Filling is what can fail, and runs in the guard.  Everything else only
 * releases what there is, or looks at memory.
 *
 * A dear access method (all but B-tree and hash) is asked twice for each entry
 * once a scout runs, and its search starts from the beginning.  The scout is
 * sent only when the scan has lost more time waiting for the table than the
 * access method has used the processor: then, if no more were to come, we have
 * at most doubled a cost that was the smaller half.
 *
 * A scout of a B-tree starts from the beginning, too, and takes LA_ENTRY_NS for
 * each entry to come to where the scan is, if the leaf pages are in memory.  So
 * a scan that begins to wait after many entries must have lost as much since a
 * scout was sent last, or since its start; leaf_items.c has no way to go.
 *
 * Copyright (c) 2026, the pg_lookahead authors
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/parallel.h"
#include "compat.h"
#include "method/method.h"
#include "miscadmin.h"
#include "settings.h"
#include "source/index_ahead.h"
#include "utils/memutils.h"
#include "window/guard.h"
#include "window/waits.h"

/* Index entries that a source may run ahead, for each block of distance. */
#define LA_ENTRIES_PER_BLOCK	64

/* Entries without a row, after which as many more are to be expected. */
#define LA_ROWLESS_ENTRIES		32

/* What a scout takes for each entry on its way beyond LA_FREE_ENTRIES. */
#define LA_ENTRY_NS			25

/* A scout that was closed at rest comes back after this part of the way. */
#define LA_REOPEN_PART			4

/* Blocks in a row that nobody foresaw, after which the scout seeks again. */
#define LA_MAX_IGNORED		64

/*
 * No scout runs: the node's scan comes to new leaf pages first.
 */
static void
la_follow_own_leaves(LaIndexScan *scan)
{
	if (scan->target.leaf != NULL)
		la_leaf_scan_follow(scan->target.leaf, scan->desc, NULL);
}

/*
 * The scout is not needed for now, maybe for hours, in which it must not keep a
 * page of the index from VACUUM: where a B-tree is not in the WAL its pages
 * stay pinned.  If it has to be closed for that it may be opened again when the
 * scan has gone on by a part of its way, so that it costs a few times that at
 * most.
 */
static void
la_rest(LaIndexScan *scan)
{
	LaScout    *scout = scan->scout;
	int64		position = scan->target.position;

	if (scout == NULL || scout->state == LA_SCOUT_CLOSED ||
		RelationUsesLocalBuffers(scan->target.real->indexRelation))
		return;
	LA_WITH_OWNER(scan->owner, la_scout_pause(scout));
	if (scout->state == LA_SCOUT_CLOSED)
		scan->reopen_at = Min(scan->reopen_at,
							  position + position / LA_REOPEN_PART);
}

/*
 * Change the state.
 */
void
la_index_ahead_enter(LaIndexScan *scan, LaScanState state)
{
	switch (state)
	{
		case LA_SCAN_WATCHING:
			Assert(scan->base.window == NULL ||
				   la_window_is_empty(scan->base.window));
			la_pace_stopped(&scan->pace);
			la_follow_own_leaves(scan);
			break;
		case LA_SCAN_LOOKING:
			Assert(scan->state == LA_SCAN_WATCHING ||
				   scan->state == LA_SCAN_IDLE);
			Assert(scan->base.window != NULL);
			break;
		case LA_SCAN_IDLE:
			Assert(scan->state == LA_SCAN_LOOKING);
			la_pace_stopped(&scan->pace);
			break;
		case LA_SCAN_OUT:
			scan->gap_open = false;
			la_follow_own_leaves(scan);
			break;
	}
	scan->state = state;
	if (state == LA_SCAN_WATCHING)
		la_rest(scan);
}

/*
 * See the file header.
 */
static bool
la_am_is_worth_it(const LaIndexScan *scan)
{
	int64		way = scan->target.position;

	if (la_pace_at_once(&scan->pace))
		return true;
	if (scan->is_dear)
		return scan->wait_ns >= scan->am_cpu_ns;

	if (scan->scout && scan->scout->state != LA_SCOUT_CLOSED)
		way = Max(way - scan->scout->position, scan->scout->position - way);
	if (way <= LA_FREE_ENTRIES || la_leaf_items_are_better(&scan->target))
		return true;
	return scan->wait_ns >= (way - LA_FREE_ENTRIES) * LA_ENTRY_NS;
}

/*
 * May one call of the access method keep the leader of parallel workers from
 * serving interrupts for long?  It serves none in the guard.
 */
static inline bool
la_am_is_too_long(const LaIndexScan *scan)
{
	return scan->is_dear && ParallelContextActive();
}

/*
 * The work of looking ahead goes, with its memory.
 */
static void
la_work_forget(void *user)
{
	LaIndexScan *scan = user;

	scan->base.window = NULL;
	scan->scout = NULL;
	scan->leaf_items = NULL;
	scan->owner = NULL;
}

/*
 * Make what is needed to look ahead of this scan.
 */
static void
la_work_create(LaIndexScan *scan, const LaMethod *method)
{
	MemoryContext context;

	scan->base.window = la_window_open(scan->query_context, scan->target.heap,
										method, &scan->pace,
										&scan->base.counters,
										la_work_forget, scan);
	context = scan->base.window->context;
	if (la_leaf_items_are_better(&scan->target))
		scan->leaf_items = la_leaf_items_create(context, &scan->target);
	else
		scan->scout = la_scout_create(context, &scan->target);
	scan->owner = la_guard_owner_create();
	scan->base.method_name = method->name;
}

/*
 * End the work in order: nothing is pinned or in flight afterwards.
 */
void
la_index_ahead_end(LaIndexScan *scan)
{
	if (scan->base.window == NULL)
		return;
	LA_WITH_OWNER(scan->owner,
	{
		if (scan->scout)
			la_scout_close(scan->scout);
		if (scan->leaf_items)
			la_leaf_items_pause(scan->leaf_items);
	});
	la_guard_owner_free(scan->owner, true);
	la_window_close(scan->base.window);
}

/*
 * End the work after an error in it: the guard has released every resource.
 */
static void
la_work_fail(LaIndexScan *scan)
{
	la_index_ahead_enter(scan, LA_SCAN_OUT);
	la_window_fail(scan->base.window);
}

/*
 * Forget what is in front of the scan, because it goes elsewhere.
 */
static void
la_drop(LaIndexScan *scan)
{
	if (scan->base.window != NULL)
		la_window_drop(scan->base.window, scan->current);
	if (scan->scout)
		scan->scout->source.passed = false;
	scan->ignored = 0;
}

/*
 * The same, and the source must find the scan before it goes on.
 */
static void
la_seek_again(LaIndexScan *scan)
{
	la_drop(scan);
	if (scan->scout)
		la_scout_lost_sync(scan->scout);
	if (scan->leaf_items)
		la_leaf_items_restart(scan->leaf_items);
}

typedef struct LaFillCall
{
	LaIndexScan *scan;
	LaFill		result;
} LaFillCall;

static void
la_fill_body(void *arg)
{
	LaFillCall *call = arg;
	LaIndexScan *scan = call->scan;
	LaSource   *source = scan->scout ?
		&scan->scout->source : &scan->leaf_items->source;

	call->result = la_window_fill(scan->base.window, source);
}

/*
 * How many more entries may the executor ask for?  Those of rows that it cannot
 * see, or passes over as others have locked them, come on top of what a LIMIT
 * wants, as in front of a queue.  As many may follow as have come since the
 * last row, if that was not a moment ago.
 */
static uint64
la_entries_wanted(LaIndexScan *scan)
{
	uint64		left = la_entries_left(scan->limit);
	uint64		since;

	if (left == PG_UINT64_MAX)
		return left;
	since = la_since_row(&scan->row_seen, scan->limit, scan->target.position);
	return since < LA_ROWLESS_ENTRIES ? left : Max(left, since);
}

/*
 * Fill the window.  Returns false if the scan is not looking ahead any more.
 */
static bool
la_fill(LaIndexScan *scan)
{
	LaFillCall	call = {scan, LA_FILL_OK};
	int64		nwindows;
	int64		nreads;
	int64		nissued;

	if (!la_guard_is_possible() || la_am_is_too_long(scan))
		return true;
	if (scan->scout && la_damage_is_accepted())
	{
		LA_WITH_OWNER(scan->owner, la_scout_close(scan->scout));
		la_drop(scan);
		la_index_ahead_enter(scan, LA_SCAN_OUT);
		return false;
	}

	/* A scout that must seek finds the scan, not the end of the queue. */
	if (scan->scout && scan->scout->state <= LA_SCOUT_BEHIND)
	{
		if (!la_window_is_empty(scan->base.window))
			return true;
		if (scan->scout->state == LA_SCOUT_CLOSED)
		{
			if (scan->target.position < scan->reopen_at)
			{
				la_drop(scan);
				la_index_ahead_enter(scan, LA_SCAN_WATCHING);
				return false;
			}
			scan->reopen_at = scan->target.position * 2;
		}
		la_drop(scan);
	}

	scan->target.entries_left = la_entries_wanted(scan);
	scan->target.entries_ahead_max =
		(uint64) LA_ENTRIES_PER_BLOCK * la_pace_distance(&scan->pace);
	nwindows = scan->base.counters.windows_total;
	nreads = la_blocks_read();
	nissued = scan->base.counters.blocks_issued_total;
	CHECK_FOR_INTERRUPTS();
	if (!la_guard_run(scan->owner, la_fill_body, &call))
	{
		la_work_fail(scan);
		return false;
	}
	/*
	 * What "aio" reads now counts when the scan comes to it.  What the scout
	 * reads of the index, the scan would have to.
	 */
	if (scan->base.window->method->id == LA_METHOD_AIO)
		scan->reads_told +=
			Min(la_blocks_read() - nreads,
				scan->base.counters.blocks_issued_total - nissued);

	/* The scout may have slept for an index page. */
	if (scan->base.counters.windows_total != nwindows)
		la_sleeps_are_stale = true;

	switch (call.result)
	{
		case LA_FILL_OK:
			scan->far_at = scan->target.position;
			return true;
		case LA_FILL_IDLE:
			la_index_ahead_enter(scan, LA_SCAN_IDLE);
			return false;
		case LA_FILL_LOST:
			LA_WITH_OWNER(scan->owner, la_scout_close(scan->scout));
			la_drop(scan);
			scan->target.is_further = false;
			la_index_ahead_enter(scan, LA_SCAN_WATCHING);
			return false;
	}
	return false;
}

/*
 * Begin to look ahead, if there is a method and it is worth it.  Returns false
 * if not; after true the scan may be WATCHING or OUT again already.
 */
bool
la_index_ahead_start(LaIndexScan *scan)
{
	if (!la_guard_is_possible() || la_am_is_too_long(scan) ||
		!la_am_is_worth_it(scan))
		return false;
	if (scan->base.window == NULL)
	{
		const LaMethod *method = la_method_for(scan->target.heap,
											   scan->base.node->state, NULL);

		if (IsA(scan->base.node, IndexOnlyScanState))
		{
			IndexOnlyScanState *state = (IndexOnlyScanState *) scan->base.node;

			scan->target.keys = state->ioss_ScanKeys;
			scan->target.orderbys = state->ioss_OrderByKeys;
		}
		else
		{
			IndexScanState *state = (IndexScanState *) scan->base.node;

			scan->target.keys = state->iss_ScanKeys;
			scan->target.orderbys = state->iss_OrderByKeys;
		}
		if ((method->id == LA_METHOD_NONE && la_method != LA_METHOD_NONE) ||
			(!la_leaf_items_are_better(&scan->target) &&
			 (!scan->target.is_plain || la_damage_is_accepted())))
		{
			la_index_ahead_enter(scan, LA_SCAN_OUT);
			return false;
		}
		if (!la_window_is_possible(&scan->base.counters))
			return false;
		la_work_create(scan, method);
		scan->base.counters.scans_total = 1;
	}
	else if (scan->scout && scan->scout->state == LA_SCOUT_CLOSED &&
			 scan->target.position < scan->reopen_at)
		return false;

	if (!scan->is_dear)
		scan->wait_ns = 0;		/* what it has lost is spent */
	la_seek_again(scan);
	la_index_ahead_enter(scan, LA_SCAN_LOOKING);
	(void) la_fill(scan);
	return true;
}

/*
 * Has the source nothing for us before the scan has moved on?  To ask it for
 * each entry of an index-only scan would cost more than the entry.
 */
static bool
la_fill_can_wait(const LaIndexScan *scan)
{
	const LaWindow *window = scan->base.window;
	int64		moved = scan->target.position - scan->far_at;

	if (window->next_run < window->nruns)
		return false;
	if (scan->leaf_items)
		return la_leaf_items_are_done(scan->leaf_items);
	/* An empty window is to be counted as one. */
	return window->source_far && window->nahead > 0 &&
		(uint64) Max(moved, -moved) < scan->target.entries_ahead_max / 4;
}

/*
 * Has an index-only scan passed the scout?  Most blocks that it comes to are
 * all-visible, and nobody names them.  But what is in the queue should be in
 * front of it then; entries may have died after the scout had seen them.
 */
static bool
la_is_overtaken(const LaIndexScan *scan)
{
	int64		beyond;

	if (scan->scout == NULL || scan->scout->state != LA_SCOUT_AHEAD)
		return false;
	beyond = scan->target.position - scan->scout->position;
	return beyond * scan->step > LA_MAX_IGNORED;
}

/*
 * The scan has come to another block while a window is open.
 */
void
la_index_ahead_follow(LaIndexScan *scan, BlockNumber blkno)
{
	LaStep		step = la_window_step(scan->base.window, blkno);

	if (step == LA_STEP_MATCHED)
		scan->ignored = 0;
	else if (step == LA_STEP_IGNORED &&
			 (scan->target.index_only ? la_is_overtaken(scan) :
			  ++scan->ignored > LA_MAX_IGNORED))
		la_seek_again(scan);	/* the queue does not describe this scan */

	if (scan->state == LA_SCAN_IDLE)
	{
		if (scan->start_wanted)
		{
			/* Waits are back before the queue has run dry. */
			scan->start_wanted = false;
			la_index_ahead_enter(scan, LA_SCAN_LOOKING);
		}
		else
		{
			if (la_window_is_empty(scan->base.window))
			{
				la_drop(scan);
				la_index_ahead_enter(scan, LA_SCAN_WATCHING);
			}
			return;
		}
	}
	if (la_window_wants_fill(scan->base.window) && !la_fill_can_wait(scan))
		(void) la_fill(scan);
}

/*
 * The scan goes in another direction than before, or for the first time.
 */
void
la_index_ahead_turn(LaIndexScan *scan, ScanDirection direction)
{
	if (scan->target.direction == NoMovementScanDirection)
		scan->target.base = direction;
	else
	{
		la_index_scan_runs(scan);
		la_seek_again(scan);
		la_window_elsewhere(scan->base.window);
		scan->replay_until = 0;
		/* A new scout need not seek: it begins where the scan does. */
		if (scan->is_at_end && scan->base.window == NULL)
		{
			scan->target.base = direction;
			scan->target.position = 0;
			scan->mark_position = 0;
			scan->reopen_at = 0;
		}
		if (scan->state != LA_SCAN_OUT)
			la_index_ahead_enter(scan, LA_SCAN_WATCHING);
		la_pace_turned(&scan->pace);
		scan->start_wanted = false;
	}
	scan->target.direction = direction;
	scan->step = (direction == scan->target.base) ? 1 : -1;
}

/*
 * The access method has no further entry in this direction.  A plan may have
 * scans of a thousand partitions, one after the other: what was needed to look
 * ahead goes now, unless the scan has shown that it is not over then, and it is
 * paused with the executor no more until it goes on.
 */
void
la_index_ahead_at_end(LaIndexScan *scan)
{
	la_seek_again(scan);
	scan->current = InvalidBlockNumber;
	scan->is_at_end = true;
	scan->start_wanted = false;
	if (scan->state != LA_SCAN_OUT)
		la_index_ahead_enter(scan, LA_SCAN_WATCHING);
	if (scan->is_repeated && !la_windows_are_scarce())
		return;
	scan->is_repeated = true;
	la_index_scan_rests(scan);
}

/*
 * The scan starts from the beginning, maybe with other keys: keep the window,
 * empty, and let the source start anew.
 */
void
la_index_ahead_restart(LaIndexScan *scan)
{
	if (scan->base.window == NULL)
		return;
	la_drop(scan);
	la_window_elsewhere(scan->base.window);
	LA_WITH_OWNER(scan->owner,
	{
		if (scan->scout)
			la_scout_close(scan->scout);
		if (scan->leaf_items)
			la_leaf_items_restart(scan->leaf_items);
	});
}

/*
 * The executor goes back to its caller, who may never come back: hold no pin.
 */
void
la_index_ahead_pause(LaIndexScan *scan)
{
	if (scan->base.window == NULL)
		return;
	la_window_pause(scan->base.window);
	LA_WITH_OWNER(scan->owner,
	{
		if (scan->scout)
			la_scout_pause(scan->scout);
		if (scan->leaf_items)
			la_leaf_items_pause(scan->leaf_items);
	});
}
