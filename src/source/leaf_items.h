/*-------------------------------------------------------------------------
 *
 * leaf_items.h
 *	  The rest of the B-tree leaf page that a scan is on.
 *
 * Copyright (c) 2026, the pg_lookahead authors
 *
 *-------------------------------------------------------------------------
 */
#ifndef LA_LEAF_ITEMS_H
#define LA_LEAF_ITEMS_H

#include "source/scout.h"

typedef struct LaLeafItems
{
	LaSource	source;			/* must be first */
	const LaScoutTarget *target;

	/* the items that were yielded last: those of a page, or of one key of it */
	BlockNumber leaf;
	int			first_item;
	int			last_item;
	ItemPointerData first_tid;
	int			next;			/* index of the next one */
	BlockNumber current;		/* the scan's, until another one is next */
	bool		found;			/* one of them was for a block to be read */
	bool		left_out;		/* one of them was for an all-visible block */

	Buffer		vmbuffer;		/* index-only: pinned visibility map page */
} LaLeafItems;

extern LaLeafItems *la_leaf_items_create(MemoryContext context,
										 const LaScoutTarget *target);
extern bool la_leaf_items_are_done(const LaLeafItems *items);
extern bool la_leaf_items_are_better(const LaScoutTarget *target);
extern void la_leaf_items_restart(LaLeafItems *items);
extern void la_leaf_items_pause(LaLeafItems *items);

#endif							/* LA_LEAF_ITEMS_H */
