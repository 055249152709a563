/*-------------------------------------------------------------------------
 *
 * followed.h
 *	  What all scans of a plan that we follow have in common.
 *
 * hook/executor.c makes one for each scan node, tells it when the executor
 * goes back to its caller and when the query ends, and collects its counters.
 * hook/explain.c shows them.  Each kind of scan embeds this as its first
 * member.
 *
 * Copyright (c) 2026, the pg_lookahead authors
 *
 *-------------------------------------------------------------------------
 */
#ifndef LA_FOLLOWED_H
#define LA_FOLLOWED_H

#include "lib/ilist.h"
#include "nodes/execnodes.h"
#include "report/counters.h"

typedef struct LaFollowed LaFollowed;

typedef struct LaFollowedOps
{
	/* The executor goes back to its caller: nothing in flight, no pin. */
	void		(*pause) (LaFollowed *followed);

	/* The node will not be run again: end the work, so that counters add up. */
	void		(*finish) (LaFollowed *followed);

	/*
	 * The query's memory goes, maybe after an error; touch no other object.
	 * NULL: nobody knows of the scan.
	 */
	void		(*forget) (LaFollowed *followed);
} LaFollowedOps;

struct LaFollowed
{
	/* immutable */
	const LaFollowedOps *ops;
	dlist_node	query_link;		/* in LaQuery.scans */
	PlanState  *node;
	Oid			heap_oid;		/* InvalidOid: the node does not know it */
	Oid			index_oid;		/* InvalidOid: scans no index */
	bool		reads_leaves;	/* blocks are the index's, not the table's */

	LaCounters	counters;
	const char *method_name;	/* of the last window, or NULL */
};

/*
 * The relation whose blocks are looked ahead of.
 */
static inline Oid
la_followed_relid(const LaFollowed *followed)
{
	return followed->reads_leaves ? followed->index_oid : followed->heap_oid;
}

/*
 * Tells the scans of a parallel plan apart: a node may have two.
 */
static inline int
la_followed_key(const LaFollowed *followed)
{
	return followed->node->plan->plan_node_id * 2 + followed->reads_leaves;
}

/*
 * Put one among those of its query, in the order of the plan: EXPLAIN shows
 * them so, and not all are made when it starts.
 */
static inline void
la_followed_add(dlist_head *scans, LaFollowed *followed)
{
	dlist_node *before = dlist_is_empty(scans) ? NULL : dlist_tail_node(scans);
	int			key = la_followed_key(followed);

	while (before != NULL &&
		   la_followed_key(dlist_container(LaFollowed, query_link,
										   before)) > key)
		before = dlist_has_prev(scans, before) ?
			dlist_prev_node(scans, before) : NULL;
	if (before != NULL)
		dlist_insert_after(before, &followed->query_link);
	else
		dlist_push_head(scans, &followed->query_link);
}

/*
 * How many more entries will the executor ask for, after the one just returned?
 * Known only if a LIMIT stands directly above the scan; else it may be NULL.
 */
extern uint64 la_entries_left(const LimitState *limit);

#endif							/* LA_FOLLOWED_H */
