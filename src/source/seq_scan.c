/*-------------------------------------------------------------------------
 *
 * seq_scan.c
 *	  Follows the sequential scans of plans, on 15 to 17.
 *
 * Before 18 a sequential scan computes, waits, computes: it reads a block (17:
 * up to sixteen) when it comes to it.  Later servers read ahead by themselves.
 *
 * The node's execution function is ours for the duration of the query.  It does
 * what the server's does, with one function of ours between the executor and
 * the table:
 *
 *		ExecSeqScan -> ExecScan -> la_SeqNext -> table_scan_getnextslot
 *											`--> which block is the row on?
 *
 * So we see every row that the table access method returns, also those that a
 * filter throws away, and we see nothing but its address.  Any access method
 * will do whose addresses are block numbers of the relation's main fork; at the
 * first one beyond the end of the file the scan is left alone.
 *
 * Watching.  Once in LA_CHECK_BLOCKS blocks we look whether blocks were read
 * since, and whether the process has slept, which it must have done twice.
 *
 * seq_worth.c says whether look-ahead is worth it, and whether it still is.
 * From then on the frontier is kept in front of the scan: see
 * window/frontier.c.  If the blocks turn out to be in shared buffers it rests
 * until the scan waits again, or computes and reads again.
 *
 *		WATCHING ---- worth it ------> LOOKING <--- waited --- RESTING
 *		^ |	 ^							|  `--- all there ------^ |
 *		| |	 '-- the scan starts anew, -'						  |
 *		| |		 or may not wait any more						  |
 *		| '-- not worth it, or all there ---> SPARSE <- all there '
 *		'---- far enough, and it reads ----------'
 *		OUT: no method, other direction, addresses that are no blocks, or an
 *		error; the server's own function is put back
 *
 * A parallel scan stays RESTING, or WATCHING: others may begin for it.
 *
 * Cursors.  Measuring goes on when the executor comes back to the plan.  What
 * passes until then is left out where a run comes over LA_LEAST_RUN blocks or
 * more; asking for the time would be dear for a shorter one.  Then it counts as
 * the rest of a plan does (a function that loops over the rows), unless a
 * client was waited for: that makes void what was measured.
 *
 * LIMIT.  Where one stops a serial scan after its rows, and nothing between the
 * two throws rows away, the frontier does not go beyond the block where the
 * scan will end, by the rows that blocks have had so far.
 *
 * Parallel scans.  Processes take chunks of blocks from a counter in shared
 * memory, which tells us where the scan is.  The server's chunks grow with the
 * table, up to 64 MB, and what lies between two processes would be out of our
 * sight; so the chunk of a followed scan is parallel_chunk_size, or a stripe of
 * the I/O service if that is 0 and the server's is larger, and in any case no
 * more than the table in parts of two for each of LA_LAST_CHUNKS.  The first of
 * each process is the server's: it is taken on the way to the first row, and
 * cannot be made smaller, as its blocks have been handed out.  Unless the
 * setting asks for it, a process that cannot look ahead, as it finds no owner,
 * keeps the server's chunk: the kernel is all that it has to read ahead.
 *
 * TABLESAMPLE has a node of its own and is left alone.
 *
 * Copyright (c) 2026, the pg_lookahead authors
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#ifndef WIN32
#include <dlfcn.h>
#endif
#include <math.h>

#include "access/heapam.h"
#include "access/parallel.h"
#include "access/relscan.h"
#include "access/tableam.h"
#include "catalog/catalog.h"
#include "catalog/pg_class.h"
#include "compat.h"
#include "executor/executor.h"
#include "by_address.h"
#include "method/method.h"
#include "settings.h"
#include "source/seq_worth.h"
#include "utils/memutils.h"
#include "utils/rel.h"
#include "window/guard.h"
#include "window/pace.h"

#if LA_HAVE_SEQ_STREAM

bool
la_seq_scan_is_wanted(SeqScanState *node)
{
	return false;				/* the server reads ahead itself */
}

LaFollowed *
la_seq_scan_register(MemoryContext query_context, SeqScanState *node,
					 LimitState *limit)
{
	return NULL;
}

#else

#define LA_CHECK_BLOCKS		16

/* A table may have grown so much since its size was recorded. */
#define LA_GROWTH			8

/* Left alone: one in so many rows is looked at, at the least. */
#define LA_UNSEEN_ROWS		64

/* The server halves its chunks when so many are left. */
#define LA_LAST_CHUNKS		64

static LaByAddress la_nodes;	/* that are followed */

/*
 * A scan that is SPARSE, and how many more of its rows are not looked at.  The
 * last one that was looked at is enough: few plans return rows of two of them
 * by turns.
 */
static struct
{
	const SeqScanState *node;	/* or NULL */
	int			rows;
}			la_unseen;

static TupleTableSlot *la_ExecSeqScan(PlanState *pstate);
static void la_seq_scan_pause(LaFollowed *followed);
static void la_seq_scan_resume(LaFollowed *followed,
							   bool client_was_waited_for);
static void la_seq_scan_finish(LaFollowed *followed);
static void la_seq_scan_forget(LaFollowed *followed);

static const LaFollowedOps la_seq_scan_ops = {
	.pause = la_seq_scan_pause,
	.resume = la_seq_scan_resume,
	.finish = la_seq_scan_finish,
	.forget = la_seq_scan_forget,
};

/* -------------------------------------------------------------------------
 * Looking ahead
 * -------------------------------------------------------------------------
 */

/*
 * Look-ahead of this scan is over, at least for now.
 */
static void
la_seq_end(LaSeqScan *scan, LaSeqState state)
{
	if (scan->has_begun)
		la_frontier_close(&scan->frontier, scan->position);
	else if (state == LA_SEQ_OUT)
		la_frontier_release(&scan->frontier);
	scan->has_begun = false;
	la_followed_rests(&scan->base);
	scan->state = state;
	/* Unless somebody else has taken our place meanwhile, and calls us. */
	if (state == LA_SEQ_OUT &&
		scan->node->ss.ps.ExecProcNodeReal == la_ExecSeqScan)
		ExecSetExecProcNode(&scan->node->ss.ps, scan->server_exec);
}

/*
 * The shared state of a parallel scan, if it is one whose blocks are handed
 * out by the server's usual functions.
 */
static ParallelBlockTableScanDesc
la_parallel_blocks(const LaSeqScan *scan)
{
	TableScanDesc desc = scan->node->ss.ss_currentScanDesc;

	if (desc->rs_parallel == NULL ||
		desc->rs_rd->rd_tableam->parallelscan_initialize !=
		table_block_parallelscan_initialize)
		return NULL;
	return (ParallelBlockTableScanDesc) desc->rs_parallel;
}

/*
 * Take smaller chunks than the server does, if its are large, or those of the
 * setting.  Towards the end the server takes ever smaller ones, but not if its
 * last LA_LAST_CHUNKS are more than the table; once it may have begun to halve
 * them they are made no larger.
 */
static void
la_limit_chunk(LaSeqScan *scan)
{
	TableScanDesc desc = scan->node->ss.ss_currentScanDesc;
	const BlockNumber nblocks = scan->frontier.nblocks;
	ParallelBlockTableScanWorker worker;
	uint32		most = la_parallel_chunk_size;

	scan->is_chunk_cut = true;
	if (desc->rs_rd->rd_tableam != GetHeapamTableAmRoutine())
		return;
	worker = ((HeapScanDesc) desc)->rs_parallelworkerdata;
	if (worker == NULL)
		return;
	if (most == 0)
		most = Min(worker->phsw_chunk_size, LA_STRIPE_BLOCKS);
	most = Min(most, Max(nblocks / (2 * LA_LAST_CHUNKS), 1));
	if (worker->phsw_nallocated +
		(uint64) worker->phsw_chunk_size * (2 * LA_LAST_CHUNKS) > nblocks)
		most = Min(most, worker->phsw_chunk_size);
	worker->phsw_chunk_size = most;
}

/*
 * Where is the scan, counted from its start?
 */
static uint64
la_seq_position(const LaSeqScan *scan, BlockNumber blkno)
{
	ParallelBlockTableScanDesc blocks = NULL;

	if (scan->is_parallel)
		blocks = la_parallel_blocks(scan);
	if (blocks == NULL)
		return la_frontier_position(&scan->frontier, blkno);

	/* All that were handed out are somebody's business already. */
	return pg_atomic_read_u64(&blocks->phs_nallocated);
}

/*
 * What the processes of a parallel query know a scan by.
 */
static uint64
la_parallel_key(const SeqScanState *node)
{
	return ((uint64) (la_leader_slot() + 1) << 32) |
		(uint32) (node->ss.ps.plan->plan_node_id + 1);
}

/*
 * Is the scan of a parallel plan shared with others, this time?  The executor
 * runs such a plan alone where it may be stopped after some rows (a portal that
 * a client fetches from).
 */
static void
la_seq_note_sharing(LaSeqScan *scan)
{
	bool		is_shared = scan->node->ss.ps.plan->parallel_aware &&
		scan->node->ss.ss_currentScanDesc->rs_parallel != NULL;

	if (is_shared == scan->is_parallel)
		return;
	la_frontier_release(&scan->frontier);
	scan->is_parallel = is_shared;
	scan->frontier.key = is_shared ? la_parallel_key(scan->node) : 0;
}

/*
 * The blocks of a table, or 0 if they cannot be counted, which is no error of
 * the query's.
 */
static BlockNumber
la_seq_size(Relation rel)
{
	BlockNumber nblocks = la_guard_size(rel);

	return nblocks == InvalidBlockNumber ? 0 : nblocks;
}

/*
 * The first row of a scan, or of a scan that starts anew.
 */
static void
la_seq_begin(LaSeqScan *scan, BlockNumber blkno)
{
	Relation	rel = scan->node->ss.ss_currentRelation;
	TableScanDesc desc = scan->node->ss.ss_currentScanDesc;
	const LaMethod *method;
	BlockNumber start = blkno;
	BlockNumber nblocks;
	pg_atomic_uint64 *handed_out = NULL;
	LaUsage		usage;

	la_seq_note_sharing(scan);
	method = la_range_method_for(rel, scan->is_parallel);
	if (scan->is_parallel)
	{
		ParallelBlockTableScanDesc blocks = la_parallel_blocks(scan);

		if (blocks == NULL)
		{
			la_seq_end(scan, LA_SEQ_OUT);
			return;
		}
		start = blocks->phs_startblock;
		nblocks = blocks->phs_nblocks;
		handed_out = &blocks->phs_nallocated;
	}
	else if (rel->rd_tableam == GetHeapamTableAmRoutine())
	{
		/* The blocks before the first row count, too. */
		start = ((HeapScanDesc) desc)->rs_startblock;
		nblocks = ((HeapScanDesc) desc)->rs_nblocks;
	}
	else
		nblocks = la_seq_size(rel);
	if (method == NULL || blkno >= nblocks || start >= nblocks)
	{
		la_seq_end(scan, LA_SEQ_OUT);
		return;
	}
	la_frontier_open(&scan->frontier, rel, method, &scan->base.counters,
					 start, nblocks, handed_out);
	scan->is_chunk_cut = false;
	if (scan->is_parallel &&
		(la_parallel_chunk_size > 0 || scan->frontier.may_begin))
		la_limit_chunk(scan);
	scan->has_begun = true;
	la_followed_runs(&scan->base);
	scan->base.method_name = method->name;
	scan->state = LA_SEQ_WATCHING;
	scan->position = scan->first = la_seq_position(scan, blkno);
	scan->rows_at_first = scan->limit ? scan->limit->position : 0;
	scan->next_check = scan->position;
	scan->waits = 0;
	scan->meter.is_begun = false;
	scan->give_up = Min(Max(nblocks / LA_GIVE_UP_PART, LA_SEQ_MEASURE),
						LA_SEQ_GIVE_UP);
	scan->in_vain = 0;
	scan->read_at = scan->position;
	scan->is_heavy = false;
	scan->hold = scan->hold_until = 0;
	scan->has_looked = false;
	scan->doubts = 0;
	scan->next_look = 0;
	scan->run_from = scan->position;
	scan->is_paused = scan->has_waited = scan->has_read = false;
	scan->reads = la_blocks_read();
	la_usage(&usage);
	scan->sleeps = usage.sleeps;
	scan->from_storage = usage.reads;
}

/*
 * How far will the scan come if a LIMIT stops it?  As far as it takes to find
 * the rows that are left, if blocks go on to have as many rows as those that it
 * has come over since the first row.  Too near is corrected at the next check,
 * and too far was asked for in vain.
 */
static void
la_seq_foresee_end(LaSeqScan *scan)
{
	LaFrontier *frontier = &scan->frontier;
	uint64		left = la_entries_left(scan->limit);
	int64		found;
	double		blocks;

	frontier->end = frontier->nblocks;
	if (left == PG_UINT64_MAX || scan->is_parallel)
		return;
	/* The row just found is the first one of its block, as was that. */
	found = scan->limit->position - scan->rows_at_first;
	if (found <= 0)
		return;
	blocks = ceil((double) left / found * (scan->position - scan->first));
	if (blocks < frontier->nblocks)
		frontier->end = Min(frontier->end,
							scan->position + 1 + (uint64) blocks);
}

/*
 * Move the frontier.  Runs under la_guard_run().
 */
static void
la_seq_advance_body(void *arg)
{
	LaSeqScan  *scan = arg;

	if (scan->is_parallel)
	{
		ParallelBlockTableScanDesc blocks = la_parallel_blocks(scan);

		/* Where this round of the scan has it, should that be elsewhere. */
		scan->frontier.handed_out = blocks ? &blocks->phs_nallocated : NULL;

		/*
		 * Others may have moved on: a position of the past looks like a
		 * restart.
		 */
		scan->position = Max(scan->position,
							 la_seq_position(scan, scan->current));
	}
	la_seq_foresee_end(scan);
	if (la_frontier_advance(&scan->frontier, scan->position))
		return;
	scan->state = LA_SEQ_RESTING;
	/* Up to there some are in shared buffers because of us. */
	scan->read_at = Max(scan->position, scan->frontier.local_frontier);
}

static void
la_seq_advance(LaSeqScan *scan)
{
	if (!la_guard_is_possible())
		return;
	CHECK_FOR_INTERRUPTS();
	if (la_guard_run_once(la_seq_advance_body, scan))
		return;
	scan->base.counters.errors_total++;
	la_seq_end(scan, LA_SEQ_OUT);
}

/*
 * Has the scan waited since we looked last?
 */
static bool
la_seq_waited(LaSeqScan *scan)
{
	int64		reads = la_blocks_read();
	long		sleeps;
	bool		waited;

	if (reads == scan->reads)
		return false;
	scan->has_read = true;
	scan->reads = reads;
	sleeps = la_sleeps();
	waited = sleeps != scan->sleeps;
	scan->sleeps = sleeps;
	return waited;
}

/*
 * Once in LA_CHECK_BLOCKS blocks.
 */
static void
la_seq_check(LaSeqScan *scan)
{
	bool		waited = la_seq_waited(scan) || scan->has_waited;
	bool		has_read = scan->has_read;
	LaOwnerRef *ref = &scan->frontier.owner;

	scan->has_waited = scan->has_read = false;
	if (has_read)
		scan->read_at = scan->position;
	if (scan->is_parallel && !scan->is_chunk_cut &&
		la_frontier_has_owner(&scan->frontier))
		la_limit_chunk(scan);
	switch (scan->state)
	{
		case LA_SEQ_WATCHING:
			if (waited)
				scan->waits++;
			if (!la_seq_is_worth_it(scan))
			{
				la_seq_leave_alone(scan);
				return;
			}
			la_seq_look(scan);
			break;

		case LA_SEQ_LOOKING:
			if (!scan->is_heavy && la_seq_is_doubtful(scan))
			{
				la_seq_doubt(scan);
				return;
			}
			if (scan->is_heavy && la_seq_is_vain(scan))
			{
				scan->hold = Min(Max(2 * scan->hold, LA_HEAVY_HOLD),
								 LA_HEAVY_MOST_HOLD);
				scan->hold_until = scan->position + scan->hold;
				scan->state = LA_SEQ_RESTING;
				return;
			}
			if (waited)
			{
				scan->base.counters.waits_total++;
				la_frontier_waited(&scan->frontier);
			}
			break;

		case LA_SEQ_RESTING:
			if (!la_seq_end_rest(scan, waited))
			{
				if (scan->position >= scan->hold_until &&
					scan->position >= scan->read_at + LA_SEQ_QUIET)
					la_seq_leave_alone(scan);
				return;
			}
			la_seq_look(scan);
			break;

		case LA_SEQ_SPARSE:
			if (has_read)
				la_seq_watch(scan);
			return;

		case LA_SEQ_OUT:
			return;
	}
	la_seq_advance(scan);
	if (la_owner_is_valid(ref))
		pg_atomic_write_u32(&ref->owner->started, ref->generation);
}

/*
 * The scan has come to another block.
 */
static pg_noinline void
la_seq_moved(LaSeqScan *scan, BlockNumber blkno, ScanDirection direction)
{
	uint64		position;

	scan->current = blkno;
	if (scan->state == LA_SEQ_OUT)
		return;
	if (!ScanDirectionIsForward(direction))
	{
		la_seq_end(scan, LA_SEQ_OUT);
		return;
	}
	if (!scan->has_begun)
	{
		la_seq_begin(scan, blkno);
		return;
	}
	if (blkno >= scan->frontier.nblocks)
	{
		/* Added since the scan began, or no block. */
		if (blkno >= la_seq_size(scan->node->ss.ss_currentRelation))
			la_seq_end(scan, LA_SEQ_OUT);
		return;
	}

	position = la_seq_position(scan, blkno);
	if (position < scan->position)
	{
		la_seq_end(scan, LA_SEQ_WATCHING);
		la_seq_begin(scan, blkno);
		return;
	}
	scan->position = position;
	if (position < scan->next_check)
		return;
	scan->next_check = position + LA_CHECK_BLOCKS;
	la_seq_check(scan);
}

/* -------------------------------------------------------------------------
 * The node
 * -------------------------------------------------------------------------
 */

/*
 * The leader has come to the end of a parallel scan.  Others may still be at
 * its owner, but hardly at that of the one to whose end it had come before.
 */
static void
la_seq_end_before(LaSeqScan *scan)
{
	LaScans    *scans = scan->base.scans;
	LaSeqScan  *before = (LaSeqScan *) scans->ended;

	if (!scan->frontier.may_begin || before == scan)
		return;
	scans->ended = &scan->base;
	if (before == NULL)
		return;
	la_seq_end(before, LA_SEQ_WATCHING);
	la_frontier_release(&before->frontier);
}

/*
 * There are no more rows.
 */
static TupleTableSlot *
la_seq_at_end(LaSeqScan *scan, ScanDirection direction)
{
	la_unseen.node = NULL;
	/* The pages after the last row were read, too. */
	if (scan->has_begun && ScanDirectionIsForward(direction))
	{
		scan->position = scan->frontier.nblocks;
		if (scan->is_parallel)
			la_seq_end_before(scan);
		else
			la_seq_end(scan, LA_SEQ_WATCHING);
	}
	return NULL;
}

/*
 * Do not look at the next rows of a scan that is left alone; "nblocks" were
 * passed since it was looked at last.  Where blocks have few rows there are
 * fewer of them, or it would be far away when it reads something.
 */
static void
la_seq_pass_rows(LaSeqScan *scan, uint64 nblocks)
{
	int64		rows = scan->unseen_rows + 1;

	rows = rows * LA_CHECK_BLOCKS / Max((int64) nblocks, 1);
	scan->unseen_rows = (int) Min(rows, LA_UNSEEN_ROWS);
	la_unseen.node = scan->node;
	la_unseen.rows = scan->unseen_rows;
}

/*
 * The next row of the table, which is looked at.
 */
static pg_noinline TupleTableSlot *
la_seq_next_seen(SeqScanState *node)
{
	TableScanDesc scandesc = node->ss.ss_currentScanDesc;
	EState	   *estate = node->ss.ps.state;
	ScanDirection direction = estate->es_direction;
	TupleTableSlot *slot = node->ss.ss_ScanTupleSlot;
	LaSeqScan  *scan;
	BlockNumber blkno;
	uint64		position;

	if (scandesc == NULL)
	{
		scandesc = table_beginscan(node->ss.ss_currentRelation,
								   estate->es_snapshot, 0, NULL);
		node->ss.ss_currentScanDesc = scandesc;
	}
	scan = la_by_address_get(&la_nodes, node);
	Assert(scan != NULL);
	if (unlikely(scan->is_paused))
	{
		scan->is_paused = false;
		la_time_resume(&scan->meter);
	}
	if (!table_scan_getnextslot(scandesc, direction, slot))
		return la_seq_at_end(scan, direction);
	blkno = ItemPointerGetBlockNumberNoCheck(&slot->tts_tid);
	position = scan->position;
	if (unlikely(blkno != scan->current))
		la_seq_moved(scan, blkno, direction);
	if (unlikely(scan->state == LA_SEQ_SPARSE))
		la_seq_pass_rows(scan, scan->position - position);
	else if (unlikely(la_unseen.node == node))
		la_unseen.node = NULL;
	return slot;
}

/*
 * The next row of the table, as the server's own function gets it.
 *
 * What is done here is paid for each row of a scan that is left alone.
 */
static TupleTableSlot *
la_SeqNext(SeqScanState *node)
{
	TupleTableSlot *slot = node->ss.ss_ScanTupleSlot;
	ScanDirection direction = node->ss.ps.state->es_direction;

	if (node != la_unseen.node || --la_unseen.rows < 0)
		return la_seq_next_seen(node);
	if (likely(table_scan_getnextslot(node->ss.ss_currentScanDesc, direction,
									  slot)))
		return slot;
	return la_seq_at_end(la_by_address_get(&la_nodes, node), direction);
}

/*
 * A sequential scan has no condition of its own to check again.
 */
static bool
la_SeqRecheck(SeqScanState *node, TupleTableSlot *slot)
{
	return true;
}

static TupleTableSlot *
la_ExecSeqScan(PlanState *pstate)
{
	SeqScanState *node = castNode(SeqScanState, pstate);

	return ExecScan(&node->ss, (ExecScanAccessMtd) la_SeqNext,
					(ExecScanRecheckMtd) la_SeqRecheck);
}

/*
 * Is this function of the server's own program?  Another extension's is not to
 * be replaced: it would not be called any more.
 */
static bool
la_is_servers_own(ExecProcNodeMtd function)
{
#ifdef WIN32
	return true;
#else
	static ExecProcNodeMtd last = NULL; /* nearly always the same */
	static bool is_own = false;
	Dl_info		its;
	Dl_info		servers;

	if (function != last)
	{
		is_own = dladdr((void *) function, &its) != 0 &&
			dladdr((void *) ExecScan, &servers) != 0 &&
			its.dli_fbase == servers.dli_fbase;
		last = function;
	}
	return is_own;
#endif
}

/*
 * Was a table much too small when it was vacuumed or analyzed last?  A plan may
 * have scans of hundreds of partitions that are never run: the files of small
 * ones need not be opened to see how large they are.
 */
static bool
la_was_small(const FormData_pg_class *form)
{
	return form->reltuples >= 0 && form->relpages > 0 &&
		form->relpages < la_min_table_size / LA_GROWTH;
}

/*
 * Is a table large?  The plan may never come to the scan.
 */
static bool
la_is_large(Relation rel)
{
	return !la_was_small(rel->rd_rel) &&
		la_seq_size(rel) >= (BlockNumber) la_min_table_size;
}

/*
 * Is the table of a scan one that is worth looking ahead for?
 */
bool
la_seq_scan_is_wanted(SeqScanState *node)
{
	Relation	rel = node->ss.ss_currentRelation;

	return la_seqscan && rel != NULL &&
		(rel->rd_rel->relkind == RELKIND_RELATION ||
		 rel->rd_rel->relkind == RELKIND_MATVIEW) &&
		!IsCatalogRelation(rel) &&
		!RelationUsesLocalBuffers(rel) &&
		la_is_servers_own(node->ss.ps.ExecProcNodeReal) &&
		la_is_large(rel);
}

/*
 * Start to follow a sequential scan.
 */
LaFollowed *
la_seq_scan_register(MemoryContext query_context, SeqScanState *node,
					 LimitState *limit)
{
	Relation	rel = node->ss.ss_currentRelation;
	LaSeqScan  *scan = MemoryContextAllocZero(query_context,
											  sizeof(LaSeqScan));

	scan->base.ops = &la_seq_scan_ops;
	scan->base.node = &node->ss.ps;
	scan->base.heap_oid = RelationGetRelid(rel);
	scan->base.is_temporary = RelationUsesLocalBuffers(rel);
	scan->node = node;
	scan->limit = limit;
	scan->is_parallel = node->ss.ps.plan->parallel_aware;
	scan->current = InvalidBlockNumber;
	scan->frontier.may_begin = !IsParallelWorker() || !scan->is_parallel;
	if (scan->is_parallel)
		scan->frontier.key = la_parallel_key(node);

	/* The leader may never get to scan; the others look for its slot. */
	if (scan->is_parallel && scan->frontier.may_begin)
		la_frontier_reserve(&scan->frontier, rel,
							la_range_method_for(rel, true));

	la_by_address_put(&la_nodes, node, scan);
	scan->server_exec = node->ss.ps.ExecProcNodeReal;
	ExecSetExecProcNode(&node->ss.ps, la_ExecSeqScan);
	return &scan->base;
}

static void
la_seq_scan_pause(LaFollowed *followed)
{
	LaSeqScan  *scan = (LaSeqScan *) followed;

	scan->away_reads = la_blocks_read();
	/* Of one that is left alone it matters only whether something is read. */
	if (!scan->has_begun || scan->is_paused || scan->state == LA_SEQ_SPARSE)
		return;
	if (la_seq_waited(scan))
		scan->has_waited = true;
	scan->is_paused = true;
	if (scan->position - scan->run_from >= LA_LEAST_RUN)
		la_time_pause(&scan->meter);
	scan->run_from = scan->position;
}

/*
 * The executor is back.  Where its client was waited for, and that is part of
 * what was measured, that is void; a scan that was to look ahead because it
 * computes cannot be judged any more, and has little to win.
 */
static void
la_seq_scan_resume(LaFollowed *followed, bool client_was_waited_for)
{
	LaSeqScan  *scan = (LaSeqScan *) followed;

	scan->reads += la_blocks_read() - scan->away_reads;
	if (!client_was_waited_for || !scan->has_begun ||
		scan->state == LA_SEQ_SPARSE)
		return;
	scan->sleeps = la_sleeps();
	if (!scan->meter.is_begun || scan->meter.is_paused)
		return;
	scan->meter.is_begun = false;
	if (scan->is_heavy && scan->state == LA_SEQ_LOOKING)
	{
		scan->hold_until = scan->position + LA_HEAVY_HOLD;
		scan->state = LA_SEQ_RESTING;
	}
}

/*
 * The query ends in order.
 */
static void
la_seq_scan_finish(LaFollowed *followed)
{
	LaSeqScan  *scan = (LaSeqScan *) followed;

	la_seq_end(scan, LA_SEQ_OUT);
	la_frontier_release(&scan->frontier);
}

/*
 * The query's memory goes.
 */
static void
la_seq_scan_forget(LaFollowed *followed)
{
	LaSeqScan  *scan = (LaSeqScan *) followed;

	if (la_unseen.node == scan->node)
		la_unseen.node = NULL;
	la_by_address_remove(&la_nodes, scan->node, scan);
}

#endif							/* LA_HAVE_SEQ_STREAM */
