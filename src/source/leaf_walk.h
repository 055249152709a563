/*-------------------------------------------------------------------------
 *
 * leaf_walk.h
 *	  The leaf pages that a scan of a B-tree will come to, from their parents.
 *
 * Copyright (c) 2026, the pg_lookahead authors
 *
 *-------------------------------------------------------------------------
 */
#ifndef LA_LEAF_WALK_H
#define LA_LEAF_WALK_H

#include "access/nbtree.h"
#include "access/sdir.h"
#include "source/source.h"
#include "utils/relcache.h"

typedef struct LaLeafWalk
{
	LaSource	source;			/* must be first */
	Relation	index;

	/* kept up to date by the owner */
	BTScanOpaque scan;			/* of the scan that is followed: its keys */
	ScanDirection direction;
	BlockNumber from;			/* the leaf page it is on */
	bool		ignores_arrays; /* it goes through all values of its arrays */
	uint64		pages_left;		/* it will come to so many more, at most */
	uint64		ahead;			/* so many of them were yielded */
	int			parents_left;	/* it may read so many for now */

	/* where the walk is; the walk's own */
	bool		is_open;		/* what follows is valid */
	OffsetNumber next;			/* the downlink to yield next */
	char	   *page;			/* a copy of the parent page */
} LaLeafWalk;

extern LaLeafWalk *la_leaf_walk_create(MemoryContext context, Relation index);
extern void la_leaf_walk_restart(LaLeafWalk *walk);

#endif							/* LA_LEAF_WALK_H */
