/*-------------------------------------------------------------------------
 *
 * bitmap_scan.c
 *	  Follows the bitmap heap scans of plans.
 *
 * A bitmap heap scan knows all its blocks before it reads the first: they are
 * in the bitmap, sorted.  So the source of look-ahead is a second iterator over
 * the same bitmap, and there is nothing to guess:
 *
 *		bitmap		3	4	5	19	40	41	42	43	77	...
 *							^scan			^iterator of look-ahead
 *		window					19	40-42
 *
 * PostgreSQL prefetches here, too.  Up to 17 the node advises the kernel of
 * effective_io_concurrency blocks in front of the scan, one by one; the default
 * is 1.  From 18 a stream reads ahead, and its depth is the same setting (16),
 * but with io_method=worker three processes do the reading.  What we add is
 * depth that follows the waits, and advice of whole runs at once.  With an
 * effective_io_concurrency of 0, also of the tablespace, the user has chosen to
 * have no prefetching, and the scan is left alone.
 *
 * Where is the scan?  Rows tell: each row that comes from the table has an
 * address, whose block only grows until the scan is restarted.  We look at it
 * where the executor first handles the row:
 *
 *		a filter				in front of it, so we see what it throws away
 *		no filter				when the node returns the row
 *		a condition to recheck	in front of it (lossy bitmaps, BRIN)
 *
 * Filter and recheck condition are ExprStates.  Ours is a copy of the server's
 * whose function looks at the block and then evaluates the original, so nothing
 * is decided here; if we did nothing at all the query would do what it does.
 * For a scan that stays on its block this is a comparison.
 *
 * That scan is restarted is told by the node's expression context, which calls
 * back before the bitmap is freed.
 *
 * The stream of 18 is in front of the scan by as much as it likes, and what it
 * has begun to read is in shared buffers or on its way there.  Advice is of use
 * only beyond that, so with method "advice" the first block that is not
 * resident is taken for the place of the scan.  With I/O workers it is better
 * to have them read earlier than the stream would: its depth is bounded by the
 * pins that one backend may have, and a worker that does not get a processor in
 * time makes the scan wait.  Blocks that were read in advance need no pin.  So
 * "auto" is "aio" there, and the window begins a little deeper than the stream
 * is at that moment.
 *
 * Starting, and when to stop.  It starts as index scans do, when blocks were
 * visited and waited for: a LIMIT that ends within the first blocks has read
 * nothing in vain, and a cached scan never starts.  It rests when some windows
 * in a row were in shared buffers (pace.c), and when the kernel had to read
 * nothing for LA_VAIN_FILLS windows of advice: then all is in its page cache.
 * The kernel counts what it reads for each process, so no block needs to be
 * left out to find that out, as it is with index scans.  After that it must
 * wait longer each time before it tries again.  Not every file system is
 * counted (FUSE is not), so this is believed only once a wait for a block, or
 * advice, was.
 *
 * The stream of 18 does most of it by itself.  There a scan must also have
 * waited for a third of the time that LA_FIRST_MEASURE blocks took, or more of
 * them the next times, or LA_BELIEVED blocks ago at most; a dense bitmap, which
 * the kernel reads ahead as well, became a tenth slower.  It is looked at
 * rarely: with I/O workers it sleeps now and then also where all is in the page
 * cache, and to ask the kernel at each block cost a tenth there, several times
 * of what it computes for that.
 *
 * While we look ahead, the node's own prefetching (15 to 17) is to pass what we
 * have asked for, or it would advise a second time of every block.  So we move
 * its iterator to where ours is, and let it look less far ahead than we do.
 * Where no row is to be seen for a long time, and we are not called, the scan
 * comes near that, and the node prefetches on from there.  In a parallel scan
 * it goes on, being everybody's.
 *
 * Parallel scans take blocks one by one from a shared iterator, and only the
 * process that has built the bitmap can make another iterator of it.  That one
 * looks ahead for all, as far as bitmap_blocks.c can copy the bitmap; the rest
 * of the scan, and all of it in the other processes, is left to the server.
 *
 * Copyright (c) 2026, the pg_lookahead authors
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/tableam.h"
#include "catalog/catalog.h"
#include "compat.h"
#include "executor/executor.h"
#include "by_address.h"
#include "hook/heap_am.h"
#include "method/method.h"
#include "settings.h"
#include "source/bitmap_blocks.h"
#include "source/bitmap_scan.h"
#include "utils/memutils.h"
#include "utils/rel.h"
#include "utils/spccache.h"
#include "window/guard.h"
#include "window/waits.h"

/*
 * A window of blocks that are certain may be this many times as deep as
 * pg_lookahead.max_distance, which is made for index scans.  What it is filled
 * up by is small against the requests that a block device queues: who asks for
 * more is put to sleep.
 */
#define LA_DEPTH_FACTOR		4
#define LA_SMALL_DISTANCE	64
#define LA_FILL_DIVISOR		8

/* A window in shared buffers is at most this fraction of them. */
#define LA_BUFFERS_DIVISOR	16

/*
 * Where there is a stream, one block of so many is looked at, in the first
 * LA_STREAM_NEW of a round or after the client was waited for, and then.
 */
#define LA_STREAM_LOOK_NEW	4
#define LA_STREAM_NEW		64
#define LA_STREAM_LOOK		16

/*
 * Such a scan is timed for so many blocks; for twice as many each time that it
 * has not waited much, until it starts again.
 */
#define LA_FIRST_MEASURE	64
#define LA_LAST_MEASURE		512

/*
 * If it has, that is believed for so many blocks, in later rounds of the scan,
 * too.
 */
#define LA_BELIEVED			1024

/* Blocks in front of a scan, for each that it has visited, while it is new. */
#define LA_MAX_WASTE		2

/* Windows of advice in a row for which the kernel read nothing. */
#define LA_VAIN_FILLS		4
#define LA_FIRST_HOLD		256
#define LA_LAST_HOLD		65536

/*
 * Blocks read without a wait after which we look at one of LA_QUIET_SKIP only.
 */
#define LA_QUIET_AFTER		64
#define LA_QUIET_SKIP		32

/* Scans that have run lately, which may be over when another begins. */
#define LA_OTHERS			8

/* Steps of the window for one block of the scan (18). */
#define LA_MAX_STEPS		64

/*
 * All changes go through la_bitmap_enter().
 */
typedef enum LaBitmapState
{
	/*
	 * Blocks and waits are counted.  Entered at a restart, and from LOOKING
	 * when look-ahead was of no use; there may be a window, which is followed
	 * to its end but not filled.
	 */
	LA_BITMAP_WATCHING,

	/* A window is open and is filled.  Entered from WATCHING. */
	LA_BITMAP_LOOKING,

	/*
	 * Left alone until the query ends: nothing could serve it, or an error
	 * was met.  Entered from anywhere.
	 */
	LA_BITMAP_OUT,
} LaBitmapState;

typedef struct LaBitmapScan LaBitmapScan;

/* Stands in for an expression of the node's. */
typedef struct LaTap
{
	ExprState	state;			/* must be first; a copy of the original */
	ExprState  *original;
	LaBitmapScan *scan;
} LaTap;

struct LaBitmapScan
{
	LaFollowed	base;			/* must be first */

	/* what la_bitmap_look() needs for each row */
	TupleTableSlot *slot;		/* immutable: the node's */
	ExecProcNodeMtd exec;		/* immutable: the node's own, or NULL */
	BlockIdData current_id;		/* the block of the last row, as in a row */

	/* immutable */
	BitmapHeapScanState *node;
	MemoryContext query_context;

	LaBitmapState state;
	BlockNumber current;		/* the block of the last row */
	bool		has_begun;		/* we will be told of the restart */
	bool		is_repeated;	/* it was restarted */
	int64		visited_before; /* "visited" at the last restart */
	LaPace		pace;

	/* what was seen of waits */
	int64		reads;			/* la_blocks_read(), when we looked last */
	int64		look_from;		/* "visited" at the first look, ... */
	int64		looked_at;		/* ... the last, ... */
	int64		look_at;		/* ... and the next one */
	long		sleeps;			/* voluntary context switches, likewise */
	bool		is_stale;		/* "sleeps" is not of this round of the scan */
	int			quiet;			/* reads without a wait, saturating */
	long		kernel_reads;	/* LaUsage.reads at the last look, or -1 */
	bool		is_counted;		/* the kernel counts reads of the table */

	/* what was seen of use */
	int64		visited;		/* blocks, in all rounds */
	int64		run_from;		/* that, when the executor went away last */
	int64		away_reads;		/* la_blocks_read() then */
	LaTimeMeter meter;			/* where there is a stream */
	int			measure;		/* so many blocks are timed next */
	int64		believed_until; /* that it waits much; in "visited" */
	int64		hold_until;		/* do not start before so many */
	int			hold;			/* how long the next rest will be */
	int			vain;			/* windows in a row read by nobody */

	/* the work of looking ahead */
	LaBitmapSource source;		/* its memory is that of base.window */
	bool		fills_buffers;	/* the method reads into shared buffers */

	/* the node's own prefetching */
	BlockNumber node_reached;	/* its iterator, for us */
	int			prefetch_maximum;	/* as it was set; 0: it still is */
};

static LaByAddress la_nodes;	/* those without a filter */

static void la_bitmap_scan_pause(LaFollowed *followed);
static void la_bitmap_scan_resume(LaFollowed *followed,
								  bool client_was_waited_for);
static void la_bitmap_scan_finish(LaFollowed *followed);
static void la_bitmap_scan_forget(LaFollowed *followed);

static const LaFollowedOps la_bitmap_scan_ops = {
	.pause = la_bitmap_scan_pause,
	.resume = la_bitmap_scan_resume,
	.finish = la_bitmap_scan_finish,
	.forget = la_bitmap_scan_forget,
};

/* -------------------------------------------------------------------------
 * The node's own prefetching
 * -------------------------------------------------------------------------
 */

#if LA_HAVE_BITMAP_STREAM

static void
la_node_follows(LaBitmapScan *scan)
{
}

static void
la_node_is_free(LaBitmapScan *scan)
{
}

#else

/* The node prefetches where less than this part of our blocks is left. */
#define LA_NODE_NEAR	4

/*
 * Of the blocks that we have asked for the node need not advise: let its own
 * iterator pass them, as if it had.  It advises of others only where few of
 * these are left, which is when we have not been called.  The processes of a
 * parallel scan share theirs, so there it stays where it is.
 */
static void
la_node_follows(LaBitmapScan *scan)
{
	BitmapHeapScanState *node = scan->node;
	const BlockNumber reached = scan->source.reached;
	int			near;

	if (node->pstate != NULL || reached == InvalidBlockNumber ||
		scan->base.window->method->id == LA_METHOD_NONE)
		return;
	while (node->prefetch_iterator != NULL &&
		   (scan->node_reached == InvalidBlockNumber ||
			scan->node_reached < reached))
	{
		BlockNumber blkno = la_tbm_private_next(node->prefetch_iterator);

		if (blkno == InvalidBlockNumber)
		{
			tbm_end_private_iterate(node->prefetch_iterator);
			node->prefetch_iterator = NULL;
			break;
		}
		node->prefetch_pages++;
		scan->node_reached = blkno;
	}
	if (scan->prefetch_maximum == 0)
		scan->prefetch_maximum = node->prefetch_maximum;
	near = scan->base.window->nahead / LA_NODE_NEAR;
	node->prefetch_maximum = Max(1, Min(scan->prefetch_maximum, near));
	node->prefetch_target = Min(node->prefetch_target,
								node->prefetch_maximum);
}

/*
 * We do not look ahead: the node prefetches as far as it is set to.
 */
static void
la_node_is_free(LaBitmapScan *scan)
{
	if (scan->prefetch_maximum != 0)
		scan->node->prefetch_maximum = scan->prefetch_maximum;
	scan->prefetch_maximum = 0;
}

#endif

/* -------------------------------------------------------------------------
 * Methods
 * -------------------------------------------------------------------------
 */

#if LA_HAVE_BITMAP_STREAM

/*
 * The limit that aio.c sets is for windows that are not consumed in the order
 * in which they are read.
 */
static int
la_most_sorted_blocks(void)
{
	return Max(la_method_aio.most_blocks(), NBuffers / LA_BUFFERS_DIVISOR);
}

/*
 * Choose the method; see the file header.
 */
static const LaMethod *
la_bitmap_method_for(Relation rel, const EState *estate)
{
	static LaMethod sorted_aio;
	const LaMethod *method = la_dense_method_for(rel, estate);

	if (method->id != LA_METHOD_AIO)
		return method;
	sorted_aio = *method;
	sorted_aio.most_blocks = la_most_sorted_blocks;
	return &sorted_aio;
}

#else

static const LaMethod *
la_bitmap_method_for(Relation rel, const EState *estate)
{
	return la_method_for(rel, estate, NULL);
}

#endif

/* -------------------------------------------------------------------------
 * Looking ahead
 * -------------------------------------------------------------------------
 */

/*
 * Change the state; the only place that does.
 */
static void
la_bitmap_enter(LaBitmapScan *scan, LaBitmapState state)
{
	switch (state)
	{
		case LA_BITMAP_WATCHING:
			break;
		case LA_BITMAP_LOOKING:
			Assert(scan->state == LA_BITMAP_WATCHING);
			Assert(scan->base.window != NULL);
			break;
		case LA_BITMAP_OUT:
			break;
	}
	if (state != LA_BITMAP_LOOKING)
		la_node_is_free(scan);
	scan->state = state;
}

/*
 * The work of looking ahead goes, with its memory.
 */
static void
la_bitmap_work_forget(void *user)
{
	LaBitmapScan *scan = user;

	scan->base.window = NULL;
	la_bitmap_source_forget(&scan->source);
}

/*
 * Make what is needed to look ahead of this scan.
 */
static void
la_bitmap_work_create(LaBitmapScan *scan, const LaMethod *method)
{
	Relation	rel = scan->node->ss.ss_currentRelation;

	scan->base.window = la_window_open(scan->query_context, rel, method,
										&scan->pace, &scan->base.counters,
										la_bitmap_work_forget, scan);
	la_bitmap_source_init(&scan->source, scan->base.window->context,
						  scan->node, &scan->current, &scan->base.counters);
	scan->base.method_name = method->name;
	scan->fills_buffers = method->id == LA_METHOD_AIO ||
		method->id == LA_METHOD_WORKER;
}

/*
 * Forget what is in front of the scan.  If it has come to its end, it, or
 * another process of a parallel scan, has been at all blocks of the bitmap:
 * those after the last row are used, too.
 */
static void
la_bitmap_drop(LaBitmapScan *scan)
{
	if (scan->base.window == NULL)
		return;
	if (TTS_EMPTY(scan->slot))
		la_window_pass_all(scan->base.window);
	la_window_drop(scan->base.window, InvalidBlockNumber);
	la_bitmap_source_close(&scan->source);
}

/*
 * Advice was of no use: all is in the kernel's page cache.
 */
static void
la_bitmap_hold(LaBitmapScan *scan)
{
	scan->vain = 0;
	scan->believed_until = 0;
	scan->hold_until = scan->visited + scan->hold;
	scan->hold = Min(scan->hold * 2, LA_LAST_HOLD);
	la_bitmap_enter(scan, LA_BITMAP_WATCHING);
}

/*
 * The scan has waited since the window was filled.  The pace doubles the
 * distance after the next fill.  The blocks are certain, so it may do that
 * before the fill, too, as long as what a LIMIT could waste is in proportion to
 * what was used.
 */
static void
la_bitmap_deepen(LaBitmapScan *scan)
{
	if (la_pace_distance(&scan->pace) <
		(scan->visited - scan->visited_before) * LA_MAX_WASTE)
		la_pace_deepen(&scan->pace);
	la_pace_waited(&scan->pace);
}

/*
 * Nothing is in front of the scan but what the stream has asked for: look
 * further ahead than that.
 */
static void
la_bitmap_pass(LaBitmapScan *scan, int lead)
{
	int			before;

	do
	{
		before = la_pace_distance(&scan->pace);
		if (before > lead + LA_MIN_MAX_DISTANCE)
			break;
		la_pace_deepen(&scan->pace);
	} while (la_pace_distance(&scan->pace) != before);
}

typedef struct LaFillCall
{
	LaBitmapScan *scan;
	LaFill		result;
} LaFillCall;

static void
la_bitmap_fill_body(void *arg)
{
	LaFillCall *call = arg;
	LaBitmapScan *scan = call->scan;

	if (la_window_is_empty(scan->base.window))
	{
		if (LA_HAVE_BITMAP_STREAM && scan->fills_buffers &&
			la_bitmap_may_lead(&scan->source,
							   scan->visited - scan->visited_before))
			la_bitmap_pass(scan, la_bitmap_lead(&scan->source));
		else
			scan->source.skip_resident = true;
	}
	call->result = la_window_fill(scan->base.window, &scan->source.source);
}

/*
 * Fill the window, and see what came of the last one.
 */
static void
la_bitmap_fill(LaBitmapScan *scan)
{
	LaCounters *counters = &scan->base.counters;
	LaFillCall	call = {scan, LA_FILL_OK};
	int64		nwindows = counters->windows_total;
	LaUsage		before,
				after;

	if (!la_guard_is_possible())
		return;

	CHECK_FOR_INTERRUPTS();
	la_usage(&before);
	if (before.sleeps != scan->sleeps && !scan->is_stale)
	{
		counters->waits_total++;
		la_bitmap_deepen(scan);
	}
	scan->is_stale = false;

	if (!la_guard_run_once(la_bitmap_fill_body, &call))
	{
		la_bitmap_enter(scan, LA_BITMAP_OUT);
		la_window_fail(scan->base.window);
		return;
	}

	la_node_follows(scan);
	la_usage(&after);
	scan->sleeps = after.sleeps;
	scan->reads = la_blocks_read();
	scan->looked_at = scan->visited;
	if (call.result != LA_FILL_OK)
	{
		scan->believed_until = 0;
		la_bitmap_enter(scan, LA_BITMAP_WATCHING);
		return;
	}
	if (counters->windows_total == nwindows || scan->base.window->nruns == 0 ||
		scan->base.window->method->id != LA_METHOD_ADVICE)
		return;
	if (after.reads != before.reads)
	{
		scan->is_counted = true;
		scan->vain = 0;
		scan->hold = LA_FIRST_HOLD;
	}
	else if (scan->is_counted && ++scan->vain >= LA_VAIN_FILLS &&
			 !la_pace_at_once(&scan->pace))
		la_bitmap_hold(scan);
}

/*
 * Begin to look ahead, if there is a method.
 */
static pg_noinline void
la_bitmap_start(LaBitmapScan *scan)
{
	BitmapHeapScanState *node = scan->node;
	Relation	rel = node->ss.ss_currentRelation;

	if (node->tbm == NULL)
	{
		/* Another process of a parallel scan has built it, this time. */
		scan->hold_until = PG_INT64_MAX;
		return;
	}
	if (la_bitmap_skips_pages(node))
	{
		/* Most of what is in the bitmap may be left out. */
		la_bitmap_enter(scan, LA_BITMAP_OUT);
		return;
	}
	if (scan->base.window == NULL)
	{
		const LaMethod *method =
			la_bitmap_method_for(rel, scan->base.node->state);

		if (method->id == LA_METHOD_NONE && la_method != LA_METHOD_NONE)
		{
			la_bitmap_enter(scan, LA_BITMAP_OUT);
			return;
		}
		if (!la_window_is_possible(&scan->base.counters))
		{
			scan->hold_until = scan->visited + LA_FIRST_HOLD;
			return;
		}
		la_followed_runs(&scan->base);
		la_bitmap_work_create(scan, method);
		scan->base.counters.scans_total = 1;
	}
	else if (scan->base.window->source_ended &&
			 la_window_is_empty(scan->base.window))
		la_bitmap_drop(scan);	/* what was there then may be gone */
	la_bitmap_enter(scan, LA_BITMAP_LOOKING);
	la_bitmap_fill(scan);
}

/* -------------------------------------------------------------------------
 * Following
 * -------------------------------------------------------------------------
 */

/*
 * The node will be restarted: its bitmap is about to be freed.  Or it goes, and
 * the bitmap is gone; then la_query_finish() has closed the window before.
 * Called by the node's expression context, once.
 */
static void
la_bitmap_restarts(Datum arg)
{
	LaBitmapScan *scan = (LaBitmapScan *) DatumGetPointer(arg);

	la_bitmap_drop(scan);
	la_window_elsewhere(scan->base.window);
	if (scan->state != LA_BITMAP_OUT)
		la_bitmap_enter(scan, LA_BITMAP_WATCHING);
	if (scan->hold_until == PG_INT64_MAX)
		scan->hold_until = 0;
	la_bitmap_source_restart(&scan->source);
	scan->has_begun = false;
	scan->is_repeated = true;
	scan->current = InvalidBlockNumber;
	BlockIdSet(&scan->current_id, InvalidBlockNumber);
	scan->node_reached = InvalidBlockNumber;
	scan->visited_before = scan->visited;
}

/*
 * The scan has come to its end.  A plan may have scans of a thousand
 * partitions, one after the other: what was needed to look ahead goes now,
 * unless the scan has shown that it is not over then.
 */
static void
la_bitmap_rest(LaBitmapScan *scan)
{
	if (scan->is_repeated && !la_windows_are_scarce())
		return;
	if (scan->base.window != NULL)
	{
		la_bitmap_drop(scan);
		if (scan->state != LA_BITMAP_OUT)
			la_bitmap_enter(scan, LA_BITMAP_WATCHING);
		la_window_close(scan->base.window);
	}
	scan->meter.is_begun = false;
	la_followed_rests(&scan->base);
}

/*
 * Another scan of the query begins.  Of one with a filter nobody has told that
 * its last row was the last: but then the node has emptied its slot.
 */
static void
la_bitmap_rest_others(LaBitmapScan *scan)
{
	int			nscans = 0;
	dlist_mutable_iter iter;

	dlist_foreach_modify(iter, &scan->base.scans->list)
	{
		LaFollowed *followed = dlist_container(LaFollowed, query_link,
											   iter.cur);

		if (!followed->runs || ++nscans > LA_OTHERS)
			break;
		if (followed->ops == &la_bitmap_scan_ops &&
			TTS_EMPTY(((LaBitmapScan *) followed)->slot))
			la_bitmap_rest((LaBitmapScan *) followed);
	}
}

/*
 * The first row of a scan, or of one that was restarted.
 */
static void
la_bitmap_begins(LaBitmapScan *scan)
{
	int			distance = Min(la_max_distance * LA_DEPTH_FACTOR,
							   LA_MAX_MAX_DISTANCE);

	RegisterExprContextCallback(scan->node->ss.ps.ps_ExprContext,
								la_bitmap_restarts, PointerGetDatum(scan));
	scan->has_begun = true;
	if (!scan->base.runs)
	{
		la_bitmap_rest_others(scan);
		la_followed_runs(&scan->base);
	}
	scan->is_stale = true;
	scan->measure = LA_FIRST_MEASURE;
	scan->reads = la_blocks_read();
	la_pace_init(&scan->pace, la_start_after,
				 la_window_reach(scan->base.window, distance), false);
}

/*
 * Has the scan waited for a good part of the time that it was measured?  To see
 * that costs as much as some blocks in the page cache.
 */
static bool
la_bitmap_waits_much(LaBitmapScan *scan)
{
	LaTimes		spent;

	if (scan->visited < scan->believed_until)
		return true;

	/* It has not waited for so long that this is not the same time any more. */
	if (scan->meter.is_begun &&
		scan->visited - (int64) scan->meter.from > 2 * scan->measure)
		scan->meter.is_begun = false;
	if (!la_time_measure(&scan->meter, (uint64) scan->visited,
						 (uint64) scan->measure, &spent))
		return false;
	if (!la_waited_much(&spent))
	{
		scan->measure = Min(scan->measure * 2, LA_LAST_MEASURE);
		return false;
	}
	scan->measure = LA_FIRST_MEASURE;
	scan->believed_until = scan->visited + LA_BELIEVED;
	scan->meter.is_begun = false;
	return true;
}

/*
 * Is this a block to be looked at?  The second of a round is, to have something
 * to compare with.
 */
static inline bool
la_bitmap_is_looked_at(LaBitmapScan *scan)
{
	return scan->is_stale || scan->visited >= scan->look_at;
}

/*
 * This block was looked at; which is the next?
 */
static void
la_bitmap_looked(LaBitmapScan *scan, bool was_stale)
{
	int			step = LA_HAVE_BITMAP_STREAM ? LA_STREAM_LOOK : 1;

	if (was_stale)
		scan->look_from = scan->visited;
	/* The first after a break may be there because the client took its time. */
	if (scan->quiet >= LA_QUIET_AFTER && !was_stale &&
		scan->visited - scan->look_from > 1)
		step = LA_QUIET_SKIP;
	else if (LA_HAVE_BITMAP_STREAM &&
			 scan->visited - scan->look_from < LA_STREAM_NEW)
		step = LA_STREAM_LOOK_NEW;
	scan->look_at = scan->visited + step;
}

/*
 * While watching: should look-ahead start?
 */
static bool
la_bitmap_watch(LaBitmapScan *scan)
{
	int64		reads = la_blocks_read();
	LaUsage		usage;
	bool		waited;
	bool		was_stale = scan->is_stale;
	int64		nblocks = scan->visited - scan->looked_at;
	int64		nreads;

	if (la_pace_at_once(&scan->pace))
		return true;
	if (reads == scan->reads || !la_bitmap_is_looked_at(scan))
	{
		la_pace_passed(&scan->pace);
		return false;
	}

	/* The rest of the plan may have read some of them, or many. */
	nreads = Min(reads - scan->reads, nblocks);
	scan->reads = reads;
	scan->looked_at = scan->visited;
	if (scan->visited < scan->hold_until)
		return false;

	la_usage(&usage);
	waited = usage.sleeps != scan->sleeps && !scan->is_stale;
	if (waited && scan->kernel_reads >= 0 &&
		usage.reads != scan->kernel_reads)
		scan->is_counted = true;
	scan->kernel_reads = usage.reads;
	scan->sleeps = usage.sleeps;
	scan->is_stale = false;
	if (waited)
		scan->quiet = 0;
	else if (!was_stale)
		scan->quiet = (int) Min(scan->quiet + nreads, LA_QUIET_AFTER);
	la_bitmap_looked(scan, was_stale);

	/* Of many blocks that were read one sleep is all that can be seen. */
	if (LA_HAVE_BITMAP_STREAM && waited && nreads >= LA_STREAM_LOOK / 2)
		la_pace_went_by(&scan->pace, 0, true);
	return la_pace_watch(&scan->pace, waited) &&
		(!LA_HAVE_BITMAP_STREAM || la_bitmap_waits_much(scan));
}

/*
 * The window's place of the scan.
 */
static void
la_bitmap_step(LaBitmapScan *scan, BlockNumber blkno)
{
	LaWindow   *window = scan->base.window;
	int			nsteps = 0;

	while (!la_window_is_empty(window))
	{
		BlockNumber next = la_window_first(window);

		if (next > blkno)
		{
			/* Has the stream come to it? */
			if (!LA_HAVE_BITMAP_STREAM || scan->fills_buffers ||
				nsteps++ >= LA_MAX_STEPS ||
				RelationUsesLocalBuffers(window->rel) ||
				!la_block_is_resident(la_rel_locator(window->rel),
									  MAIN_FORKNUM, next))
				break;
		}
		(void) la_window_step(window, next);
	}
}

/*
 * Is there enough to do for filling the window?
 */
static bool
la_bitmap_wants_fill(LaWindow *window)
{
	int			distance = la_pace_distance(window->pace);

	if (window->next_run < window->nruns || window->source_ended ||
		distance <= LA_SMALL_DISTANCE)
		return la_window_wants_fill(window);
	return window->nahead <= distance - distance / LA_FILL_DIVISOR;
}

/*
 * The scan has come to another block.
 */
static pg_noinline void
la_bitmap_moved(LaBitmapScan *scan)
{
	BlockNumber blkno =
		ItemPointerGetBlockNumberNoCheck(&scan->slot->tts_tid);

	scan->current_id = scan->slot->tts_tid.ip_blkid;
	if (blkno == InvalidBlockNumber)
	{
		/*
		 * The last row was the last; unless this is one that was not even
		 * fetched, because the page is all-visible and no column is needed.
		 */
		if (TTS_EMPTY(scan->slot))
			la_bitmap_rest(scan);
		return;
	}
	scan->current = blkno;
	if (scan->state == LA_BITMAP_OUT)
		return;
	scan->visited++;
	if (unlikely(scan->meter.is_paused))
		la_time_resume(&scan->meter);
	if (!scan->has_begun)
	{
		la_bitmap_begins(scan);
		if (!la_pace_at_once(&scan->pace))
			return;
	}
	if (scan->base.window != NULL)
		la_bitmap_step(scan, blkno);

	if (scan->state == LA_BITMAP_WATCHING)
	{
		if (la_bitmap_watch(scan))
			la_bitmap_start(scan);
	}
	else if (scan->source.is_too_long && la_window_is_empty(scan->base.window))
	{
		/* The server's own prefetching has the rest. */
		scan->hold_until = PG_INT64_MAX;
		la_bitmap_enter(scan, LA_BITMAP_WATCHING);
	}
	else if (la_bitmap_wants_fill(scan->base.window))
		la_bitmap_fill(scan);
}

/*
 * A row has come from the table: has the scan moved?
 */
static inline void
la_bitmap_look(LaBitmapScan *scan)
{
	if (unlikely(memcmp(&scan->slot->tts_tid.ip_blkid, &scan->current_id,
						sizeof(BlockIdData)) != 0))
		la_bitmap_moved(scan);
}

/*
 * ExprState.evalfunc of a stand-in.
 */
static Datum
la_tap_eval(ExprState *state, ExprContext *econtext, bool *isnull)
{
	LaTap	   *tap = (LaTap *) state;

	la_bitmap_look(tap->scan);
	return tap->original->evalfunc(tap->original, econtext, isnull);
}

/*
 * Make a stand-in for an expression.
 */
static ExprState *
la_tap_create(LaBitmapScan *scan, ExprState *original)
{
	LaTap	   *tap = MemoryContextAllocZero(scan->query_context,
											 sizeof(LaTap));

	tap->state = *original;
	tap->state.evalfunc = la_tap_eval;
	tap->original = original;
	tap->scan = scan;
	return &tap->state;
}

/*
 * PlanState.ExecProcNode of a node without a filter.
 */
static TupleTableSlot *
la_ExecBitmapHeapScan(PlanState *pstate)
{
	LaBitmapScan *scan = la_by_address_get(&la_nodes, pstate);
	TupleTableSlot *slot;

	Assert(scan != NULL);
	slot = scan->exec(pstate);
	la_bitmap_look(scan);
	return slot;
}

/* -------------------------------------------------------------------------
 * For plan_walk.c
 * -------------------------------------------------------------------------
 */

/*
 * Is this a scan that may be followed?
 */
bool
la_bitmap_scan_is_wanted(BitmapHeapScanState *node)
{
	Relation	rel = node->ss.ss_currentRelation;

	return la_bitmapscan && rel != NULL &&
		la_is_heap(rel) &&
		!IsCatalogRelation(rel) &&
		get_tablespace_io_concurrency(rel->rd_rel->reltablespace) > 0;
}

/*
 * Start to follow a bitmap heap scan.  Everything is allocated in the query's
 * context.
 */
LaFollowed *
la_bitmap_scan_register(MemoryContext query_context, BitmapHeapScanState *node)
{
	LaBitmapScan *scan = MemoryContextAllocZero(query_context,
												sizeof(LaBitmapScan));
	Relation	heap = node->ss.ss_currentRelation;

	scan->base.ops = &la_bitmap_scan_ops;
	scan->base.node = &node->ss.ps;
	scan->base.heap_oid = RelationGetRelid(heap);
	scan->base.is_temporary = RelationUsesLocalBuffers(heap);
	scan->slot = node->ss.ss_ScanTupleSlot;
	scan->node = node;
	scan->query_context = query_context;
	scan->node_reached = InvalidBlockNumber;
	scan->current = InvalidBlockNumber;
	BlockIdSet(&scan->current_id, InvalidBlockNumber);
	scan->hold = LA_FIRST_HOLD;
	scan->kernel_reads = -1;

	if (node->bitmapqualorig != NULL)
		node->bitmapqualorig = la_tap_create(scan, node->bitmapqualorig);
	if (node->ss.ps.qual != NULL)
		node->ss.ps.qual = la_tap_create(scan, node->ss.ps.qual);
	else
	{
		la_by_address_put(&la_nodes, &node->ss.ps, scan);
		scan->exec = node->ss.ps.ExecProcNodeReal;
		ExecSetExecProcNode(&node->ss.ps, la_ExecBitmapHeapScan);
	}
	return &scan->base;
}

/*
 * The executor goes back to its caller, who may never come back.
 */
static void
la_bitmap_scan_pause(LaFollowed *followed)
{
	LaBitmapScan *scan = (LaBitmapScan *) followed;

	if (scan->visited - scan->run_from >= LA_LEAST_RUN)
		la_time_pause(&scan->meter);
	scan->run_from = scan->visited;
	if (scan->base.window != NULL)
		la_window_pause(scan->base.window);
	scan->away_reads = la_blocks_read();
}

/*
 * The executor is back.
 */
static void
la_bitmap_scan_resume(LaFollowed *followed, bool client_was_waited_for)
{
	LaBitmapScan *scan = (LaBitmapScan *) followed;

	scan->reads += la_blocks_read() - scan->away_reads;
	if (!client_was_waited_for)
		return;

	/*
	 * A client may come more often than the scan moves: what it sleeps from
	 * here on counts.
	 */
	if (scan->has_begun && scan->state != LA_BITMAP_OUT)
	{
		scan->sleeps = la_sleeps();
		scan->reads = la_blocks_read();
		scan->looked_at = scan->visited;
		scan->is_stale = false;
		scan->look_from = scan->look_at = scan->visited;
	}
	if (!scan->meter.is_paused)
		scan->meter.is_begun = false;
}

/*
 * The query ends in order.
 */
static void
la_bitmap_scan_finish(LaFollowed *followed)
{
	LaBitmapScan *scan = (LaBitmapScan *) followed;

	if (scan->base.window != NULL)
	{
		la_bitmap_drop(scan);
		la_window_close(scan->base.window);
	}
	la_bitmap_enter(scan, LA_BITMAP_OUT);
}

/*
 * The query's memory goes.
 */
static void
la_bitmap_scan_forget(LaFollowed *followed)
{
	LaBitmapScan *scan = (LaBitmapScan *) followed;

	if (scan->exec != NULL)
		la_by_address_remove(&la_nodes, &scan->node->ss.ps, scan);
}
