/*-------------------------------------------------------------------------
 *
 * index_node.h
 *	  The index scan nodes of running plans, and the first stage of their scans.
 *
 * Copyright (c) 2026, the pg_lookahead authors
 *
 *-------------------------------------------------------------------------
 */
#ifndef LA_INDEX_NODE_H
#define LA_INDEX_NODE_H

#include "by_address.h"
#include "source/index_scan.h"
#include "window/waits.h"

typedef struct LaUnbound LaUnbound;

typedef struct LaIndexNode
{
	/* set by la_index_node_register(), or by deferred.c, immutable */
	MemoryContext query_context;
	LaScans    *scans;			/* of the query */
	int			place;			/* in the plan: LaFollowed.place */
	PlanState  *plan;
	LimitState *limit;			/* stops the scan after its rows, or NULL */
	bool		is_plain;		/* see plain.c */
	Relation	index;
	IndexScanDesc *desc_ref;	/* where the node keeps its scan */

	dlist_node	query_link;		/* in LaQuery.nodes */
	LaUnbound  *unbound;		/* list of nodes without descriptor, or NULL */
	dlist_node	unbound_link;	/* in that */

	IndexScanDesc desc;			/* NULL: not bound */

	LaIndexAm  *am;				/* valid while bound */

	/* the first stage, see index_node.c; valid while there is no scan, but
	 * for the starts, which go on while there is */
	int64		cached_reads;	/* start.reads_first if the scan is a B-tree's
								 * and its last call found an entry, or -1 */
	LaIndexStart start;
	int64		starts;			/* of the scan; not of one that is trusted */
	int64		start_reads;	/* blocks read by this backend, at the last */
	int			cached_starts;	/* in a row, between which nothing was read */
	bool		is_trusted;		/* see index_am.c */
	bool		was_trusted;	/* since the last start */
	bool		is_marked;		/* ever; it is not trusted then */
	uint32		runs;			/* LaScans.runs at the first call */

	LaIndexScan *scan;			/* NULL: in the first stage */
	LaIndexScan *aside;			/* followed it before and will again, or NULL */
} LaIndexNode;

/* The bound nodes by descriptor, but for that of the query that is deferred. */
extern LaByAddress la_bound_nodes;
extern LaIndexNode la_deferred_node;

static inline bool
la_is_deferred(const LaIndexNode *node)
{
	return node == &la_deferred_node;
}

/*
 * The node of a descriptor if it is found at once, or NULL.
 */
static inline LaIndexNode *
la_index_node_peek(IndexScanDesc desc)
{
	LaIndexNode *node = la_by_address_peek(&la_bound_nodes, desc);

	if (likely(node != NULL))
		return node;
	return desc == la_deferred_node.desc ? &la_deferred_node : NULL;
}

/*
 * The same wherever it is, or NULL if we do not follow the scan.
 */
static inline LaIndexNode *
la_index_node_find(IndexScanDesc desc)
{
	LaIndexNode *node = la_index_node_peek(desc);

	return node != NULL ? node : la_by_address_get(&la_bound_nodes, desc);
}

/*
 * In the first stage of a scan of a B-tree: has nothing been read since it
 * returned its first entry, and does it go on in the same direction?  If so its
 * next entry may be taken from the page, start.calls counted, or else
 * la_index_node_turn_page() be called.
 */
static inline bool
la_index_node_is_cached(const LaIndexNode *node, ScanDirection direction)
{
	return la_blocks_read() == node->cached_reads &&
		direction == node->start.direction;
}

/*
 * amrescan in the first stage; of a scan that is followed, too, so that the
 * starts go on and it can be back there.  All else of "start" is set by the
 * first call of amgettuple, and means nothing before.
 */
static inline void
la_index_node_restart_first(LaIndexNode *node)
{
	int64		reads = la_blocks_read();

	node->starts++;
	node->start.calls = 0;
	node->was_trusted = false;
	node->cached_reads = -1;
	node->cached_starts = reads == node->start_reads ?
		node->cached_starts + 1 : 0;
	node->start_reads = reads;
}

/* For hook/index_am.c. */
extern bool la_index_node_next(LaIndexNode *node, ScanDirection direction);
extern bool la_index_node_turn_page(LaIndexNode *node);
extern LaIndexNode *la_index_node_restart(IndexScanDesc desc);
extern void la_index_node_mark(LaIndexNode *node);
extern void la_index_node_restore(LaIndexNode *node);
extern void la_index_node_end(LaIndexNode *node);

/* For plan_walk.c, deferred.c and query.c. */
extern LaIndexNode *la_index_node_register(MemoryContext query_context,
										   LaScans *scans, PlanState *plan,
										   LimitState *limit, bool is_plain);
extern bool la_index_scan_may_be_followed(IndexScanDesc desc);
extern void la_index_node_take_over(LaIndexNode *node,
									const LaIndexNode *first);
extern void la_index_node_follow(LaIndexNode *node);
extern void la_index_node_forget(LaIndexNode *node);

#endif							/* LA_INDEX_NODE_H */
