/*-------------------------------------------------------------------------
 *
 * explain.c
 *	  Lets EXPLAIN (ANALYZE) show what we did.
 *
 * 18 calls us for every plan node that it prints.  15 to 17 do not, so we
 * remember what is being explained, and what is to be shown is added when that
 * query ends: EXPLAIN sees to that after it has printed the plan and before it
 * prints the execution time.  A query that it calls, of a function, say, has
 * another text.
 *
 * EXPLAIN EXECUTE does not come by this hook before 18, so it shows nothing of
 * ours there.
 *
 * Copyright (c) 2026, the pg_lookahead authors
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "hook/hooks.h"
#include "report/explain.h"

#if LA_HAVE_NODE_HOOK

static explain_per_node_hook_type prev_explain_per_node = NULL;

static void
la_explain_per_node(PlanState *planstate, List *ancestors,
					const char *relationship, const char *plan_name,
					ExplainState *es)
{
	if (prev_explain_per_node)
		prev_explain_per_node(planstate, ancestors, relationship, plan_name,
							  es);
	if (!es->analyze || !es->buffers)
		return;
	la_explain_scans_of(planstate, es);
	la_explain_space_of(planstate, es);
}

/*
 * A query that was instrumented ends: the plan nodes have shown all.
 */
void
la_explain_query_ends(const QueryDesc *desc)
{
}

/*
 * Put ourselves into EXPLAIN's hook.
 */
void
la_explain_hooks_install(void)
{
	prev_explain_per_node = explain_per_node_hook;
	explain_per_node_hook = la_explain_per_node;
}

#else							/* !LA_HAVE_NODE_HOOK */

static ExplainOneQuery_hook_type prev_ExplainOneQuery = NULL;

/* What is being explained; NULL if nothing, or without a summary. */
static ExplainState *la_explained = NULL;

/*
 * EXPLAIN plans and runs one query.
 */
static void
la_ExplainOneQuery(Query *query, int cursorOptions, IntoClause *into,
				   ExplainState *es, const char *queryString,
				   ParamListInfo params, QueryEnvironment *queryEnv)
{
	ExplainState *save_explained = la_explained;

	la_explained = (es->analyze && es->summary) ? es : NULL;
	PG_TRY();
	{
		if (prev_ExplainOneQuery)
			prev_ExplainOneQuery(query, cursorOptions, into, es, queryString,
								 params, queryEnv);
		else
			la_standard_ExplainOneQuery(query, cursorOptions, into, es,
										queryString, params, queryEnv);
	}
	PG_FINALLY();
	{
		la_explained = save_explained;
	}
	PG_END_TRY();
}

/*
 * A query that was instrumented ends, and its counters are complete.  If its
 * plan is what EXPLAIN has just shown, add what there is to show.
 */
void
la_explain_query_ends(const QueryDesc *desc)
{
	if (la_explained == NULL || la_explained->pstmt != desc->plannedstmt)
		return;
	la_explain_space(desc, la_explained);
	la_explain_scans(desc, la_explained);
}

/*
 * Put ourselves into EXPLAIN's hook.
 */
void
la_explain_hooks_install(void)
{
	prev_ExplainOneQuery = ExplainOneQuery_hook;
	ExplainOneQuery_hook = la_ExplainOneQuery;
}

#endif							/* LA_HAVE_NODE_HOOK */
