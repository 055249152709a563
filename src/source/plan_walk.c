/*-------------------------------------------------------------------------
 *
 * plan_walk.c
 *	  Finds the scans of a plan that can be followed.
 *
 * Walks the plan state of a query that begins, and registers
 *
 *	index and index-only scans	index_node.c, which follows them later; the
 *								index gets our stand-in for its routine
 *	bitmap index scans			leaf_scan.c
 *	bitmap heap scans			bitmap_scan.c
 *	sequential scans			seq_scan.c
 *
 * Each scan is told its place in the plan, and one of an index or a sequential
 * one the LIMIT that stops it.
 *
 * Copyright (c) 2026, the pg_lookahead authors
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/transam.h"
#include "catalog/pg_am.h"
#include "common/int.h"
#include "hook/index_am.h"
#include "nodes/nodeFuncs.h"
#include "port/pg_bitutils.h"
#include "source/bitmap_scan.h"
#include "source/index_node.h"
#include "source/leaf_scan.h"
#include "source/plain.h"
#include "source/query.h"
#include "source/seq_scan.h"

typedef struct LaWalk
{
	LaQuery    *query;			/* NULL until the first scan is found */
	const QueryDesc *desc;
	LimitState *limit;			/* the innermost that the walk is below */
	PlanState  *limited;		/* the scan that it stops, or NULL */
	Bitmapset  *subplans;		/* plan_ids of sub-plans met */
	List	   *repeats;		/* PlanStates of those that will be met again */
} LaWalk;

/*
 * The scan that a LIMIT stops after its rows, or NULL: between the two there
 * may be only nodes that pass every row on.  WITH TIES it may go on for any
 * number of rows.
 */
PlanState *
la_limited_scan(const LimitState *limit)
{
	PlanState  *node = outerPlanState(limit);

	if (limit->limitOption == LIMIT_OPTION_WITH_TIES)
		return NULL;
	for (;;)
	{
		if (node == NULL || node->qual != NULL)
			return NULL;
		switch (nodeTag(node))
		{
			case T_IndexScanState:
			case T_IndexOnlyScanState:
			case T_SeqScanState:
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

	/* Back to the first one behind the OFFSET. */
	if (ScanDirectionIsBackward(limit->ps.state->es_direction))
		left = limit->position - limit->offset -
			(limit->lstate == LIMIT_SUBPLANEOF ? 1 : 2);
	return (uint64) Max(left, 0);
}

/*
 * The LIMIT that stops a scan after its rows, or NULL.
 */
static LimitState *
la_limit_of(const LaWalk *walk, const PlanState *node)
{
	return walk->limited == node ? walk->limit : NULL;
}

/*
 * The memory that scans of this query are registered in.
 */
static MemoryContext
la_walk_context(LaWalk *walk)
{
	if (walk->query == NULL)
		walk->query = la_query_create(walk->desc->estate);
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
pg_attribute_hot bool
la_finds_one_row(const LaIndexKeys *all)
{
	Relation	index = all->index;
	const int	others = SK_ROW_HEADER | SK_SEARCHARRAY | SK_SEARCHNULL |
		SK_SEARCHNOTNULL;
	uint32		equal = 0;		/* columns of the index */

	StaticAssertStmt(INDEX_MAX_KEYS <= 32, "columns do not fit into a word");
	if (!index->rd_index->indisunique || index->rd_rel->relam != BTREE_AM_OID)
		return false;
	for (int i = 0; i < all->nkeys; i++)
		if (all->keys[i].sk_strategy == BTEqualStrategyNumber &&
			(all->keys[i].sk_flags & others) == 0)
			equal |= (uint32) 1 << (all->keys[i].sk_attno - 1);
	return pg_popcount32(equal) ==
		IndexRelationGetNumberOfKeyAttributes(index);
}

/*
 * Register an index scan node, if its index can be followed.
 */
static pg_attribute_hot void
la_register_index_scan(LaWalk *walk, PlanState *node, const LaIndexKeys *all)
{
	LaIndexNode *registered;
	MemoryContext context;
	LaIndexAm  *am;

	if (all->index == NULL ||
		RelationGetRelid(all->index) < FirstNormalObjectId)
		return;
	if (la_finds_one_row(all))
		return;
	am = la_index_am_wrap(all->index);
	if (am == NULL)
		return;
	context = la_walk_context(walk);
	registered = la_index_node_register(context, &walk->query->scans, node,
										la_limit_of(walk, node),
										la_index_am_is_plain(am, all->index) &&
										la_keys_are_plain(all));
	dlist_push_tail(&walk->query->nodes, &registered->query_link);
	if (node->plan->parallel_aware)
		la_index_node_follow(registered);
}

/*
 * Register a bitmap index scan node, whose table is read by another node.
 */
static void
la_register_bitmap_index_scan(LaWalk *walk, BitmapIndexScanState *node)
{
	Relation	index = node->biss_RelationDesc;
	const LaIndexKeys all = {index, node->biss_ScanKeys,
							 node->biss_NumScanKeys, NULL, 0};
	LaLeafScan *leaf;
	LaIndexAm  *am;

	if (index == NULL || RelationGetRelid(index) < FirstNormalObjectId ||
		!la_leaf_scan_is_wanted(index))
		return;
	am = la_index_am_wrap(index);
	if (am == NULL || !la_index_am_is_plain(am, index) ||
		!la_keys_are_plain(&all))
		return;
	leaf = la_leaf_scan_register(la_walk_context(walk), &node->ss.ps, index,
								 &node->biss_ScanDesc, NULL, true);
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
	scan = la_seq_scan_register(la_walk_context(walk), node,
								la_limit_of(walk, &node->ss.ps));
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

static pg_attribute_hot void
la_register_plain_scan(LaWalk *walk, IndexScanState *node)
{
	const LaIndexKeys all = la_index_scan_keys(node);

	la_register_index_scan(walk, &node->ss.ps, &all);
}

static void
la_register_only_scan(LaWalk *walk, IndexOnlyScanState *node)
{
	const LaIndexKeys all = la_index_only_scan_keys(node);

	la_register_index_scan(walk, &node->ss.ps, &all);
}

static bool la_walk_plan(PlanState *node, void *arg);

/*
 * What is below a LIMIT.
 */
static bool
la_walk_limit(LaWalk *walk, LimitState *node)
{
	LimitState *limit = walk->limit;
	PlanState  *limited = walk->limited;

	walk->limit = node;
	walk->limited = la_limited_scan(node);
	(void) planstate_tree_walker((PlanState *) node, la_walk_plan, walk);
	walk->limit = limit;
	walk->limited = limited;
	return false;
}

static pg_attribute_hot bool
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
	if (node->subPlan != NIL)
		la_note_subplans(walk, node);
	switch (nodeTag(node))
	{
		case T_LimitState:
			return la_walk_limit(walk, (LimitState *) node);
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
			return planstate_tree_walker(node, la_walk_plan, walk);
	}
	/* Scans have nothing below them but sub-plans. */
	if (node->lefttree == NULL && node->initPlan == NIL &&
		node->subPlan == NIL)
		return false;
	return planstate_tree_walker(node, la_walk_plan, walk);
}

/*
 * Register the scans of a query.  Returns NULL if there is none to follow.
 */
pg_attribute_hot LaQuery *
la_plan_walk(const QueryDesc *desc)
{
	LaWalk		walk = {NULL, desc, NULL, NULL, NULL, NIL};

	(void) la_walk_plan(desc->planstate, &walk);
	Assert(walk.repeats == NIL);

	/* The context may be one that lives as long as the calling query. */
	bms_free(walk.subplans);
	return walk.query;
}
