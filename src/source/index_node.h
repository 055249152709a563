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

typedef struct LaIndexNode
{
	/* set by la_index_node_register(), immutable */
	MemoryContext query_context;
	LaScans    *scans;			/* of the query */
	int			place;			/* in the plan: LaFollowed.place */
	PlanState  *plan;
	LimitState *limit;			/* stops the scan after its rows, or NULL */
	Relation	index;
	IndexScanDesc *desc_ref;	/* where the node keeps its scan */

	dlist_node	query_link;		/* in LaQuery.nodes */
	dlist_node	unbound_link;	/* in the list of nodes without descriptor */
	bool		is_unbound;

	IndexScanDesc desc;			/* NULL: not bound */

	LaIndexAm  *am;				/* valid while bound */

	/* the first stage, see index_node.c; valid while there is no scan */
	int64		cached_reads;	/* start.reads_first; -1: B-tree's next entry
								 * is not to be taken from its page */
	LaIndexStart start;
	int			starts;			/* of the scan: 1, or 2 if more */
	uint32		runs;			/* LaScans.runs at the first call */

	LaIndexScan *scan;			/* NULL: in the first stage */
} LaIndexNode;

/* The bound nodes by descriptor. */
extern LaByAddress la_bound_nodes;

/*
 * The node of a descriptor, or NULL if we do not follow it.
 */
static inline LaIndexNode *
la_index_node_find(IndexScanDesc desc)
{
	return la_by_address_get(&la_bound_nodes, desc);
}

/*
 * The same if it is found at once, or NULL.
 */
static inline LaIndexNode *
la_index_node_peek(IndexScanDesc desc)
{
	return la_by_address_peek(&la_bound_nodes, desc);
}

/*
 * amgettuple in the first stage, as long as nothing is read.  Returns false,
 * and has done nothing, if there is more to do than to take B-tree's next entry
 * of the same page.
 */
static inline bool
la_index_node_next_cached(LaIndexNode *node, IndexScanDesc desc,
						  ScanDirection direction)
{
	if (la_blocks_read() != node->cached_reads ||
		direction != node->start.direction ||
		!la_bt_next_on_page(desc, direction))
		return false;
	node->start.calls++;
	return true;
}

/*
 * amrescan in the first stage.
 */
static inline void
la_index_node_restart_first(LaIndexNode *node)
{
	LaIndexStart *start = &node->start;

	if (node->starts < 2)
		node->starts++;
	start->calls = 0;
	start->found = false;
	start->mark_calls = 0;
	start->replay_until = 0;
	start->reads = la_blocks_read();
	node->cached_reads = -1;
}

/* For hook/index_am.c. */
extern bool la_index_node_next(LaIndexNode *node, ScanDirection direction);
extern LaIndexNode *la_index_node_restart(IndexScanDesc desc);
extern void la_index_node_mark(LaIndexNode *node);
extern void la_index_node_restore(LaIndexNode *node);
extern void la_index_node_end(LaIndexNode *node);

/* For plan_walk.c and query.c. */
extern LaIndexNode *la_index_node_register(MemoryContext query_context,
										   LaScans *scans, PlanState *plan,
										   LimitState *limit);
extern void la_index_node_follow(LaIndexNode *node);
extern void la_index_node_forget(LaIndexNode *node);

#endif							/* LA_INDEX_NODE_H */
