/*-------------------------------------------------------------------------
 *
 * deferred.c
 *	  A plan of one index scan, which is dealt with when it reads something.
 *
 * What most queries of a busy server do is one index scan that finds a few
 * cached rows.  To walk through its plan, register its scan and have something
 * to find both by until they end takes a hundred cache lines of code and memory
 * that such a query does not have in the processor's caches: a twentieth of
 * what it costs as a whole.  So all of that is put off for a plan that is just
 * an index scan and nodes that pass its rows on, if that is the only one now in
 * this process.  It has one LaIndexNode, which is not allocated, for the first
 * stage of its scan (index_node.c):
 *
 *		begin --------> deferred ------- amrescan -------> bound
 *						   |								 |
 *						   |		something was read between two entries,
 *						   |		or the scan turns, is marked, ...
 *						   |								 v
 *						   |						registered, as any node
 *						   v								 |
 *		none <-------- the query's memory goes <-------------'
 *
 * When the first stage ends the query and a node are made as plan_walk.c does,
 * the node goes on where this one was, and this one is left alone until the
 * memory goes.  What plan_walk.c asks a catalog for is asked at the beginning:
 * of an index that points to our stand-in already, and of common keys, that is
 * nothing.
 *
 * A plan that has nothing of ours, because its scan finds one row at most, or
 * because it scans nothing, is seen here, too, and is done with.
 *
 * Whoever wants to know of the nodes of a query before they have read anything
 * has no use for this: EXPLAIN (ANALYZE), parallel plans, start_after = 0.
 *
 * Copyright (c) 2026, the pg_lookahead authors
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/parallel.h"
#include "access/transam.h"
#include "hook/index_am.h"
#include "settings.h"
#include "source/deferred.h"
#include "source/plain.h"
#include "source/query.h"
#include "window/waits.h"

LaDeferred	la_deferred;
LaIndexNode la_deferred_node;	/* what is not set is never anything but 0 */

/*
 * The query's memory goes.
 */
static pg_attribute_hot void
la_deferred_reset(void *arg)
{
	la_deferred_forget();
	la_deferred.query = NULL;
}

/*
 * Have a query wait until its scan reads something.  Returns false if it has to
 * be dealt with now.
 */
static pg_attribute_hot bool
la_defer_scan(QueryDesc *desc, PlanState *plan, IndexScanDesc *desc_ref,
			  const LaIndexKeys *all)
{
	LaIndexNode *node = &la_deferred_node;
	LaIndexAm  *am;

	if (all->index == NULL ||
		RelationGetRelid(all->index) < FirstNormalObjectId ||
		la_finds_one_row(all))
		return true;
	if (la_deferred.query != NULL || la_start_after == 0 ||
		desc->estate->es_instrument != 0)
		return false;
	am = la_index_am_if_ready(all->index);
	if (am == NULL || !la_keys_are_plain(all))
		return false;

	la_deferred.query = desc;
	la_deferred.scans.runs = 0;
	la_deferred.callback.func = la_deferred_reset;
	MemoryContextRegisterResetCallback(desc->estate->es_query_cxt,
									   &la_deferred.callback);

	node->scans = &la_deferred.scans;
	node->plan = plan;
	node->desc_ref = desc_ref;
	node->am = am;
	node->starts = 0;
	node->cached_starts = 0;
	node->is_marked = false;
	return true;
}

/*
 * A query begins.  Returns true if nothing is to be done for it now: it waits,
 * or there is nothing in its plan that can be looked ahead of.
 */
pg_attribute_hot bool
la_query_defer(QueryDesc *desc)
{
	PlanState  *plan = desc->planstate;

	if (desc->plannedstmt->parallelModeNeeded || IsParallelWorker())
		return false;
	for (;;)
	{
		if (plan->initPlan != NIL || plan->subPlan != NIL)
			return false;
		if (IsA(plan, IndexScanState))
		{
			IndexScanState *scan = (IndexScanState *) plan;
			const LaIndexKeys all = {scan->iss_RelationDesc,
									 scan->iss_ScanKeys, scan->iss_NumScanKeys,
									 scan->iss_OrderByKeys,
									 scan->iss_NumOrderByKeys};

			return la_defer_scan(desc, plan, &scan->iss_ScanDesc, &all);
		}
		if (IsA(plan, IndexOnlyScanState))
		{
			IndexOnlyScanState *scan = (IndexOnlyScanState *) plan;
			const LaIndexKeys all = {scan->ioss_RelationDesc,
									 scan->ioss_ScanKeys,
									 scan->ioss_NumScanKeys,
									 scan->ioss_OrderByKeys,
									 scan->ioss_NumOrderByKeys};

			return la_defer_scan(desc, plan, &scan->ioss_ScanDesc, &all);
		}
		if (!IsA(plan, LimitState) && !IsA(plan, SortState) &&
			!IsA(plan, AggState) && !IsA(plan, ResultState) &&
			!IsA(plan, LockRowsState) && !IsA(plan, ModifyTableState))
			return false;
		plan = outerPlanState(plan);
		if (plan == NULL)
			return true;
	}
}

/*
 * The LIMIT that stops the scan of the query that is deferred, or NULL.
 */
static LimitState *
la_deferred_limit(void)
{
	PlanState  *scan = la_deferred_node.plan;
	LimitState *limit = NULL;

	for (PlanState *plan = la_deferred.query->planstate;
		 plan != scan;
		 plan = outerPlanState(plan))
		if (IsA(plan, LimitState))
			limit = (LimitState *) plan;
	return limit != NULL && la_limited_scan(limit) == scan ? limit : NULL;
}

/*
 * The first stage of the scan of the query that is deferred goes on with a node
 * like others, which is returned; or ends, if it cannot be followed: NULL.
 */
LaIndexNode *
la_deferred_register(void)
{
	LaIndexNode *first = &la_deferred_node;
	EState	   *estate = la_deferred.query->estate;
	LaIndexNode *node;
	LaQuery    *query;

	Assert(first->desc != NULL);
	if (!la_index_scan_may_be_followed(first->desc))
	{
		la_deferred_forget();
		return NULL;
	}
	query = la_query_create(estate);
	query->scans.runs = la_deferred.scans.runs;
	node = la_index_node_register(estate->es_query_cxt, &query->scans,
								  first->plan, la_deferred_limit(), true);
	dlist_push_tail(&query->nodes, &node->query_link);
	la_index_node_take_over(node, first);
	la_deferred_forget();

	/* What has slept meanwhile may have been the client. */
	if (query->scans.runs > 0)
		la_sleeps_are_stale = true;
	return node;
}
