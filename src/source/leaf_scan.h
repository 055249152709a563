/*-------------------------------------------------------------------------
 *
 * leaf_scan.h
 *	  Follows the leaf pages of a scan of a B-tree.
 *
 * Copyright (c) 2026, the pg_lookahead authors
 *
 *-------------------------------------------------------------------------
 */
#ifndef LA_LEAF_SCAN_H
#define LA_LEAF_SCAN_H

#include "access/amapi.h"
#include "access/nbtree.h"
#include "access/relscan.h"
#include "source/followed.h"
#include "source/leaf_walk.h"
#include "window/pace.h"
#include "window/window.h"

/*
 * All changes go through la_leaf_enter(), which asserts them.
 */
typedef enum LaLeafState
{
	/* Moves to other leaf pages are counted, and waits.  There may be a
	 * window; it is empty. */
	LA_LEAF_WATCHING,

	/* A window is open and is filled.  Entered from WATCHING and IDLE. */
	LA_LEAF_LOOKING,

	/* A window is open and is followed but not filled, because the pace has
	 * no use for more.  Entered from LOOKING. */
	LA_LEAF_IDLE,

	/* Left alone until the query ends.  Entered from anywhere. */
	LA_LEAF_OUT,
} LaLeafState;

typedef struct LaLeafScan
{
	LaFollowed	base;			/* must be first */

	/* set by la_leaf_scan_register(), immutable */
	MemoryContext query_context;
	LimitState *limit;			/* stops the scan after its rows, or NULL */
	bool		is_plain;		/* see plain.c; if not, it is left alone */
	int64		starts;			/* times that the scan began */
	IndexScanDesc bitmap_desc;	/* if it is a bitmap index scan's, or NULL */

	/*
	 * The scan that is followed: the node's own, or the scout that runs
	 * ahead of it.  NULL: none, or left alone.
	 */
	IndexScanDesc desc;
	const struct LaScout *scout;	/* whose scan it is, or NULL */

	/* valid while there is one */
	LaLeafState state;
	LaPace		pace;
	ScanDirection direction;
	int			adjacent;		/* moves to a neighbour in a row, saturating */
	bool		has_read;		/* a leaf page was read lately */
	int			cached;			/* moves in a row without a read */
	uint32		quiet_reads;	/* pages read; a wait halves it */
	int			unforeseen;		/* neighbours in a row that no one foresaw */
	int64		place;			/* pages from where it began; see
								 * la_leaf_scan_restore() */
	int64		mark_place;
	int64		replay_until;	/* it was at this place before */
	LaRowSeen	row_seen;		/* in pages, at "place" */
	double		entries;		/* on a page, of those that it left lately */
	int			npages;			/* that this is of, saturating */
	bool		start_wanted;	/* the pace has said so */
	int			moves;			/* to another page since flow_reads was taken */
	int64		flow_reads;		/* blocks read until la_leaf_bound() looked */

	LaLeafWalk *walk;			/* in the memory of base.window */
} LaLeafScan;

/*
 * Will the scan go to another leaf page when it is asked for an entry?
 */
static inline bool
la_leaf_is_at_edge(IndexScanDesc desc, ScanDirection direction)
{
	const BTScanPosData *pos = &((BTScanOpaque) desc->opaque)->currPos;

	return pos->currPage != InvalidBlockNumber &&
		(ScanDirectionIsForward(direction) ?
		 pos->itemIndex >= pos->lastItem :
		 pos->itemIndex <= pos->firstItem);
}

extern bool la_leaf_scan_is_wanted(Relation index);
extern LaLeafScan *la_leaf_scan_register(MemoryContext query_context,
										 PlanState *node, Relation index,
										 IndexScanDesc *desc_ref,
										 LimitState *limit, bool is_plain);
extern LaLeafScan *la_leaf_scan_of_bitmap(IndexScanDesc desc);
extern void la_leaf_scan_restart(LaLeafScan *leaf, IndexScanDesc desc);
extern void la_leaf_scan_follow(LaLeafScan *leaf, IndexScanDesc desc,
								const struct LaScout *scout);
extern void la_leaf_scan_mark(LaLeafScan *leaf, IndexScanDesc desc);
extern void la_leaf_scan_restore(LaLeafScan *leaf, IndexScanDesc desc);
extern void la_leaf_scan_rest(LaLeafScan *leaf);
extern void la_leaf_scan_end(LaLeafScan *leaf);
extern bool la_leaf_scan_cross(LaLeafScan *leaf, amgettuple_function ask,
							   ScanDirection direction);
extern int64 la_leaf_scan_bitmap(LaLeafScan *leaf, IndexScanDesc desc,
								 TIDBitmap *tbm);

/* Blocks that this backend has read to look ahead of leaf pages. */
extern int64 la_leaf_own_reads;

/* Pages read nearly without a wait, of a scan that is quiet. */
#define LA_LEAF_QUIET_AFTER	64

/*
 * Is what is read in the kernel's page cache?
 */
static inline bool
la_leaf_is_quiet(const LaLeafScan *leaf)
{
	return leaf->state == LA_LEAF_WATCHING &&
		leaf->quiet_reads >= LA_LEAF_QUIET_AFTER;
}

/*
 * Of a scan that is not the one we follow, is there nothing to be observed, so
 * that a move to another page may be missed?  "leaf" may be NULL.
 */
static inline bool
la_leaf_is_calm(const LaLeafScan *leaf)
{
	return leaf == NULL || leaf->desc == NULL ||
		(leaf->state == LA_LEAF_WATCHING && !leaf->has_read) ||
		la_leaf_is_quiet(leaf);
}

/*
 * Of so many calls, all but the last of which are not to be seen, how many may
 * it be?  The one that goes to another leaf page is to be seen: what it reads
 * would be taken for a block of the table.
 */
static inline int
la_leaf_may_skip(const LaLeafScan *leaf, IndexScanDesc desc,
				 ScanDirection direction, int calls)
{
	const BTScanPosData *pos;
	int			left;

	if (leaf == NULL || leaf->desc != desc)
		return la_leaf_is_calm(leaf) ? calls : 1;
	pos = &((BTScanOpaque) desc->opaque)->currPos;
	left = ScanDirectionIsForward(direction) ?
		pos->lastItem - pos->itemIndex : pos->itemIndex - pos->firstItem;
	return Min(calls, Max(left, 0) + 1);
}

/*
 * Something was read; it may have been a leaf page that we have not seen.
 */
static inline void
la_leaf_wake(LaLeafScan *leaf)
{
	if (leaf != NULL)
	{
		leaf->has_read = true;
		leaf->cached = 0;
	}
}

/*
 * The next entry of the leaf page that a B-tree scan is on.  Returns false, and
 * has done nothing, if there is none or B-tree must be asked for it.
 *
 * This is what btgettuple() does for an entry that it has copied with its page.
 * Done here it makes up for the call that we are.
 */
static inline bool
la_bt_next_on_page(IndexScanDesc desc, ScanDirection direction)
{
	BTScanOpaque scan = (BTScanOpaque) desc->opaque;
	BTScanPosItem *item;

	if (!BTScanPosIsValid(scan->currPos) || desc->kill_prior_tuple ||
		la_leaf_is_at_edge(desc, direction))
		return false;
	scan->currPos.itemIndex += ScanDirectionIsForward(direction) ? 1 : -1;
	item = &scan->currPos.items[scan->currPos.itemIndex];
	desc->xs_recheck = false;
	desc->xs_heaptid = item->heapTid;
	if (desc->xs_want_itup)
		desc->xs_itup = (IndexTuple) (scan->currTuples + item->tupleOffset);
	return true;
}

/*
 * Ask a scan of a B-tree for its next entry.  "leaf" may be NULL.
 */
static inline bool
la_leaf_scan_ask(LaLeafScan *leaf, IndexScanDesc desc,
				 amgettuple_function ask, ScanDirection direction)
{
	if (ask == btgettuple && likely(la_bt_next_on_page(desc, direction)))
		return true;
	if (leaf != NULL && leaf->desc == desc &&
		la_leaf_is_at_edge(desc, direction))
		return la_leaf_scan_cross(leaf, ask, direction);
	return ask(desc, direction);
}

#endif							/* LA_LEAF_SCAN_H */
