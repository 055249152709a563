/*-------------------------------------------------------------------------
 *
 * source.h
 *	  The contract of a source: who says which block comes next.
 *
 * A source yields the blocks of one relation fork in the order in which the
 * scan will come to them.  It may repeat a block, it may be wrong: what it says
 * is a hint and decides nothing but what is read early.
 *
 *	scout.c			table blocks: a second scan of the same index with the
 *					same keys
 *	leaf_items.c	table blocks: the rest of the leaf page that the scan is
 *					on, if it is parallel or has keys that only filter
 *	leaf_walk.c		leaf pages: the downlinks of the parent page
 *	bitmap_blocks.c	table blocks: what is left of a bitmap
 *
 * Scans in physical order need none: see window/frontier.h.
 *
 * Copyright (c) 2026, the pg_lookahead authors
 *
 *-------------------------------------------------------------------------
 */
#ifndef LA_SOURCE_H
#define LA_SOURCE_H

#include "storage/block.h"

typedef enum LaSourceResult
{
	LA_SOURCE_BLOCK,			/* *blkno is the next block */
	LA_SOURCE_PAUSE,			/* nothing now; ask again when the scan has
								 * moved on */
	LA_SOURCE_FAR,				/* the same, because it is as far ahead as it
								 * may be, or has found nothing to read */
	LA_SOURCE_END,				/* nothing more until the scan is restarted */
	LA_SOURCE_LOST,				/* the source cannot tell where the scan is;
								 * the caller closes it */
} LaSourceResult;

/*
 * A source embeds this as its first member.
 *
 * next() may raise errors; it is called under la_guard_run() only.  It must
 * return after a bounded number of steps (LA_SOURCE_PAUSE if need be).  Nobody
 * can bound a step of a scout: it is a call of the access method, which may
 * pass over any number of pages to find an entry.
 */
typedef struct LaSource LaSource;
struct LaSource
{
	LaSourceResult (*next) (LaSource *source, BlockNumber *blkno);

	/*
	 * It has left out blocks since the last one that it named, where the scan
	 * comes by without reading.  Set by the source, and taken back by the
	 * window: if the same block is next, the scan comes to it again.
	 */
	bool		passed;
};

#endif							/* LA_SOURCE_H */
