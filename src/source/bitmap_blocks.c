/*-------------------------------------------------------------------------
 *
 * bitmap_blocks.c
 *	  The blocks of the bitmap of a bitmap heap scan.
 *
 * A bitmap of one process is read by an iterator of our own, which lives as
 * long as the bitmap.
 *
 * For a bitmap that is shared with parallel workers the process that has built
 * it can make another shared iterator.  It copies the numbers of the next
 * LA_COPY_BLOCKS blocks and forgets the iterator at once, because the shared
 * memory it is in may be gone before we are told.  For the next ones another
 * iterator goes over the first ones again, so each copy is four times as large
 * as the last one, up to LA_MOST_COPY_BLOCKS, and when they have taken
 * LA_MOST_COPY_STEPS steps, at some 16 GB of table, the source says that the
 * bitmap is too long.
 *
 *		copy		[3] [4] [5] [19] ... last_copied	(not yet copied)
 *		returned			^ next_copied
 *
 * Copyright (c) 2026, the pg_lookahead authors
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "source/bitmap_blocks.h"
#include "utils/memutils.h"
#include "utils/rel.h"
#include "window/guard.h"

/* Blocks that one call of the source may pass over. */
#define LA_SKIP_PASSED		65536
#define LA_SKIP_RESIDENT	1024

/* Block numbers that are copied out of a shared bitmap: first, and at most. */
#define LA_COPY_BLOCKS		4096
#define LA_COPY_GROWTH		4
#define LA_MOST_COPY_BLOCKS	(1 << 20)

/* Steps of iterators that all copies together may take. */
#define LA_MOST_COPY_STEPS	(1 << 22)

/*
 * Copy the next blocks out of a bitmap that is shared with parallel workers.
 */
static void
la_bitmap_copy(LaBitmapSource *source)
{
	BitmapHeapScanState *node = source->node;
	dsa_area   *dsa = node->ss.ps.state->es_query_dsa;
	ResourceOwner save = CurrentResourceOwner;
	TBMSharedIterator *iterator;
	dsa_pointer shared;
	BlockNumber blkno;

	if (source->ncopied == source->copy_size &&
		source->copy_size < LA_MOST_COPY_BLOCKS)
	{
		source->copy_size = Min(source->copy_size * LA_COPY_GROWTH,
								LA_MOST_COPY_BLOCKS);
		source->copy = repalloc(source->copy,
								sizeof(BlockNumber) * source->copy_size);
	}

	/*
	 * A segment of the query's shared memory that is made or attached here is
	 * the query's, and lasts longer than this call.
	 */
	CurrentResourceOwner = la_guard_outer_owner();
	shared = tbm_prepare_shared_iterate(node->tbm);
	iterator = tbm_attach_shared_iterate(dsa, shared);
	source->has_first = source->last_copied == InvalidBlockNumber;
	source->ncopied = source->next_copied = 0;
	while ((blkno = la_tbm_shared_next(iterator)) != InvalidBlockNumber)
	{
		if (++source->copy_steps >= LA_MOST_COPY_STEPS)
			break;
		if (source->last_copied != InvalidBlockNumber &&
			blkno <= source->last_copied)
			continue;
		source->copy[source->ncopied++] = source->last_copied = blkno;
		if (source->ncopied == source->copy_size)
			break;
	}
	source->copied_all = blkno == InvalidBlockNumber;
	tbm_end_shared_iterate(iterator);
	tbm_free_shared_area(dsa, shared);
	CurrentResourceOwner = save;
}

/*
 * Begin to iterate.
 */
static void
la_bitmap_source_open(LaBitmapSource *source)
{
	BitmapHeapScanState *node = source->node;
	MemoryContext save = MemoryContextSwitchTo(source->context);

	source->nblocks = RelationGetNumberOfBlocks(node->ss.ss_currentRelation);
	source->named = 0;
	source->reached = InvalidBlockNumber;
	source->iterator = NULL;
	source->next_copied = 0;
	if (!source->has_first)
	{
		source->last_copied = InvalidBlockNumber;
		source->ncopied = 0;
		source->copied_all = false;
	}
	if (node->pstate == NULL)
		source->iterator = tbm_begin_private_iterate(node->tbm);
	else if (source->copy == NULL)
	{
		source->copy_size = LA_COPY_BLOCKS;
		source->copy = palloc(sizeof(BlockNumber) * source->copy_size);
	}
	source->is_open = true;
	MemoryContextSwitchTo(save);
}

/*
 * Let go of the iterator; the next block asked for is the bitmap's first.
 */
void
la_bitmap_source_close(LaBitmapSource *source)
{
	if (source->is_open && source->iterator != NULL)
		tbm_end_private_iterate(source->iterator);
	source->iterator = NULL;
	source->is_open = false;
}

/*
 * The next block of the bitmap, wherever the scan is.
 */
static BlockNumber
la_bitmap_source_step(LaBitmapSource *source)
{
	if (source->iterator != NULL)
		return la_tbm_private_next(source->iterator);
	if (source->next_copied == source->ncopied)
	{
		if (!source->copied_all && source->copy_steps < LA_MOST_COPY_STEPS)
			la_bitmap_copy(source);
		if (source->next_copied == source->ncopied)
		{
			source->is_too_long = !source->copied_all;
			return InvalidBlockNumber;
		}
	}
	return source->copy[source->next_copied++];
}

/*
 * LaSource.next.
 */
static LaSourceResult
la_bitmap_source_next(LaSource *base, BlockNumber *blkno)
{
	LaBitmapSource *source = (LaBitmapSource *) base;
	Relation	rel = source->node->ss.ss_currentRelation;
	int			npassed = 0;
	int			nresident = 0;

	if (!source->is_open)
		la_bitmap_source_open(source);

	for (;;)
	{
		*blkno = la_bitmap_source_step(source);
		if (*blkno == InvalidBlockNumber || *blkno >= source->nblocks)
			return LA_SOURCE_END;
		source->named++;
		source->reached = *blkno;
		if (*blkno <= *source->current)
		{
			if (++npassed == LA_SKIP_PASSED)
				return LA_SOURCE_PAUSE;
			continue;
		}

		/* Begin where something is to be read. */
		if (source->skip_resident && !RelationUsesLocalBuffers(rel) &&
			la_block_is_resident(la_rel_locator(rel), MAIN_FORKNUM, *blkno))
		{
			source->counters->blocks_hit_total++;
			if (++nresident == LA_SKIP_RESIDENT)
				return LA_SOURCE_FAR;
			continue;
		}
		source->skip_resident = false;
		return LA_SOURCE_BLOCK;
	}
}

/*
 * Make a source of the blocks in front of a scan, which says in "current" what
 * block it is on.
 */
void
la_bitmap_source_init(LaBitmapSource *source, MemoryContext context,
					  BitmapHeapScanState *node, const BlockNumber *current,
					  LaCounters *counters)
{
	memset(source, 0, sizeof(*source));
	source->source.next = la_bitmap_source_next;
	source->context = context;
	source->node = node;
	source->current = current;
	source->counters = counters;
}

/*
 * There will be another bitmap.  The source must be closed.
 */
void
la_bitmap_source_restart(LaBitmapSource *source)
{
	Assert(!source->is_open);
	source->copy_steps = 0;
	source->has_first = false;
	source->is_too_long = false;
}

/*
 * Everything in the source's memory context goes.
 */
void
la_bitmap_source_forget(LaBitmapSource *source)
{
	source->is_open = false;
	source->copy = NULL;
	source->has_first = false;
}

/*
 * May we go through the bitmap from its beginning to see how far ahead the
 * stream is?  Not where most of it was passed, by a scan that has visited so
 * many blocks.
 */
bool
la_bitmap_may_lead(const LaBitmapSource *source, int64 visited)
{
	return visited < LA_SKIP_PASSED && source->named < LA_SKIP_PASSED;
}

/*
 * How many of the next blocks are resident?  On 18 the stream has asked for
 * them.  The source begins anew afterwards.
 */
int
la_bitmap_lead(LaBitmapSource *source)
{
	Relation	rel = source->node->ss.ss_currentRelation;
	int			lead = 0;

	la_bitmap_source_close(source);
	la_bitmap_source_open(source);
	for (int i = 0; i < LA_SKIP_PASSED && lead < LA_SKIP_RESIDENT; i++)
	{
		BlockNumber blkno = la_bitmap_source_step(source);

		if (blkno == InvalidBlockNumber || blkno >= source->nblocks)
			break;
		if (blkno <= *source->current)
			continue;
		if (!la_block_is_resident(la_rel_locator(rel), MAIN_FORKNUM, blkno))
			break;
		lead++;
	}
	la_bitmap_source_close(source);
	return lead;
}
