/*-------------------------------------------------------------------------
 *
 * frontier.c
 *	  The window of a scan in physical order: all blocks up to a frontier.
 *
 * A scan that reads every block of a relation in order needs no set of blocks,
 * no sorting and no source to ask: what comes next is the next block.  So in
 * place of a window it has a frontier, and "looking ahead" means to keep that
 * at some distance in front of the scan.
 *
 * A scan may start anywhere (synchronized scans) and goes once round.  We
 * count from where it started:
 *
 *		block		0	1	2	3	4	5	6	7	8	9
 *		position	6	7	8	9	0	1	2	3	4	5	(started at block 4)
 *							^			  ^
 *						frontier 8	  scan at 2: 3 to 7 are asked for
 *
 * Processes of a parallel scan take chunks of blocks from a shared counter;
 * that counter is the position, and the frontier is shared, too, in the owner's
 * slot.  Who finds it too near moves it with one atomic exchange and asks for
 * what lies between, so that no block is asked for twice.  Of any other scan
 * the slot only shows the frontier: a process that comes too late for the slot
 * that its own scan had may move it.
 *
 * Asked for in steps of LA_STEP_BLOCKS.  The distance begins small and doubles
 * while the scan waits, up to what the ring of the I/O service has room for, or
 * LA_ADVICE_DISTANCE if the kernel is advised; a reader that is only just ahead
 * is worse than none, because then two processes read one file by turns and the
 * kernel's own read-ahead gives up.
 *
 * Where it is known that the scan will be stopped, what lies behind is not
 * asked for: the caller says how far it expects the scan to come.
 *
 * A scan that finds no slot asks for one again once a second.  Meanwhile it
 * tells the kernel where that takes advice, as windows do, but for processes of
 * a parallel scan that are not its leader: no two should tell of the same.  So
 * it does if its share of the rings is too small for it to be well ahead.  What
 * the kernel was told is not lost as what a worker was asked for may be.
 *
 * A client may be away for longer than blocks are protected, and others read
 * into the same buffers meanwhile.  When the scan goes on what is lost is asked
 * for once more.  So it is after a subtransaction was rolled back, which makes
 * void what nobody has come to read yet.  The frontier goes back to the scan
 * then, and all that was asked for is counted as wasted.  Each step up to
 * again_until is looked up: what is there was of use after all, and needs
 * nobody.  Where blocks were lost it was too far ahead for one that its client
 * leaves alone: several such scans would have each other's blocks read again
 * and again.  So each time the distance is halved; and that a scan had to wait
 * after such a pause does not say that it is too short.
 *
 * Blocks that are in shared buffers need nobody.  The first block of each step
 * is looked up; after LA_RESIDENT_STEPS hits in a row the caller is told to
 * rest.
 *
 * Copyright (c) 2026, the pg_lookahead authors
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "compat.h"
#include "method/method.h"
#include "window/frontier.h"
#include "window/window.h"

#define LA_STEP_BLOCKS		64
#define LA_FIRST_DISTANCE	(4 * LA_STEP_BLOCKS)
#define LA_RESIDENT_STEPS	8

/* With less a scan that is served would hardly be ahead. */
#define LA_LEAST_SHARE		(2 * LA_STEP_BLOCKS)

/* The distance doubles up to here: more than any ring has room for. */
#define LA_FARTHEST			(1 << 20)

/* The kernel is advised of at most 16 MB in front of a scan. */
#define LA_ADVICE_DISTANCE	(16 * 1024 * 1024 / BLCKSZ)

/*
 * Is the frontier in the owner's slot, for the processes of a parallel scan?
 */
static inline bool
la_frontier_is_shared(const LaFrontier *frontier)
{
	return frontier->key != 0 && la_owner_is_valid(&frontier->owner);
}

/*
 * Move a frontier that is this process' alone, and show it.
 */
static inline void
la_frontier_set(LaFrontier *frontier, uint64 position)
{
	frontier->local_frontier = position;
	if (la_owner_is_valid(&frontier->owner))
		pg_atomic_write_u64(&frontier->owner.owner->frontier, position);
}

/*
 * Prepare to look ahead of a scan that begins at block "start".  Of a parallel
 * scan "handed_out" counts the blocks that its processes were given.
 */
void
la_frontier_open(LaFrontier *frontier, Relation rel, const LaMethod *method,
				 LaCounters *counters, BlockNumber start, BlockNumber nblocks,
				 pg_atomic_uint64 *handed_out)
{
	frontier->rel = rel;
	frontier->method = method;
	frontier->counters = counters;
	frontier->start = start;
	frontier->nblocks = nblocks;
	frontier->local_frontier = 0;
	frontier->asked_until = frontier->told_until = 0;
	frontier->again_until = frontier->again_wasted = 0;
	frontier->asked_generation = 0;
	frontier->handed_out = handed_out;
	frontier->end = nblocks;
	frontier->distance = LA_FIRST_DISTANCE;
	frontier->resident = 0;
	if (!la_frontier_is_shared(frontier))
		la_frontier_set(frontier, 0);
}

/*
 * Have a valid owner, maybe for a scan that has not begun.
 */
static bool
la_frontier_get_owner(LaFrontier *frontier, bool is_reserved)
{
	LaTarget	target;

	if (la_owner_is_valid(&frontier->owner))
		return true;
	la_owner_target_of(&target, frontier->rel, MAIN_FORKNUM);
	target.advise_only = frontier->method->id != LA_METHOD_WORKER;
	if (frontier->may_begin)
		return la_owner_begin(&frontier->owner, &target, frontier->key,
							  is_reserved);
	return la_owner_find(&frontier->owner, &target, frontier->key);
}

/*
 * Have a valid owner, if the scan is to have one.
 */
bool
la_frontier_has_owner(LaFrontier *frontier)
{
	return la_frontier_get_owner(frontier, false);
}

/*
 * Have an owner for the processes of a parallel scan, before any of them scans.
 * Until then it takes nobody's share.
 */
void
la_frontier_reserve(LaFrontier *frontier, Relation rel, const LaMethod *method)
{
	if (method == NULL)
		return;
	frontier->rel = rel;
	frontier->method = method;
	(void) la_frontier_get_owner(frontier, true);
}

/*
 * Give the owner back, if this process has begun it.
 */
void
la_frontier_release(LaFrontier *frontier)
{
	if (frontier->may_begin && frontier->owner.owner != NULL)
		la_owner_end(&frontier->owner);
}

/*
 * The block of a position.
 */
static inline BlockNumber
la_frontier_block(const LaFrontier *frontier, uint64 position)
{
	uint64		blkno = frontier->start + position;

	return (BlockNumber) (blkno < frontier->nblocks ? blkno :
						  blkno - frontier->nblocks);
}

/*
 * Of the blocks that this process has asked for, how many are not accounted
 * for?  While the scan goes on those that it has used are among them.
 */
static inline uint64
la_frontier_unsettled(const LaFrontier *frontier)
{
	const LaCounters *counters = frontier->counters;

	return counters->blocks_issued_total - counters->blocks_used_total -
		counters->blocks_wasted_total;
}

/*
 * Is the block of a position in shared buffers?
 */
static inline bool
la_frontier_is_resident(const LaFrontier *frontier, uint64 position)
{
	return la_block_is_resident(la_rel_locator(frontier->rel), MAIN_FORKNUM,
								la_frontier_block(frontier, position));
}

/*
 * Ask for the blocks of positions from to until - 1, which do not wrap round:
 * the I/O service ("is_read"), or the kernel.
 */
static void
la_frontier_ask(LaFrontier *frontier, bool is_read, uint64 from, uint64 until)
{
	BlockNumber first = la_frontier_block(frontier, from);
	int			n = (int) (until - from);
	int			asked = n;

	if (from < frontier->again_until)
	{
		uint64		booked = Min((uint64) n, frontier->again_wasted);

		/* What was asked for is read in order, if it is. */
		frontier->again_wasted -= booked;
		if (la_frontier_is_resident(frontier, until - 1))
		{
			frontier->counters->blocks_wasted_total -= booked;
			frontier->asked_until = until;
			return;
		}
		frontier->resident = 0;
	}
	else if (la_frontier_is_resident(frontier, from))
		frontier->resident++;
	else
		frontier->resident = 0;
	if (frontier->resident > 1)
	{
		frontier->counters->blocks_hit_total += n;
		return;
	}

	/* The leader may have a lock that keeps the service out. */
	if (is_read && !frontier->owner.owner->target.advise_only)
	{
		asked = la_owner_ask(&frontier->owner, first, n, until, 0);
		frontier->asked_generation = frontier->owner.generation;
	}
	else
	{
		la_file_advise(RelationGetSmgr(frontier->rel), MAIN_FORKNUM, first, n);
		frontier->told_until = until;
	}
	if (asked > 0)
		frontier->asked_until = from + asked;
	frontier->counters->blocks_issued_total += asked;
	frontier->counters->blocks_dropped_total += n - asked;
	frontier->counters->windows_total++;
}

/*
 * Take the next step in front of the scan, if nobody else does.  Returns false
 * if the frontier is far enough, or at the end.
 */
static bool
la_frontier_take(LaFrontier *frontier, uint64 position, int distance,
				 uint64 *from, uint64 *until)
{
	bool		is_shared = la_frontier_is_shared(frontier);
	uint64		now = is_shared ?
		pg_atomic_read_u64(&frontier->owner.owner->frontier) :
		frontier->local_frontier;
	uint64		wrap = frontier->nblocks - frontier->start;

	for (;;)
	{
		/* Overtaken: from here on. */
		*from = Max(now, position + 1);
		if (*from >= frontier->end ||
			*from + LA_STEP_BLOCKS > position + distance)
			return false;
		*until = Min(*from + LA_STEP_BLOCKS, frontier->end);
		if (*from < wrap && *until > wrap)
			*until = wrap;
		if (*from < frontier->again_until && *until > frontier->again_until)
			*until = frontier->again_until;

		if (!is_shared)
		{
			la_frontier_set(frontier, *until);
			return true;
		}
		if (pg_atomic_compare_exchange_u64(&frontier->owner.owner->frontier,
										   &now, *until))
			return true;
	}
}

/*
 * Tell the owner's slot where the scan is.  Returns the position.
 *
 * Of a parallel scan all processes tell theirs, and the counter that it comes
 * from begins anew with each rescan; then the frontier has to.  Within one
 * round the counter only grows.  It is read after what somebody else has seen
 * of it, so it can be the smaller one only in a new round: a process that was
 * kept from the processor for a while does not mistake the past for one.  Of
 * those who see it one moves the frontier back.
 */
static uint64
la_frontier_tell(LaFrontier *frontier, uint64 position)
{
	LaOwner    *owner = frontier->owner.owner;
	uint64		reached = pg_atomic_read_u64(&owner->frontier);
	uint64		told = pg_atomic_read_u64(&owner->position);

	if (frontier->handed_out == NULL)
		pg_atomic_write_u64(&owner->position, position);
	else
	{
		pg_read_barrier();
		position = pg_atomic_read_u64(frontier->handed_out);
		if (position < told)
		{
			if (pg_atomic_compare_exchange_u64(&owner->position, &told,
											   position))
			{
				(void) pg_atomic_compare_exchange_u64(&owner->frontier,
													  &reached, 0);
				pg_atomic_write_u64(&owner->unused, 0);
			}
		}
		/* What is told within a round only grows, too. */
		else
			while (told < position &&
				   !pg_atomic_compare_exchange_u64(&owner->position, &told,
												   position))
				;
	}
	pg_atomic_write_u64(&owner->moved_us, la_now_us());
	return position;
}

/*
 * Where what workers were asked for begins in front of a serial scan.
 */
static inline uint64
la_frontier_base(const LaFrontier *frontier, uint64 position)
{
	return Max(position + 1, frontier->told_until);
}

/*
 * Has the scan stood still for longer than its blocks are protected?
 */
static inline bool
la_frontier_was_away(const LaFrontier *frontier)
{
	return la_owner_is_valid(&frontier->owner) &&
		pg_atomic_read_u64(&frontier->owner.owner->moved_us) +
		(uint64) la_protect_time * 1000 < la_now_us();
}

/*
 * What workers were asked for by a serial scan may never be read, or is lost:
 * go back to where that begins.
 */
static void
la_frontier_restart(LaFrontier *frontier, uint64 position)
{
	uint64		base = la_frontier_base(frontier, position);
	uint64		ahead = frontier->asked_until > base ?
		frontier->asked_until - base : 0;

	/* Of some that were there already nobody was asked. */
	ahead = Min(ahead, la_frontier_unsettled(frontier));
	if (frontier->again_until <= position)
		frontier->again_wasted = 0;
	frontier->counters->blocks_wasted_total += ahead;
	frontier->again_wasted += ahead;
	frontier->again_until = Max(frontier->again_until, frontier->asked_until);
	frontier->asked_until = base;
	frontier->asked_generation = 0;
	la_frontier_set(frontier, base);
}

/*
 * Is what workers were asked for by a serial scan lost?  It is void if that was
 * another owner, and may be gone from shared buffers if the scan has stood
 * still for longer than it is protected.
 */
static void
la_frontier_recover(LaFrontier *frontier, uint64 position)
{
	uint64		base = la_frontier_base(frontier, position);
	uint64		reached = Min(frontier->local_frontier, frontier->asked_until);
	uint64		seen;

	if (frontier->key != 0 || frontier->asked_generation == 0)
		return;
	if (!la_owner_is_valid(&frontier->owner) ||
		frontier->owner.generation != frontier->asked_generation)
	{
		la_frontier_restart(frontier, position);
		return;
	}
	if (reached <= base || !la_frontier_was_away(frontier))
		return;
	/* The next ones may have been read by the scan, several at a time. */
	seen = Min(base + LA_STEP_BLOCKS, reached) - 1;
	if (la_frontier_is_resident(frontier, seen))
		return;
	la_frontier_restart(frontier, position);
	frontier->distance = Max(Min(frontier->distance, la_owner_share()) / 2,
							 LA_FIRST_DISTANCE);
}

/*
 * How far ahead may the scan be?  Who has hardly a share of the rings is not
 * served; then the kernel is told.
 */
static int
la_frontier_reach(bool *is_read)
{
	if (*is_read)
	{
		int			share = la_owner_share();

		if (share >= LA_LEAST_SHARE || !la_may_advise())
			return share;
		*is_read = false;
	}
	return LA_ADVICE_DISTANCE;
}

/*
 * The leader of a parallel scan has an owner, after it had none: the processes
 * that find it go on from where the leader is.
 */
static void
la_frontier_share(LaFrontier *frontier)
{
	uint64		none = 0;

	(void) pg_atomic_compare_exchange_u64(&frontier->owner.owner->frontier,
										  &none, frontier->local_frontier);
}

/*
 * The scan is at this position: move the frontier on.  May raise errors; to be
 * called under la_guard_run().  Returns false if the blocks are there already
 * and look-ahead may rest.
 */
bool
la_frontier_advance(LaFrontier *frontier, uint64 position)
{
	int			distance;
	uint64		from,
				until;
	bool		is_read = frontier->method->id == LA_METHOD_WORKER;
	bool		had_owner = la_owner_is_valid(&frontier->owner);

	/* Processes of a parallel scan share theirs whoever reads. */
	if ((is_read || frontier->key != 0) && !la_frontier_has_owner(frontier))
	{
		/* Without one, one of them advises for all. */
		if (!frontier->may_begin || !la_may_advise())
			return true;
		is_read = false;
	}
	la_frontier_recover(frontier, position);
	distance = Min(frontier->distance, la_frontier_reach(&is_read));
	if (frontier->key != 0 && frontier->may_begin && !had_owner &&
		la_owner_is_valid(&frontier->owner))
		la_frontier_share(frontier);

	if (la_owner_is_valid(&frontier->owner))
	{
		/* The kernel may have been told of some before it had one. */
		if (frontier->key == 0)
			la_frontier_set(frontier, frontier->local_frontier);
		position = la_frontier_tell(frontier, position);
	}

	while (la_frontier_take(frontier, position, distance, &from, &until))
		la_frontier_ask(frontier, is_read, from, until);
	frontier->counters->depth_max = Max(frontier->counters->depth_max,
										distance);
	if (frontier->resident < LA_RESIDENT_STEPS)
		return true;
	frontier->resident = 0;
	return false;
}

/*
 * The scan has waited all the same: look further ahead, unless it was kept from
 * going on for so long that its blocks may be lost.
 */
void
la_frontier_waited(LaFrontier *frontier)
{
	if (frontier->distance < LA_FARTHEST &&
		(BlockNumber) frontier->distance < frontier->nblocks &&
		!(frontier->key == 0 && la_frontier_was_away(frontier)))
		frontier->distance *= 2;
}

/*
 * How many of the blocks that this process has asked for does the scan not come
 * to?  Of those of a parallel scan all processes ask when they end: what one
 * has counted the others do not.
 */
static uint64
la_frontier_unused(const LaFrontier *frontier, uint64 position)
{
	uint64		most = la_frontier_unsettled(frontier);
	bool		is_shared = la_frontier_is_shared(frontier);
	uint64		reached = is_shared ?
		pg_atomic_read_u64(&frontier->owner.owner->frontier) :
		frontier->local_frontier;
	uint64		ahead;
	uint64		counted;
	uint64		unused;

	/* What was there already, or found no room, was not asked for. */
	if (frontier->key == 0)
		reached = Min(reached, frontier->asked_until);
	/* Others may have come further. */
	if (is_shared)
		position = Max(position,
					   pg_atomic_read_u64(&frontier->owner.owner->position));
	ahead = reached > position + 1 ? reached - position - 1 : 0;
	if (!is_shared)
		return Min(ahead, most);

	counted = pg_atomic_read_u64(&frontier->owner.owner->unused);
	do
		unused = Min(ahead > counted ? ahead - counted : 0, most);
	while (!pg_atomic_compare_exchange_u64(&frontier->owner.owner->unused,
										   &counted, counted + unused));
	return unused;
}

/*
 * The scan ends, or starts anew.  Counts what was asked for and not come to.
 */
void
la_frontier_close(LaFrontier *frontier, uint64 position)
{
	LaCounters *counters = frontier->counters;

	counters->blocks_wasted_total += la_frontier_unused(frontier, position);
	/* Others use that of a parallel scan. */
	if (la_owner_is_valid(&frontier->owner) && frontier->key == 0)
		la_owner_end(&frontier->owner);
	counters->blocks_used_total = counters->blocks_issued_total -
		counters->blocks_wasted_total;
	frontier->local_frontier = 0;
	frontier->asked_until = frontier->told_until = 0;
	frontier->again_until = frontier->again_wasted = 0;
}
