/*-------------------------------------------------------------------------
 *
 * explain_space.c
 *	  Shows in EXPLAIN (ANALYZE) what space was made for a statement.
 *
 * On 18 the line stands under INSERT, UPDATE or MERGE when BUFFERS is on, which
 * is the default of ANALYZE there:
 *
 *	->  Insert on t (actual rows=0.00 loops=1)
 *		  Space: extensions=31 pages=3120
 *
 * On 15 to 17 a summary stands behind the plan, when SUMMARY is on:
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

#include "extend/extend.h"
#include "report/explain.h"

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

/*
 * EXPLAIN prints a plan node: show what was made for it.
 */
void
la_explain_space_of(const PlanState *node, ExplainState *es)
{
	LaExtendCounters counters;

	if (!IsA(node, ModifyTableState) ||
		!la_fill_made((const ModifyTableState *) node, &counters))
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
 * A statement that is explained ends: add the summary of its ModifyTable nodes.
 */
void
la_explain_space(const QueryDesc *desc, ExplainState *es)
{
	bool		is_open = false;
	ListCell   *lc;

	foreach(lc, la_fill_nodes(desc->estate))
	{
		ModifyTableState *modify = lfirst(lc);
		const char *operation = la_operation_name(modify->operation);
		Relation	rel = modify->rootResultRelInfo->ri_RelationDesc;
		LaExtendCounters counters;

		if (!la_fill_made(modify, &counters))
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

#endif							/* LA_HAVE_NODE_HOOK */
