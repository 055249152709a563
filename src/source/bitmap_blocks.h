/*-------------------------------------------------------------------------
 *
 * bitmap_blocks.h
 *	  The blocks of the bitmap of a bitmap heap scan.
 *
 * Copyright (c) 2026, the pg_lookahead authors
 *
 *-------------------------------------------------------------------------
 */
#ifndef LA_BITMAP_BLOCKS_H
#define LA_BITMAP_BLOCKS_H

#include "compat.h"
#include "nodes/execnodes.h"
#include "nodes/tidbitmap.h"
#include "report/counters.h"
#include "window/window.h"

/* The blocks of the bitmap, from some place on. */
typedef struct LaBitmapSource
{
	LaSource	source;			/* must be first */

	/* immutable */
	MemoryContext context;		/* what the source allocates is here */
	BitmapHeapScanState *node;
	const BlockNumber *current; /* the block that the scan is on */
	LaCounters *counters;

	bool		is_open;		/* what follows is valid */
	bool		skip_resident;	/* until a block is to be read */
	BlockNumber nblocks;		/* of the table */
	int64		named;			/* blocks of the bitmap that we have seen */
	BlockNumber reached;		/* the last of them, or InvalidBlockNumber */

	/* a bitmap of our own: an iterator, which lives as long as the bitmap */
	TBMPrivateIterator *iterator;

	/* a shared one: block numbers copied out of it */
	BlockNumber *copy;
	int			ncopied;
	int			next_copied;
	int			copy_size;		/* there is room for so many */
	BlockNumber last_copied;	/* or InvalidBlockNumber */
	bool		has_first;		/* the first block of all is copy[0] */
	bool		copied_all;
	int64		copy_steps;		/* of all copies since the node's (re)start */
	bool		is_too_long;	/* there will be no other copy */
} LaBitmapSource;

extern void la_bitmap_source_init(LaBitmapSource *source,
								  MemoryContext context,
								  BitmapHeapScanState *node,
								  const BlockNumber *current,
								  LaCounters *counters);
extern void la_bitmap_source_close(LaBitmapSource *source);
extern void la_bitmap_source_restart(LaBitmapSource *source);
extern void la_bitmap_source_forget(LaBitmapSource *source);
extern bool la_bitmap_may_lead(const LaBitmapSource *source, int64 visited);
extern int	la_bitmap_lead(LaBitmapSource *source);

#endif							/* LA_BITMAP_BLOCKS_H */
