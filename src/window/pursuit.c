/*-------------------------------------------------------------------------
 *
 * pursuit.c
 *	  Looks ahead of another process, whose position is seen now and then.
 *
 * frontier.c looks ahead from within the scan, which knows where it is.  Here a
 * third process does it, which sees the position as it was some milliseconds
 * ago.  So it works with where the scan may have come until it looks again:
 *
 *		position	100			140			260				 2300
 *					seen		edge		frontier before	 frontier after
 *					|-- lead ---|-- asked --|--- asked now --|
 *								|<------- at most "distance" --->|
 *
 * Nothing is asked for in front of the edge, and the edge is what the owner's
 * slot says, so that workers drop what is behind it.  (Where the position is a
 * counter in shared memory, workers look at that, too: LaTarget's "live".)
 * The lead is twice what the scan does between two looks, at its speed so far:
 * two processes that read the same blocks at the same time are slower than
 * one.
 *
 * Looked at as often as the scan needs to come a quarter of the distance.
 *
 * Where the scan leaves blocks out, "wanted" says which it will visit; what it
 * leaves out does not count for the distance, so that the next blocks after a
 * long gap are there when the scan jumps over it.  Ranges asked for are kept in
 * order; those behind the edge are dropped and counted as used.
 *
 *		stretches	[120-183] [184-247]  [9000-9063]
 *		edge		140 ...				 the first counts until it is passed
 *
 * Nor does it count for the target's margin: at 200 the scan is 48 blocks in
 * front of 9000 and may be there at once.  So the margin of a range goes back
 * over the stretches before it, of which those in front of the edge are noted
 * for that alone.
 *
 * A range that no queue has room for is asked for again at the next look.
 *
 * Copyright (c) 2026, the pg_lookahead authors
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "compat.h"
#include "method/method.h"
#include "window/pursuit.h"
#include "window/window.h"

/* Asked for at a time. */
#define LA_STEP_BLOCKS		64

/* Steps, and gaps between them, that one look deals with. */
#define LA_MAX_STEPS		256

/*
 * What the scan reads in this time is far enough, or, if that is more, so many
 * blocks or stretches.  All of it may be in the device's queue, where others'
 * reads wait behind it: a scan that could have been faster with more gets more.
 */
#define LA_AHEAD_US			50000
#define LA_LEAST_AHEAD		(2 * 1024 * 1024 / BLCKSZ)
#define LA_LEAST_STRETCHES	32

/* Blocks per microsecond that are believed at once: 100 MB/s. */
#define LA_FIRST_SPEED		(100.0 / BLCKSZ)

#define LA_MIN_LEAD			32
#define LA_MAX_LEAD			512

/*
 * Prepare to look ahead of a scan that began at block "start" and is at this
 * position by now.
 */
void
la_pursuit_open(LaPursuit *pursuit, const LaTarget *target, int pid,
				BlockNumber start, BlockNumber nblocks, uint64 position)
{
	memset(pursuit, 0, sizeof(*pursuit));
	pursuit->target = *target;
	pursuit->pid = pid;
	pursuit->start = start;
	pursuit->nblocks = nblocks;
	pursuit->end = nblocks;
	pursuit->position = position;
	pursuit->looked_us = la_now_us();
	pursuit->look_us = LA_MIN_LOOK_US;
}

/*
 * Have a valid owner.
 */
static bool
la_pursuit_has_owner(LaPursuit *pursuit)
{
	if (la_owner_is_valid(&pursuit->owner))
		return true;
	if (!la_owner_begin(&pursuit->owner, &pursuit->target, 0, false))
		return false;
	pursuit->owner.owner->pid = pursuit->pid;
	pursuit->counters.scans_total = 1;
	return true;
}

/*
 * How many blocks may be in front of the scan at most?
 */
static int
la_pursuit_distance(const LaPursuit *pursuit)
{
	if (pursuit->target.advise_only)
		return LA_PURSUIT_MAX_AHEAD;
	return Min(LA_PURSUIT_MAX_AHEAD, la_owner_share());
}

/*
 * Is as much in front of the scan as it needs?  Where the kernel is not advised
 * no more are being read than there are workers, however many are asked for.
 */
static bool
la_pursuit_has_enough(const LaPursuit *pursuit)
{
	/* Where blocks are left out the position says little. */
	double		flow = pursuit->wanted ? pursuit->flow : pursuit->speed;

	if (!la_may_advise())
		return false;
	return pursuit->ahead >= flow * LA_AHEAD_US &&
		(pursuit->ahead >= LA_LEAST_AHEAD ||
		 pursuit->tail - pursuit->head >= LA_LEAST_STRETCHES);
}

/*
 * Measure how fast the scan is, and say when to look again.
 */
static void
la_pursuit_measure(LaPursuit *pursuit, uint64 position, int distance)
{
	uint64		now = la_now_us();
	uint64		passed = now - pursuit->looked_us;

	if (passed > 0)
	{
		double		speed = (double) (position - pursuit->position) / passed;

		/* A jump over blocks that are left out is no speed. */
		speed = Min(speed, Max(2 * pursuit->speed, LA_FIRST_SPEED));
		pursuit->speed = (pursuit->speed + speed) / 2;
	}
	pursuit->position = position;
	pursuit->looked_us = now;
	pursuit->look_us = LA_MAX_LOOK_US;
	if (pursuit->speed * LA_MAX_LOOK_US > distance / 4)
		pursuit->look_us = (int) Max(distance / 4 / pursuit->speed,
									 LA_MIN_LOOK_US);
}

/*
 * Forget the stretches that the scan is past.  Returns the number of their
 * blocks.
 */
static int
la_pursuit_drop(LaPursuit *pursuit, uint64 edge)
{
	int			before = pursuit->ahead;

	while (pursuit->head != pursuit->tail)
	{
		LaStretch  *oldest =
			&pursuit->stretches[pursuit->head % LA_MAX_STRETCHES];

		if (oldest->until > edge)
			break;
		pursuit->ahead -= oldest->nblocks;
		if (oldest->is_issued)
			pursuit->counters.blocks_used_total += oldest->nblocks;
		pursuit->head++;
	}
	return before - pursuit->ahead;
}

/*
 * The last blocks that were asked for and that the scan, which is at this
 * position by now, has passed since it was seen.  Returns how many, "most" at
 * the most.  The scan must have started at block 0.
 */
int
la_pursuit_passed(const LaPursuit *pursuit, uint64 position,
				  BlockNumber *blocks, int most)
{
	int			n = 0;

	Assert(pursuit->start == 0);
	for (uint32 i = 1; i <= Min(pursuit->tail, LA_MAX_STRETCHES); i++)
	{
		const LaStretch *stretch =
			&pursuit->stretches[(pursuit->tail - i) % LA_MAX_STRETCHES];
		uint64		first = Max(stretch->until - stretch->nblocks,
								pursuit->position);

		if (stretch->until <= pursuit->position)
			break;
		if (!stretch->is_issued)
			continue;
		for (uint64 at = Min(stretch->until, position); at > first; at--)
		{
			if (n == most)
				return n;
			blocks[n++] = (BlockNumber) (at - 1);
		}
	}
	return n;
}

/*
 * How far away must the scan be for the blocks of positions from on to be read?
 * The target's margin, and what is left out on the way.  Of a scan that visits
 * a block here and there, half of the stretches that are known are enough.
 */
static BlockNumber
la_pursuit_margin(const LaPursuit *pursuit, uint64 from)
{
	uint64		behind = from;
	int			left = pursuit->target.margin;

	if (pursuit->wanted == NULL)
		return left;
	for (uint32 i = 1; left > 0 && i <= LA_MAX_STRETCHES / 2; i++)
	{
		const LaStretch *stretch =
			&pursuit->stretches[(pursuit->tail - i) % LA_MAX_STRETCHES];
		int			n = Min(stretch->nblocks, left);

		/* It is that near already, wherever it is: none is to be read. */
		if (i > pursuit->tail)
			return (BlockNumber) Min(from + LA_STEP_BLOCKS, MaxBlockNumber);
		behind = stretch->until - n;
		left -= n;
	}
	return (BlockNumber) (from - behind);
}

/*
 * The scan is at this position and nothing is to be asked for in front of the
 * edge: move the frontier there.  If there is a margin, note what is visited.
 */
static void
la_pursuit_catch_up(LaPursuit *pursuit, uint64 position, uint64 edge)
{
	uint64		at = Max(pursuit->frontier, position);

	if (pursuit->frontier >= edge)
		return;
	pursuit->frontier = edge;
	if (pursuit->wanted == NULL || pursuit->target.margin == 0)
		return;
	Assert(pursuit->head == pursuit->tail);
	for (int i = 0; i < LA_MAX_STEPS && at < edge; i++)
	{
		LaStretch  *stretch =
			&pursuit->stretches[pursuit->tail % LA_MAX_STRETCHES];
		int			n = 0;

		at = pursuit->wanted(pursuit->wanted_arg, (BlockNumber) at,
							 (BlockNumber) edge, LA_STEP_BLOCKS, &n);
		if (n < 0)
			return;
		at += n;
		if (n == 0)
			continue;
		stretch->until = at;
		stretch->nblocks = n;
		stretch->is_issued = false;
		pursuit->head = ++pursuit->tail;
	}
}

/*
 * Ask for the blocks of positions from on; they do not wrap round.  Returns how
 * many were accepted.
 */
static int
la_pursuit_ask(LaPursuit *pursuit, uint64 from, int nblocks)
{
	LaStretch  *stretch =
		&pursuit->stretches[pursuit->tail % LA_MAX_STRETCHES];
	uint64		blkno = pursuit->start + from;
	int			asked = nblocks;

	if (blkno >= pursuit->nblocks)
		blkno -= pursuit->nblocks;
	if (la_block_is_resident(&pursuit->target.locator, pursuit->target.fork,
							 (BlockNumber) blkno))
		pursuit->resident++;
	else
		pursuit->resident = 0;

	stretch->is_issued = pursuit->resident < 2;
	if (stretch->is_issued)
	{
		asked = la_owner_ask(&pursuit->owner, (BlockNumber) blkno, nblocks,
							 from + nblocks, la_pursuit_margin(pursuit, from));
		pursuit->counters.blocks_issued_total += asked;
		pursuit->counters.windows_total++;
	}
	else
		pursuit->counters.blocks_hit_total += nblocks;

	if (asked > 0)
	{
		stretch->until = from + asked;
		stretch->nblocks = asked;
		pursuit->ahead += asked;
		pursuit->tail++;
	}
	return asked;
}

/*
 * Move the frontier one step on.  Returns false if that is all for now.
 */
static bool
la_pursuit_step(LaPursuit *pursuit)
{
	uint64		from = pursuit->frontier;
	uint64		wrap = pursuit->nblocks - pursuit->start;
	int			n = (int) Min(pursuit->end - from, LA_STEP_BLOCKS);
	int			asked;

	if (pursuit->wanted != NULL)
	{
		Assert(pursuit->start == 0);
		from = pursuit->wanted(pursuit->wanted_arg, (BlockNumber) from,
							   pursuit->end, LA_STEP_BLOCKS, &n);
	}
	else if (from < wrap && from + n > wrap)
		n = (int) (wrap - from);

	pursuit->frontier = from;
	if (n <= 0)
		return n == 0;
	asked = la_pursuit_ask(pursuit, from, n);
	pursuit->frontier += asked;
	return asked == n;
}

/*
 * The scan was seen at this position, which is not before the last one: move
 * the frontier on.  May raise errors; to be called under la_guard_run().
 */
void
la_pursuit_advance(LaPursuit *pursuit, uint64 position)
{
	uint64		since_us = pursuit->looked_us;
	int			distance;
	int			lead;
	int			passed;
	uint64		edge;

	if (!la_pursuit_has_owner(pursuit))
	{
		pursuit->look_us = LA_MAX_LOOK_US;
		return;
	}
	distance = la_pursuit_distance(pursuit);
	la_pursuit_measure(pursuit, position, distance);
	lead = (int) Min(2 * pursuit->speed * pursuit->look_us, LA_MAX_LEAD);
	lead = Min(Max(lead, LA_MIN_LEAD), distance / 2);

	/* Nothing is read that is nearer than the margin. */
	lead = Max(lead, pursuit->target.margin);
	edge = Min(position + lead, pursuit->end);

	/* Its share of the rings has to hold both. */
	distance = Min(distance, Max(0, distance + distance / 2 - lead));

	pg_atomic_write_u64(&pursuit->owner.owner->position, edge);
	pg_atomic_write_u64(&pursuit->owner.owner->moved_us, pursuit->looked_us);
	passed = la_pursuit_drop(pursuit, edge);
	since_us = pursuit->looked_us - since_us;
	if (since_us > 0)
		pursuit->flow = (pursuit->flow + (double) passed / since_us) / 2;
	la_pursuit_catch_up(pursuit, position, edge);

	for (int i = 0; i < LA_MAX_STEPS; i++)
	{
		if (pursuit->ahead >= distance || pursuit->frontier >= pursuit->end ||
			pursuit->tail - pursuit->head >= LA_MAX_STRETCHES ||
			la_pursuit_has_enough(pursuit))
			break;
		if (!la_pursuit_step(pursuit))
			break;
	}
	pursuit->counters.depth_max = Max(pursuit->counters.depth_max,
									  pursuit->ahead);
	pg_atomic_write_u64(&pursuit->owner.owner->frontier, pursuit->frontier);
}

/*
 * What was asked for is of no use, or asked for in another way from now on: go
 * back to where the scan is.
 */
void
la_pursuit_reopen(LaPursuit *pursuit, uint64 position, bool page_in)
{
	LaTarget	target = pursuit->target;
	const BlockNumber end = pursuit->end;
	const LaWanted wanted = pursuit->wanted;
	void	   *const wanted_arg = pursuit->wanted_arg;

	target.page_in = page_in;
	la_pursuit_close(pursuit);
	la_pursuit_open(pursuit, &target, pursuit->pid, pursuit->start,
					pursuit->nblocks, position);
	pursuit->end = end;
	pursuit->wanted = wanted;
	pursuit->wanted_arg = wanted_arg;
}

/*
 * The scan has ended, or is to be left alone.  Counts what it did not come to.
 */
void
la_pursuit_close(LaPursuit *pursuit)
{
	if (pursuit->owner.owner != NULL)
		la_owner_end(&pursuit->owner);
	(void) la_pursuit_drop(pursuit, pursuit->position);
	pursuit->counters.blocks_wasted_total =
		pursuit->counters.blocks_issued_total -
		pursuit->counters.blocks_used_total;
	if (pursuit->counters.scans_total > 0)
		la_counters_report(pursuit->target.dbid, pursuit->target.relid,
						   &pursuit->counters);
	memset(&pursuit->counters, 0, sizeof(pursuit->counters));
}
