/*-------------------------------------------------------------------------
 *
 * extend_explain.c
 *	  Shows in EXPLAIN (ANALYZE) what space was made for a statement.
 *
 * 18 calls us for every plan node; the line stands under INSERT, UPDATE or
 * MERGE when BUFFERS is on, which is the default of ANALYZE there:
 *
 *	->  Insert on t (actual rows=0.00 loops=1)
 *		  Space: extensions=31 pages=3120
 *
 * 15 to 17 have no such call.  As for scans a summary is added when the query
 * ends (explained.c), when SUMMARY is on:
 *
 *	Space:
 *	  Insert on t: extensions=31 pages=3120
 *
 * A statement for which nothing was made shows nothing.  Neither does a single
 * row: what is made after it is for those that follow.
 *
 * Copyright (c) 2026, the pg_lookahead authors
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "compat.h"
#include "extend/extend.h"
#include "hook/explained.h"
#include "hook/hooks.h"

static void
la_space_line(StringInfo out, const LaExtendCounters *counters)
{
	appendStringInfo(out, "extensions=" INT64_FORMAT " pages=" INT64_FORMAT
					 "\n", counters->extensions_total,
					 counters->pages_added_total);
}

static void
la_space_properties(const LaExtendCounters *counters, ExplainState *es)
{
	ExplainPropertyInteger("Extensions", NULL, counters->extensions_total, es);
	ExplainPropertyInteger("Pages Added", NULL, counters->pages_added_total,
						   es);
}

#if LA_HAVE_NODE_HOOK

static explain_per_node_hook_type prev_explain_per_node = NULL;

static void
la_space_per_node(PlanState *planstate, List *ancestors,
				  const char *relationship, const char *plan_name,
				  ExplainState *es)
{
	LaExtendCounters counters;

	if (prev_explain_per_node)
		prev_explain_per_node(planstate, ancestors, relationship, plan_name,
							  es);
	if (!IsA(planstate, ModifyTableState) || !es->analyze || !es->buffers)
		return;
	if (!la_extend_made((ModifyTableState *) planstate, &counters))
		return;
	if (es->format == EXPLAIN_FORMAT_TEXT)
	{
		ExplainIndentText(es);
		appendStringInfoString(es->str, "Space: ");
		la_space_line(es->str, &counters);
		return;
	}
	ExplainOpenGroup("Space", "Space", true, es);
	la_space_properties(&counters, es);
	ExplainCloseGroup("Space", "Space", true, es);
}

void
la_space_query_ends(QueryDesc *desc, List *modifies)
{
}

/*
 * Put ourselves into EXPLAIN's hook.
 */
void
la_space_explain_install(void)
{
	prev_explain_per_node = explain_per_node_hook;
	explain_per_node_hook = la_space_per_node;
}

#else							/* !LA_HAVE_NODE_HOOK */

static const char *
la_operation_name(CmdType operation)
{
	switch (operation)
	{
		case CMD_UPDATE:
			return "Update";
		case CMD_MERGE:
			return "Merge";
		default:
			return "Insert";
	}
}

/*
 * A statement ends: if it is being explained, add a summary of its ModifyTable
 * nodes.
 */
void
la_space_query_ends(QueryDesc *desc, List *modifies)
{
	ExplainState *es = la_explained_by(desc);
	bool		is_open = false;
	ListCell   *lc;

	if (es == NULL)
		return;
	foreach(lc, modifies)
	{
		ModifyTableState *modify = lfirst(lc);
		const char *operation = la_operation_name(modify->operation);
		Relation	rel = modify->rootResultRelInfo->ri_RelationDesc;
		LaExtendCounters counters;

		if (!la_extend_made(modify, &counters))
			continue;
		if (es->format == EXPLAIN_FORMAT_TEXT)
		{
			if (!is_open)
				appendStringInfoString(es->str, "Space:\n");
			appendStringInfo(es->str, "  %s on %s: ", operation,
							 RelationGetRelationName(rel));
			la_space_line(es->str, &counters);
		}
		else
		{
			if (!is_open)
				ExplainOpenGroup("Space", "Space", false, es);
			ExplainOpenGroup("Statement", NULL, true, es);
			ExplainPropertyText("Operation", operation, es);
			ExplainPropertyText("Relation Name", RelationGetRelationName(rel),
								es);
			la_space_properties(&counters, es);
			ExplainCloseGroup("Statement", NULL, true, es);
		}
		is_open = true;
	}
	if (is_open && es->format != EXPLAIN_FORMAT_TEXT)
		ExplainCloseGroup("Space", "Space", false, es);
}

/*
 * Nothing to do: explained.c is in EXPLAIN's hook.
 */
void
la_space_explain_install(void)
{
}

#endif							/* LA_HAVE_NODE_HOOK */
