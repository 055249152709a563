/*-------------------------------------------------------------------------
 *
 * explain_scans.c
 *	  Shows in EXPLAIN (ANALYZE) what was looked ahead.
 *
 * On 18 the line stands under its scan:
 *
 *	->  Index Scan using t_a on t (actual rows=1000.00 loops=1)
 *		  Index Cond: (a < 1000)
 *		  Look-Ahead: method=advice issued=953 used=953 wasted=0 hit=31 ...
 *		  Leaf Look-Ahead: method=advice issued=16 used=16 wasted=0 hit=0 ...
 *
 * It is information on I/O, so it is shown when BUFFERS is on, which is the
 * default of ANALYZE there.
 *
 * On 15 to 17 a summary stands behind the plan, when SUMMARY is on, which is
 * the default of ANALYZE:
 *
 *	Look-Ahead:
 *	  Index Scan using t_a on t: method=advice issued=953 ...
 *	  Index Scan using t_a on t, leaf pages: method=advice issued=16 ...
 *
 * A scan that never looked ahead shows nothing.
 *
 * Copyright (c) 2026, the pg_lookahead authors
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/parallel.h"
#include "parser/parsetree.h"
#include "report/explain.h"
#include "source/query.h"
#include "utils/builtins.h"
#include "utils/lsyscache.h"

/*
 * The counters of one scan node, those of parallel workers included.  Returns
 * the method, or NULL if no process looked ahead.
 */
static const char *
la_scan_counters(const LaQuery *query, const LaFollowed *scan,
				 LaCounters *counters)
{
	*counters = scan->counters;
	if (query->parallel_plan != 0 && !IsParallelWorker())
		(void) la_parallel_collect(query->parallel_plan, la_followed_key(scan),
								   counters);
	if (counters->scans_total == 0)
		return NULL;

	/* Only workers looked ahead: they chose as we would. */
	if (scan->method_name == NULL)
		return "parallel workers";
	return scan->method_name;
}

/*
 * One line, for the text format.
 */
static void
la_append_line(StringInfo out, const char *method, const LaCounters *counters)
{
	appendStringInfo(out, "method=%s issued=" INT64_FORMAT " used=" INT64_FORMAT
					 " wasted=" INT64_FORMAT " hit=" INT64_FORMAT
					 " waits=" INT64_FORMAT " depth=%d",
					 method,
					 counters->blocks_issued_total,
					 counters->blocks_used_total,
					 counters->blocks_wasted_total,
					 counters->blocks_hit_total,
					 counters->waits_total,
					 counters->depth_max);
}

/*
 * Properties, for the other formats.
 */
static void
la_show_properties(const char *method, const LaCounters *counters,
				   ExplainState *es)
{
	ExplainPropertyText("Method", method, es);
	ExplainPropertyInteger("Blocks Issued", NULL,
						   counters->blocks_issued_total, es);
	ExplainPropertyInteger("Blocks Used", NULL,
						   counters->blocks_used_total, es);
	ExplainPropertyInteger("Blocks Wasted", NULL,
						   counters->blocks_wasted_total, es);
	ExplainPropertyInteger("Blocks Hit", NULL,
						   counters->blocks_hit_total, es);
	ExplainPropertyInteger("Waits", NULL, counters->waits_total, es);
	ExplainPropertyInteger("Depth Reached", NULL, counters->depth_max, es);
}

#if LA_HAVE_NODE_HOOK

/*
 * By the address of the node; of one node's, that of the table goes first.
 */
static int
la_compare_nodes(const void *a, const void *b)
{
	const LaFollowed *x = *(LaFollowed *const *) a;
	const LaFollowed *y = *(LaFollowed *const *) b;

	if (x->node != y->node)
		return (uintptr_t) x->node < (uintptr_t) y->node ? -1 : 1;
	return x->reads_leaves - y->reads_leaves;
}

/*
 * Sort the scans of a query by their nodes: a plan may have thousands of both.
 */
static void
la_sort_scans(LaQuery *query)
{
	MemoryContext context = query->estate->es_query_cxt;
	dlist_iter	iter;

	if (query->by_node != NULL)
		pfree(query->by_node);
	query->by_node = MemoryContextAlloc(context, sizeof(LaFollowed *) *
										query->scans.n);
	query->nby_node = 0;
	dlist_foreach(iter, &query->scans.list)
		query->by_node[query->nby_node++] =
			dlist_container(LaFollowed, query_link, iter.cur);
	Assert(query->nby_node == query->scans.n);
	qsort(query->by_node, query->nby_node, sizeof(LaFollowed *),
		  la_compare_nodes);
}

/*
 * The place of a node's first scan among those sorted, or where it would be.
 */
static int
la_first_scan_of(const LaQuery *query, const PlanState *node)
{
	int			first = 0;
	int			end = query->nby_node;

	while (first < end)
	{
		int			middle = first + (end - first) / 2;

		if ((uintptr_t) query->by_node[middle]->node < (uintptr_t) node)
			first = middle + 1;
		else
			end = middle;
	}
	return first;
}

/*
 * EXPLAIN prints a plan node: show its scans.
 */
void
la_explain_scans_of(const PlanState *node, ExplainState *es)
{
	LaQuery    *query = la_query_of(node->state);

	if (query == NULL || query->scans.n == 0)
		return;
	if (query->nby_node != query->scans.n)
		la_sort_scans(query);
	for (int i = la_first_scan_of(query, node);
		 i < query->nby_node && query->by_node[i]->node == node;
		 i++)
	{
		LaFollowed *scan = query->by_node[i];
		LaCounters	counters;
		const char *method;
		const char *label;

		method = la_scan_counters(query, scan, &counters);
		if (method == NULL)
			continue;
		label = scan->reads_leaves ? "Leaf Look-Ahead" : "Look-Ahead";
		if (es->format == EXPLAIN_FORMAT_TEXT)
		{
			ExplainIndentText(es);
			appendStringInfo(es->str, "%s: ", label);
			la_append_line(es->str, method, &counters);
			appendStringInfoChar(es->str, '\n');
		}
		else
		{
			ExplainOpenGroup(label, label, true, es);
			la_show_properties(method, &counters, es);
			ExplainCloseGroup(label, label, true, es);
		}
	}
}

#else							/* !LA_HAVE_NODE_HOOK */

/*
 * One scan in the summary.
 */
static void
la_show_scan(const LaFollowed *scan, const char *method,
			 const LaCounters *counters, ExplainState *es)
{
	Scan	   *plan = (Scan *) scan->node->plan;
	const char *relation = OidIsValid(scan->heap_oid) ?
		get_rel_name(scan->heap_oid) : NULL;
	const char *index = OidIsValid(scan->index_oid) ?
		get_rel_name(scan->index_oid) : NULL;
	const char *alias;
	ScanDirection direction = ForwardScanDirection;
	const char *type;

	switch (nodeTag(plan))
	{
		case T_IndexScan:
			type = "Index Scan";
			direction = ((IndexScan *) plan)->indexorderdir;
			break;
		case T_IndexOnlyScan:
			type = "Index Only Scan";
			direction = ((IndexOnlyScan *) plan)->indexorderdir;
			break;
		case T_BitmapIndexScan:
			type = "Bitmap Index Scan";
			break;
		case T_BitmapHeapScan:
			type = "Bitmap Heap Scan";
			break;
		default:
			type = plan->plan.parallel_aware ? "Parallel Seq Scan" : "Seq Scan";
			break;
	}

	alias = list_nth(es->rtable_names, plan->scanrelid - 1);
	if (alias == NULL)
		alias = rt_fetch(plan->scanrelid, es->rtable)->eref->aliasname;
	if (es->format == EXPLAIN_FORMAT_TEXT)
	{
		appendStringInfo(es->str, "  %s%s", type,
						 ScanDirectionIsBackward(direction) ? " Backward" : "");
		if (index != NULL)
			appendStringInfo(es->str, relation ? " using %s" : " on %s",
							 quote_identifier(index));
		if (relation != NULL)
		{
			appendStringInfo(es->str, " on %s", quote_identifier(relation));
			if (strcmp(alias, relation) != 0)
				appendStringInfo(es->str, " %s", quote_identifier(alias));
		}
		if (scan->reads_leaves)
			appendStringInfoString(es->str, ", leaf pages");
		appendStringInfoString(es->str, ": ");
		la_append_line(es->str, method, counters);
		appendStringInfoChar(es->str, '\n');
		return;
	}
	ExplainOpenGroup("Scan", NULL, true, es);
	ExplainPropertyText("Node Type", type, es);
	if (index != NULL && relation != NULL)
		ExplainPropertyText("Scan Direction",
							ScanDirectionIsBackward(direction) ?
							"Backward" : "Forward", es);
	if (relation != NULL)
	{
		ExplainPropertyText("Relation Name", relation, es);
		ExplainPropertyText("Alias", alias, es);
	}
	if (index != NULL)
		ExplainPropertyText("Index Name", index, es);
	ExplainPropertyText("Looks Ahead Of", scan->reads_leaves ?
						"index leaf pages" : "table blocks", es);
	la_show_properties(method, counters, es);
	ExplainCloseGroup("Scan", NULL, true, es);
}

static int
la_compare_places(const ListCell *a, const ListCell *b)
{
	const LaFollowed *one = lfirst(a);
	const LaFollowed *other = lfirst(b);

	if (one->place != other->place)
		return one->place < other->place ? -1 : 1;
	return (int) one->reads_leaves - (int) other->reads_leaves;
}

/*
 * The scans of a query as they stand in its plan: not all are made when it
 * starts.
 */
static List *
la_in_order_of_plan(LaQuery *query)
{
	List	   *scans = NIL;
	dlist_iter	iter;

	dlist_foreach(iter, &query->scans.list)
		scans = lappend(scans, dlist_container(LaFollowed, query_link,
											   iter.cur));
	list_sort(scans, la_compare_places);
	return scans;
}

/*
 * A query that is explained ends: add the summary of its scans.
 */
void
la_explain_scans(const QueryDesc *desc, ExplainState *es)
{
	LaQuery    *query = la_query_of(desc->estate);
	bool		is_open = false;
	ListCell   *lc;

	if (query == NULL)
		return;
	foreach(lc, la_in_order_of_plan(query))
	{
		LaFollowed *scan = lfirst(lc);
		LaCounters	counters;
		const char *method = la_scan_counters(query, scan, &counters);

		if (method == NULL)
			continue;
		if (!is_open && es->format == EXPLAIN_FORMAT_TEXT)
			appendStringInfoString(es->str, "Look-Ahead:\n");
		else if (!is_open)
			ExplainOpenGroup("Look-Ahead", "Look-Ahead", false, es);
		is_open = true;
		la_show_scan(scan, method, &counters, es);
	}
	if (is_open && es->format != EXPLAIN_FORMAT_TEXT)
		ExplainCloseGroup("Look-Ahead", "Look-Ahead", false, es);
}

#endif							/* LA_HAVE_NODE_HOOK */
