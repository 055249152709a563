/*-------------------------------------------------------------------------
 *
 * leaf_items.c
 *	  The rest of the B-tree leaf page that a scan is on.
 *
 * Used where a scout cannot serve, or could cost too much.
 *
 * The processes of a parallel index scan take leaf pages from shared state,
 * one at a time, so no second scan can know which page ours will get next.
 * What is certain is the page it has: B-tree copies all matching items of a
 * leaf page when it reads it, a few hundred of them, and returns them one by
 * one.  This source yields the blocks of those still to come.
 *
 *		currPos.items	[0] [1] [2] [3] [4] [5] ... [lastItem]
 *		itemIndex				^ returned last
 *		yielded						[3] [4] [5] ... then LA_SOURCE_PAUSE
 *
 * It never says LA_SOURCE_END: after the last item there may be another page.
 * It says LA_SOURCE_FAR once for a page whose blocks are all all-visible, of
 * which an index-only scan reads none.  Before 17 the scan of an IN-list copies
 * the items of one value at a time, often from the page that it is on: that is
 * another set of items.
 *
 * The other use: a condition that only filters index entries, such as the one
 * on b in an index on (a, b) with a > 5 AND b = 7, lets a scan read any number
 * of leaf pages until the next entry matches.  A scout would go there before
 * the query has said that it wants to.  A skip scan (18) jumps from one value
 * of a to the next, and has as far to go where each value is another.
 *
 * Only B-tree has parallel scans in PostgreSQL 15 to 18.
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
#include "source/leaf_items.h"
#include "window/uncounted.h"

/*
 * Are these the items that were yielded last?
 */
static bool
la_leaf_items_are_those(const LaLeafItems *items, const BTScanPosData *pos)
{
	return items->leaf == pos->currPage &&
		items->first_item == pos->firstItem &&
		items->last_item == pos->lastItem &&
		ItemPointerEquals((ItemPointer) &items->first_tid,
						  (ItemPointer) &pos->items[pos->firstItem].heapTid);
}

/*
 * In the direction of the scan, is the next item in front of it?
 */
static inline bool
la_leaf_items_are_ahead(const LaLeafItems *items, const BTScanPosData *pos)
{
	return ScanDirectionIsForward(items->target->direction) ?
		items->next > pos->itemIndex : items->next < pos->itemIndex;
}

/*
 * Has nothing to be yielded before the scan comes to another page?
 */
bool
la_leaf_items_are_done(const LaLeafItems *items)
{
	BTScanOpaque so = (BTScanOpaque) items->target->real->opaque;
	BTScanPos	pos = &so->currPos;

	return BTScanPosIsValid(*pos) && la_leaf_items_are_those(items, pos) &&
		la_leaf_items_are_ahead(items, pos) &&
		(items->next < pos->firstItem || items->next > pos->lastItem);
}

static LaSourceResult
la_leaf_items_next(LaSource *source, BlockNumber *blkno)
{
	LaLeafItems *items = (LaLeafItems *) source;
	const LaScoutTarget *target = items->target;
	BTScanOpaque so = (BTScanOpaque) target->real->opaque;
	BTScanPos	pos = &so->currPos;
	int			step = ScanDirectionIsForward(target->direction) ? 1 : -1;
	LaSourceResult result = LA_SOURCE_PAUSE;

	if (!BTScanPosIsValid(*pos))
		return LA_SOURCE_PAUSE;

	if (!la_leaf_items_are_those(items, pos))
	{
		items->leaf = pos->currPage;
		items->first_item = pos->firstItem;
		items->last_item = pos->lastItem;
		items->first_tid = pos->items[pos->firstItem].heapTid;
		items->next = pos->itemIndex;
		items->found = false;
		items->left_out = false;
	}
	/* Never behind the scan.  It does not come again to where it is. */
	if (!la_leaf_items_are_ahead(items, pos))
	{
		ItemPointer here = &pos->items[pos->itemIndex].heapTid;

		items->next = pos->itemIndex + step;
		items->current = ItemPointerGetBlockNumber(here);
		items->source.passed = true;
	}

	if (target->index_only)
		la_uncounted_begin(target->heap);
	while (items->next >= pos->firstItem && items->next <= pos->lastItem)
	{
		ItemPointer tid = &pos->items[items->next].heapTid;
		uint64		ahead = (uint64) ((items->next - pos->itemIndex) * step);

		if (ahead > target->entries_left)
			break;
		items->next += step;
		*blkno = ItemPointerGetBlockNumber(tid);
		if (*blkno == items->current)
			continue;
		items->current = InvalidBlockNumber;
		if (!target->index_only ||
			!VM_ALL_VISIBLE(target->heap, *blkno, &items->vmbuffer))
		{
			result = LA_SOURCE_BLOCK;
			items->found = true;
			break;
		}
		items->left_out = true;
		items->source.passed = true;
	}
	if (target->index_only)
		la_uncounted_end();
	if (result == LA_SOURCE_PAUSE && items->left_out && !items->found &&
		la_leaf_items_are_done(items))
	{
		items->left_out = false;
		result = LA_SOURCE_FAR;
	}
	return result;
}

/*
 * Is this source the better one for a scan?  It has been started, so B-tree
 * knows which of its keys bound it.
 */
bool
la_leaf_items_are_better(const LaScoutTarget *target)
{
	BTScanOpaque so;

	if (target->real->indexRelation->rd_rel->relam != BTREE_AM_OID)
		return false;
	if (target->real->parallel_scan != NULL)
		return true;

	so = (BTScanOpaque) target->real->opaque;
	for (int i = 0; i < so->numberOfKeys; i++)
		if ((so->keyData[i].sk_flags & (SK_BT_REQFWD | SK_BT_REQBKWD)) == 0)
			return true;
	for (int i = 0; i < so->numArrayKeys; i++)
		if (la_bt_array_is_skip(&so->arrayKeys[i]))
			return true;
	return false;
}

/*
 * Make a source for a scan of a B-tree.
 */
LaLeafItems *
la_leaf_items_create(MemoryContext context, const LaScoutTarget *target)
{
	LaLeafItems *items = MemoryContextAllocZero(context, sizeof(LaLeafItems));

	items->source.next = la_leaf_items_next;
	items->target = target;
	items->leaf = InvalidBlockNumber;
	items->current = InvalidBlockNumber;
	items->vmbuffer = InvalidBuffer;
	return items;
}

/*
 * The scan goes elsewhere: begin again at its own item.
 */
void
la_leaf_items_restart(LaLeafItems *items)
{
	items->leaf = InvalidBlockNumber;
}

/*
 * Drop the one pin there may be.
 */
void
la_leaf_items_pause(LaLeafItems *items)
{
	if (items->vmbuffer != InvalidBuffer)
	{
		ReleaseBuffer(items->vmbuffer);
		items->vmbuffer = InvalidBuffer;
	}
}
