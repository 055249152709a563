/*-------------------------------------------------------------------------
 *
 * explain.c
 *	  Shows in EXPLAIN (ANALYZE) what was looked ahead.
 *
 * 18 calls us for every plan node; the line stands under its scan:
 *
 *	->  Index Scan using t_a on t (actual rows=1000.00 loops=1)
 *		  Index Cond: (a < 1000)
 *		  Look-Ahead: method=advice issued=953 used=953 wasted=0 hit=31 waits=2 depth=256
 *
 * It is information on I/O, so it is shown when BUFFERS is on, which is the
 * default of ANALYZE there.
 *
 * 15 to 17 have no such call.  We stand around the planning and execution of
 * the explained query, keep its counters when it ends (by then its memory is
 * gone), and add a summary after the plan, when SUMMARY is on, which is the
 * default of ANALYZE:
 *
 *	Look-Ahead:
 *	  Index Scan using t_a on t: method=advice issued=953 ...
 *
 * Queries that run inside the explained one end before it; the last to end is
 * the explained one.  EXPLAIN EXECUTE does not come by our hook before 18, so
 * it shows no summary there.
 *
 * A scan that never looked ahead shows nothing.
 *
 * Copyright (c) 2026, the pg_lookahead authors
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/parallel.h"
#include "compat.h"
#include "hook/hooks.h"
#include "utils/builtins.h"
#include "utils/lsyscache.h"
#include "utils/memutils.h"

#if LA_HAVE_NODE_HOOK
static explain_per_node_hook_type prev_explain_per_node = NULL;
#else
static ExplainOneQuery_hook_type prev_ExplainOneQuery = NULL;
#endif

/* What the summary shows of one scan. */
typedef struct LaExplained
{
	const char *node_type;
	const char *relation;
	const char *index;
	const char *method;
	LaCounters	counters;
} LaExplained;

/* The explained query's scans; valid while one is being explained (15-17). */
static MemoryContext la_kept_context = NULL;
static List *la_kept = NIL;

/*
 * The counters of one scan node, those of parallel workers included.  Returns
 * the method, or NULL if no process looked ahead.
 */
static const char *
la_scan_counters(const LaIndexScan *scan, LaCounters *counters)
{
	*counters = scan->counters;
	if (!IsParallelWorker())
		(void) la_parallel_collect(scan->node->plan->plan_node_id, counters);
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
				   struct ExplainState *es)
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
 * 18: EXPLAIN prints a plan node.
 */
static void
la_explain_per_node(PlanState *planstate, List *ancestors,
					const char *relationship, const char *plan_name,
					struct ExplainState *es)
{
	LaQuery    *query;
	dlist_iter	iter;

	if (prev_explain_per_node)
		prev_explain_per_node(planstate, ancestors, relationship, plan_name, es);

	if (!es->analyze || !es->buffers ||
		!(IsA(planstate, IndexScanState) || IsA(planstate, IndexOnlyScanState)))
		return;
	query = la_query_of(planstate->state);
	if (query == NULL)
		return;

	dlist_foreach(iter, &query->scans)
	{
		LaIndexScan *scan = dlist_container(LaIndexScan, query_link, iter.cur);
		LaCounters	counters;
		const char *method;

		if (scan->node != planstate)
			continue;
		method = la_scan_counters(scan, &counters);
		if (method == NULL)
			return;
		if (es->format == EXPLAIN_FORMAT_TEXT)
		{
			ExplainIndentText(es);
			appendStringInfoString(es->str, "Look-Ahead: ");
			la_append_line(es->str, method, &counters);
			appendStringInfoChar(es->str, '\n');
		}
		else
		{
			ExplainOpenGroup("Look-Ahead", "Look-Ahead", true, es);
			la_show_properties(method, &counters, es);
			ExplainCloseGroup("Look-Ahead", "Look-Ahead", true, es);
		}
		return;
	}
}

#else

/*
 * 15 to 17: the explained query is done and its plan is printed.
 */
static void
la_show_summary(struct ExplainState *es)
{
	ListCell   *lc;

	if (es->format == EXPLAIN_FORMAT_TEXT)
		appendStringInfoString(es->str, "Look-Ahead:\n");
	else
		ExplainOpenGroup("Look-Ahead", "Look-Ahead", false, es);

	foreach(lc, la_kept)
	{
		LaExplained *kept = lfirst(lc);

		if (es->format == EXPLAIN_FORMAT_TEXT)
		{
			appendStringInfo(es->str, "  %s using %s on %s: ",
							 kept->node_type,
							 quote_identifier(kept->index),
							 quote_identifier(kept->relation));
			la_append_line(es->str, kept->method, &kept->counters);
			appendStringInfoChar(es->str, '\n');
			continue;
		}
		ExplainOpenGroup("Scan", NULL, true, es);
		ExplainPropertyText("Node Type", kept->node_type, es);
		ExplainPropertyText("Relation Name", kept->relation, es);
		ExplainPropertyText("Index Name", kept->index, es);
		la_show_properties(kept->method, &kept->counters, es);
		ExplainCloseGroup("Scan", NULL, true, es);
	}
	if (es->format != EXPLAIN_FORMAT_TEXT)
		ExplainCloseGroup("Look-Ahead", "Look-Ahead", false, es);
}

/*
 * EXPLAIN plans and runs one query.
 */
static void
la_ExplainOneQuery(Query *query, int cursorOptions, IntoClause *into,
				   struct ExplainState *es, const char *queryString,
				   ParamListInfo params, QueryEnvironment *queryEnv)
{
	MemoryContext save_context = la_kept_context;
	List	   *save_kept = la_kept;
	volatile bool wanted = es->analyze && es->summary;

	if (wanted)
	{
		la_kept_context = CurrentMemoryContext;
		la_kept = NIL;
	}
	PG_TRY();
	{
		if (prev_ExplainOneQuery)
			prev_ExplainOneQuery(query, cursorOptions, into, es, queryString,
								 params, queryEnv);
		else
			la_standard_ExplainOneQuery(query, cursorOptions, into, es,
										queryString, params, queryEnv);
		if (wanted && la_kept != NIL)
			la_show_summary(es);
	}
	PG_FINALLY();
	{
		la_kept_context = save_context;
		la_kept = save_kept;
	}
	PG_END_TRY();
}

#endif							/* LA_HAVE_NODE_HOOK */

/*
 * Does a summary wait for the counters of the query that ends now?
 */
bool
la_explain_is_waiting(void)
{
	return la_kept_context != NULL;
}

/*
 * Keep what the summary shows of a query.  A later call replaces it.
 */
void
la_explain_keep(LaQuery *query)
{
	MemoryContext save = MemoryContextSwitchTo(la_kept_context);
	dlist_iter	iter;

	la_kept = NIL;
	dlist_foreach(iter, &query->scans)
	{
		LaIndexScan *scan = dlist_container(LaIndexScan, query_link, iter.cur);
		LaExplained *kept;
		LaCounters	counters;
		const char *method = la_scan_counters(scan, &counters);

		if (method == NULL)
			continue;
		kept = palloc(sizeof(LaExplained));
		kept->node_type = IsA(scan->node, IndexScanState) ?
			"Index Scan" : "Index Only Scan";
		kept->relation = get_rel_name(scan->heap_oid);
		kept->index = get_rel_name(scan->index_oid);
		kept->method = method;
		kept->counters = counters;
		la_kept = lappend(la_kept, kept);
	}
	MemoryContextSwitchTo(save);
}

/*
 * Put ourselves into EXPLAIN's hooks.
 */
void
la_explain_hooks_install(void)
{
#if LA_HAVE_NODE_HOOK
	prev_explain_per_node = explain_per_node_hook;
	explain_per_node_hook = la_explain_per_node;
#else
	prev_ExplainOneQuery = ExplainOneQuery_hook;
	ExplainOneQuery_hook = la_ExplainOneQuery;
#endif
}
