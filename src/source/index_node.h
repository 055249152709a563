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

	/* the first stage, see index_node.c; valid while there is no scan */
	amgettuple_function amgettuple; /* the access method's own */
	bool		is_btree;
	LaIndexStart start;
	int			starts;			/* of the scan: 1, or 2 if more */
	uint32		runs;			/* LaScans.runs at the first call */

	LaIndexScan *scan;			/* NULL: in the first stage */
} LaIndexNode;

/* The descriptor looked up last: most queries move one scan at a time. */
extern IndexScanDesc la_last_desc;
extern LaIndexNode *la_last_node;
extern LaIndexScan *la_last_scan;

extern LaIndexNode *la_index_node_lookup(IndexScanDesc desc);

/*
 * The node of a descriptor, or NULL if we do not follow it.
 */
static inline LaIndexNode *
la_index_node_find(IndexScanDesc desc)
{
	if (likely(desc == la_last_desc))
		return la_last_node;
	return la_index_node_lookup(desc);
}

/*
 * amgettuple in the first stage, as long as nothing is read.  Returns false,
 * and has done nothing, if there is more to do than to take B-tree's next entry
 * of the same page.
 */
static inline bool
la_index_node_next_cached(LaIndexNode *node, ScanDirection direction)
{
	if (!node->is_btree || direction != node->start.direction ||
		la_blocks_read() != node->start.reads_first ||
		!la_bt_next_on_page(node->desc, direction))
		return false;
	node->start.calls++;
	return true;
}

/* For hook/index_am.c. */
extern bool la_index_node_next(LaIndexNode *node, ScanDirection direction);
extern void la_index_node_restart(IndexScanDesc desc);
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
