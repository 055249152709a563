/*-------------------------------------------------------------------------
 *
 * followed.h
 *	  What all scans of a plan that we follow have in common.
 *
 * plan_walk.c makes one for each scan node (index_node.c for those of indexes).
 * query.c tells it when the executor goes back to its caller and when the query
 * ends, and collects its counters.  report/explain_scans.c shows them.  Each
 * kind of scan embeds this as its first member.
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
	/*
	 * The executor goes back to its caller: nothing in flight, no pin.  A scan
	 * that has nothing else to do before it is called again may rest until
	 * then, and see to it itself that it is resumed.
	 */
	void		(*pause) (LaFollowed *followed);

	/*
	 * The executor is back: what was read meanwhile is not the scan's.  Was the
	 * client waited for, too?  If not, what has run of the same statement (a
	 * function that loops over the rows, say) is the scan's business as the
	 * rest of a plan is, as far as time goes.
	 */
	void		(*resume) (LaFollowed *followed, bool client_was_waited_for);

	/* The node will not be run again: end the work, so that counters add up. */
	void		(*finish) (LaFollowed *followed);

	/*
	 * The query's memory goes, maybe after an error; touch no other object.
	 * NULL: who knows of the scan is told otherwise.
	 */
	void		(*forget) (LaFollowed *followed);
} LaFollowedOps;

/*
 * The scans of a query.  A plan may have thousands, of which one runs, or
 * which are called by turns: those that run are in front of the others, which
 * need not be paused.
 */
typedef struct LaScans
{
	dlist_head	list;			/* LaFollowed; most index scans join late */
	int			n;				/* of the list */
	int			places;			/* scan nodes met so far */
	uint32		runs;			/* times that the executor came back */
	LaFollowed *ended;			/* the parallel sequential scan to whose end
								 * this process came last, or NULL */
} LaScans;

struct LaFollowed
{
	/* immutable */
	const LaFollowedOps *ops;
	LaScans    *scans;			/* those of its query */
	PlanState  *node;
	int			place;			/* of the node in the plan, counted */
	Oid			heap_oid;		/* InvalidOid: the node does not know it */
	Oid			index_oid;		/* InvalidOid: scans no index */
	bool		reads_leaves;	/* blocks are the index's, not the table's */
	bool		is_temporary;	/* they are in local buffers */

	dlist_node	query_link;		/* in LaScans.list */
	bool		runs;			/* it is in front */

	LaCounters	counters;
	const char *method_name;	/* of the last window, or NULL */

	/*
	 * What is in front of the scan, for those that keep it in a window (see
	 * window.c); NULL until it looks ahead, and when that memory goes.
	 */
	struct LaWindow *window;
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
 * Put a scan among those of its query.
 */
static inline void
la_followed_add(LaScans *scans, LaFollowed *followed, int place)
{
	followed->scans = scans;
	followed->place = place;
	dlist_push_tail(&scans->list, &followed->query_link);
	scans->n++;
}

/*
 * A scan runs: from now on it is paused and resumed with the executor.
 */
static inline void
la_followed_runs(LaFollowed *followed)
{
	if (likely(followed->runs))
		return;
	followed->runs = true;
	dlist_move_head(&followed->scans->list, &followed->query_link);
}

/*
 * A scan is over, at least for now, and has nothing that must be paused.  Not
 * to be called where the list is gone through with dlist_foreach().
 */
static inline void
la_followed_rests(LaFollowed *followed)
{
	if (!followed->runs)
		return;
	followed->runs = false;
	dlist_delete(&followed->query_link);
	dlist_push_tail(&followed->scans->list, &followed->query_link);
}

/*
 * How many more entries will the executor ask for, after the one just returned,
 * if there is a row for each?  Known only if a LIMIT stands directly above the
 * scan; else it may be NULL.
 */
extern uint64 la_entries_left(const LimitState *limit);

/* Where a scan was when the LIMIT above it was first seen at a row. */
typedef struct LaRowSeen
{
	int64		row;			/* LimitState.position */
	int64		position;		/* of the scan, in entries or pages */
} LaRowSeen;

/*
 * How far has the scan come since the last row?  Those in front of a queue are
 * dead, or locked by others.
 */
static inline uint64
la_since_row(LaRowSeen *seen, const LimitState *limit, int64 position)
{
	if (limit->position != seen->row || position < seen->position)
		*seen = (LaRowSeen) {.row = limit->position, .position = position};
	return (uint64) (position - seen->position);
}

#endif							/* LA_FOLLOWED_H */
