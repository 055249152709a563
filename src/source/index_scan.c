/*-------------------------------------------------------------------------
 *
 * index_scan.c
 *	  Follows the index scans of plans.
 *
 * One LaIndexScan stands beside an LaIndexNode, for one IndexScan or
 * IndexOnlyScan node of a running plan, when something was read between two of
 * its scan's entries; see index_node.c.
 *
 *		executor		la_index_scan_next()			what it does
 *		asks for entry 1	entry is on block 40		a switch
 *		fetches block 40								the gap: waits?
 *		asks for entry 2	observe the gap				pace: watch
 *							entry is on block 91		a switch
 *		...
 *		asks for entry 9	observe; the pace says go	scout and window open,
 *							entry is on block 17		window filled, reads
 *														started
 *		fetches block 17								overlaps with the reads
 *
 * The gap is the time between our return and the next call.  The executor
 * fetches the table block in it, and does what the rest of the plan does with
 * the row.  Whether it waited for storage there is told by three things: the
 * count of blocks read by this backend moved, which costs nothing to see; the
 * gap was long; and the kernel put the process to sleep in it, which costs a
 * system call, getrusage().  A block that is in the kernel's page cache is read
 * in a few microseconds and without sleeping, and is no wait.  So a scan of
 * cached data pays for comparing two counters per table block, and one that
 * reads from the page cache for looking at the clock.  Where most blocks are in
 * shared buffers that would be dear, so the clock is left alone there, and the
 * kernel is asked for each block that was read.
 *
 * Not every call is looked at.  If nothing was read for a while, if what is
 * read comes without a wait, if few blocks are read, if the kernel reads ahead
 * and look-ahead will not begin before a trial, or if that has shown that the
 * kernel does better, most calls go straight to the access method (la_skip()).
 *
 * While looking ahead there may be waits without a read: for one of ours that
 * is still in flight.
 *
 * When the scan is not followed, see la_bind() there: non-MVCC snapshots (their
 * pins and rechecks have rules of their own), system catalogs, table access
 * methods other than heap (a TID need not be a block), SERIALIZABLE (reading an
 * index takes predicate locks; query.c).
 *
 * Mark and restore (merge joins) send the scan back over entries that it has
 * returned before.  Their blocks were just read; they are counted through and
 * ignored until the scan is where it was.
 *
 * What a scan that waits gets is made and led by index_ahead.c.
 *
 * Copyright (c) 2026, the pg_lookahead authors
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/parallel.h"
#include "access/xact.h"
#include "common/pg_prng.h"
#include "compat.h"
#include "method/method.h"
#include "settings.h"
#include "source/index_ahead.h"
#include "utils/memutils.h"
#include "window/guard.h"
#include "window/waits.h"

/*
 * Blocks read without a wait (from the kernel's page cache) after which a scan
 * is quiet: as many calls then go by until the next look, twice as many until
 * that after, and so on.  Each scan of the session that becomes quiet halves
 * what the next ones need, down to LA_QUIET_LEAST, until one waits.  So where
 * all is in the page cache a short scan is not watched to its end.
 */
#define LA_QUIET_AFTER		32
#define LA_QUIET_LEAST		8

static int	la_quiet_after = LA_QUIET_AFTER;

/* The same while a trial that look-ahead has lost holds it back. */
#define LA_LOST_SKIP		64

/*
 * Blocks in a row that were in shared buffers and not timed, of a scan that has
 * read others, after which LA_SPARSE_SKIP calls go by between two looks; until
 * so many blocks were read meanwhile, or one that was waited for.
 */
#define LA_SPARSE_AFTER		4
#define LA_SPARSE_SKIP		8
#define LA_SPARSE_READS		3

/*
 * Calls that go by between two looks at a scan that the kernel reads ahead for;
 * fewer if more blocks than this were read in them.  A change of its pattern is
 * to be noticed soon.
 */
#define LA_HELPED_SKIP		32
#define LA_HELPED_FEW		8

/* Looks in a row that found it waiting, before it is seen closely again. */
#define LA_HELPED_WAITS		3

/* A wait that was not timed takes as long, in nanoseconds, about. */
#define LA_USUAL_WAIT_NS	100000

/* Of a dear scan's account this part is forgotten at each start. */
#define LA_DEAR_DIVISOR		32

/* Gaps in a row that read nothing, after which the clock is not looked at. */
#define LA_HITS_UNCLOCKED	2

/*
 * Blocks in a row that were in shared buffers, after which we look at one call
 * of LA_CACHED_SKIP only, and at one of twice as many each time that is still
 * so, up to LA_MAX_SKIP.
 */
#define LA_CACHED_AFTER		32
#define LA_CACHED_SKIP		32
#define LA_MAX_SKIP			256

/* The same for a scan that has read something. */
#define LA_CACHED_LATER		256

/*
 * Calls of a dear access method that are all timed; then one of as many on the
 * average, however often the scan is started.
 */
#define LA_AM_SAMPLE		16

static void la_index_scan_pause(LaFollowed *followed);
static void la_index_scan_resume(LaFollowed *followed,
								 bool client_was_waited_for);
static void la_index_scan_finish(LaFollowed *followed);

static const LaFollowedOps la_index_scan_ops = {
	.pause = la_index_scan_pause,
	.resume = la_index_scan_resume,
	.finish = la_index_scan_finish,
};

/*
 * Make what follows the scan of a node.  Everything is allocated in the query's
 * context.
 */
LaIndexScan *
la_index_scan_create(MemoryContext query_context, PlanState *node,
					 Relation index, LimitState *limit)
{
	LaIndexScan *scan = MemoryContextAllocZero(query_context,
											   sizeof(LaIndexScan));
	Relation	heap = ((ScanState *) node)->ss_currentRelation;

	scan->base.ops = &la_index_scan_ops;
	scan->base.node = node;
	scan->base.index_oid = RelationGetRelid(index);
	scan->base.heap_oid = RelationGetRelid(heap);
	scan->base.is_temporary = RelationUsesLocalBuffers(heap);
	scan->limit = limit;
	scan->query_context = query_context;
	scan->target.index_only = IsA(node, IndexOnlyScanState);
	scan->quiet_after = LA_QUIET_AFTER;
	return scan;
}

/*
 * The node has a descriptor.
 */
void
la_index_scan_bind(LaIndexScan *scan, IndexScanDesc desc)
{
	scan->desc = desc;
	scan->target.real = desc;
	scan->target.heap = desc->heapRelation;
	scan->target.am = la_index_am_of(desc->indexRelation);
	scan->is_dear = scan->needs_care = scan->target.am->is_dear;
	scan->amgettuple = scan->target.am->orig.amgettuple;
}

/* -------------------------------------------------------------------------
 * Watching
 * -------------------------------------------------------------------------
 */

/*
 * Are the blocks that the scan reads in the kernel's page cache?
 */
static inline bool
la_is_quiet(const LaIndexScan *scan)
{
	return scan->quiet_reads >= scan->quiet_after;
}

/*
 * While watching: is the block that the scan has come to in shared buffers?
 * Then what is waited for is the rest of the plan's.
 */
static bool
la_is_resident(const LaIndexScan *scan)
{
	Relation	heap = scan->target.heap;

	return scan->state == LA_SCAN_WATCHING && !RelationUsesLocalBuffers(heap) &&
		la_block_is_resident(la_rel_locator(heap), MAIN_FORKNUM,
							 scan->current);
}

/*
 * Watch the scan closely, from now on or again.
 */
static inline void
la_end_quiet(LaIndexScan *scan)
{
	scan->quiet_reads = 0;
	scan->quiet_skip = scan->quiet_after;
}

/*
 * A scan that is being watched has waited for a block.
 */
static inline void
la_saw_wait(LaIndexScan *scan)
{
	scan->has_waited = true;
	scan->quiet_after = la_quiet_after = LA_QUIET_AFTER;
	la_end_quiet(scan);
}

/*
 * It has read blocks without a wait.
 */
static inline void
la_saw_no_wait(LaIndexScan *scan, int64 nreads)
{
	bool		was_quiet = la_is_quiet(scan);

	scan->quiet_reads = (int) Min(scan->quiet_reads + nreads, LA_QUIET_AFTER);
	if (was_quiet || !la_is_quiet(scan))
		return;
	scan->quiet_sleeps = la_last_sleeps;
	if (scan->quiet_after == la_quiet_after)
		la_quiet_after = Max(la_quiet_after / 2, LA_QUIET_LEAST);
}

/*
 * The scan ends, starts anew, or the executor goes.  If it became quiet early,
 * and this process has slept since, that may have been too early: whatever it
 * has slept for, and whoever has asked since.
 */
static inline void
la_leave_quiet(LaIndexScan *scan)
{
	if (scan->base.runs && scan->quiet_after < LA_QUIET_AFTER &&
		la_is_quiet(scan) && la_sleeps() != scan->quiet_sleeps)
		la_saw_wait(scan);
}

static inline void
la_open_gap(LaIndexScan *scan)
{
	scan->gap_open = true;
	scan->gap_reads = la_blocks_read();
	scan->gap_timed = scan->has_read;
	scan->gap_is_others = scan->is_dear && scan->has_read &&
		la_is_resident(scan);

	if (!scan->gap_timed || scan->gap_is_others)
		return;

	/*
	 * Where most blocks are in shared buffers the clock is not looked at, which
	 * costs more than to ask who slept when something was read.
	 */
	scan->gap_clocked = !scan->gap_is_helped &&
		(scan->hits < LA_HITS_UNCLOCKED || scan->is_dear ||
		 scan->state != LA_SCAN_WATCHING);

	/*
	 * What was slept before, for an index page, say, is not this block's.  Of
	 * a quiet scan it is enough to hear that it has slept at all, and of one
	 * that is helped that it has since we asked last, unless it has: then it
	 * must be seen whether it does so at each block.
	 */
	if (la_sleeps_are_stale ||
		(scan->gap_is_helped ? scan->helped_waits > 0 :
		 !la_is_quiet(scan) && scan->gap_reads != scan->reads_seen))
		(void) la_has_slept();
	if (scan->gap_clocked)
		INSTR_TIME_SET_CURRENT(scan->gap_start);
}

/*
 * A scan that the kernel reads ahead for has read a block.  Does it really?
 */
static inline void
la_judge_help(LaIndexScan *scan, bool waited)
{
	scan->helped_waits = waited ? scan->helped_waits + 1 : 0;
	if (scan->helped_waits >= LA_HELPED_WAITS)
	{
		scan->helped_waits = 0;
		la_pace_doubt(&scan->pace);
	}
}

/*
 * The executor is back from the block that the scan switched to last: what
 * did it meet there?
 */
static pg_noinline void
la_judge_gap(LaIndexScan *scan)
{
	bool		missed = la_blocks_read() != scan->gap_reads;
	bool		is_vague = la_is_quiet(scan) && !scan->gap_clocked;
	bool		slept = false;
	bool		waited;
	bool		turn = false;
	int			nreads;
	int64		ns = 0;

	if (unlikely(scan->pace.is_paused))
		la_pace_resume(&scan->pace, la_wall_ns(), la_busy_ns());
	scan->hits = missed ? 0 : Min(scan->hits + 1, LA_HITS_UNCLOCKED);
	if (scan->gap_timed && scan->gap_clocked)
	{
		instr_time	now;

		INSTR_TIME_SET_CURRENT(now);
		INSTR_TIME_SUBTRACT(now, scan->gap_start);
		ns = (int64) (INSTR_TIME_GET_DOUBLE(now) * 1e9);
	}

	/*
	 * While looking ahead, a read in flight that was waited for is no miss.
	 * What the kernel was advised of is one.
	 */
	if (missed || (scan->state == LA_SCAN_LOOKING &&
				   scan->base.window->method->id != LA_METHOD_ADVICE))
		slept = (ns >= LA_WAIT_MIN_NS ||
				 (scan->gap_timed && !scan->gap_clocked)) && la_has_slept();
	waited = slept && !is_vague;
	if (waited && scan->state == LA_SCAN_WATCHING &&
		!(scan->is_dear && ParallelContextActive()))
		scan->wait_ns += ns > 0 ? ns : LA_USUAL_WAIT_NS;

	/* While watching we look at some blocks only. */
	nreads = (int) (la_blocks_read() - scan->reads_told);
	if (scan->state == LA_SCAN_LOOKING)
		nreads = la_window_reads(scan->base.window, nreads);
	scan->reads_told = la_blocks_read();
	if (nreads > 0 &&
		la_pace_read(&scan->pace, nreads, waited) &&
		la_pace_clock(&scan->pace, la_wall_ns(), la_busy_ns()))
	{
		if (scan->state == LA_SCAN_LOOKING)
			la_index_ahead_enter(scan, LA_SCAN_IDLE);
		else
		{
			turn = true;
			if (!scan->is_dear)
				scan->wait_ns = Max(scan->wait_ns, scan->pace.waited_ns);
		}
	}

	if (scan->state == LA_SCAN_LOOKING)
	{
		if (la_window_met(scan->base.window, missed, waited))
			la_index_ahead_enter(scan, LA_SCAN_IDLE);
		return;
	}

	/* Of more than one, the rest of the plan may have read some. */
	if (la_blocks_read() - scan->gap_reads == 1)
	{
		if (scan->gap_is_helped)
			la_judge_help(scan, waited);
		else
			la_pace_saw_read(&scan->pace, waited);
	}

	/* From the first read on we want to know who sleeps. */
	if (missed)
	{
		/*
		 * Of a helped scan those that were skipped were no waits, either, if
		 * nobody has seen this process sleep since the last one.
		 */
		if (slept)
			la_saw_wait(scan);
		else
			la_saw_no_wait(scan, scan->gap_is_helped && !scan->has_waited &&
						   la_last_sleeps == scan->helped_sleeps ?
						   Min(nreads, LA_HELPED_SKIP) : 1);
		scan->helped_sleeps = la_last_sleeps;
		if (!scan->has_read)
		{
			scan->has_read = true;
			la_sleeps_are_stale = true;
		}
	}

	/* An index-only scan visits no table block where it reads none. */
	if (missed || !scan->target.index_only)
		scan->start_wanted = la_pace_watch(&scan->pace, waited);
	if (turn)
		scan->start_wanted = true;
}

/*
 * The executor is back.  Of cached data nothing but the number of switches
 * matters.
 */
static inline void
la_close_gap(LaIndexScan *scan)
{
	int			limit;

	scan->gap_open = false;
	if (unlikely(scan->gap_is_others))
	{
		scan->gap_is_others = false;
		scan->gap_clocked = false;
		scan->gap_reads = scan->reads_told = la_blocks_read();
	}
	if ((scan->gap_timed && scan->gap_clocked) ||
		la_blocks_read() != scan->gap_reads)
	{
		scan->cached = 0;
		if (la_blocks_read() != scan->gap_reads)
			la_leaf_wake(scan->target.leaf);
		la_judge_gap(scan);
		scan->reads_seen = la_blocks_read();
		return;
	}
	if (!scan->target.index_only)
		la_pace_passed(&scan->pace);
	scan->reads_seen = scan->gap_reads;
	limit = scan->gap_timed ? LA_CACHED_LATER : LA_CACHED_AFTER;
	if (scan->cached < limit && ++scan->cached == limit)
	{
		scan->has_read = false;
		scan->cached_skip = LA_CACHED_SKIP;
	}
}

/*
 * Look at one of this many calls only; the position is put right in advance.
 */
static inline void
la_skip(LaIndexScan *scan, int calls)
{
	scan->skip = scan->passed = calls - 1;
	scan->target.position += scan->skip * scan->step;
}

/*
 * Something happens to the scan: look at the next call.
 */
static inline void
la_unskip(LaIndexScan *scan)
{
	scan->target.position -= scan->skip * scan->step;
	scan->passed -= scan->skip;
	scan->skip = 0;
}

/*
 * Ask a dear access method and keep account of what it costs.
 */
static pg_noinline bool
la_ask_dear_am(LaIndexScan *scan, ScanDirection direction)
{
	int64		start;
	bool		found;

	if (scan->state != LA_SCAN_WATCHING || --scan->am_untimed > 0 ||
		ParallelContextActive())
		return scan->amgettuple(scan->desc, direction);

	start = la_cpu_ns();
	found = scan->amgettuple(scan->desc, direction);
	scan->am_cpu_ns += Max(scan->am_weight, 1) * (la_cpu_ns() - start);

	/* At random: the first call of a scan may be the dearest by far. */
	if (scan->am_timed < LA_AM_SAMPLE)
		scan->am_timed++;
	else
		scan->am_weight = scan->am_untimed = (int)
			pg_prng_uint64_range(&pg_global_prng_state, 1,
								 2 * LA_AM_SAMPLE - 1);
	return found;
}

/*
 * After calls that were not looked at: does the scan still read little, and
 * without waiting?  A single block that was read there tells as much as one
 * that is looked at, if the sleep was not somebody else's.
 */
static inline void
la_judge_skipped(LaIndexScan *scan)
{
	int64		nreads = la_blocks_read() - scan->reads_seen;
	bool		is_stale = la_sleeps_are_stale;
	bool		is_vague = is_stale || nreads > 1;
	bool		slept = nreads > 0 && la_has_slept();

	if (nreads > 0 && !is_vague)
		la_pace_saw_read(&scan->pace, slept);
	la_pace_went_by(&scan->pace, LA_SPARSE_SKIP - 1, false);
	if (slept && !is_vague)
		scan->start_wanted = la_pace_watch(&scan->pace, true);
	else
		la_pace_went_by(&scan->pace, 1, false);
	if (nreads == 0)
	{
		/*
		 * They are entries, some of which share a block, if they have one.
		 * The gap that opens now is to be the last that counts.
		 */
		scan->cached += scan->target.index_only ? scan->passed :
			scan->passed / 2;
		scan->cached = Min(scan->cached, LA_CACHED_LATER - 1);
		return;
	}
	scan->reads_seen += nreads;
	if (!slept)
		la_saw_no_wait(scan, nreads);
	else if (is_stale)
		la_end_quiet(scan);
	else
		la_saw_wait(scan);
	if (slept || nreads >= LA_SPARSE_READS)
		scan->cached = 0;
	else
		scan->cached = Min(scan->cached, LA_SPARSE_AFTER);
}

/*
 * The same of a quiet scan: it is watched closely again once it has slept, for
 * what it has read, that is.
 */
static inline void
la_judge_quiet(LaIndexScan *scan)
{
	if (la_blocks_read() == scan->reads_seen || la_sleeps_are_stale)
		return;
	scan->reads_seen = la_blocks_read();
	if (!la_has_slept())
		return;
	la_saw_wait(scan);
	scan->cached = 0;
}

/*
 * A scan is looked at by turns, one gap, then some calls that are not looked
 * at, if it goes over blocks that are in the kernel's page cache, or that the
 * kernel reads ahead, or does so better than we, or if it reads few of its
 * blocks.  Returns how many calls those are and the next, or 0.
 */
static inline int
la_turn_skip(LaIndexScan *scan)
{
	bool		has_lost = la_pace_has_lost(&scan->pace);
	bool		is_quiet = la_is_quiet(scan);
	bool		is_sparse = scan->cached >= LA_SPARSE_AFTER;
	bool		is_helped;
	int			nskip;

	if (scan->is_dear)
		return 0;
	is_helped = !has_lost && !is_quiet && la_pace_is_helped(&scan->pace);
	if (!has_lost && !is_quiet && !is_helped && !is_sparse)
	{
		scan->skip_turn = false;
		return 0;
	}
	scan->skip_turn = !scan->skip_turn;
	if (!scan->skip_turn)
	{
		scan->gap_is_helped = is_helped;
		scan->helped_skip =
			la_blocks_read() - scan->reads_seen > LA_HELPED_FEW ?
			LA_HELPED_FEW : LA_HELPED_SKIP;
		if (has_lost || is_helped)
			return 0;
		if (!is_quiet)
			la_judge_skipped(scan);
		else if (is_sparse)
			la_judge_quiet(scan);
		return 0;
	}
	if (has_lost)
		nskip = LA_LOST_SKIP;
	else if (is_quiet)
	{
		nskip = scan->quiet_skip;
		if (!la_pace_is_tried(&scan->pace))
			scan->quiet_skip = Min(scan->quiet_skip * 2, LA_MAX_SKIP);
	}
	else if (is_helped)
		nskip = Max(scan->helped_skip, LA_HELPED_FEW);
	else
		nskip = LA_SPARSE_SKIP;
	nskip = la_leaf_may_skip(scan->target.leaf, scan->desc,
							 scan->target.direction, nskip);
	scan->skip_turn = nskip > 1;
	return nskip;
}

/*
 * Look ahead from here on, if that is possible.  When the scan is watched again
 * later, we want to know who sleeps.
 */
static void
la_start(LaIndexScan *scan)
{
	scan->start_wanted = false;
	if (!la_index_ahead_start(scan))
	{
		la_pace_stopped(&scan->pace);
		return;
	}
	scan->has_read = true;
	scan->quiet_after = LA_QUIET_AFTER;
	la_end_quiet(scan);
}

/*
 * The scan has come to another table block.
 */
static pg_noinline void
la_switch(LaIndexScan *scan, BlockNumber blkno)
{
	int			nskip;

	scan->current = blkno;
	scan->gap_is_helped = false;
	if (unlikely(scan->pace.is_paused))
		la_pace_resume(&scan->pace, la_wall_ns(), la_busy_ns());
	if (scan->has_read)
		la_pace_moved(&scan->pace, blkno);
	switch (scan->state)
	{
		case LA_SCAN_WATCHING:
			if (scan->start_wanted || la_pace_at_once(&scan->pace))
				la_start(scan);
			else if ((nskip = la_turn_skip(scan)) > 1)
			{
				la_pace_skips(&scan->pace, nskip);
				la_skip(scan, nskip);
				return;
			}
			else if (scan->start_wanted)
				la_start(scan);		/* by what was seen of those calls */
			break;
		case LA_SCAN_LOOKING:
		case LA_SCAN_IDLE:
			la_index_ahead_follow(scan, blkno);
			break;
		case LA_SCAN_OUT:
			return;
	}
	if (scan->state != LA_SCAN_OUT)
		la_open_gap(scan);
}

/*
 * A scan that reads nothing is looked at ever more rarely.  Returns how many
 * calls those are that are not to be looked at and the next, or 0.
 *
 * An index-only scan has no table blocks to count, so it may be left alone
 * early: for as many entries as it has returned.
 */
static inline int
la_cached_skip(LaIndexScan *scan)
{
	int			nskip = scan->cached_skip;

	if (scan->is_dear)
		return 0;
	if (scan->cached < LA_CACHED_AFTER)
		return scan->target.index_only ?
			(int) Min(scan->target.position, LA_MAX_SKIP) : 0;
	scan->cached_skip = Min(nskip * 2, LA_MAX_SKIP);
	return nskip;
}

/*
 * The access method has answered; see where the scan is now.
 */
static pg_noinline bool
la_arrive(LaIndexScan *scan, ScanDirection direction, bool found)
{
	BlockNumber blkno;
	int			nskip;

	if (unlikely(direction != scan->target.direction))
		la_index_ahead_turn(scan, direction);
	scan->target.position += scan->step;
	if (unlikely(!found))
	{
		la_index_ahead_at_end(scan);
		return false;
	}

	blkno = ItemPointerGetBlockNumber(&scan->desc->xs_heaptid);
	if (blkno == scan->current ||
		scan->target.position <= scan->replay_until)
		return true;

	if (unlikely(scan->is_at_end))
	{
		scan->is_at_end = false;
		la_index_scan_runs(scan);
	}

	/* A scan that has read nothing yet: all is cached, so far. */
	if (scan->state == LA_SCAN_WATCHING && !scan->has_read &&
		!la_pace_at_once(&scan->pace))
	{
		scan->current = blkno;
		scan->gap_open = true;
		scan->gap_timed = false;
		scan->gap_reads = la_blocks_read();
		nskip = la_cached_skip(scan);
		if (nskip > 1)
			la_skip(scan, la_leaf_may_skip(scan->target.leaf, scan->desc,
										   direction, nskip));
		return true;
	}

	la_switch(scan, blkno);
	return true;
}

/*
 * amgettuple while something is to be observed, or the access method to be
 * asked with care.
 */
static pg_noinline bool
la_next_with_care(LaIndexScan *scan, ScanDirection direction)
{
	bool		found;

	if (scan->is_away)
		la_index_scan_runs(scan);
	if (scan->gap_open)
		la_close_gap(scan);
	if (scan->is_dear)
		found = la_ask_dear_am(scan, direction);
	else
		found = la_index_scan_ask(scan, direction);
	return la_arrive(scan, direction, found);
}

/*
 * amgettuple of a scan that we follow: returns exactly what the access method
 * returns.
 *
 * For a scan of cached data this is all we cost, so the way through for
 * another entry on the same block is short.
 */
bool
la_index_scan_next(LaIndexScan *scan, ScanDirection direction)
{
	bool		found;

	if (scan->gap_open || scan->needs_care)
		return la_next_with_care(scan, direction);

	found = la_index_scan_ask(scan, direction);
	if (likely(found && direction == scan->target.direction &&
			   ItemPointerGetBlockNumber(&scan->desc->xs_heaptid) ==
			   scan->current))
	{
		scan->target.position += scan->step;
		return true;
	}
	return la_arrive(scan, direction, found);
}

/* -------------------------------------------------------------------------
 * What else happens to a scan
 * -------------------------------------------------------------------------
 */

/*
 * The executor is back and has called the scan.  Was the client waited for?
 */
static void
la_come_back(LaIndexScan *scan)
{
	bool		client_was_waited_for =
		scan->away_statement != GetCurrentStatementStartTimestamp();

	scan->is_away = false;
	scan->needs_care = scan->is_dear;
	la_index_scan_resume(&scan->base, client_was_waited_for);
	if (scan->target.leaf != NULL)
		scan->target.leaf->base.ops->resume(&scan->target.leaf->base,
											client_was_waited_for);
}

/*
 * The scan goes on after it has rested; see la_index_scan_pause(),
 * la_index_ahead_at_end() and la_index_scan_set_aside().  What was read
 * meanwhile is not its.
 */
void
la_index_scan_runs(LaIndexScan *scan)
{
	if (scan->base.runs)
		return;
	if (scan->target.leaf != NULL)
		la_followed_runs(&scan->target.leaf->base);
	la_followed_runs(&scan->base);
	if (scan->is_away)
	{
		la_come_back(scan);
		return;
	}
	scan->reads_told = scan->reads_seen = la_blocks_read();
	scan->away_reads = scan->reads_seen;
	if (!scan->pace.is_paused)
		la_pace_interrupted(&scan->pace);
	if (scan->target.leaf != NULL && !scan->target.leaf->pace.is_paused)
		la_pace_interrupted(&scan->target.leaf->pace);
}

/*
 * The scan rests: nothing is in front of it, and it is paused with the executor
 * no more until it goes on.
 */
void
la_index_scan_rests(LaIndexScan *scan)
{
	la_leave_quiet(scan);
	la_index_ahead_end(scan);
	la_followed_rests(&scan->base);
	if (scan->target.leaf != NULL)
	{
		la_leaf_scan_rest(scan->target.leaf);
		la_followed_rests(&scan->target.leaf->base);
	}
}

/*
 * amrescan: the scan starts from the beginning, maybe with other keys.
 */
void
la_index_scan_restart(LaIndexScan *scan)
{
	la_leave_quiet(scan);
	la_index_scan_runs(scan);
	la_index_ahead_restart(scan);
	if (scan->state != LA_SCAN_OUT)
		la_index_ahead_enter(scan, LA_SCAN_WATCHING);
	la_pace_restart(&scan->pace, la_start_after,
					la_window_reach(scan->base.window, la_max_distance),
					!la_direct_io());
	scan->target.position = 0;
	scan->target.is_further = false;
	scan->target.direction = NoMovementScanDirection;
	scan->current = InvalidBlockNumber;
	scan->mark_position = 0;
	scan->row_seen = (LaRowSeen) {0};
	scan->replay_until = 0;
	scan->reopen_at = 0;
	scan->gap_open = scan->gap_is_others = false;
	scan->is_at_end = false;
	scan->skip = scan->passed = 0;
	scan->skip_turn = false;
	scan->cached = 0;
	scan->has_read = scan->has_waited = false;
	scan->reads_told = la_blocks_read();
	scan->hits = 0;
	scan->quiet_after = scan->is_dear ? LA_QUIET_AFTER : la_quiet_after;
	la_end_quiet(scan);
	scan->start_wanted = false;
	scan->gap_is_helped = false;
	scan->helped_waits = 0;
	if (scan->is_dear)
	{
		scan->wait_ns -= scan->wait_ns / LA_DEAR_DIVISOR;
		scan->am_cpu_ns -= scan->am_cpu_ns / LA_DEAR_DIVISOR;
	}
	else
		scan->wait_ns = 0;
	if (scan->target.leaf != NULL)
		la_leaf_scan_restart(scan->target.leaf, scan->desc);
}

/*
 * The scan was not followed from its start.  Be where we would be if it had
 * been; its last entry is on a block, if it has returned one.
 */
void
la_index_scan_catch_up(LaIndexScan *scan, const LaIndexStart *start,
					   BlockNumber blkno)
{
	la_index_scan_restart(scan);
	scan->reads_told = start->reads;
	if (start->calls == 0)
		return;
	la_index_ahead_turn(scan, start->direction);
	scan->target.position = start->calls;
	scan->mark_position = start->mark_calls;
	scan->replay_until = start->replay_until;
	scan->current = blkno;
	scan->gap_open = blkno != InvalidBlockNumber;
	scan->gap_timed = false;
	scan->gap_reads = start->reads_first;
}

/*
 * After la_index_scan_catch_up(): the access method has just found another
 * entry, which is not among the calls.
 */
void
la_index_scan_go_on(LaIndexScan *scan, ScanDirection direction)
{
	if (scan->gap_open)
		la_close_gap(scan);
	(void) la_arrive(scan, direction, true);
}

/*
 * ammarkpos.
 */
void
la_index_scan_mark(LaIndexScan *scan)
{
	scan->mark_position = scan->target.position - scan->skip * scan->step;
	if (scan->target.leaf != NULL)
		la_leaf_scan_mark(scan->target.leaf, scan->desc);
}

/*
 * amrestrpos: the entries between the mark and here will be returned again.
 */
void
la_index_scan_restore(LaIndexScan *scan)
{
	la_index_scan_runs(scan);
	la_unskip(scan);
	scan->replay_until = Max(scan->replay_until, scan->target.position);
	scan->target.position = scan->mark_position;
	scan->gap_open = false;
	if (scan->target.leaf != NULL)
		la_leaf_scan_restore(scan->target.leaf, scan->desc);
}

/*
 * The scan has just been restarted, and need not be followed any more for now.
 * Returns false if that is not for a scan of its kind.
 */
bool
la_index_scan_set_aside(LaIndexScan *scan)
{
	if (scan->state != LA_SCAN_WATCHING || scan->is_dear ||
		la_pace_at_once(&scan->pace) || scan->desc->parallel_scan != NULL)
		return false;
	la_index_scan_rests(scan);
	return true;
}

/*
 * amendscan: the node is done with its descriptor.
 */
void
la_index_scan_end(LaIndexScan *scan)
{
	la_index_ahead_end(scan);
	if (scan->target.leaf != NULL)
		la_leaf_scan_end(scan->target.leaf);
	scan->state = LA_SCAN_OUT;
	scan->gap_open = false;
}

/*
 * The executor goes back to its caller, who may never come back: hold no pin.
 * A merge of a thousand partitions has as many scans, and may be asked for one
 * row at a time: only those are paused, and resumed, that were called since.
 */
static void
la_index_scan_pause(LaFollowed *followed)
{
	LaIndexScan *scan = (LaIndexScan *) followed;

	la_unskip(scan);
	if (scan->gap_open)
		la_close_gap(scan);		/* a client that fetches row by row */
	la_leave_quiet(scan);
	la_index_ahead_pause(scan);

	/* How long this run was is told by all blocks, seen or not. */
	if (scan->state == LA_SCAN_WATCHING)
	{
		int64		nreads = la_blocks_read() - scan->reads_told;

		la_pace_skipped(&scan->pace, nreads);
		scan->reads_told += nreads;
	}
	if (la_pace_run_ends(&scan->pace))
		la_pace_pause(&scan->pace, la_wall_ns(), la_busy_ns());
	scan->away_reads = la_blocks_read();
	scan->away_statement = GetCurrentStatementStartTimestamp();
	scan->is_away = scan->needs_care = true;
	la_followed_rests(&scan->base);
}

/*
 * The executor is back, and the scan was called.
 */
static void
la_index_scan_resume(LaFollowed *followed, bool client_was_waited_for)
{
	LaIndexScan *scan = (LaIndexScan *) followed;
	int64		nreads = la_blocks_read() - scan->away_reads;

	/*
	 * Of a helped scan what is slept from here on counts, seen or not.  Of
	 * many the first asks for all.
	 */
	if (client_was_waited_for && la_sleeps_are_stale &&
		scan->state == LA_SCAN_WATCHING && scan->has_read &&
		la_pace_is_helped(&scan->pace))
		(void) la_has_slept();
	scan->reads_told += nreads;
	scan->reads_seen += nreads;
	if (client_was_waited_for && !scan->pace.is_paused)
		la_pace_interrupted(&scan->pace);
}

/*
 * The query ends in order: end the work.  The counters stay until its memory
 * goes.
 */
static void
la_index_scan_finish(LaFollowed *followed)
{
	la_index_scan_end((LaIndexScan *) followed);
}
