/*-------------------------------------------------------------------------
 *
 * query.c
 *	  The queries that run, and the scans of each that are followed.
 *
 * hook/executor.c tells when a query passes from one state to the next:
 *
 *	begin		its plan is ready: plan_walk.c registers each scan that can
 *				be followed, or deferred.c lets it wait
 *	pause		the executor goes back to its caller: no pin of ours survives
 *	resume		it is back
 *	finish		the plan will not be run again: end the work
 *	report		it ends: add up what was counted
 *
 * A query that ends by an error never gets to the last two.  Its memory goes,
 * and with it comes la_query_reset().  Its pins and references go with the
 * resource owner, by themselves: afterwards if the query was run through a
 * portal, whose memory an abort frees first, or else before.
 *
 * Parallel workers come the same way with their own copy of the plan.
 * EvalPlanQual builds plan states without it; those scans are not followed, and
 * they read single rows.
 *
 * Copyright (c) 2026, the pg_lookahead authors
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/parallel.h"
#include "access/xact.h"
#include "catalog/catalog.h"
#include "catalog/pg_class.h"
#include "compat.h"
#include "miscadmin.h"
#include "service/service.h"
#include "source/deferred.h"
#include "source/index_node.h"
#include "source/query.h"
#include "window/waits.h"
#include "window/window.h"

dlist_head	la_queries = DLIST_STATIC_INIT(la_queries);

static void la_query_reset(void *arg);

/*
 * The query of an executor state, or NULL if it has no scan that we follow.  A
 * session may have a thousand cursors: it is found by what is to be done when
 * the memory of the executor state goes.
 */
LaQuery *
la_query_of(EState *estate)
{
	for (MemoryContextCallback *callback = estate->es_query_cxt->reset_cbs;
		 callback != NULL;
		 callback = callback->next)
	{
		if (callback->func == la_query_reset &&
			((LaQuery *) callback->arg)->estate == estate)
			return callback->arg;
	}
	return NULL;
}

/*
 * How many reads of look-ahead has this backend in flight now?
 */
int
la_reads_in_flight(void)
{
	dlist_iter	query;
	dlist_iter	iter;
	int			nreads = 0;

	dlist_foreach(query, &la_queries)
	{
		dlist_foreach(iter, &dlist_container(LaQuery, link,
											 query.cur)->scans.list)
		{
			LaFollowed *scan = dlist_container(LaFollowed, query_link,
											   iter.cur);

			if (!scan->runs)
				break;
			if (scan->window != NULL)
				nreads += la_window_in_flight(scan->window);
		}
	}
	return nreads;
}

/*
 * The query's memory goes.
 */
static void
la_query_reset(void *arg)
{
	LaQuery    *query = arg;
	dlist_iter	iter;

	dlist_foreach(iter, &query->scans.list)
	{
		LaFollowed *scan = dlist_container(LaFollowed, query_link, iter.cur);

		if (scan->ops->forget != NULL)
			scan->ops->forget(scan);
	}
	dlist_foreach(iter, &query->nodes)
		la_index_node_forget(dlist_container(LaIndexNode, query_link,
											 iter.cur));
	dlist_delete(&query->link);
}

/*
 * Note that scans of a query will be followed, until its memory goes.
 */
LaQuery *
la_query_create(EState *estate)
{
	MemoryContext context = estate->es_query_cxt;
	LaQuery    *query;
	MemoryContextCallback *callback;

	query = MemoryContextAllocZero(context, sizeof(LaQuery) +
								   sizeof(MemoryContextCallback));
	query->estate = estate;
	dlist_init(&query->nodes);
	dlist_init(&query->scans.list);
	dlist_push_head(&la_queries, &query->link);

	callback = (MemoryContextCallback *) (query + 1);
	callback->func = la_query_reset;
	callback->arg = query;
	MemoryContextRegisterResetCallback(context, callback);
	return query;
}

/*
 * A query begins, and its plan state has been made.
 */
pg_attribute_hot void
la_query_begin(QueryDesc *desc)
{
	LaQuery    *query;

	/* Reading an index takes predicate locks there; ours must not. */
	if (IsolationIsSerializable() || la_query_defer(desc))
		return;

	query = la_plan_walk(desc);
	if (query == NULL)
		return;
	if (IsParallelWorker())
	{
		/* Not of a query of a function, whose nodes have the same numbers. */
		if (desc->dest->mydest == DestTupleQueue)
			query->parallel_plan = la_parallel_plan();
	}
	else if (desc->plannedstmt->parallelModeNeeded)
		query->parallel_plan = la_parallel_begin();
}

/*
 * The executor is about to run the plan.
 */
void
la_query_resume(const QueryDesc *desc)
{
	LaQuery    *query = la_query_of(desc->estate);
	bool		client_was_waited_for;
	dlist_iter	iter;

	if (query == NULL)
		return;
	/* A parallel scan has its slot from the start. */
	la_owners_deepen();
	if (query->scans.runs == 0)
		return;
	client_was_waited_for =
		query->statement_start != GetCurrentStatementStartTimestamp();
	if (client_was_waited_for)
		la_sleeps_are_stale = true;
	dlist_foreach(iter, &query->scans.list)
	{
		LaFollowed *scan = dlist_container(LaFollowed, query_link, iter.cur);

		if (!scan->runs)
			break;
		scan->ops->resume(scan, client_was_waited_for);
	}
}

/*
 * The executor goes back to its caller, who may never come again.
 */
void
la_query_pause(const QueryDesc *desc)
{
	LaQuery    *query = la_query_of(desc->estate);
	dlist_mutable_iter iter;

	if (query == NULL)
		return;
	query->scans.runs++;
	query->statement_start = GetCurrentStatementStartTimestamp();
	/* One that rests from then on goes to the end. */
	dlist_foreach_modify(iter, &query->scans.list)
	{
		LaFollowed *scan = dlist_container(LaFollowed, query_link, iter.cur);

		if (!scan->runs)
			break;
		scan->ops->pause(scan);
	}
}

/*
 * Workers may have looked ahead where this process did not: have something to
 * show their share with, if that will be asked for.
 */
static void
la_follow_for_workers(LaQuery *query)
{
	dlist_iter	iter;

	if (query->parallel_plan == 0 || IsParallelWorker() ||
		query->estate->es_instrument == 0)
		return;
	dlist_foreach(iter, &query->nodes)
	{
		LaIndexNode *node = dlist_container(LaIndexNode, query_link, iter.cur);

		if (node->scan == NULL)
			la_index_node_follow(node);
	}
}

/*
 * The plan will not be run again: end the work, so that what EXPLAIN prints
 * adds up.  May be called again.
 */
void
la_query_finish(const QueryDesc *desc)
{
	LaQuery    *query = la_query_of(desc->estate);
	dlist_mutable_iter iter;

	if (query == NULL)
		return;
	la_follow_for_workers(query);
	/* One that is over goes to the end, and comes once more. */
	dlist_foreach_modify(iter, &query->scans.list)
	{
		LaFollowed *scan = dlist_container(LaFollowed, query_link, iter.cur);

		scan->ops->finish(scan);
	}
}

/*
 * Add what a scan of a query did to the sums.  No catalog is looked into: that
 * may wait, or fail, and the query has its answer.
 */
static void
la_report(const LaQuery *query, LaFollowed *scan)
{
	Oid			relid = la_followed_relid(scan);

	if (scan->counters.scans_total == 0 &&
		scan->counters.blocks_dropped_total == 0)
		return;
	la_counters_add(&la_session_counters, &scan->counters);
	if (IsParallelWorker() && query->parallel_plan != 0)
		la_parallel_report(query->parallel_plan, la_followed_key(scan),
						   &scan->counters);
	if (scan->is_temporary)
		return;					/* gone with the session */
	la_counters_report(IsSharedRelation(relid) ? InvalidOid : MyDatabaseId,
					   relid, &scan->counters);
}

/*
 * The query ends, and has been finished.
 */
void
la_query_report(const QueryDesc *desc)
{
	LaQuery    *query = la_query_of(desc->estate);
	dlist_iter	iter;

	if (query == NULL)
		return;
	dlist_foreach(iter, &query->scans.list)
		la_report(query, dlist_container(LaFollowed, query_link,
										 iter.cur));
}
