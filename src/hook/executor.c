/*-------------------------------------------------------------------------
 *
 * executor.c
 *	  Finds the index scans of a plan when it starts, lets go when it ends.
 *
 *		ExecutorStart	walk the plan state; register each index scan and point
 *						its index to our stand-in
 *		ExecutorRun		afterwards: no pin of ours survives
 *		ExecutorFinish	the same: modifying CTEs run here
 *		ExecutorEnd		before: end the work, report the counters
 *
 * A query that ends by an error never gets to ExecutorEnd.  Its memory goes,
 * and with it comes la_query_reset(); its pins and references have gone with
 * the resource owner by themselves.
 *
 * Parallel workers come through the same hooks with their own copy of the
 * plan.  EvalPlanQual builds plan states without them; those scans are not
 * followed, and they read single rows.
 *
 * Copyright (c) 2026, the pg_lookahead authors
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/parallel.h"
#include "access/transam.h"
#include "access/xact.h"
#include "catalog/catalog.h"
#include "compat.h"
#include "hook/hooks.h"
#include "nodes/nodeFuncs.h"
#include "settings.h"

static ExecutorStart_hook_type prev_ExecutorStart = NULL;
static ExecutorRun_hook_type prev_ExecutorRun = NULL;
static ExecutorFinish_hook_type prev_ExecutorFinish = NULL;
static ExecutorEnd_hook_type prev_ExecutorEnd = NULL;

/* Running queries that we follow, the innermost first. */
static dlist_head la_queries = DLIST_STATIC_INIT(la_queries);

typedef struct LaWalk
{
	LaQuery    *query;			/* NULL until the first scan is found */
	QueryDesc  *desc;
	LimitState *limit;			/* the LIMIT directly above limited_node */
	PlanState  *limited_node;
} LaWalk;

/*
 * The query of an executor state, or NULL if it has no scan that we follow.
 */
LaQuery *
la_query_of(EState *estate)
{
	dlist_iter	iter;

	dlist_foreach(iter, &la_queries)
	{
		LaQuery    *query = dlist_container(LaQuery, link, iter.cur);

		if (query->estate == estate)
			return query;
	}
	return NULL;
}

/*
 * The query's memory goes.
 */
static void
la_query_reset(void *arg)
{
	LaQuery    *query = arg;
	dlist_iter	iter;

	dlist_foreach(iter, &query->scans)
		la_index_scan_forget(dlist_container(LaIndexScan, query_link, iter.cur));
	dlist_delete(&query->link);
}

static LaQuery *
la_query_create(QueryDesc *desc)
{
	MemoryContext context = desc->estate->es_query_cxt;
	LaQuery    *query;
	MemoryContextCallback *callback;

	query = MemoryContextAllocZero(context, sizeof(LaQuery) +
								   sizeof(MemoryContextCallback));
	query->desc = desc;
	query->estate = desc->estate;
	dlist_init(&query->scans);
	dlist_push_head(&la_queries, &query->link);

	callback = (MemoryContextCallback *) (query + 1);
	callback->func = la_query_reset;
	callback->arg = query;
	MemoryContextRegisterResetCallback(context, callback);
	return query;
}

/*
 * The scan that a LIMIT stops after its rows, or NULL: between the two there
 * may be only nodes that pass every row on.
 */
static PlanState *
la_limited_scan(LimitState *limit)
{
	PlanState  *node = outerPlanState(limit);

	for (;;)
	{
		if (node == NULL || node->qual != NULL)
			return NULL;
		switch (nodeTag(node))
		{
			case T_IndexScanState:
			case T_IndexOnlyScanState:
				return node;
			case T_LockRowsState:
				node = outerPlanState(node);
				break;
			case T_ResultState:
				if (((ResultState *) node)->resconstantqual != NULL)
					return NULL;
				node = outerPlanState(node);
				break;
			case T_SubqueryScanState:
				node = ((SubqueryScanState *) node)->subplan;
				break;
			default:
				return NULL;
		}
	}
}

/*
 * Register one scan node, if its index can be followed.
 */
static void
la_register(LaWalk *walk, PlanState *node, Relation index)
{
	LaIndexScan *scan;

	/* NULL: a partition that was pruned, or EXPLAIN without ANALYZE. */
	if (index == NULL || RelationGetRelid(index) < FirstNormalObjectId)
		return;
	if (la_index_am_wrap(index) == NULL)
		return;
	if (walk->query == NULL)
		walk->query = la_query_create(walk->desc);
	scan = la_index_scan_register(walk->query->estate->es_query_cxt, node,
								  node == walk->limited_node ? walk->limit : NULL);
	dlist_push_tail(&walk->query->scans, &scan->query_link);
}

static bool
la_walk_plan(PlanState *node, void *arg)
{
	LaWalk	   *walk = arg;

	if (node == NULL)
		return false;
	switch (nodeTag(node))
	{
		case T_LimitState:
			walk->limited_node = la_limited_scan((LimitState *) node);
			walk->limit = (LimitState *) node;
			break;
		case T_IndexScanState:
			la_register(walk, node, ((IndexScanState *) node)->iss_RelationDesc);
			break;
		case T_IndexOnlyScanState:
			la_register(walk, node,
						((IndexOnlyScanState *) node)->ioss_RelationDesc);
			break;
		default:
			break;
	}
	return planstate_tree_walker(node, la_walk_plan, walk);
}

static void
la_ExecutorStart(QueryDesc *queryDesc, int eflags)
{
	LaWalk		walk = {NULL, queryDesc, NULL, NULL};

	if (prev_ExecutorStart)
		prev_ExecutorStart(queryDesc, eflags);
	else
		standard_ExecutorStart(queryDesc, eflags);

	if (!la_enabled || (eflags & EXEC_FLAG_EXPLAIN_ONLY) != 0)
		return;

	/* Reading an index takes predicate locks there; ours must not. */
	if (IsolationIsSerializable())
		return;

	(void) la_walk_plan(queryDesc->planstate, &walk);
	if (walk.query != NULL && queryDesc->plannedstmt->parallelModeNeeded)
		la_parallel_begin();
}

static void
la_pause(QueryDesc *queryDesc)
{
	LaQuery    *query;
	dlist_iter	iter;

	if (dlist_is_empty(&la_queries))
		return;
	query = la_query_of(queryDesc->estate);
	if (query == NULL)
		return;
	dlist_foreach(iter, &query->scans)
		la_index_scan_pause(dlist_container(LaIndexScan, query_link, iter.cur));
}

static void
la_ExecutorRun(LA_RUN_PARAMS)
{
	if (prev_ExecutorRun)
		prev_ExecutorRun(LA_RUN_ARGS);
	else
		standard_ExecutorRun(LA_RUN_ARGS);
	la_pause(queryDesc);
}

static void
la_ExecutorFinish(QueryDesc *queryDesc)
{
	if (prev_ExecutorFinish)
		prev_ExecutorFinish(queryDesc);
	else
		standard_ExecutorFinish(queryDesc);
	la_pause(queryDesc);
}

/*
 * Add what a scan did to the sums.
 */
static void
la_report(LaIndexScan *scan)
{
	if (scan->counters.scans_total == 0)
		return;
	la_counters_add(&la_session_counters, &scan->counters);
	la_counters_report(IsSharedRelation(scan->heap_oid) ? InvalidOid : MyDatabaseId,
					   scan->heap_oid, &scan->counters);
	if (IsParallelWorker())
		la_parallel_report(scan->node->plan->plan_node_id, &scan->counters);
}

static void
la_ExecutorEnd(QueryDesc *queryDesc)
{
	LaQuery    *query = NULL;

	if (!dlist_is_empty(&la_queries))
		query = la_query_of(queryDesc->estate);
	if (query != NULL)
	{
		dlist_iter	iter;

		dlist_foreach(iter, &query->scans)
		{
			LaIndexScan *scan = dlist_container(LaIndexScan, query_link,
												iter.cur);

			la_index_scan_finish(scan);
			la_report(scan);
		}
		if (la_explain_is_waiting() && queryDesc->instrument_options != 0)
			la_explain_keep(query);
	}

	if (prev_ExecutorEnd)
		prev_ExecutorEnd(queryDesc);
	else
		standard_ExecutorEnd(queryDesc);
}

/*
 * Put ourselves into the executor's hooks.
 */
void
la_executor_hooks_install(void)
{
	prev_ExecutorStart = ExecutorStart_hook;
	ExecutorStart_hook = la_ExecutorStart;
	prev_ExecutorRun = ExecutorRun_hook;
	ExecutorRun_hook = la_ExecutorRun;
	prev_ExecutorFinish = ExecutorFinish_hook;
	ExecutorFinish_hook = la_ExecutorFinish;
	prev_ExecutorEnd = ExecutorEnd_hook;
	ExecutorEnd_hook = la_ExecutorEnd;
}
