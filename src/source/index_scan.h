/*-------------------------------------------------------------------------
 *
 * index_scan.h
 *	  Follows the index scans of plans.
 *
 * Copyright (c) 2026, the pg_lookahead authors
 *
 *-------------------------------------------------------------------------
 */
#ifndef LA_INDEX_SCAN_H
#define LA_INDEX_SCAN_H

#include "executor/instrument.h"
#include "source/followed.h"
#include "source/leaf_items.h"
#include "source/leaf_scan.h"
#include "source/scout.h"
#include "window/window.h"

/*
 * All changes go through la_index_ahead_enter(), which asserts them, but for
 * the last one, at the end of the query or of its node.
 */
typedef enum LaScanState
{
	/*
	 * Block switches and waits are counted.  Entered from anywhere but OUT, at
	 * a restart, a turn and the end of the scan, and when the scout was lost
	 * or must not be opened yet; from IDLE when the queue is empty.  There
	 * may be a window; it is empty.
	 */
	LA_SCAN_WATCHING,

	/* A window is open and is filled.  Entered from WATCHING and IDLE. */
	LA_SCAN_LOOKING,

	/*
	 * A window is open and is followed but not filled, because the pace has
	 * no use for more.  Entered from LOOKING.
	 */
	LA_SCAN_IDLE,

	/*
	 * Left alone until the query ends: nothing could serve it, or an error
	 * was met.  Entered from anywhere.
	 */
	LA_SCAN_OUT,
} LaScanState;

typedef struct LaIndexScan
{
	LaFollowed	base;			/* must be first */

	/* what la_index_scan_next() looks at for each entry; valid while bound */
	IndexScanDesc desc;
	amgettuple_function amgettuple; /* the access method's own */
	int			skip;			/* calls that go straight to it */
	bool		gap_open;		/* the executor is at a block; see the gap */
	bool		needs_care;		/* is_dear or is_away */
	bool		is_dear;		/* the access method's; see la_ask_dear_am() */
	bool		is_away;		/* not called since the executor went away */
	int			step;			/* of target.position, per entry: 1 or -1 */
	BlockNumber current;		/* the table block the scan is on */
	LaScoutTarget target;		/* what a source must know of us */

	/* set by la_index_scan_create(), immutable */
	LimitState *limit;			/* stops the scan after its rows, or NULL */
	MemoryContext query_context;

	/* valid while bound */
	LaScanState state;
	LaPace		pace;
	int64		mark_position;	/* see la_index_scan_mark() */
	int64		replay_until;	/* entries up to here were seen before */
	int			ignored;		/* blocks in a row that no one foresaw */
	int64		reopen_at;		/* no new scout before this position */
	int64		far_at;			/* where the scan was at the last fill */
	LaRowSeen	row_seen;		/* in entries */
	bool		start_wanted;	/* the pace has said so */
	bool		is_repeated;	/* started again, or goes on after its end */
	bool		is_at_end;		/* there was no further entry */

	/* the gap between the return of an entry and the next call */
	bool		gap_timed;
	bool		gap_clocked;	/* gap_start is known */
	bool		gap_is_others;	/* the block is there: who waits waits for what
								 * the rest of the plan does */
	bool		gap_is_helped;	/* who waits does so here or in skipped calls */
	int			helped_waits;	/* such gaps in a row that waited */
	int			helped_skip;	/* calls to skip next, if it is helped */
	bool		has_read;		/* some block of this (re)scan was read */
	bool		has_waited;		/* and for one it was seen to wait */
	int			cached;			/* gaps in a row without a read, saturating,
								 * and skipped calls; see la_judge_skipped() */
	int			hits;			/* the same, of gaps with the clock */
	int			cached_skip;	/* calls to skip next, if that is enough */
	int			quiet_reads;	/* blocks read since the last wait, up to
								 * LA_QUIET_AFTER */
	int			quiet_after;	/* so many are enough for us to look rarely */
	long		quiet_sleeps;	/* la_last_sleeps when they had come */
	long		helped_sleeps;	/* the same at the last read that was seen */
	int			quiet_skip;		/* calls to skip next, if they are many */
	int			passed;			/* calls that were skipped last */
	bool		skip_turn;		/* see la_turn_skip() */
	int64		gap_reads;		/* blocks read by this backend, at its start */
	int64		reads_seen;		/* the same when we looked last */
	int64		reads_told;		/* the same when the pace was told last */
	int64		away_reads;		/* the same when it went away last */
	TimestampTz away_statement; /* the client's statement then */
	instr_time	gap_start;

	/*
	 * What was waited for, and what the access method cost, if it is dear,
	 * while the scan was watched: see la_am_is_worth_it().  Of a dear one all
	 * times count that it was started, those long ago less.
	 */
	int64		wait_ns;
	int64		am_cpu_ns;
	int			am_timed;		/* calls that were timed, saturating */
	int			am_weight;		/* calls that the next one to be timed is for */
	int			am_untimed;		/* calls until that */

	/* the work of looking ahead, with base.window: see index_ahead.c */
	LaScout    *scout;			/* one of these two */
	LaLeafItems *leaf_items;
	ResourceOwner owner;
} LaIndexScan;

/* What is known of a scan that was not followed from its start. */
typedef struct LaIndexStart
{
	int64		calls;			/* of the access method, for an entry, and
								 * back at the mark when that is restored */
	bool		found;			/* an entry, in the last call */
	int64		mark_calls;		/* up to the mark; 0: there is none */
	int64		replay_until;	/* as LaIndexScan's */
	ScanDirection direction;	/* of all calls */
	int64		reads;			/* blocks read by this backend, at the start */
	int64		reads_first;	/* the same when the first entry was returned */
} LaIndexStart;

/*
 * Ask the access method, by way of who follows the leaf pages.
 */
static inline bool
la_index_scan_ask(LaIndexScan *scan, ScanDirection direction)
{
	return la_leaf_scan_ask(scan->target.leaf, scan->desc, scan->amgettuple,
							direction);
}

/* For index_node.c; the second for hook/index_am.c, too. */
extern LaIndexScan *la_index_scan_create(MemoryContext query_context,
										 PlanState *node, Relation index,
										 LimitState *limit);
extern bool la_index_scan_next(LaIndexScan *scan, ScanDirection direction);
extern void la_index_scan_bind(LaIndexScan *scan, IndexScanDesc desc);
extern void la_index_scan_runs(LaIndexScan *scan);
extern void la_index_scan_rests(LaIndexScan *scan);
extern void la_index_scan_restart(LaIndexScan *scan);
extern void la_index_scan_catch_up(LaIndexScan *scan,
								   const LaIndexStart *start,
								   BlockNumber blkno);
extern void la_index_scan_go_on(LaIndexScan *scan, ScanDirection direction);
extern void la_index_scan_mark(LaIndexScan *scan);
extern void la_index_scan_restore(LaIndexScan *scan);
extern bool la_index_scan_set_aside(LaIndexScan *scan);
extern void la_index_scan_end(LaIndexScan *scan);

#endif							/* LA_INDEX_SCAN_H */
