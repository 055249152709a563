/*-------------------------------------------------------------------------
 *
 * seq_worth.c
 *	  Is it worth looking ahead of a sequential scan, and is it still?
 *
 * seq_scan.c, which has a drawing of the states, asks once in LA_CHECK_BLOCKS
 * blocks, on 15 to 17.  A scan that has begun to look ahead is judged again.
 *
 * Is it worth it?  The kernel reads a sequential scan ahead, and on a fast
 * device hides most of the waits.  What is left to win is the copy into shared
 * buffers, and a page that another processor has copied is a cold one to ours.
 * So a serial scan is timed for LA_SEQ_MEASURE blocks, again and again, and
 * look-ahead begins
 *
 *	-	when it has waited, for a third of the time; or
 *	-	when it computes for LA_HEAVY_NS and more per block, and a worker of
 *		the service can copy meanwhile: aggregates became a fifth faster, while
 *		a mere count became slower by that.  It need not have waited for it,
 *		but it takes another processor and workers that have time: where none of
 *		the machine was idle, or the scan had to wait for its own, look-ahead
 *		does not begin so.  Where it is slower then, or waits for workers or for
 *		a processor, or others do, or it computes less, it rests, each time for
 *		longer.
 *
 * Parallel scans defeat the kernel's read-ahead, and direct I/O has none: they
 * begin at once.
 *
 * Is it worth it, still?  What has begun because it computes is timed on.  What
 * has begun because it waited would have to be left to itself to be timed, and
 * that would cost the scan of a cold table a part of what it gains.  So after
 * LA_SEQ_GIVE_UP blocks the kernel is asked what storage has read meanwhile for
 * this process and the workers.  If that was a quarter of what they have read
 * (some of that is in files of other kinds), the scan goes on.  Else the rest
 * of the table may be in the page cache, and the scan is watched and timed once
 * more, from where nobody has read for it; when it begins again that is for
 * twice as long.  The workers may have read for
 * others, so a scan may go on for too long, or be timed for nothing, but it is
 * never left to wait.  Not every file system counts: if nothing was counted
 * while the scan waited for storage, only time can tell, and it is left to
 * itself after LA_SEQ_UNCOUNTED blocks, for less than 2 % of them.
 *
 * A serial scan that has not begun is not watched closely for ever, as that
 * costs something for each row; nor is it given up, as what it has read says
 * little of the rest of a large table.  It is SPARSE, which is to be looked at
 * once in LA_UNSEEN_ROWS rows and no more,
 *
 *	-	after LA_SEQ_GIVE_UP blocks that it has read and was not worth it for,
 *		for as many blocks.  Then it is timed once more, and so on: 16 MB in
 *		256 MB.  Blocks that were there do not speak against it.
 *	-	after LA_SEQ_QUIET blocks that were all there, until one is read.  If
 *		it has looked ahead before, it rests then, and goes on when it waits.
 *
 * Copyright (c) 2026, the pg_lookahead authors
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "compat.h"
#include "method/method.h"
#include "miscadmin.h"
#include "settings.h"
#include "source/seq_worth.h"

#if !LA_HAVE_SEQ_STREAM

/* It must have waited so many times. */
#define LA_SEQ_START_WAITS	2

/*
 * A scan computes much if it does so for this long per block, with all it does;
 * and so much that nothing is to be won by having a block copied.
 */
#define LA_HEAVY_NS			5000
#define LA_HEAVY_MOST_NS	200000

/*
 * It looks around, for who else wants processors, once in so many blocks, out
 * of step with the stripes of the service.
 */
#define LA_LOOK_BLOCKS		112

/*
 * So many processors must be idle for the workers when it begins; once they
 * work, so many may be lacking.
 */
#define LA_IDLE_ENOUGH		0.75
#define LA_IDLE_LACKING		(-1.0)

/* Of the time that it wanted to run it may have had to wait for a 20th, ... */
#define LA_SPARE_PART		20

/* ... and for a quarter while it looks ahead: the workers want one as well. */
#define LA_SCARCE_PART		4

/* Clearly slower than without look-ahead: by a sixth. */
#define LA_SLOWER(ns)		((ns) / 6 * 7)

/* Blocks of the workers' rings that there must be for each of all owners. */
#define LA_HEAVY_SHARE		256

/* A worker that has so many blocks to read has no time for such a scan. */
#define LA_HEAVY_QUEUE		512

/*
 * It is judged by so many blocks while it looks ahead: a turn of another
 * process takes some milliseconds, and should not decide.
 */
#define LA_HEAVY_MEASURE	(4 * LA_SEQ_MEASURE)

/*
 * One that looks ahead because it waited is judged again after LA_SEQ_GIVE_UP
 * blocks, or after so many if it has to be left to itself for that; then after
 * twice as many, so many times.
 */
#define LA_SEQ_UNCOUNTED	(4 * LA_SEQ_GIVE_UP)
#define LA_SEQ_MOST_DOUBTS	4

/* It goes on if storage has read this part of all. */
#define LA_SEQ_STORED_DIVISOR	4

/*
 * What the scan does with its time over "length" blocks; meanwhile, what else
 * the machine has to do.  Returns false until that is known.
 */
static bool
la_seq_measure(LaSeqScan *scan, uint64 length, LaTimes *spent)
{
	if (la_time_measure(&scan->meter, scan->position, length, spent))
		return true;
	if (scan->position >= scan->next_look &&
		scan->frontier.method->id == LA_METHOD_WORKER)
	{
		scan->next_look = scan->position + LA_LOOK_BLOCKS;
		la_time_look_around(&scan->meter);
	}
	return false;
}

/*
 * What the scan does with its time while it reads by itself.  Returns false
 * until that is known.
 */
static bool
la_seq_measure_alone(LaSeqScan *scan, LaTimes *spent)
{
	LaUsage		usage;

	if (!la_seq_measure(scan, LA_SEQ_MEASURE, spent))
		return false;
	scan->alone_ns = spent->wall_ns / spent->blocks;
	la_usage(&usage);
	scan->is_counted = usage.reads != scan->from_storage;
	scan->from_storage = usage.reads;
	return true;
}

/*
 * Does the scan compute so much that a worker had better copy for it?  Most
 * blocks must have been read, so that there is something to copy, and it must
 * be computing that it does, and not waiting for its client.  There must be a
 * slot, workers that have time, and a processor to spare.  That the scan has
 * its own whenever it wants it does not say so: beside transactions that wait
 * for their commits it has, and the workers would take theirs.
 */
static bool
la_seq_is_heavy(LaSeqScan *scan, const LaTimes *spent)
{
	LaFrontier *frontier = &scan->frontier;
	int64		wanted_ns = spent->cpu_ns + spent->ready_ns;

	return frontier->method->id == LA_METHOD_WORKER &&
		spent->reads >= spent->blocks / 2 &&
		spent->cpu_ns >= LA_HEAVY_NS * spent->blocks &&
		spent->cpu_ns <= LA_HEAVY_MOST_NS * spent->blocks &&
		spent->cpu_ns >= spent->wall_ns / 2 &&
		spent->ready_ns >= 0 &&
		spent->ready_ns <= wanted_ns / LA_SPARE_PART &&
		la_idle_processors(spent) >= LA_IDLE_ENOUGH &&
		la_owner_share() >= LA_HEAVY_SHARE &&
		!la_queues_are_long(LA_HEAVY_QUEUE) &&
		la_frontier_has_owner(frontier);
}

/*
 * A scan that looks ahead because it computes much: is that no good any more?
 * It is slower than it was without, processors have become scarce, workers do
 * not keep up with it, or it does not compute so much now (it has nothing to
 * copy itself).
 */
bool
la_seq_is_vain(LaSeqScan *scan)
{
	LaTimes		spent;

	if (!la_seq_measure(scan, LA_HEAVY_MEASURE, &spent))
		return false;
	return spent.ready_ns < 0 ||
		spent.wall_ns > LA_SLOWER(scan->alone_ns * spent.blocks) ||
		spent.ready_ns > (spent.cpu_ns + spent.ready_ns) / LA_SCARCE_PART ||
		la_idle_processors(&spent) < LA_IDLE_LACKING ||
		spent.cpu_ns < LA_HEAVY_NS / 2 * spent.blocks ||
		la_waited_much(&spent);
}

/*
 * End the rest of a scan if there is reason to look ahead again.  Returns
 * whether it has ended.  A scan that computes much need not wait for that; if
 * it does wait, it goes on as one that waits.
 */
bool
la_seq_end_rest(LaSeqScan *scan, bool waited)
{
	LaTimes		spent;

	if (!scan->is_heavy)
		return waited;
	if (!la_seq_measure_alone(scan, &spent))
		return false;
	if (la_waited_much(&spent))
	{
		scan->is_heavy = false;
		return true;
	}
	return scan->position >= scan->hold_until &&
		la_seq_is_heavy(scan, &spent);
}

/*
 * Should look-ahead begin?  See the file header.
 */
bool
la_seq_is_worth_it(LaSeqScan *scan)
{
	const LaOwnerRef *ref = &scan->frontier.owner;
	bool		has_waited;
	LaTimes		spent;

	has_waited = scan->waits >= Min(LA_SEQ_START_WAITS, la_start_after) ||
		(scan->is_parallel && la_frontier_has_owner(&scan->frontier) &&
		 pg_atomic_read_u32(&ref->owner->started) == ref->generation);
	if (scan->is_parallel || la_direct_io() || la_start_after == 0)
		return has_waited;
	if (!la_seq_measure_alone(scan, &spent))
		return false;
	scan->is_heavy = false;
	if (has_waited && la_waited_much(&spent))
		return true;
	scan->is_heavy = la_seq_is_heavy(scan, &spent);
	if (!scan->is_heavy)
		scan->in_vain += Min(spent.reads, spent.blocks);
	return scan->is_heavy;
}

/*
 * Leave a scan alone for a while if it was not worth it for long, or there was
 * nothing to read.  Not a parallel one: others may begin to look ahead of it.
 */
void
la_seq_leave_alone(LaSeqScan *scan)
{
	if (scan->is_parallel)
		return;
	scan->has_rested = scan->state == LA_SEQ_RESTING;
	if (scan->in_vain >= scan->give_up)
	{
		scan->next_check = scan->position + scan->give_up;
		/* Then one measurement decides. */
		scan->in_vain = scan->give_up - 1;
	}
	else if (scan->position < scan->read_at + LA_SEQ_QUIET)
		return;
	scan->state = LA_SEQ_SPARSE;
}

/*
 * Watch a scan again that was left alone.  One that looked ahead before it came
 * to blocks that were there does so at its next wait.
 */
void
la_seq_watch(LaSeqScan *scan)
{
	LaUsage		usage;

	/* It may have run on while the client was away. */
	scan->meter.is_begun = false;
	if (scan->state == LA_SEQ_SPARSE && scan->has_rested)
	{
		scan->state = LA_SEQ_RESTING;
		return;
	}
	la_usage(&usage);
	scan->from_storage = usage.reads;
	scan->waits = 0;
	scan->state = LA_SEQ_WATCHING;
}

/*
 * What this process and the workers of the service have read so far.  Returns
 * false if the kernel does not say.
 */
static bool
la_seq_reads(LaProcessReads *sum)
{
	if (!la_process_reads(MyProcPid, sum))
		return false;
	for (int i = 0; la_service != NULL && i < la_service->nworkers; i++)
	{
		const int	pid = la_service->workers[i].pid;
		LaProcessReads reads;

		if (pid == 0)
			continue;
		if (!la_process_reads(pid, &reads))
			return false;
		sum->asked += reads.asked;
		sum->from_storage += reads.from_storage;
	}
	return true;
}

/*
 * A scan looks ahead because it waits: when to judge it again?
 */
static void
la_seq_judge_later(LaSeqScan *scan)
{
	uint64		least;

	scan->is_judged_from = scan->is_counted && la_seq_reads(&scan->judge_from);
	least = scan->is_judged_from ? scan->give_up : LA_SEQ_UNCOUNTED;
	scan->judge_at = scan->position + (least << scan->doubts);
}

/*
 * Look-ahead begins, for the first time or once more.  After a rest it is
 * judged when it would have been.
 */
void
la_seq_look(LaSeqScan *scan)
{
	if (!scan->has_looked)
		scan->base.counters.scans_total++;
	scan->has_looked = true;
	scan->in_vain = 0;
	if (scan->state != LA_SEQ_RESTING)
		la_seq_judge_later(scan);
	scan->state = LA_SEQ_LOOKING;
}

/*
 * Is it time to see whether a scan that began because it waited still would?
 * Not if much of what was read for it came from storage: then not for as long
 * again.
 */
bool
la_seq_is_doubtful(LaSeqScan *scan)
{
	LaProcessReads now;
	int64		asked;
	int64		from_storage;

	if (scan->position < scan->judge_at || scan->is_parallel ||
		la_direct_io() || la_start_after == 0)
		return false;
	if (!scan->is_judged_from)
		return true;
	/* A worker that was started again has read less than before. */
	asked = from_storage = 0;
	if (la_seq_reads(&now))
	{
		asked = now.asked - scan->judge_from.asked;
		from_storage = now.from_storage - scan->judge_from.from_storage;
	}
	if (asked > 0 && from_storage >= 0 &&
		from_storage < asked / LA_SEQ_STORED_DIVISOR)
		return true;
	la_seq_judge_later(scan);
	return false;
}

/*
 * Leave a scan that looks ahead to itself, to time it once more: one
 * measurement decides.  It begins where nobody has read for the scan.
 */
void
la_seq_doubt(LaSeqScan *scan)
{
	la_seq_watch(scan);
	scan->doubts = Min(scan->doubts + 1, LA_SEQ_MOST_DOUBTS);
	scan->in_vain = scan->give_up - 1;
	scan->next_check = Max(scan->next_check, scan->frontier.local_frontier);
}

#endif							/* !LA_HAVE_SEQ_STREAM */
