/*-------------------------------------------------------------------------
 *
 * vm_runs.c
 *	  The blocks that VACUUM will visit, by the visibility map.
 *
 * The first pass leaves out ranges of at least 32 blocks that the map says are
 * all-visible; an aggressive one leaves out all-frozen ones only, and with
 * DISABLE_PAGE_SKIPPING it leaves out nothing.  Which it is cannot be seen
 * from outside.  So we begin with the first, and when VACUUM is seen several
 * times in gaps that it should leave out, we know better.  It makes such gaps
 * itself, of the blocks it has dealt with: what counts is what the map said of
 * those in front of it, a moment ago.
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

/*
 * Prepare to tell which blocks of the target's main fork are visited.  What is
 * known of this pass ("skip") remains.
 */
void
la_vm_open(LaVmRuns *runs, const LaTarget *target, int least_gap,
		   BlockNumber last)
{
	runs->target = *target;
	runs->target.fork = VISIBILITYMAP_FORKNUM;
	runs->least_gap = least_gap;
	runs->last = last;
	runs->ahead.number = InvalidBlockNumber;
	runs->around.number = InvalidBlockNumber;
	runs->visited = InvalidBlockNumber;
	runs->inside = 0;
}

/*
 * Copy a page of the map.  Raises errors.
 */
static void
la_vm_read(const LaVmRuns *runs, LaMapPage *page, BlockNumber number)
{
	const LaTarget *target = &runs->target;
	SMgrRelation smgr;
	Buffer		buffer;
	BlockNumber nblocks;
	const bool	is_new = number != page->number;

	page->number = number;
	page->read_us = la_now_us();
	/* VACUUM warns of a damaged page of the map if it is the one to read it. */
	if (la_damage_is_accepted())
	{
		page->state = LA_MAP_NONE;
		return;
	}
	if (!la_target_lock(target))
	{
		if (is_new)
			page->state = LA_MAP_LOCKED;
		return;
	}
	page->state = LA_MAP_NONE;

	PG_TRY();
	{
		/* The lock is worth something only with what was done under others. */
		AcceptInvalidationMessages();
		smgr = la_smgropen(target->locator);
		nblocks = smgrexists(smgr, target->fork) ?
			smgrnblocks(smgr, target->fork) : 0;
		if (number < nblocks)
		{
			buffer = ReadBufferWithoutRelcache(target->locator, target->fork,
											   number, RBM_NORMAL, NULL,
											   target->persistence ==
											   RELPERSISTENCE_PERMANENT);
			memcpy(page->map.data, BufferGetPage(buffer), BLCKSZ);
			ReleaseBuffer(buffer);
			page->state = LA_MAP_COPIED;
		}
	}
	PG_FINALLY();
	{
		la_target_unlock(target);
	}
	PG_END_TRY();
}

/*
 * May this block be left out?  Only of those on the page that was copied.
 */
static bool
la_vm_is_skippable(const LaVmRuns *runs, const LaMapPage *page,
				   BlockNumber blkno)
{
	const uint32 place = blkno % LA_BLOCKS_PER_PAGE;
	const uint8 wanted = runs->skip == LA_SKIP_VISIBLE ?
		VISIBILITYMAP_ALL_VISIBLE : VISIBILITYMAP_ALL_FROZEN;
	const uint8 *bits;

	if (runs->skip == LA_SKIP_NOTHING || blkno == runs->last ||
		page->state != LA_MAP_COPIED ||
		blkno / LA_BLOCKS_PER_PAGE != page->number)
		return false;
	bits = (const uint8 *) page->map.data + MAXALIGN(SizeOfPageHeaderData);
	return (bits[place / LA_BLOCKS_PER_BYTE] >>
			(place % LA_BLOCKS_PER_BYTE * BITS_PER_HEAPBLOCK) & wanted) != 0;
}

/*
 * Is a copy of another page wanted, or a newer one?
 */
static bool
la_vm_is_old(const LaMapPage *page, BlockNumber number)
{
	const uint64 age_us = page->state == LA_MAP_LOCKED ? LA_LOCKED_AGE_US :
		LA_MAP_AGE_US;

	return number != page->number || la_now_us() - page->read_us > age_us;
}

/*
 * Have a page of the map that is not too old.  Returns false if that has to
 * wait.
 */
static bool
la_vm_refresh(LaVmRuns *runs, BlockNumber number)
{
	if (la_vm_is_old(&runs->ahead, number))
		la_vm_read(runs, &runs->ahead, number);
	return runs->ahead.state != LA_MAP_LOCKED;
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
	while (first < page_end && la_vm_is_skippable(runs, &runs->ahead, first))
		first++;
	if (first - from < runs->least_gap)
		first = from;			/* too short a gap */

	/* Up to the next gap that is long enough. */
	while (n < most && first + n < page_end && gap < runs->least_gap)
	{
		gap = la_vm_is_skippable(runs, &runs->ahead, first + n) ? gap + 1 : 0;
		n++;
	}
	if (gap >= runs->least_gap)
		n -= gap;
	*nblocks = n;
	return first;
}

/*
 * Is a block within a gap that was in front of VACUUM when the map was copied?
 * Seen from the block no more of it is looked at than is needed.
 */
static bool
la_vm_is_inside(const LaVmRuns *runs, BlockNumber visited)
{
	const BlockNumber from = runs->around_from + 1;
	BlockNumber first = visited;
	BlockNumber end = visited;

	if (visited < from)
		return false;
	while (first > from && visited - first < runs->least_gap &&
		   la_vm_is_skippable(runs, &runs->around, first - 1))
		first--;
	while (end - visited < runs->least_gap &&
		   la_vm_is_skippable(runs, &runs->around, end))
		end++;
	return first < visited && visited + 1 < end &&
		end - first >= runs->least_gap;
}

/*
 * Copy the map for the blocks around the one at which VACUUM was seen.  It has
 * gone on since, and what it has dealt with by now is not in front of it.
 */
static void
la_vm_read_around(LaVmRuns *runs, BlockNumber visited)
{
	const volatile int64 *live = runs->target.live;

	la_vm_read(runs, &runs->around, visited / LA_BLOCKS_PER_PAGE);
	runs->around_from = visited;
	if (live != NULL && *live > visited)
		runs->around_from = (BlockNumber) *live;
}

/*
 * VACUUM was seen at this block.  Returns false if it does visit what we left
 * out: from now on less is left out, and what is in front has to be asked for
 * anew.
 *
 * Once is not enough: a block in a gap may have been changed since we looked,
 * so that VACUUM visits the short piece in front of it.  So after each time a
 * new copy is asked, for which such a piece is none any more.
 */
bool
la_vm_check(LaVmRuns *runs, BlockNumber visited)
{
	if (runs->skip == LA_SKIP_NOTHING || visited == runs->visited)
		return true;
	runs->visited = visited;
	if (la_vm_is_inside(runs, visited))
		runs->inside++;
	else if (!la_vm_is_skippable(runs, &runs->around, visited))
		runs->inside = 0;
	if (runs->inside > 0 ||
		la_vm_is_old(&runs->around, visited / LA_BLOCKS_PER_PAGE))
		la_vm_read_around(runs, visited);
	if (runs->inside < LA_INSIDE_LOOKS)
		return true;
	runs->skip++;
	runs->inside = 0;
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
	{
		if (blkno / LA_BLOCKS_PER_PAGE != runs->ahead.number)
			la_vm_read(runs, &runs->ahead, blkno / LA_BLOCKS_PER_PAGE);
		if (!la_vm_is_skippable(runs, &runs->ahead, blkno))
			n++;
	}
	return n;
}
