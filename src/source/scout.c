/*-------------------------------------------------------------------------
 *
 * scout.c
 *	  A second scan of the same index that runs ahead of the first.
 *
 * What blocks of the table will an index scan come to?  Only the index access
 * method knows, and the only way to ask it that works for every access method
 * is to scan the index: with the same keys, the same order-by keys, the same
 * snapshot, in the same direction.  The scout does that, through the original
 * functions of the access method, and looks at nothing but the TIDs.
 *
 * What it must not do, because it is not the query's scan:
 *
 *	- set kill_prior_tuple: it does not look at tuples, so it knows of none that
 *	  are dead
 *	- count as an index scan, or as tuples read, in the statistics of the index,
 *	  or show its buffer hits in EXPLAIN: the counters are put back.  Pages it
 *	  had to read from storage stay counted; the real scan will hit them.
 *	- hold pins while the executor is not running: see la_scout_pause()
 *	- take predicate locks: it is not used under SERIALIZABLE
 *
 * Where is the real scan?  The scout starts lazily, when the scan has already
 * returned some entries, and it stops while look-ahead idles.  So before it
 * yields anything it seeks: it moves towards the real scan, whose distance
 * from the start is known in entries, until it sees the TID that the real scan
 * returned last.
 *
 *		entry		1	2	3	4	5	6	7	8	9	...
 *		real scan					^ position 5, TID (40,3)
 *		scout		^ position 1: reads on until it sees (40,3), then yields
 *					  the blocks of entries 6, 7, 8, ...
 *
 * The positions may differ by a few, because entries die and appear between
 * the two visits.  The TID decides; LA_SEEK_SLACK bounds the search.  If it is
 * not found the source is lost, and index_ahead.c decides whether to try again.
 * A scan that was trusted (hook/index_am.c) is beyond its position by what it
 * passed then; so the first search of a scout that was opened goes on for
 * LA_FREE_ENTRIES.  It may be in vain: the entry may have gone meanwhile.
 *
 * A scrollable cursor turns round.  Then the scout, which is in front of the
 * real scan, turns round too and seeks it backwards; once it has found it, it
 * runs ahead in the new direction.
 *
 * Index-only scans visit a table block only if it is not all-visible.  The
 * scout asks the visibility map the same question, a little earlier.
 *
 * Copyright (c) 2026, the pg_lookahead authors
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/nbtree.h"
#include "access/visibilitymap.h"
#include "catalog/pg_am.h"
#include "compat.h"
#include "executor/instrument.h"
#include "source/leaf_scan.h"
#include "source/scout.h"
#include "utils/memutils.h"
#include "window/uncounted.h"

/* How many entries off a position may be. */
#define LA_SEEK_SLACK		1024

/* How many entries one call may look at without finding a block. */
#define LA_MAX_ENTRIES_PER_CALL	4096

/*
 * Each step may visit so many buffers, and what those before have left of
 * theirs, up to a limit: of an IN-list many values in a row may not be there.
 * A step that has visited more is the last one.  Nothing bounds the step
 * itself: an access method may go through all of an index for one entry.
 */
#define LA_ACCESSES_PER_STEP	32
#define LA_MAX_ACCESSES_LEFT	256

static LaSourceResult la_scout_next(LaSource *source, BlockNumber *blkno);

/*
 * Make a scout for a scan.  The target must live as long as the scout, and
 * is kept up to date by its owner.
 */
LaScout *
la_scout_create(MemoryContext parent, const LaScoutTarget *target)
{
	LaScout    *scout = MemoryContextAllocZero(parent, sizeof(LaScout));

	scout->source.next = la_scout_next;
	scout->state = LA_SCOUT_CLOSED;
	scout->target = target;
	scout->context = AllocSetContextCreate(parent, "pg_lookahead scout",
										   ALLOCSET_SMALL_SIZES);
	scout->vmbuffer = InvalidBuffer;
	return scout;
}

/*
 * Open the second scan, at the start of the real one.
 */
static void
la_scout_open(LaScout *scout)
{
	const LaScoutTarget *target = scout->target;
	IndexScanDesc real = target->real;
	IndexScanDesc desc;

	Assert(scout->desc == NULL);

	desc = target->am->orig.ambeginscan(real->indexRelation,
										real->numberOfKeys,
										real->numberOfOrderBys);
	desc->heapRelation = real->heapRelation;
	desc->xs_snapshot = real->xs_snapshot;
	desc->xs_want_itup = false;
	desc->ignore_killed_tuples = real->ignore_killed_tuples;
	desc->parallel_scan = NULL;
	desc->xs_temp_snap = false;
	scout->desc = desc;

	target->am->orig.amrescan(desc, target->keys, real->numberOfKeys,
							  target->orderbys, real->numberOfOrderBys);
	scout->position = 0;
	scout->is_level = false;
	scout->accesses_left = 0;
}

/*
 * Take one step; false at the end.
 */
static bool
la_scout_step(LaScout *scout, ScanDirection direction)
{
	bool		found;

	scout->desc->kill_prior_tuple = false;
	found = la_leaf_scan_ask(scout->target->leaf, scout->desc,
							 scout->target->am->orig.amgettuple, direction);
	if (direction == scout->target->base)
		scout->position++;
	else
		scout->position--;
	return found;
}

typedef enum LaSeek
{
	LA_SEEK_FOUND,
	LA_SEEK_MORE,				/* not yet; call again */
	LA_SEEK_LOST,				/* not to be found */
} LaSeek;

/*
 * Move to the entry that the real scan returned last, or a bounded way towards
 * it.
 *
 * Positions count up in the direction in which the real scan was (re)started,
 * target->base, so those of a backward scan count from the end of the index.
 */
static LaSeek
la_scout_seek(LaScout *scout)
{
	const LaScoutTarget *target = scout->target;
	ItemPointerData goal = target->real->xs_heaptid;

	if (!scout->is_seeking)
	{
		scout->seek_upward = scout->position < target->position;
		if (!scout->seek_upward && !target->am->orig.amcanbackward)
			return LA_SEEK_LOST;
		scout->is_seeking = true;
	}

	for (int i = 0; i < LA_MAX_ENTRIES_PER_CALL; i++)
	{
		int64		beyond = scout->seek_upward ?
			scout->position - target->position :
			target->position - scout->position;
		bool		is_further = target->is_further && !scout->is_level &&
			scout->seek_upward;

		if (beyond > (is_further ? LA_FREE_ENTRIES : LA_SEEK_SLACK) ||
			!la_scout_step(scout, scout->seek_upward ?
						   target->base : -target->base))
		{
			scout->is_seeking = false;
			return LA_SEEK_LOST;
		}
		if (ItemPointerEquals(&scout->desc->xs_heaptid, &goal))
		{
			scout->is_seeking = false;
			scout->position = target->position;
			scout->is_level = true;
			return LA_SEEK_FOUND;
		}
	}
	return LA_SEEK_MORE;
}

/*
 * Buffers that were looked at, but for those of leaf pages that a step has read
 * ahead on the way.
 */
static inline int64
la_buffer_accesses(void)
{
	return pgBufferUsage.shared_blks_hit + pgBufferUsage.shared_blks_read +
		pgBufferUsage.local_blks_hit + pgBufferUsage.local_blks_read -
		la_leaf_own_reads;
}

/*
 * The body of la_scout_next(), without the counting.
 */
static LaSourceResult
la_scout_advance(LaScout *scout, BlockNumber *blkno)
{
	const LaScoutTarget *target = scout->target;
	int64		accesses;

	if (scout->state == LA_SCOUT_CLOSED)
	{
		la_scout_open(scout);
		scout->state = LA_SCOUT_BEHIND;
	}
	if (scout->state == LA_SCOUT_BEHIND)
	{
		switch (la_scout_seek(scout))
		{
			case LA_SEEK_FOUND:
				scout->state = LA_SCOUT_AHEAD;
				if (target->leaf != NULL)
					la_leaf_scan_follow(target->leaf, scout->desc, scout);
				break;
			case LA_SEEK_MORE:
				return LA_SOURCE_PAUSE;
			case LA_SEEK_LOST:
				return LA_SOURCE_LOST;
		}
	}
	if (scout->state == LA_SCOUT_ENDED)
		return LA_SOURCE_END;

	for (int i = 0; i < LA_MAX_ENTRIES_PER_CALL; i++)
	{
		int64		ahead = scout->position - target->position;

		if (target->direction != target->base)
			ahead = -ahead;
		if (ahead >= 0 && (uint64) ahead >= target->entries_left)
			return LA_SOURCE_PAUSE;
		if (ahead >= 0 && (uint64) ahead >= target->entries_ahead_max)
			return LA_SOURCE_FAR;

		accesses = la_buffer_accesses();
		if (!la_scout_step(scout, target->direction))
		{
			scout->state = LA_SCOUT_ENDED;
			return LA_SOURCE_END;
		}

		/* Matches are far apart: the next step may go through all the index. */
		scout->accesses_left = Min(scout->accesses_left + LA_ACCESSES_PER_STEP -
								   (la_buffer_accesses() - accesses),
								   LA_MAX_ACCESSES_LEFT);
		if (scout->accesses_left < 0)
			return LA_SOURCE_LOST;
		*blkno = ItemPointerGetBlockNumber(&scout->desc->xs_heaptid);
		if (!target->index_only ||
			!VM_ALL_VISIBLE(target->heap, *blkno, &scout->vmbuffer))
			return LA_SOURCE_BLOCK;
		scout->source.passed = true;
	}
	return LA_SOURCE_PAUSE;
}

/*
 * LaSource: the next block that the real scan will visit.
 */
static LaSourceResult
la_scout_next(LaSource *source, BlockNumber *blkno)
{
	LaScout    *scout = (LaScout *) source;
	MemoryContext save = MemoryContextSwitchTo(scout->context);
	LaSourceResult result;

	la_uncounted_begin(scout->target->real->indexRelation);
	la_uncounted_begin(scout->target->heap);	/* its visibility map */
	result = la_scout_advance(scout, blkno);
	la_uncounted_end();
	la_uncounted_end();
	MemoryContextSwitchTo(save);
	return result;
}

/*
 * The real scan has moved on without the scout, or turned round: seek it
 * before anything else is yielded.
 */
void
la_scout_lost_sync(LaScout *scout)
{
	if (scout->state != LA_SCOUT_CLOSED)
	{
		scout->state = LA_SCOUT_BEHIND;
		scout->is_seeking = false;
	}
}

/*
 * Does the open scan pin pages of the index now?
 *
 * B-tree tells.  Of the others we know which never do between two tuples
 * (LaIndexAm.keeps_pins); of those that may, we assume that they do.
 */
static bool
la_scout_has_pins(const LaScout *scout)
{
	Relation	index = scout->target->real->indexRelation;

	if (index->rd_rel->relam == BTREE_AM_OID)
	{
		BTScanOpaque so = (BTScanOpaque) scout->desc->opaque;

		return BTScanPosIsPinned(so->currPos) || BTScanPosIsPinned(so->markPos);
	}
	return scout->target->am->keeps_pins;
}

/*
 * The executor goes back to its caller, who may never come back: drop every
 * pin.  If that takes closing the scan, the scout has to seek from the start
 * when it is asked again.
 */
void
la_scout_pause(LaScout *scout)
{
	if (scout->vmbuffer != InvalidBuffer)
	{
		ReleaseBuffer(scout->vmbuffer);
		scout->vmbuffer = InvalidBuffer;
	}
	if (scout->desc != NULL && la_scout_has_pins(scout))
		la_scout_close(scout);
}

/*
 * Close the second scan.
 */
void
la_scout_close(LaScout *scout)
{
	if (scout->state == LA_SCOUT_CLOSED)
		return;
	if (scout->desc != NULL)
	{
		IndexScanDesc desc = scout->desc;

		scout->desc = NULL;
		if (scout->target->leaf != NULL)
			la_leaf_scan_follow(scout->target->leaf, scout->target->real,
								NULL);
		scout->target->am->orig.amendscan(desc);
	}
	if (scout->vmbuffer != InvalidBuffer)
	{
		ReleaseBuffer(scout->vmbuffer);
		scout->vmbuffer = InvalidBuffer;
	}
	MemoryContextReset(scout->context);
	scout->is_seeking = false;
	scout->state = LA_SCOUT_CLOSED;
}
