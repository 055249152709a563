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
 * an index scan and nodes that pass its rows on.  Its scan has an LaIndexNode
 * for the first stage (index_node.c) that is not allocated:
 *
 *		begin --------> deferred ------- amrescan -------> bound
 *						   |								 |
 *				the query's memory goes		something was read between two
 *						   |				entries, or the scan turns, is
 *						   |				marked, ...: registered as any
 *						   v								 |
 *						 none <------------------------------'
 *
 * When the first stage ends the query and a node are made as plan_walk.c does,
 * and the node goes on where this one was.  What plan_walk.c asks a catalog for
 * is asked at the beginning: of an index that points to our stand-in already,
 * and of common keys, that is nothing.
 *
 * One query is deferred at a time, because to look for the right one of several
 * would take back a third of what is won.  What begins while another one has
 * not come to its end, in a function that it calls or beside an open cursor, is
 * dealt with at once, as is a plan of any other kind.
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
	la_deferred.estate = NULL;
}

/*
 * The query is deferred no more.  As long as the server would call us when its
 * memory goes there is no room for another.
 */
static void
la_deferred_release(void)
{
	MemoryContextCallback **link =
		&la_deferred.estate->es_query_cxt->reset_cbs;

	while (*link != &la_deferred.callback)
		link = &(*link)->next;
	*link = la_deferred.callback.next;
	la_deferred_reset(NULL);
}

/*
 * Have a query wait until its scan reads something.  Returns false if it has to
 * be dealt with now.
 */
static pg_attribute_hot bool
la_defer_scan(EState *estate, PlanState *plan, IndexScanDesc *desc_ref,
			  const LaIndexKeys *all, LimitState *limit)
{
	LaIndexNode *node = &la_deferred_node;
	LaIndexAm  *am;

	if (all->index == NULL ||
		RelationGetRelid(all->index) < FirstNormalObjectId ||
		(all->index->rd_index->indisunique && la_finds_one_row(all)))
		return true;
	if (la_deferred.estate != NULL || la_start_after == 0 ||
		estate->es_instrument != 0)
		return false;
	am = la_index_am_if_ready(all->index);
	if (am == NULL || !la_keys_are_plain(all))
		return false;

	la_deferred.estate = estate;
	la_deferred.scans.runs = 0;
	la_deferred.callback.func = la_deferred_reset;
	MemoryContextRegisterResetCallback(estate->es_query_cxt,
									   &la_deferred.callback);

	node->scans = &la_deferred.scans;
	node->plan = plan;
	node->limit = limit != NULL && la_limited_scan(limit) == plan ?
		limit : NULL;
	node->desc_ref = desc_ref;
	node->am = am;
	node->starts = 0;
	node->start_reads = -1;
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
	LimitState *limit = NULL;

	if (desc->plannedstmt->parallelModeNeeded || IsParallelWorker())
		return false;
	for (PlanState *plan = desc->planstate;
		 plan != NULL;
		 plan = outerPlanState(plan))
	{
		if (plan->initPlan != NIL || plan->subPlan != NIL)
			return false;
		if (IsA(plan, IndexScanState))
		{
			IndexScanState *scan = (IndexScanState *) plan;
			const LaIndexKeys all = la_index_scan_keys(scan);

			return la_defer_scan(desc->estate, plan, &scan->iss_ScanDesc, &all,
								 limit);
		}
		if (IsA(plan, IndexOnlyScanState))
		{
			IndexOnlyScanState *scan = (IndexOnlyScanState *) plan;
			const LaIndexKeys all = la_index_only_scan_keys(scan);

			return la_defer_scan(desc->estate, plan, &scan->ioss_ScanDesc,
								 &all, limit);
		}
		if (IsA(plan, LimitState))
			limit = (LimitState *) plan;
		else if (!IsA(plan, SortState) && !IsA(plan, AggState) &&
				 !IsA(plan, ResultState) && !IsA(plan, LockRowsState) &&
				 !IsA(plan, ModifyTableState))
			return false;
	}
	return true;
}

/*
 * The first stage of the scan of the query that is deferred goes on with a node
 * like others, which is returned; or ends, if it cannot be followed: NULL.
 */
LaIndexNode *
la_deferred_register(void)
{
	LaIndexNode *first = &la_deferred_node;
	EState	   *estate = la_deferred.estate;
	LaIndexNode *node;
	LaQuery    *query;

	Assert(first->desc != NULL && estate != NULL);
	if (!la_index_scan_may_be_followed(first->desc))
	{
		la_deferred_release();
		return NULL;
	}
	query = la_query_create(estate);
	query->scans.runs = la_deferred.scans.runs;
	node = la_index_node_register(estate->es_query_cxt, &query->scans,
								  first->plan, first->limit, true);
	dlist_push_tail(&query->nodes, &node->query_link);
	la_index_node_take_over(node, first);
	la_deferred_release();

	/* What has slept meanwhile may have been the client. */
	if (query->scans.runs > 0)
		la_sleeps_are_stale = true;
	return node;
}
