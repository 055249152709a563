/*-------------------------------------------------------------------------
 *
 * leaf_scan.c
 *	  Follows the leaf pages of a scan of a B-tree.
 *
 * An index scan waits twice: for the page of the table that an entry points to,
 * which index_scan.c looks ahead of, and for the leaf pages of the index
 * itself, which this file does.  An index-only scan and the index part of a
 * bitmap scan have little else to wait for.
 *
 * One LaLeafScan stands beside each LaIndexScan over a B-tree, and for each
 * bitmap index scan node over one.  B-tree
 * copies all matching entries of a leaf page when it comes to it and returns
 * them one by one, and what it has copied can be seen in the scan descriptor.
 * So it is known before a call whether the scan will need another page in it:
 * at the edge, that is when the entry returned last was the last of the page.
 * Calls at the edge come here; all others cost a comparison.
 *
 *		entries of page 31	[0] [1] [2] ... [364] [365]
 *														^ the edge
 *		la_leaf_scan_cross()	note what was read so far, and the time
 *								ask B-tree, which reads page 8
 *								was page 8 read, was it waited for?
 *								watch, or step on in the window and fill it
 *
 * The window is the same as that of table blocks, and so are the pace and the
 * methods; the source is leaf_walk.c.  Backward scans gain most: the pages of
 * an index built in one go lie in descending order then, which no kernel reads
 * ahead, and which a sorted window turns into a few large reads.
 *
 * Where damage is to be put up with leaf pages are left alone: the walk reads
 * pages of the level above that the query may never come to.  See
 * la_damage_is_accepted().
 *
 * index_scan.c passes over most calls of a scan that need not be looked at, but
 * over none that goes to another leaf page of the scan that is followed here
 * (la_leaf_may_skip()).
 *
 * Whom to follow?  If there is a scout for table blocks it is in front of the
 * query's own scan, and it is the one that waits for leaf pages.  So the scout
 * is followed from where it has caught up with the scan until it rests.  Where
 * both are on the same page, which is the rule, what is in front of the one is
 * in front of the other, and stays there.
 *
 * Between two leaf pages the query may read hundreds of pages of the table,
 * which take the place of other pages in shared buffers.  A leaf page that was
 * read there too early is gone when the scan comes to it; see la_leaf_bound().
 *
 * A bitmap index scan goes through its range in one call of the access method.
 * la_leaf_scan_bitmap() takes the same entries one by one.
 *
 * A parallel scan hands out its pages to several processes.  Each looks ahead
 * of all of them, because which it will get is not known; the pages it passes
 * over were somebody else's and not wasted.  Those between two pages that it
 * gets may be many, so a page is looked for in the whole window.  A process
 * that has been overtaken begins anew when it waits again, which it will not
 * while others look ahead far enough.  Whether the scan leaves out pages cannot
 * be seen, as others may have them; so it is always bound by the present value
 * of an IN-list.
 *
 * A scan by one process may pass over pages, too: where it finds nothing on
 * them B-tree goes on to the next, within one call.
 *
 * A page that was split since the walk has named it has a new neighbour, which
 * is not in the window.  The scan goes there and then on to what is in it.
 *
 * A scan with IN-lists, or a skip scan, descends again for the next value when
 * that is far away.  The move is not one to a neighbour then: beyond the window
 * that is dropped, and looking ahead begins again only when the scan goes from
 * neighbour to neighbour and waits; within it the pages between are wasted.
 *
 * A merge join sends the scan back to where it has marked it.  Until it is
 * where it was it goes over pages that it has just read, and the window waits.
 *
 * Copyright (c) 2026, the pg_lookahead authors
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "compat.h"
#include "by_address.h"
#include "method/method.h"
#include "settings.h"
#include "source/leaf_scan.h"
#include "source/scout.h"
#include "storage/bufpage.h"
#include "utils/memutils.h"
#include "utils/snapmgr.h"
#include "window/guard.h"
#include "window/uncounted.h"
#include "window/waits.h"

/* Moves to a neighbour in a row, before a scan that can jump is believed in. */
#define LA_MIN_ADJACENT		2

/* And before the values of its arrays are no bound any more. */
#define LA_ARRAY_ADJACENT	8

/* Neighbours in a row that nobody foresaw, before the window is given up. */
#define LA_MAX_UNFORESEEN	8

/* Parent pages that are read in one fill, but for where a walk begins. */
#define LA_PARENTS_OF_A_FILL	4

/* How many entries a page has goes by so many pages. */
#define LA_ENTRIES_OF_PAGES		8

/* Moves in a row without a read, after which all is taken for cached. */
#define LA_CACHED_AFTER		4

/*
 * A leaf page is to be used before the query has read this part of shared
 * buffers: the clock hand goes faster than pages come in.
 */
#define LA_FLOW_DIVISOR		8

/* Moves to another page, for which it is looked what was read. */
#define LA_FLOW_MOVES		4

int64		la_leaf_own_reads = 0;

/* Those of bitmap index scans, by their descriptors. */
static LaByAddress la_bitmaps;

static void la_leaf_scan_pause(LaFollowed *followed);
static void la_leaf_scan_resume(LaFollowed *followed,
								bool client_was_waited_for);
static void la_leaf_scan_finish(LaFollowed *followed);
static void la_leaf_scan_forget(LaFollowed *followed);

static const LaFollowedOps la_leaf_scan_ops = {
	.pause = la_leaf_scan_pause,
	.resume = la_leaf_scan_resume,
	.finish = la_leaf_scan_finish,
	.forget = la_leaf_scan_forget,
};

/*
 * Change the state; the only place that does.
 */
static void
la_leaf_enter(LaLeafScan *leaf, LaLeafState state)
{
	switch (state)
	{
		case LA_LEAF_WATCHING:
			Assert(leaf->base.window == NULL ||
				   la_window_is_empty(leaf->base.window));
			la_pace_stopped(&leaf->pace);
			break;
		case LA_LEAF_LOOKING:
			Assert(leaf->state == LA_LEAF_WATCHING ||
				   leaf->state == LA_LEAF_IDLE);
			Assert(leaf->base.window != NULL);
			break;
		case LA_LEAF_IDLE:
			Assert(leaf->state == LA_LEAF_LOOKING);
			la_pace_stopped(&leaf->pace);
			break;
		case LA_LEAF_OUT:
			leaf->desc = NULL;
			leaf->scout = NULL;
			break;
	}
	leaf->state = state;
}

/* -------------------------------------------------------------------------
 * Beginning and end
 * -------------------------------------------------------------------------
 */

/*
 * A bitmap index scan has its descriptor from the start of the query on.
 */
static void
la_leaf_note_bitmap(LaLeafScan *leaf, IndexScanDesc desc)
{
	la_by_address_put(&la_bitmaps, desc, leaf);
	leaf->bitmap_desc = desc;
}

static void
la_leaf_forget_bitmap(LaLeafScan *leaf)
{
	if (leaf->bitmap_desc != NULL)
		la_by_address_remove(&la_bitmaps, leaf->bitmap_desc, leaf);
	leaf->bitmap_desc = NULL;
}

/*
 * Are leaf pages of this index to be followed?
 */
bool
la_leaf_scan_is_wanted(Relation index)
{
	return la_leafscan && index->rd_rel->relam == BTREE_AM_OID;
}

/*
 * Start to follow the leaf pages that a scan node of a plan reads.  Everything
 * is allocated in the query's context.
 */
LaLeafScan *
la_leaf_scan_register(MemoryContext query_context, PlanState *node,
					  Relation index, IndexScanDesc *desc_ref,
					  LimitState *limit, bool is_plain)
{
	LaLeafScan *leaf = MemoryContextAllocZero(query_context,
											  sizeof(LaLeafScan));
	Relation	heap = ((ScanState *) node)->ss_currentRelation;

	leaf->base.ops = &la_leaf_scan_ops;
	leaf->base.node = node;
	leaf->base.index_oid = RelationGetRelid(index);
	leaf->base.heap_oid = heap ? RelationGetRelid(heap) : InvalidOid;
	leaf->base.reads_leaves = true;
	leaf->base.is_temporary = RelationUsesLocalBuffers(index);
	leaf->query_context = query_context;
	leaf->limit = limit;
	leaf->is_plain = is_plain;
	if (IsA(node, BitmapIndexScanState))
		la_leaf_note_bitmap(leaf, *desc_ref);
	return leaf;
}

/*
 * The leaf scan of a bitmap index scan's descriptor, or NULL.
 */
LaLeafScan *
la_leaf_scan_of_bitmap(IndexScanDesc desc)
{
	LaLeafScan *leaf = la_by_address_get(&la_bitmaps, desc);

	return leaf == NULL || leaf->state == LA_LEAF_OUT ? NULL : leaf;
}

/*
 * The work of looking ahead goes, with its memory.
 */
static void
la_leaf_work_forget(void *user)
{
	LaLeafScan *leaf = user;

	leaf->base.window = NULL;
	leaf->walk = NULL;
}

/*
 * Make what is needed to look ahead.
 */
static void
la_leaf_work_create(LaLeafScan *leaf, const LaMethod *method)
{
	Relation	index = leaf->desc->indexRelation;
	LaWindow   *window = la_window_open(leaf->query_context, index, method,
										&leaf->pace, &leaf->base.counters,
										la_leaf_work_forget, leaf);

	/* The guard of a scout may end an error; where the one is the other is. */
	window->is_sequence = true;
	leaf->walk = la_leaf_walk_create(window->context, index);
	leaf->base.window = window;
	leaf->base.method_name = method->name;
}

/*
 * From here on, count what is read for each leaf page; see la_leaf_bound().
 */
static inline void
la_leaf_begin_flow(LaLeafScan *leaf)
{
	leaf->moves = 0;
	leaf->flow_reads = pgBufferUsage.shared_blks_read;
}

/*
 * Forget what is in front of the scan, because it goes elsewhere.
 */
static void
la_leaf_drop(LaLeafScan *leaf)
{
	if (leaf->base.window != NULL)
	{
		la_window_drop(leaf->base.window, InvalidBlockNumber);
		la_leaf_walk_restart(leaf->walk);
	}
	leaf->unforeseen = 0;
	la_leaf_begin_flow(leaf);
	if (leaf->state != LA_LEAF_OUT)
		la_leaf_enter(leaf, LA_LEAF_WATCHING);
}

/*
 * The node's scan starts from the beginning, maybe with other keys.
 */
void
la_leaf_scan_restart(LaLeafScan *leaf, IndexScanDesc desc)
{
	la_followed_runs(&leaf->base);
	leaf->starts++;
	if (leaf->state == LA_LEAF_OUT)
		return;
	la_leaf_drop(leaf);
	la_window_elsewhere(leaf->base.window);
	leaf->desc = desc->xs_snapshot->snapshot_type == SNAPSHOT_MVCC ?
		desc : NULL;
	la_pace_restart(&leaf->pace, la_start_after,
					la_window_reach(leaf->base.window, la_max_distance),
					!la_direct_io());
	leaf->scout = NULL;
	leaf->direction = NoMovementScanDirection;
	leaf->adjacent = 0;
	leaf->has_read = false;
	leaf->cached = 0;
	leaf->quiet_reads = 0;
	leaf->start_wanted = false;
	leaf->place = leaf->mark_place = 0;
	leaf->replay_until = -1;
	leaf->row_seen = (LaRowSeen) {0};
	leaf->entries = leaf->npages = 0;
}

/*
 * The node's scan is marked here.
 */
void
la_leaf_scan_mark(LaLeafScan *leaf, IndexScanDesc desc)
{
	if (leaf->desc == desc)
		leaf->mark_place = leaf->place;
}

/*
 * The node's scan goes back to where it was marked.  So many pages on it is
 * where it is now, give or take one that is split meanwhile.
 */
void
la_leaf_scan_restore(LaLeafScan *leaf, IndexScanDesc desc)
{
	if (leaf->desc != desc || leaf->place == leaf->mark_place)
		return;
	leaf->replay_until = Max(leaf->replay_until, leaf->place);
	leaf->place = leaf->mark_place;
}

/*
 * Is a scan on the page of another one, or on the one before it?
 */
static bool
la_leaf_is_close(IndexScanDesc desc, IndexScanDesc other,
				 ScanDirection direction)
{
	const BTScanPosData *pos = &((BTScanOpaque) desc->opaque)->currPos;
	const BTScanPosData *goal = &((BTScanOpaque) other->opaque)->currPos;

	if (pos->currPage == InvalidBlockNumber ||
		goal->currPage == InvalidBlockNumber)
		return false;
	return pos->currPage == goal->currPage ||
		(ScanDirectionIsForward(direction) ?
		 pos->nextPage == goal->currPage : goal->nextPage == pos->currPage);
}

/*
 * Follow another scan of the same index, with the same keys: a scout's, or, if
 * that is NULL, the node's own.  What is in front of the one is in front of the
 * other, if that is where the one was.
 */
void
la_leaf_scan_follow(LaLeafScan *leaf, IndexScanDesc desc, const LaScout *scout)
{
	if (leaf->desc == NULL || leaf->desc == desc)
		return;
	if (la_leaf_is_close(desc, leaf->desc, leaf->direction))
	{
		/* Between them time has passed, and other blocks were read. */
		la_pace_interrupted(&leaf->pace);
		la_leaf_begin_flow(leaf);
	}
	else
	{
		la_leaf_drop(leaf);
		leaf->adjacent = 0;
	}
	leaf->desc = desc;
	leaf->scout = scout;
	leaf->row_seen.position = leaf->place;
}

/*
 * The scan has come to its end.  It may go on all the same (backward, or from
 * its start), and look ahead again.
 */
void
la_leaf_scan_rest(LaLeafScan *leaf)
{
	if (leaf->base.window == NULL)
		return;
	la_leaf_drop(leaf);
	la_window_close(leaf->base.window);
}

/*
 * The node is done with its scan.
 */
void
la_leaf_scan_end(LaLeafScan *leaf)
{
	if (leaf->base.window != NULL)
		la_window_close(leaf->base.window);
	la_leaf_enter(leaf, LA_LEAF_OUT);
}

/* -------------------------------------------------------------------------
 * Looking ahead
 * -------------------------------------------------------------------------
 */

typedef struct LaLeafFillCall
{
	LaLeafScan *leaf;
	LaFill		result;
} LaLeafFillCall;

static void
la_leaf_fill_body(void *arg)
{
	LaLeafFillCall *call = arg;
	LaLeafScan *leaf = call->leaf;
	MemoryContext save = MemoryContextSwitchTo(leaf->base.window->context);

	la_uncounted_begin(leaf->desc->indexRelation);
	call->result = la_window_fill(leaf->base.window, &leaf->walk->source);
	la_uncounted_end();
	MemoryContextSwitchTo(save);
}

/*
 * How many more leaf pages may the executor ask for?  The page that the scan
 * is on may have few entries for it; so may those to come, but then it is
 * asked again before they are at an end.  Where entries have no rows, as in
 * front of a queue, as many pages may follow as have come since the last row.
 */
static uint64
la_leaf_pages_left(LaLeafScan *leaf, const BTScanPosData *pos)
{
	uint64		entries = la_entries_left(leaf->limit);
	uint64		on_a_page = pos->lastItem - pos->firstItem + 1;
	uint64		rowless = 0;

	if (entries == PG_UINT64_MAX)
		return entries;
	if (leaf->scout != NULL)
	{
		const LaScoutTarget *target = leaf->scout->target;
		int64		lead = leaf->scout->position - target->position;

		/* Of what it is to name in this fill, rows or not. */
		entries = target->entries_left;
		entries -= Min(entries, (uint64) Max(lead, -lead));
	}
	else
		rowless = la_since_row(&leaf->row_seen, leaf->limit, leaf->place);
	on_a_page = Max(on_a_page, (uint64) leaf->entries);
	return Max(entries / on_a_page + 1, rowless);
}

/*
 * How far ahead are leaf pages still in shared buffers when the scan comes to
 * them?  What the query has read for each page lately tells.  Other methods
 * leave them in the kernel's page cache, or in a ring of their own.
 */
static void
la_leaf_bound(LaLeafScan *leaf)
{
	int64		reads = pgBufferUsage.shared_blks_read - leaf->flow_reads;
	int64		room = (int64) NBuffers / LA_FLOW_DIVISOR *
		leaf->moves / Max(reads, 1);

	if (leaf->moves < LA_FLOW_MOVES)
		return;
	la_pace_bound(&leaf->pace, (int) Min(room, PG_INT32_MAX));
	la_leaf_begin_flow(leaf);
}

/*
 * Fill the window.  Buffer hits are put back: the scan would not have had them.
 */
static void
la_leaf_fill(LaLeafScan *leaf)
{
	BTScanOpaque scan = (BTScanOpaque) leaf->desc->opaque;
	LaLeafFillCall call = {leaf, LA_FILL_OK};
	int64		reads;

	if (!la_guard_is_possible())
		return;
	if (la_damage_is_accepted())
	{
		la_leaf_drop(leaf);
		la_leaf_enter(leaf, LA_LEAF_OUT);
		return;
	}

	CHECK_FOR_INTERRUPTS();
	if (leaf->base.window->method->id == LA_METHOD_AIO)
		la_leaf_bound(leaf);
	leaf->walk->scan = scan;
	leaf->walk->direction = leaf->direction;
	leaf->walk->from = scan->currPos.currPage;
	leaf->walk->ignores_arrays = leaf->adjacent >= LA_ARRAY_ADJACENT &&
		leaf->desc->parallel_scan == NULL;
	leaf->walk->pages_left = la_leaf_pages_left(leaf, &scan->currPos);
	leaf->walk->ahead = leaf->base.window->nahead;
	leaf->walk->parents_left = LA_PARENTS_OF_A_FILL;

	reads = la_blocks_read();
	if (!la_guard_run_once(la_leaf_fill_body, &call))
	{
		la_leaf_enter(leaf, LA_LEAF_OUT);
		la_window_fail(leaf->base.window);
	}
	else if (call.result == LA_FILL_IDLE)
		la_leaf_enter(leaf, LA_LEAF_IDLE);
	la_leaf_own_reads += la_blocks_read() - reads;
	la_sleeps_are_stale = true;
}

/*
 * It is wanted, but does not begin: a trial would measure nothing.
 */
static void
la_leaf_not_now(LaLeafScan *leaf)
{
	leaf->start_wanted = false;
	la_pace_stopped(&leaf->pace);
}

/*
 * Begin to look ahead, if there is a method.
 */
static void
la_leaf_start(LaLeafScan *leaf)
{
	if (!la_guard_is_possible())
	{
		la_leaf_not_now(leaf);
		return;
	}
	if (leaf->base.window == NULL)
	{
		Relation	index = leaf->desc->indexRelation;
		EState	   *estate = leaf->base.node->state;
		const LaMethod *method = leaf->desc->parallel_scan != NULL ?
			la_method_for(index, estate, NULL) :
			la_leaf_method_for(index, estate);

		if ((method->id == LA_METHOD_NONE && la_method != LA_METHOD_NONE) ||
			!leaf->is_plain || la_damage_is_accepted())
		{
			la_leaf_enter(leaf, LA_LEAF_OUT);
			return;
		}
		if (!la_window_is_possible(&leaf->base.counters))
		{
			la_leaf_not_now(leaf);
			return;
		}
		la_leaf_work_create(leaf, method);
		leaf->base.counters.scans_total = 1;
	}
	leaf->start_wanted = false;
	leaf->has_read = true;
	leaf->quiet_reads = 0;
	la_leaf_enter(leaf, LA_LEAF_LOOKING);
	la_leaf_fill(leaf);
}

/*
 * May the scan jump, from one value of an IN-list to the next?
 */
static inline bool
la_leaf_has_arrays(const LaLeafScan *leaf)
{
	return ((BTScanOpaque) leaf->desc->opaque)->numArrayKeys > 0;
}

/*
 * The scan has come to another page while a window is open.  Returns false if
 * the window says nothing of where it is.
 */
static bool
la_leaf_step(LaLeafScan *leaf, BlockNumber blkno, bool is_adjacent)
{
	LaWindow   *window = leaf->base.window;
	bool		is_parallel = leaf->desc->parallel_scan != NULL;
	LaStep		step;

	/* Nobody reads what an IN-list jumps over. */
	window->passing_is_use = is_adjacent || !la_leaf_has_arrays(leaf);
	step = la_window_step(window, blkno);
	if (step == LA_STEP_MATCHED)
		leaf->unforeseen = 0;
	else if (step == LA_STEP_IGNORED && leaf->place <= leaf->replay_until)
		return false;
	else if (step == LA_STEP_EMPTY || !is_adjacent || is_parallel ||
			 ++leaf->unforeseen > LA_MAX_UNFORESEEN)
	{
		/* It has jumped, or overtaken us. */
		if (is_parallel || (!is_adjacent && window->passing_is_use))
			la_window_pass_all(window);
		else if (!is_adjacent)
			la_window_elsewhere(window);
		la_leaf_drop(leaf);
		return false;
	}
	return true;
}

/*
 * Look further ahead, if it is time to, and of use.
 */
static void
la_leaf_go_on(LaLeafScan *leaf)
{
	LaWindow   *window = leaf->base.window;

	if (leaf->state == LA_LEAF_IDLE)
	{
		if (leaf->start_wanted)
		{
			leaf->start_wanted = false;
			la_leaf_enter(leaf, LA_LEAF_LOOKING);
		}
		else if (la_window_is_empty(window))
			la_leaf_drop(leaf);
	}
	if (leaf->state == LA_LEAF_LOOKING && la_window_wants_fill(window))
		la_leaf_fill(leaf);
}

/* -------------------------------------------------------------------------
 * Watching
 * -------------------------------------------------------------------------
 */

/* What was seen when the scan went to another page. */
typedef struct LaCrossing
{
	bool		timed;
	bool		missed;			/* the page was read */
	bool		slept;			/* the process may have slept for it */
	bool		waited;			/* it has */
	int64		nreads;
	int64		ns;
} LaCrossing;

/*
 * Tell the pace what was met.  Returns true if it wants look-ahead to change,
 * after a trial.
 */
static bool
la_leaf_tell_pace(LaLeafScan *leaf, const LaCrossing *crossing)
{
	int			nreads = leaf->state == LA_LEAF_LOOKING ?
		la_window_reads(leaf->base.window, crossing->nreads) :
		(int) crossing->nreads;

	return nreads > 0 &&
		la_pace_read(&leaf->pace, nreads, crossing->waited) &&
		la_pace_clock(&leaf->pace, la_wall_ns(), la_busy_ns());
}

static void
la_leaf_judge_looking(LaLeafScan *leaf, const LaCrossing *crossing)
{
	bool		idle = la_leaf_tell_pace(leaf, crossing);

	if (la_window_met(leaf->base.window, crossing->missed, crossing->waited) ||
		idle)
		la_leaf_enter(leaf, LA_LEAF_IDLE);
}

static void
la_leaf_judge_watching(LaLeafScan *leaf, const LaCrossing *crossing)
{
	if (!crossing->missed)
	{
		la_pace_passed(&leaf->pace);
		if (leaf->cached < LA_CACHED_AFTER && ++leaf->cached == LA_CACHED_AFTER)
			leaf->has_read = false;
		return;
	}
	leaf->cached = 0;
	leaf->has_read = true;
	/* The kernel reads ahead piece by piece; one wait for each means little. */
	if (crossing->slept)
		leaf->quiet_reads = Min(leaf->quiet_reads, 2 * LA_LEAF_QUIET_AFTER) / 2;
	else
		leaf->quiet_reads++;
	if (crossing->nreads == 1)
		la_pace_saw_read(&leaf->pace, crossing->waited);
	if (la_leaf_tell_pace(leaf, crossing))
		leaf->start_wanted = true;
	if (la_pace_watch(&leaf->pace, crossing->waited))
		leaf->start_wanted = true;
}

/*
 * May the scan be believed to go on to the neighbours of its page?
 */
static bool
la_leaf_is_steady(const LaLeafScan *leaf)
{
	return leaf->adjacent >= LA_MIN_ADJACENT || la_pace_at_once(&leaf->pace) ||
		!la_leaf_has_arrays(leaf);
}

/*
 * The scan is on another leaf page now.
 */
static void
la_leaf_moved(LaLeafScan *leaf, ScanDirection direction, bool is_adjacent,
			  const LaCrossing *crossing)
{
	BlockNumber blkno = ((BTScanOpaque) leaf->desc->opaque)->currPos.currPage;
	bool		is_foreseen;

	if (unlikely(direction != leaf->direction))
	{
		la_leaf_drop(leaf);
		la_window_elsewhere(leaf->base.window);
		if (leaf->direction != NoMovementScanDirection)
		{
			la_pace_turned(&leaf->pace);
			leaf->start_wanted = false;
		}
		leaf->direction = direction;
	}
	leaf->adjacent = is_adjacent ?
		Min(leaf->adjacent + 1, LA_ARRAY_ADJACENT) : 0;
	leaf->moves++;
	if (leaf->has_read)
		la_pace_moved(&leaf->pace, blkno);
	if (leaf->state == LA_LEAF_WATCHING)
	{
		la_leaf_judge_watching(leaf, crossing);
		if (leaf->start_wanted || la_pace_at_once(&leaf->pace))
		{
			if (la_leaf_is_steady(leaf))
				la_leaf_start(leaf);
			else
				la_leaf_not_now(leaf);
		}
		return;
	}
	is_foreseen = la_leaf_step(leaf, blkno, is_adjacent);
	if (leaf->state == LA_LEAF_LOOKING)
		la_leaf_judge_looking(leaf, crossing);
	else
		la_leaf_judge_watching(leaf, crossing);
	if (is_foreseen)
		la_leaf_go_on(leaf);
}

/*
 * Ask B-tree for an entry that is on another page than the last one: returns
 * exactly what it returns.
 */
pg_noinline bool
la_leaf_scan_cross(LaLeafScan *leaf, amgettuple_function ask,
				   ScanDirection direction)
{
	IndexScanDesc desc = leaf->desc;
	BTScanPos	pos = &((BTScanOpaque) desc->opaque)->currPos;
	BlockNumber from = pos->currPage;
	BlockNumber right = pos->nextPage;
	int			nentries = pos->lastItem - pos->firstItem + 1;
	int64		reads = la_blocks_read();
	LaCrossing	crossing = {0};
	bool		is_quiet = la_leaf_is_quiet(leaf);
	instr_time	start;
	bool		found;

	if (unlikely(leaf->pace.is_paused))
		la_pace_resume(&leaf->pace, la_wall_ns(), la_busy_ns());

	/*
	 * Of a quiet scan it is enough to hear that it has slept at all: asking
	 * costs a system call.
	 */
	crossing.timed = leaf->has_read;
	if (crossing.timed)
	{
		if (!is_quiet)
			(void) la_has_slept();
		INSTR_TIME_SET_CURRENT(start);
	}
	found = ask(desc, direction);
	if (!found)
	{
		/* Others have what this process has not come to. */
		if (desc->parallel_scan != NULL && leaf->base.window != NULL)
			la_window_pass_all(leaf->base.window);
		la_leaf_drop(leaf);
		return false;
	}
	if (pos->currPage == from)
		return true;

	leaf->place++;
	leaf->npages = Min(leaf->npages + 1, LA_ENTRIES_OF_PAGES);
	leaf->entries += (nentries - leaf->entries) / leaf->npages;
	crossing.nreads = la_blocks_read() - reads;
	crossing.missed = crossing.nreads > 0;
	if (crossing.timed)
	{
		instr_time	now;

		INSTR_TIME_SET_CURRENT(now);
		INSTR_TIME_SUBTRACT(now, start);
		crossing.ns = (int64) (INSTR_TIME_GET_DOUBLE(now) * 1e9);
		if ((crossing.missed || leaf->state == LA_LEAF_LOOKING) &&
			crossing.ns >= LA_WAIT_MIN_NS)
			crossing.slept = la_has_slept();
		crossing.waited = crossing.slept && !is_quiet;
	}
	else if (crossing.missed)
		la_sleeps_are_stale = true;
	la_leaf_moved(leaf, direction,
				  desc->parallel_scan != NULL ||
				  (ScanDirectionIsForward(direction) ?
				   right == pos->currPage : pos->nextPage == from),
				  &crossing);
	return true;
}

/*
 * The next entry of a bitmap index scan: what amgettuple does for other scans.
 */
static bool
la_bitmap_next(IndexScanDesc desc, ScanDirection direction)
{
	BTScanOpaque so = (BTScanOpaque) desc->opaque;

	if (!BTScanPosIsValid(so->currPos) && !la_bt_start_arrays(desc, direction))
		return false;
	do
	{
		if (BTScanPosIsValid(so->currPos) ?
			_bt_next(desc, direction) : _bt_first(desc, direction))
			return true;
	} while (so->numArrayKeys > 0 && la_bt_next_arrays(desc, direction));
	return false;
}

/*
 * Put all entries of a bitmap index scan into a bitmap, as the B-tree's own
 * function does.  Returns their number.
 */
int64
la_leaf_scan_bitmap(LaLeafScan *leaf, IndexScanDesc desc, TIDBitmap *tbm)
{
	BTScanPos	pos = &((BTScanOpaque) desc->opaque)->currPos;
	int64		nentries = 0;

	la_leaf_scan_restart(leaf, desc);
	while (la_leaf_scan_ask(leaf, desc, la_bitmap_next, ForwardScanDirection))
	{
		tbm_add_tuples(tbm, &desc->xs_heaptid, 1, false);
		nentries++;

		/* The rest of the page. */
		while (pos->itemIndex < pos->lastItem)
		{
			pos->itemIndex++;
			tbm_add_tuples(tbm, &pos->items[pos->itemIndex].heapTid, 1, false);
			nentries++;
		}
	}
	if (leaf->starts == 1 || la_windows_are_scarce())
		la_leaf_scan_rest(leaf);
	if (leaf->base.window == NULL)
		la_followed_rests(&leaf->base);
	return nentries;
}

/* -------------------------------------------------------------------------
 * What else happens to a scan
 * -------------------------------------------------------------------------
 */

/*
 * The executor goes back to its caller, who may never come back: hold no pin.
 * It goes on with the scan of its node, or is started again.
 */
static void
la_leaf_scan_pause(LaFollowed *followed)
{
	LaLeafScan *leaf = (LaLeafScan *) followed;

	if (leaf->base.window != NULL)
		la_window_pause(leaf->base.window);
	if (la_pace_run_ends(&leaf->pace))
		la_pace_pause(&leaf->pace, la_wall_ns(), la_busy_ns());
	la_followed_rests(&leaf->base);
}

/*
 * The executor is back.  Pages are counted by call, so what was read meanwhile
 * is none of them.
 */
static void
la_leaf_scan_resume(LaFollowed *followed, bool client_was_waited_for)
{
	LaLeafScan *leaf = (LaLeafScan *) followed;

	if (client_was_waited_for && !leaf->pace.is_paused)
		la_pace_interrupted(&leaf->pace);
}

/*
 * The query ends in order: end the work.  The counters stay until its memory
 * goes.
 */
static void
la_leaf_scan_finish(LaFollowed *followed)
{
	la_leaf_scan_end((LaLeafScan *) followed);
}

/*
 * The query's memory goes, in order or not: nothing may point to the scan.
 */
static void
la_leaf_scan_forget(LaFollowed *followed)
{
	LaLeafScan *leaf = (LaLeafScan *) followed;

	la_leaf_forget_bitmap(leaf);
	leaf->desc = NULL;
	leaf->scout = NULL;
}
