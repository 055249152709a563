/*-------------------------------------------------------------------------
 *
 * pace.c
 *	  The control rule of look-ahead: waits decide.
 *
 * This file does no I/O and knows no PostgreSQL structure; it is arithmetic on
 * what the caller observed.
 *
 * Watching.  For each table block that a scan switches to, the caller says
 * whether the scan had to wait for storage there.  Look-ahead starts when the
 * scan has switched start_after times and has waited at least LA_START_WAITS
 * times lately, or start_after times if that is less.  "Lately" is the current
 * stretch of LA_STRETCH switches and half of the stretch before: a scan of
 * cached data that meets a cold block now and then never starts, one that goes
 * from cached to cold data starts within a few blocks.
 *
 *		switch	1    2    3    4    5    6    7    8    9
 *		waited	-    yes  yes  no   yes  yes  yes  yes  <- start here
 *
 * Look-ahead starts when the scan asks for the block after the eighth, so a
 * query that ends within eight blocks (LIMIT 8) has read nothing more than it
 * does without us.
 *
 * Looking ahead.  The distance begins at LA_FIRST_DISTANCE blocks.  Whenever
 * a window is filled and the scan has waited since the one before, it doubles,
 * up to max_distance.  So it does anew after a rest, a turn or a trial; not if
 * only the place was lost, and the scan goes on as before.
 *
 * Look-ahead idles when it is of no use any more: the caller goes back to
 * watching, and what is watched for is the same as at the start, without
 * start_after.  Apart from the trial below there are two signs:
 *
 *	- LA_EMPTY_WINDOWS windows in a row, of LA_EMPTY_BLOCKS blocks or more,
 *	  found every block in shared buffers.  Where one block of a hundred has to
 *	  be read a scan waits for most of its time, and most windows are empty.
 *
 *	- LA_VAIN_PROBES probes in a row did not wait.  Blocks may be in the
 *	  page cache of the kernel, where we cannot see them; reading ahead then
 *	  costs more than it saves.  So one block of every LA_PROBE_INTERVAL windows
 *	  is left for the scan to read by itself.  If it waits there, all is well;
 *	  if not, the next windows are probed too.  Not while a trial measures.
 *
 * The trial.  A scan that works its way forward through neighbouring blocks is
 * what the kernel's own read-ahead is for.  It is often better at it than we
 * are, and our advice can spoil it: pages that we asked for carry no mark that
 * makes the kernel read on.  How good it is depends on the device's read-ahead
 * setting, which is 128 kB here and 8 MB there, so we measure.  When such a
 * scan waits, it is timed without look-ahead for LA_TRIAL_LENGTH blocks read,
 * then, if it has lost enough time to waits, with it for as many, each after
 * LA_TRIAL_RAMP to settle.  The length is that of two of the largest reads that
 * a kernel makes ahead, or one that falls into the one time and not into the
 * other would decide.  Look-ahead stays if it takes less than LA_TRIAL_SHARE of
 * the time; if not, it stays away for a while, longer each time, and the scan
 * is looked at now and then only.  If look-ahead has not won against what was
 * measured just before, or was about not to when the round ended, that holds
 * for the next rounds of the scan, too, and after a turn, if it moves in the
 * same way.  A scan of under LA_TRIAL_RAMP and LA_TRIAL_LENGTH blocks in this
 * pattern is left to the kernel, unless it gets a grant.  Backward the kernel
 * does not read ahead, and with direct I/O it does not read at all; then there
 * is no trial.  Blocks read are counted alike in both halves: those that were
 * not in shared buffers when the scan, or look-ahead, wanted them, and what the
 * rest of the plan reads meanwhile.
 *
 *		NONE -> WATCH_RAMP -> WATCH -> LOOK_RAMP -> LOOK -> WON <-> LOOK
 *		  ^                     |          |         `-> LOST -.
 *		  |                     `----------`-------------^     |
 *		  `----------------------------------------------------'
 *
 * LOST at once: a scan that computes too much for waits to matter, and one
 * that takes twice as long with look-ahead, or later a fifth longer.  NONE at
 * once: no waits any more, another pattern, a grant, and look-ahead that stops
 * or cannot begin.
 *
 * The time is that of the scan, and of what the rest of the plan does with its
 * rows.  Between two runs of the executor it stands still, if the first came
 * over LA_LEAST_RUN blocks, and if not goes on, unless the client was waited
 * for: then the trial begins its state anew.
 *
 * The grant.  A scan that goes to and fro near the order of the table looks
 * like one that goes forward for some hundred blocks, and to the kernel like
 * one that jumps: nearly every read waits.  Who has waited at more than
 * LA_UNAIDED_SHARE of its last LA_UNAIDED_READS reads or so, before there was a
 * trial, has no help from the kernel and starts at once, without a trial for
 * LA_GRANT_LENGTH blocks.  Once a round: the kernel may have learned by then,
 * and the scan is tried as above.  A scan that seems to go forward must have
 * read LA_UNAIDED_UPWARD blocks: a kernel that reads far ahead catches on
 * before, and would have to do so again after the grant.
 *
 *		UNSEEN -> GRANTED -> SPENT
 *			^		 |
 *			`--------'	look-ahead did not begin
 *
 * Copyright (c) 2026, the pg_lookahead authors
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "window/pace.h"

#define LA_START_WAITS		2
#define LA_FIRST_DISTANCE	16
#define LA_EMPTY_WINDOWS	2
#define LA_EMPTY_BLOCKS		512
#define LA_PROBE_INTERVAL	8
#define LA_VAIN_PROBES		4

#define LA_SHARE			65536	/* the whole, in fixed point */
#define LA_SHARE_MOVES		32	/* moves that the averages remember */
#define LA_NEAR_BLOCKS		64
#define LA_STEP				16	/* one block, in fixed point */
#define LA_CLEAR_BLOCKS		4
#define LA_CLEAR_STEPS		3
#define LA_TRIAL_RAMP		512
#define LA_TRIAL_LENGTH		2048
#define LA_TRIAL_CHECK		128
#define LA_TRIAL_WON_LENGTH	(16 * LA_TRIAL_LENGTH)
#define LA_TRIAL_SHARE(ns)	((ns) / 10 * 7)
#define LA_UNAIDED_READS	16
#define LA_UNAIDED_UPWARD	48
#define LA_UNAIDED_SHARE	(LA_SHARE * 3 / 4)
#define LA_FIRST_DOUBT		8
#define LA_LATER_DOUBT		16	/* as slow as the average is by then */
#define LA_HELPED_SHARE		(LA_SHARE / 2)
#define LA_GRANT_LENGTH		256
#define LA_FIRST_HOLD		(32 * LA_TRIAL_LENGTH)
#define LA_LAST_HOLD		(128 * LA_TRIAL_LENGTH)

static void la_pace_enter_trial(LaPace *pace, LaTrial trial);

/*
 * Look-ahead begins, or begins again, and does so carefully.
 */
static inline void
la_pace_begin_near(LaPace *pace)
{
	pace->distance = Min(LA_FIRST_DISTANCE, pace->max_distance);
}

/*
 * Begin to watch a new scan.
 */
void
la_pace_init(LaPace *pace, int start_after, int max_distance,
			 bool has_page_cache)
{
	Assert(start_after >= 0 && max_distance > 0);

	memset(pace, 0, sizeof(LaPace));
	pace->start_after = start_after;
	pace->max_distance = max_distance;
	pace->has_page_cache = has_page_cache;
	la_pace_begin_near(pace);
	pace->bound = PG_INT32_MAX;
	pace->last = InvalidBlockNumber;
	pace->doubt = LA_FIRST_DOUBT;
	pace->hold = LA_FIRST_HOLD;
}

/*
 * The scan starts again, maybe with other keys.  That the kernel does better is
 * true of its next rounds, too, as long as they move in the same way; they may
 * be too short for a trial of their own, and each would pay for half of it.
 */
void
la_pace_restart(LaPace *pace, int start_after, int max_distance,
				bool has_page_cache)
{
	bool		is_lost = pace->trial == LA_TRIAL_LOST &&
		((pace->watch_ns > 0 && !pace->watch_is_old) || pace->is_inherited);
	int			reads = is_lost ? pace->trial_reads : 0;
	int			hold = pace->hold;

	if (pace->would_lose)
		is_lost = true;
	la_pace_init(pace, start_after, max_distance, has_page_cache);
	pace->hold = Max(hold, LA_FIRST_HOLD);
	if (is_lost)
	{
		la_pace_enter_trial(pace, LA_TRIAL_LOST);
		pace->trial_reads = reads;
		pace->is_inherited = true;
	}
}

/*
 * How far has the scan come since its last far move, up and down?
 */
static inline BlockNumber
la_pace_up(const LaPace *pace)
{
	return pace->highest - pace->origin;
}

static inline BlockNumber
la_pace_down(const LaPace *pace)
{
	return pace->origin - pace->lowest;
}

/*
 * Does the scan work its way forward through neighbouring blocks?
 *
 * It may go to and fro on its way; so what counts is how far it has come since
 * its last far move, and not a few of its steps.  As long as that is not clear
 * we take it for forward.
 */
static bool
la_pace_is_sequential(const LaPace *pace)
{
	return pace->has_page_cache &&
		pace->near_share > LA_SHARE * 3 / 4 &&
		la_pace_down(pace) <= la_pace_up(pace) +
		LA_CLEAR_BLOCKS + LA_CLEAR_STEPS * pace->step / LA_STEP;
}

/*
 * Is the kernel of no help, as far as was seen, and no trial under way?
 */
static bool
la_pace_is_unaided(const LaPace *pace)
{
	bool		is_upward = la_pace_up(pace) >= la_pace_down(pace);

	return pace->grant == LA_GRANT_UNSEEN &&
		(pace->trial <= LA_TRIAL_WATCH_RAMP || pace->is_inherited) &&
		pace->reads >= (is_upward ? LA_UNAIDED_UPWARD : LA_UNAIDED_READS) &&
		pace->wait_share > LA_UNAIDED_SHARE;
}

/*
 * Is look-ahead held back for a while, because the kernel does better?  In a
 * new round it must be seen first that the scan moves as it did, and that it
 * gets no grant.
 */
bool
la_pace_has_lost(const LaPace *pace)
{
	if (pace->trial != LA_TRIAL_LOST)
		return false;
	return !pace->is_inherited ||
		(pace->moves >= LA_SHARE_MOVES && la_pace_is_sequential(pace) &&
		 pace->reads >= LA_UNAIDED_UPWARD);
}

/*
 * Is it being measured how the scan does without look-ahead?  Then it must be
 * seen how often it waits.
 */
bool
la_pace_is_tried(const LaPace *pace)
{
	return pace->trial == LA_TRIAL_WATCH_RAMP ||
		pace->trial == LA_TRIAL_WATCH;
}

/*
 * Does the kernel read ahead for this scan, as far as was seen lately?  Then
 * nothing begins before a trial of it has ended, and what happens meanwhile
 * need not be seen block by block.  Until la_pace_doubt().
 */
bool
la_pace_is_helped(const LaPace *pace)
{
	if (pace->start_after == 0 ||
		(pace->trial > LA_TRIAL_WATCH && !pace->is_inherited) ||
		pace->doubt > 0 || !la_pace_is_sequential(pace))
		return false;
	return pace->grant == LA_GRANT_SPENT || pace->wait_share < LA_HELPED_SHARE;
}

static void
la_pace_enter_trial(LaPace *pace, LaTrial trial)
{
	pace->trial = trial;
	pace->trial_reads = 0;
	pace->trial_waits = 0;
	pace->trial_start_ns = 0;
	pace->trial_run = 0;
	pace->is_behind = false;
	pace->is_inherited = false;
	pace->would_lose = false;
	pace->is_paused = false;
}

/*
 * Move a decaying average towards all or nothing.
 */
static inline void
la_share(int *share, bool yes, int moves)
{
	int			distance = (yes ? LA_SHARE : 0) - *share;

	/* A division by a constant is cheap. */
	if (likely(moves == LA_SHARE_MOVES))
		*share += distance / LA_SHARE_MOVES;
	else
		*share += distance / moves;
}

/*
 * It is not certain any more that the kernel helps: let it be seen again.
 */
void
la_pace_doubt(LaPace *pace)
{
	pace->doubt = LA_LATER_DOUBT;
}

/*
 * While watching, the scan has read one block: what does that say of the
 * kernel's help?  To be called only if nothing else was read meanwhile, by the
 * rest of the plan, say: the wait may have been for that.
 */
void
la_pace_saw_read(LaPace *pace, bool waited)
{
	if (pace->doubt > 0)
		pace->doubt--;
	if (pace->grant != LA_GRANT_UNSEEN)
		return;
	if (pace->reads < LA_UNAIDED_UPWARD)
		pace->reads++;
	la_share(&pace->wait_share, waited, Min(pace->reads, LA_UNAIDED_READS));
}

/*
 * The scan has moved to another block.
 */
void
la_pace_moved(LaPace *pace, BlockNumber blkno)
{
	bool		near;
	BlockNumber distance;

	if (pace->last == InvalidBlockNumber)
	{
		pace->last = blkno;
		pace->origin = pace->highest = pace->lowest = blkno;
		return;
	}

	distance = blkno > pace->last ? blkno - pace->last : pace->last - blkno;
	pace->last = blkno;

	/* Of several moves in one the pattern is not to be seen. */
	if (pace->unseen > 0)
	{
		if (distance >= (BlockNumber) pace->unseen * LA_NEAR_BLOCKS)
		{
			pace->origin = pace->highest = pace->lowest = blkno;
			la_pace_doubt(pace);
		}
		pace->unseen = 0;
		pace->highest = Max(pace->highest, blkno);
		pace->lowest = Min(pace->lowest, blkno);
		return;
	}

	near = distance < LA_NEAR_BLOCKS;
	if (pace->moves < LA_SHARE_MOVES)
		pace->moves++;
	la_share(&pace->near_share, near, pace->moves);
	if (near)
		pace->step += ((int) distance * LA_STEP - pace->step) / pace->moves;
	else
		pace->origin = pace->highest = pace->lowest = blkno;
	pace->highest = Max(pace->highest, blkno);
	pace->lowest = Min(pace->lowest, blkno);
}

/*
 * Blocks were read since we were told last, from storage or from the kernel's
 * page cache.  Returns true if the pace wants to know the time; then call
 * la_pace_clock().
 */
bool
la_pace_read(LaPace *pace, int nreads, bool waited)
{
	if (pace->grant == LA_GRANT_GRANTED)
	{
		pace->granted -= nreads;
		if (pace->granted <= 0)
			pace->grant = LA_GRANT_SPENT;
	}
	if (pace->trial == LA_TRIAL_NONE)
		return false;

	pace->trial_reads += nreads;
	if (waited)
		pace->trial_waits++;
	switch (pace->trial)
	{
		case LA_TRIAL_WATCH:
			return pace->trial_start_ns == 0 ||
				pace->trial_reads >= LA_TRIAL_LENGTH;
		case LA_TRIAL_LOOK_RAMP:
		case LA_TRIAL_LOOK:
			return pace->trial_start_ns == 0 ||
				pace->trial_reads / LA_TRIAL_CHECK !=
				(pace->trial_reads - nreads) / LA_TRIAL_CHECK;
		case LA_TRIAL_WON:
			return pace->trial_reads >= LA_TRIAL_WON_LENGTH;
		case LA_TRIAL_LOST:
			return pace->trial_reads >= pace->hold;
		default:
			return pace->trial_reads >= LA_TRIAL_RAMP;
	}
}

/*
 * Blocks were read that were not looked at.  The time can be asked for with the
 * next that is.
 */
void
la_pace_skipped(LaPace *pace, int64 nreads)
{
	if (pace->trial != LA_TRIAL_NONE)
		pace->trial_reads += nreads;
}

/*
 * Does it take more than so many tenths of the time that it took without
 * look-ahead?  Then a trial need not go on to its end.
 */
static bool
la_pace_is_behind(const LaPace *pace, int64 took, int tenths)
{
	return took > pace->watch_ns / 10 * tenths * pace->trial_reads /
		LA_TRIAL_LENGTH;
}

/*
 * The time, and for how long this process was busy, as wanted by
 * la_pace_read().  Moves the trial on.  Returns true if look-ahead should
 * change: start if it watches, idle if it looks ahead.
 */
bool
la_pace_clock(LaPace *pace, int64 now_ns, int64 busy_ns)
{
	int64		took = now_ns - pace->trial_start_ns;
	int64		busy = busy_ns - pace->trial_start_busy_ns;
	int			waits = pace->trial_waits;

	switch (pace->trial)
	{
		case LA_TRIAL_NONE:
			break;

		case LA_TRIAL_WATCH_RAMP:
			la_pace_enter_trial(pace, LA_TRIAL_WATCH);
			pace->trial_start_ns = now_ns;
			pace->trial_start_busy_ns = busy_ns;
			break;

		case LA_TRIAL_WATCH:
			if (pace->trial_start_ns == 0)
			{
				la_pace_enter_trial(pace, LA_TRIAL_WATCH);
				pace->trial_start_ns = now_ns;
				pace->trial_start_busy_ns = busy_ns;
				break;
			}
			/* What does not wait needs no help; waits begin it anew. */
			if (waits == 0 || !la_pace_is_sequential(pace))
			{
				la_pace_enter_trial(pace, LA_TRIAL_NONE);
				break;
			}
			/* If all waits went away, would that be enough? */
			if (busy > LA_TRIAL_SHARE(took))
			{
				la_pace_enter_trial(pace, LA_TRIAL_LOST);
				pace->watch_ns = 0; /* it says nothing of the kernel */
				break;
			}
			/* It may have taken longer: we look at some blocks only. */
			pace->watch_ns = took * LA_TRIAL_LENGTH / pace->trial_reads;
			pace->watch_is_old = false;
			pace->waited_ns = took - busy;
			pace->distance = pace->max_distance;
			la_pace_enter_trial(pace, LA_TRIAL_LOOK_RAMP);
			pace->trial_start_ns = now_ns;
			return true;

		case LA_TRIAL_LOOK_RAMP:
			if (pace->trial_start_ns == 0)
			{
				la_pace_enter_trial(pace, LA_TRIAL_LOOK_RAMP);
				pace->trial_start_ns = now_ns;
				break;
			}
			if (la_pace_is_behind(pace, took, 20))
			{
				la_pace_enter_trial(pace, LA_TRIAL_LOST);
				la_pace_begin_near(pace);
				return true;
			}
			if (pace->trial_reads < LA_TRIAL_RAMP)
				break;
			la_pace_enter_trial(pace, LA_TRIAL_LOOK);
			pace->trial_start_ns = now_ns;
			break;

		case LA_TRIAL_WON:
			la_pace_enter_trial(pace, LA_TRIAL_LOOK);
			pace->trial_start_ns = now_ns;
			pace->watch_is_old = true;
			break;

		case LA_TRIAL_LOOK:
			if (pace->trial_start_ns == 0)
			{
				la_pace_enter_trial(pace, LA_TRIAL_LOOK);
				pace->trial_start_ns = now_ns;
				break;
			}
			pace->is_behind = la_pace_is_behind(pace, took, 10);
			if (pace->trial_reads < LA_TRIAL_LENGTH &&
				!la_pace_is_behind(pace, took,
								   pace->trial_reads < LA_TRIAL_RAMP ? 20 : 12))
				break;
			/* It may have read more: others of the plan do as well. */
			if (pace->trial_reads >= LA_TRIAL_LENGTH &&
				took * LA_TRIAL_LENGTH / pace->trial_reads <=
				LA_TRIAL_SHARE(pace->watch_ns))
			{
				la_pace_enter_trial(pace, LA_TRIAL_WON);
				pace->hold = LA_FIRST_HOLD;
				break;
			}
			la_pace_enter_trial(pace, LA_TRIAL_LOST);
			la_pace_begin_near(pace);
			return true;

		case LA_TRIAL_LOST:
			pace->hold = Min(pace->hold * 2, LA_LAST_HOLD);
			la_pace_enter_trial(pace, LA_TRIAL_NONE);
			break;
	}
	return false;
}

/*
 * Is time being measured?
 */
static inline bool
la_pace_is_timed(const LaPace *pace)
{
	return pace->trial == LA_TRIAL_WATCH || pace->trial == LA_TRIAL_LOOK ||
		pace->trial == LA_TRIAL_LOOK_RAMP;
}

/*
 * Time has passed that is not the scan's: what is being measured is void.
 */
void
la_pace_interrupted(LaPace *pace)
{
	if (la_pace_is_timed(pace))
		la_pace_enter_trial(pace, pace->trial);
}

/*
 * The executor goes back to its caller.  Returns true if the pace wants to know
 * the time, so as not to measure what passes until the scan goes on; then call
 * la_pace_pause(), and la_pace_resume() when it does.  What passes after a
 * short run is measured, or makes void what was: la_pace_interrupted().
 */
bool
la_pace_run_ends(LaPace *pace)
{
	bool		is_long = pace->trial_reads - pace->trial_run >= LA_LEAST_RUN;

	pace->trial_run = pace->trial_reads;
	return is_long && la_pace_is_timed(pace) && pace->trial_start_ns != 0 &&
		!pace->is_paused;
}

void
la_pace_pause(LaPace *pace, int64 now_ns, int64 busy_ns)
{
	pace->is_paused = true;
	pace->paused_ns = now_ns;
	pace->paused_busy_ns = busy_ns;
}

void
la_pace_resume(LaPace *pace, int64 now_ns, int64 busy_ns)
{
	Assert(pace->is_paused);
	pace->is_paused = false;
	pace->trial_start_ns += now_ns - pace->paused_ns;
	pace->trial_start_busy_ns += busy_ns - pace->paused_busy_ns;
}

/*
 * Look-ahead has stopped for another reason than the trial, or does not begin:
 * a trial of it is void, and what it has won, too.  So is a grant, once it was
 * made use of.  A good part of a trial that takes as long as without look-ahead
 * is remembered for the scan's next round.
 */
void
la_pace_stopped(LaPace *pace)
{
	if (pace->grant == LA_GRANT_GRANTED)
		pace->grant = pace->granted == LA_GRANT_LENGTH ?
			LA_GRANT_UNSEEN : LA_GRANT_SPENT;
	if (pace->trial == LA_TRIAL_LOOK_RAMP || pace->trial == LA_TRIAL_LOOK ||
		pace->trial == LA_TRIAL_WON)
	{
		bool		would_lose = pace->trial == LA_TRIAL_LOOK &&
			!pace->watch_is_old && pace->is_behind &&
			pace->trial_reads >= LA_TRIAL_LENGTH / 2;

		la_pace_enter_trial(pace, LA_TRIAL_NONE);
		la_pace_begin_near(pace);
		pace->would_lose = would_lose;
	}
}

/*
 * Should look-ahead start before anything was seen?
 */
bool
la_pace_at_once(const LaPace *pace)
{
	return pace->start_after == 0;
}

/*
 * The scan has done with a block; did it wait there?  Returns true if
 * look-ahead should start with the next block.
 */
bool
la_pace_watch(LaPace *pace, bool waited)
{
	la_pace_passed(pace);
	if (waited)
		pace->waits++;

	if (pace->switches < pace->start_after)
		return false;
	if (pace->waits < Min(LA_START_WAITS, pace->start_after))
		return false;

	/* Look-ahead is wanted; against the kernel's it must prove itself. */
	if (la_pace_is_sequential(pace))
	{
		if (!la_pace_is_unaided(pace))
		{
			if (pace->trial == LA_TRIAL_NONE)
				la_pace_enter_trial(pace, LA_TRIAL_WATCH_RAMP);
			return false;
		}
		pace->grant = LA_GRANT_GRANTED;
		pace->granted = LA_GRANT_LENGTH;
	}
	la_pace_enter_trial(pace, LA_TRIAL_NONE);
	return true;
}

/*
 * While looking ahead, the scan still had to wait for a block.
 */
void
la_pace_waited(LaPace *pace)
{
	pace->waits_since_fill++;
}

/*
 * Look twice as far ahead from now on, as the next fill would after a wait.
 */
void
la_pace_deepen(LaPace *pace)
{
	pace->distance = Min(pace->distance * 2, pace->max_distance);
	pace->waits_since_fill = 0;
	pace->empty_windows = pace->empty_blocks = 0;
}

/*
 * Look-ahead is of no use now: watch again, and begin carefully when waits come
 * back.
 */
static void
la_pace_rest(LaPace *pace)
{
	pace->empty_windows = pace->empty_blocks = 0;
	pace->vain_probes = 0;
	pace->waits_since_fill = 0;
	pace->waits = 0;
	pace->recent = 0;
	la_pace_begin_near(pace);
}

/*
 * The scan goes in the other direction, at first over what it has just read,
 * and maybe not far: what was seen of the one says little of the other.  As in
 * a new round, but so many switches were seen.
 */
void
la_pace_turned(LaPace *pace)
{
	int			switches = pace->switches;
	int			bound = pace->bound;

	la_pace_restart(pace, pace->start_after, pace->max_distance,
					pace->has_page_cache);
	pace->switches = switches;
	pace->bound = bound;
}

/*
 * A window is about to be read: should one of its blocks be left out?
 */
bool
la_pace_wants_probe(LaPace *pace)
{
	if (pace->start_after == 0 || !pace->has_page_cache ||
		(pace->trial != LA_TRIAL_NONE && pace->trial != LA_TRIAL_WON))
		return false;
	if (pace->vain_probes == 0 && ++pace->unprobed < LA_PROBE_INTERVAL)
		return false;
	pace->unprobed = 0;
	return true;
}

/*
 * The scan has read a block that was left out; did it wait?  Returns true if
 * look-ahead should idle.
 */
bool
la_pace_probed(LaPace *pace, bool waited)
{
	if (waited)
	{
		pace->vain_probes = 0;
		return false;
	}
	if (++pace->vain_probes < LA_VAIN_PROBES)
		return false;
	la_pace_rest(pace);
	return true;
}

/*
 * A window of nblocks was filled, nreads of them not in shared buffers.
 * Returns true if look-ahead should idle.
 */
bool
la_pace_filled(LaPace *pace, int nblocks, int nreads)
{
	Assert(nreads >= 0 && nreads <= nblocks);

	if (nblocks == 0)
		return false;

	/*
	 * Its pattern is to be seen only now: it must prove itself.  Just after a
	 * far move it is not: a scan that goes back between those would have to.
	 */
	if (pace->trial == LA_TRIAL_NONE && pace->start_after > 0 &&
		pace->grant != LA_GRANT_GRANTED &&
		pace->moves >= LA_SHARE_MOVES && la_pace_is_sequential(pace) &&
		la_pace_up(pace) > la_pace_down(pace))
	{
		la_pace_enter_trial(pace, LA_TRIAL_WATCH_RAMP);
		la_pace_rest(pace);
		return true;
	}

	if (nreads == 0)
	{
		pace->empty_blocks = Min(pace->empty_blocks + nblocks,
								 LA_EMPTY_BLOCKS);
		if (++pace->empty_windows < LA_EMPTY_WINDOWS ||
			pace->empty_blocks < LA_EMPTY_BLOCKS || pace->start_after == 0)
			return false;
		la_pace_rest(pace);
		return true;
	}
	pace->empty_windows = pace->empty_blocks = 0;

	if (pace->waits_since_fill > 0)
		la_pace_deepen(pace);
	return false;
}

/*
 * No window was filled: the source has named no block that is new, and was far
 * ahead.  Counts as an empty window, and as a large one.  Returns true if
 * look-ahead should idle.
 */
bool
la_pace_filled_none(LaPace *pace)
{
	return la_pace_filled(pace, LA_EMPTY_BLOCKS, 0);
}
