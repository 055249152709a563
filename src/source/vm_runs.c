/*-------------------------------------------------------------------------
 *
 * vm_runs.c
 *	  The blocks that VACUUM will visit, by the visibility map.
 *
 * The first pass leaves out ranges of at least 32 blocks that the map says are
 * all-visible; an aggressive one leaves out all-frozen ones only, and with
 * DISABLE_PAGE_SKIPPING it leaves out nothing.  Which it is cannot be seen
 * from outside.  So we begin with the first, and when VACUUM is seen several
 * times in gaps that we left out, we know better.
 *
 *		map			..####################################..##..######
 *		runs		--                                    ---------------
 *					0								 36, the short gap included
 *
 * The second pass visits blocks with dead items.  Such a block is never
 * all-visible, and what else is not was written lately: the map is an upper
 * bound, usually a close one.
 *
 * The map is read through shared buffers, where the server keeps it, a page at
 * a time (32 thousand blocks), and copied; nothing is pinned.  A reader's lock
 * that is had without waiting makes it as safe as any scan.  Where it is not
 * had, because somebody else waits for the table, the last copy goes on being
 * used, and nothing is said of a page that has none (until the waiter has gone,
 * which in general is not before VACUUM has ended).  Where there is no map,
 * every block counts as visited.
 *
 * Copyright (c) 2026, the pg_lookahead authors
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/visibilitymapdefs.h"
#include "compat.h"
#include "source/vm_runs.h"
#include "utils/inval.h"
#include "window/guard.h"

#define LA_MAP_BYTES		(BLCKSZ - MAXALIGN(SizeOfPageHeaderData))
#define LA_BLOCKS_PER_BYTE	(BITS_PER_BYTE / BITS_PER_HEAPBLOCK)
#define LA_BLOCKS_PER_PAGE	(LA_MAP_BYTES * LA_BLOCKS_PER_BYTE)

/* A copy is good for so long: VACUUM sets bits behind it, not in front. */
#define LA_MAP_AGE_US		1000000

/* And where it could not be made, this goes by before the next attempt. */
#define LA_LOCKED_AGE_US	20000

/* VACUUM was seen this often in gaps before we believe it. */
#define LA_INSIDE_LOOKS		3

static void
la_vm_forget_gaps(LaVmRuns *runs)
{
	memset(runs->gaps, 0, sizeof(runs->gaps));
	runs->next_gap = 0;
	runs->inside = 0;
}

/*
 * Prepare to tell which blocks of the target's main fork are visited.
 */
void
la_vm_open(LaVmRuns *runs, const LaTarget *target, int least_gap,
		   BlockNumber last)
{
	runs->target = *target;
	runs->target.fork = VISIBILITYMAP_FORKNUM;
	runs->least_gap = least_gap;
	runs->last = last;
	runs->skip = LA_SKIP_VISIBLE;
	runs->map_block = InvalidBlockNumber;
	la_vm_forget_gaps(runs);
}

/*
 * Copy a page of the map.  Raises errors.
 */
static void
la_vm_read(LaVmRuns *runs, BlockNumber map_block)
{
	const LaTarget *target = &runs->target;
	SMgrRelation smgr;
	Buffer		buffer;
	BlockNumber nblocks;
	const bool	is_new = map_block != runs->map_block;

	runs->map_block = map_block;
	runs->read_us = la_now_us();
	/* VACUUM warns of a damaged page of the map if it is the one to read it. */
	if (la_damage_is_accepted())
	{
		runs->state = LA_MAP_NONE;
		return;
	}
	if (!la_target_lock(target))
	{
		if (is_new)
			runs->state = LA_MAP_LOCKED;
		return;
	}
	runs->state = LA_MAP_NONE;

	PG_TRY();
	{
		/* The lock is worth something only with what was done under others. */
		AcceptInvalidationMessages();
		smgr = la_smgropen(target->locator);
		nblocks = smgrexists(smgr, target->fork) ?
			smgrnblocks(smgr, target->fork) : 0;
		if (map_block < nblocks)
		{
			buffer = ReadBufferWithoutRelcache(target->locator, target->fork,
											   map_block, RBM_NORMAL, NULL,
											   target->persistence ==
											   RELPERSISTENCE_PERMANENT);
			memcpy(runs->map.data, BufferGetPage(buffer), BLCKSZ);
			ReleaseBuffer(buffer);
			runs->state = LA_MAP_COPIED;
		}
	}
	PG_FINALLY();
	{
		la_target_unlock(target);
	}
	PG_END_TRY();
}

/*
 * May this block be left out?
 */
static bool
la_vm_is_skippable(LaVmRuns *runs, BlockNumber blkno)
{
	BlockNumber map_block = blkno / LA_BLOCKS_PER_PAGE;
	uint32		number = blkno % LA_BLOCKS_PER_PAGE;
	const uint8 *bits;
	uint8		wanted;

	if (runs->skip == LA_SKIP_NOTHING || blkno == runs->last)
		return false;
	if (map_block != runs->map_block)
		la_vm_read(runs, map_block);
	if (runs->state != LA_MAP_COPIED)
		return false;
	bits = (const uint8 *) runs->map.data + MAXALIGN(SizeOfPageHeaderData);
	wanted = runs->skip == LA_SKIP_VISIBLE ? VISIBILITYMAP_ALL_VISIBLE :
		VISIBILITYMAP_ALL_FROZEN;
	return (bits[number / LA_BLOCKS_PER_BYTE] >>
			(number % LA_BLOCKS_PER_BYTE * BITS_PER_HEAPBLOCK) & wanted) != 0;
}

/*
 * Have a page of the map that is not too old.  Returns false if that has to
 * wait.
 */
static bool
la_vm_refresh(LaVmRuns *runs, BlockNumber map_block)
{
	const uint64 age_us = runs->state == LA_MAP_LOCKED ? LA_LOCKED_AGE_US :
		LA_MAP_AGE_US;

	if (map_block != runs->map_block || la_now_us() - runs->read_us > age_us)
		la_vm_read(runs, map_block);
	return runs->state != LA_MAP_LOCKED;
}

/*
 * The next run of blocks that are visited: see LaWanted.  Looks at one page of
 * the map.
 */
BlockNumber
la_vm_next(void *arg, BlockNumber from, BlockNumber end, int most, int *nblocks)
{
	LaVmRuns   *runs = arg;
	BlockNumber first = from;
	BlockNumber page_end;
	int			n = 0;
	int			gap = 0;

	if (runs->skip != LA_SKIP_NOTHING &&
		!la_vm_refresh(runs, from / LA_BLOCKS_PER_PAGE))
	{
		*nblocks = -1;
		return from;
	}
	page_end = (BlockNumber) Min((uint64) (from / LA_BLOCKS_PER_PAGE + 1) *
								 LA_BLOCKS_PER_PAGE, (uint64) end);
	while (first < page_end && la_vm_is_skippable(runs, first))
		first++;
	if (first - from >= runs->least_gap)
	{
		LaGap	   *place = &runs->gaps[runs->next_gap++ % LA_MAX_GAPS];

		place->first = from;
		place->end = first;
	}
	else
		first = from;			/* too short a gap */

	/* Up to the next gap that is long enough. */
	while (n < most && first + n < page_end && gap < runs->least_gap)
	{
		gap = la_vm_is_skippable(runs, first + n) ? gap + 1 : 0;
		n++;
	}
	if (gap >= runs->least_gap)
		n -= gap;
	*nblocks = n;
	return first;
}

/*
 * VACUUM was seen at this block.  Returns false if it does visit what we left
 * out: from now on less is left out, and what is in front has to be asked for
 * anew.
 *
 * Once is not enough: a block in a gap may have been changed since we looked.
 */
bool
la_vm_check(LaVmRuns *runs, BlockNumber visited)
{
	bool		is_inside = false;

	if (runs->skip == LA_SKIP_NOTHING)
		return true;
	for (int i = 0; i < LA_MAX_GAPS; i++)
		if (visited > runs->gaps[i].first && visited + 1 < runs->gaps[i].end)
			is_inside = true;
	runs->inside = is_inside ? runs->inside + 1 : 0;
	if (runs->inside < LA_INSIDE_LOOKS)
		return true;
	runs->skip++;
	la_vm_forget_gaps(runs);
	return false;
}

/*
 * How many blocks of a range may not be left out?  All of them, if the map
 * cannot be looked at.
 */
int
la_vm_count(LaVmRuns *runs, BlockNumber from, BlockNumber end)
{
	int			n = 0;

	for (BlockNumber blkno = from; blkno < end; blkno++)
		if (!la_vm_is_skippable(runs, blkno))
			n++;
	return n;
}
