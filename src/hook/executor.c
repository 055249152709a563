/*-------------------------------------------------------------------------
 *
 * executor.c
 *	  Finds the scans of a plan when it starts, lets go when it ends.
 *
 *		ExecutorStart	walk the plan state; register each scan that can be
 *						followed
 *		ExecutorRun		afterwards: no pin of ours survives
 *		ExecutorFinish	afterwards: end the work (modifying CTEs run in it)
 *		ExecutorEnd		before: end the work, if Finish was not called; report
 *						the counters
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
#include "catalog/pg_am.h"
#include "common/int.h"
#include "compat.h"
#include "hook/hooks.h"
#include "hook/index_am.h"
#include "nodes/nodeFuncs.h"
#include "port/pg_bitutils.h"
#include "settings.h"
#include "source/bitmap_scan.h"
#include "source/index_node.h"
#include "source/leaf_scan.h"
#include "source/seq_scan.h"
#include "utils/lsyscache.h"

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
	List	   *limits;			/* LimitStates met, the last first */
	Bitmapset  *subplans;		/* plan_ids of sub-plans met */
	List	   *repeats;		/* PlanStates of those that will be met again */
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

			if (scan->ops->in_flight != NULL)
				nreads += scan->ops->in_flight(scan);
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
 * See source/followed.h.
 */
uint64
la_entries_left(const LimitState *limit)
{
	int64		left;

	if (limit == NULL || limit->noCount || limit->lstate == LIMIT_INITIAL)
		return PG_UINT64_MAX;
	if (pg_add_s64_overflow(limit->offset, limit->count, &left))
		return PG_UINT64_MAX;
	left -= limit->position + 1;
	return (uint64) Max(left, 0);
}

/*
 * The LIMIT that stops a scan after its rows, or NULL.
 */
static LimitState *
la_limit_of(const LaWalk *walk, const PlanState *node)
{
	ListCell   *lc;

	foreach(lc, walk->limits)
		if (la_limited_scan(lfirst(lc)) == node)
			return lfirst(lc);
	return NULL;
}

/*
 * The memory that scans of this query are registered in.
 */
static MemoryContext
la_walk_context(LaWalk *walk)
{
	if (walk->query == NULL)
		walk->query = la_query_create(walk->desc);
	return walk->query->estate->es_query_cxt;
}

/*
 * Follow a scan from the start of the query on.
 */
static void
la_walk_add(LaWalk *walk, LaFollowed *scan)
{
	LaScans    *scans = &walk->query->scans;

	la_followed_add(scans, scan, scans->places++);
}

/*
 * Does a scan find one row at most?  So it is if each column of a unique B-tree
 * must be equal to something.  There is nothing ahead of such a scan, and where
 * many of them are run to be without any work for them is worth most.
 */
static bool
la_finds_one_row(Relation index, const ScanKeyData *keys, int nkeys)
{
	const int	others = SK_ROW_HEADER | SK_SEARCHARRAY | SK_SEARCHNULL |
		SK_SEARCHNOTNULL;
	uint32		equal = 0;		/* columns of the index */

	StaticAssertStmt(INDEX_MAX_KEYS <= 32, "columns do not fit into a word");
	if (!index->rd_index->indisunique || index->rd_rel->relam != BTREE_AM_OID)
		return false;
	for (int i = 0; i < nkeys; i++)
		if (keys[i].sk_strategy == BTEqualStrategyNumber &&
			(keys[i].sk_flags & others) == 0)
			equal |= (uint32) 1 << (keys[i].sk_attno - 1);
	return pg_popcount32(equal) ==
		IndexRelationGetNumberOfKeyAttributes(index);
}

/*
 * Register an index scan node, if its index can be followed.
 */
static void
la_register_index_scan(LaWalk *walk, PlanState *node, Relation index,
					   const ScanKeyData *keys, int nkeys)
{
	LaIndexNode *registered;
	MemoryContext context;

	if (index == NULL || RelationGetRelid(index) < FirstNormalObjectId)
		return;
	if (la_finds_one_row(index, keys, nkeys))
		return;
	if (la_index_am_wrap(index) == NULL)
		return;
	context = la_walk_context(walk);
	registered = la_index_node_register(context, &walk->query->scans, node,
										la_limit_of(walk, node));
	dlist_push_tail(&walk->query->nodes, &registered->query_link);
	if (walk->desc->plannedstmt->parallelModeNeeded)
		la_index_node_follow(registered);
}

/*
 * Register a bitmap index scan node, whose table is read by another node.
 */
static void
la_register_bitmap_index_scan(LaWalk *walk, BitmapIndexScanState *node)
{
	Relation	index = node->biss_RelationDesc;
	LaLeafScan *leaf;

	if (index == NULL || RelationGetRelid(index) < FirstNormalObjectId ||
		!la_leaf_scan_is_wanted(index))
		return;
	if (la_index_am_wrap(index) == NULL)
		return;
	leaf = la_leaf_scan_register(la_walk_context(walk), &node->ss.ps, index,
								 &node->biss_ScanDesc, NULL);
	la_walk_add(walk, &leaf->base);
}

/*
 * Register a sequential scan node, if its table is large enough.
 */
static void
la_register_seq_scan(LaWalk *walk, SeqScanState *node)
{
	LaFollowed *scan;

	if (!la_seq_scan_is_wanted(node))
		return;
	scan = la_seq_scan_register(la_walk_context(walk), node);
	if (scan != NULL)
		la_walk_add(walk, scan);
}

/*
 * Register a bitmap heap scan node.
 */
static void
la_register_bitmap_scan(LaWalk *walk, BitmapHeapScanState *node)
{
	LaFollowed *scan;

	if (!la_bitmap_scan_is_wanted(node))
		return;
	scan = la_bitmap_scan_register(la_walk_context(walk), node);
	la_walk_add(walk, scan);
}

/*
 * A sub-plan may be met from several places, which share its plan state.  It is
 * walked through once, the last time.
 */
static void
la_note_subplans(LaWalk *walk, PlanState *node)
{
	ListCell   *lc;

	foreach(lc, node->subPlan)
	{
		SubPlanState *state = lfirst_node(SubPlanState, lc);
		int			id = state->subplan->plan_id;

		if (bms_is_member(id, walk->subplans))
			walk->repeats = lappend(walk->repeats, state->planstate);
		else
			walk->subplans = bms_add_member(walk->subplans, id);
	}
}

static void
la_register_plain_scan(LaWalk *walk, IndexScanState *node)
{
	la_register_index_scan(walk, &node->ss.ps, node->iss_RelationDesc,
						   node->iss_ScanKeys, node->iss_NumScanKeys);
}

static void
la_register_only_scan(LaWalk *walk, IndexOnlyScanState *node)
{
	la_register_index_scan(walk, &node->ss.ps, node->ioss_RelationDesc,
						   node->ioss_ScanKeys, node->ioss_NumScanKeys);
}

static bool
la_walk_plan(PlanState *node, void *arg)
{
	LaWalk	   *walk = arg;

	if (node == NULL)
		return false;
	if (walk->repeats != NIL && list_member_ptr(walk->repeats, node))
	{
		walk->repeats = list_delete_ptr(walk->repeats, node);
		return false;
	}
	la_note_subplans(walk, node);
	switch (nodeTag(node))
	{
		case T_LimitState:
			walk->limits = lcons(node, walk->limits);
			break;
		case T_IndexScanState:
			la_register_plain_scan(walk, (IndexScanState *) node);
			break;
		case T_IndexOnlyScanState:
			la_register_only_scan(walk, (IndexOnlyScanState *) node);
			break;
		case T_BitmapIndexScanState:
			la_register_bitmap_index_scan(walk, (BitmapIndexScanState *) node);
			break;
		case T_BitmapHeapScanState:
			la_register_bitmap_scan(walk, (BitmapHeapScanState *) node);
			break;
		case T_SeqScanState:
			la_register_seq_scan(walk, (SeqScanState *) node);
			break;
		default:
			break;
	}
	return planstate_tree_walker(node, la_walk_plan, walk);
}

static void
la_ExecutorStart(QueryDesc *queryDesc, int eflags)
{
	LaWalk		walk = {NULL, queryDesc, NIL, NULL, NIL};

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
	Assert(walk.repeats == NIL);

	/* The context may be one that lives as long as the calling query. */
	list_free(walk.limits);
	bms_free(walk.subplans);
	if (walk.query != NULL && queryDesc->plannedstmt->parallelModeNeeded)
	{
		walk.query->is_parallel = true;
		la_parallel_begin();
	}
}

/*
 * The query of a descriptor, or NULL if it has no scan that we follow.
 */
static LaQuery *
la_query_of_desc(QueryDesc *queryDesc)
{
	return dlist_is_empty(&la_queries) ? NULL : la_query_of(queryDesc->estate);
}

static void
la_ExecutorRun(LA_RUN_PARAMS)
{
	LaQuery    *query;
	dlist_iter	iter;

	if (prev_ExecutorRun)
		prev_ExecutorRun(LA_RUN_ARGS);
	else
		standard_ExecutorRun(LA_RUN_ARGS);

	query = la_query_of_desc(queryDesc);
	if (query == NULL)
		return;
	query->scans.runs++;
	dlist_foreach(iter, &query->scans.list)
	{
		LaFollowed *scan = dlist_container(LaFollowed, query_link, iter.cur);

		scan->ops->pause(scan);
	}
}

/*
 * The plan will not be run again: end the work, so that what EXPLAIN prints
 * before ExecutorEnd adds up.
 */

static void
la_ExecutorFinish(QueryDesc *queryDesc)
{
	LaQuery    *query;
	dlist_iter	iter;

	if (prev_ExecutorFinish)
		prev_ExecutorFinish(queryDesc);
	else
		standard_ExecutorFinish(queryDesc);

	query = la_query_of_desc(queryDesc);
	if (query != NULL)
		dlist_foreach(iter, &query->scans.list)
		{
			LaFollowed *scan = dlist_container(LaFollowed, query_link,
											   iter.cur);

			scan->ops->finish(scan);
		}
}

/*
 * Add what a scan did to the sums.
 */
static void
la_report(LaFollowed *scan)
{
	Oid			relid = la_followed_relid(scan);

	if (scan->counters.scans_total == 0)
		return;
	la_counters_add(&la_session_counters, &scan->counters);
	if (IsParallelWorker())
		la_parallel_report(la_followed_key(scan), &scan->counters);
	if (get_rel_persistence(relid) == RELPERSISTENCE_TEMP)
		return;					/* gone with the session */
	la_counters_report(IsSharedRelation(relid) ? InvalidOid : MyDatabaseId,
					   relid, &scan->counters);
}

static void
la_ExecutorEnd(QueryDesc *queryDesc)
{
	LaQuery    *query = la_query_of_desc(queryDesc);

	if (query != NULL)
	{
		dlist_iter	iter;

		dlist_foreach(iter, &query->scans.list)
		{
			LaFollowed *scan = dlist_container(LaFollowed, query_link,
											   iter.cur);

			scan->ops->finish(scan);
			la_report(scan);
		}
		la_explain_query_ends(query);
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
