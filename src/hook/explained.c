/*-------------------------------------------------------------------------
 *
 * explained.c
 *	  Which query EXPLAIN (ANALYZE) is running, before 18.
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

#include "compat.h"
#include "hook/explained.h"

#if !LA_HAVE_NODE_HOOK

static ExplainOneQuery_hook_type prev_ExplainOneQuery = NULL;

/* What is being explained; NULL if nothing, or without a summary. */
static ExplainState *la_explained = NULL;
static const char *la_explained_text = NULL;

/*
 * A query ends: where to add what is shown of it, or NULL if it is not the one
 * that is explained, or not measured.
 */
ExplainState *
la_explained_by(const QueryDesc *desc)
{
	if (la_explained == NULL || desc->sourceText != la_explained_text ||
		desc->instrument_options == 0)
		return NULL;
	return la_explained;
}

/*
 * EXPLAIN plans and runs one query.
 */
static void
la_ExplainOneQuery(Query *query, int cursorOptions, IntoClause *into,
				   ExplainState *es, const char *queryString,
				   ParamListInfo params, QueryEnvironment *queryEnv)
{
	ExplainState *save_explained = la_explained;
	const char *save_text = la_explained_text;

	la_explained = (es->analyze && es->summary) ? es : NULL;
	la_explained_text = queryString;
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
		la_explained_text = save_text;
	}
	PG_END_TRY();
}

/*
 * Put ourselves into EXPLAIN's hook.
 */
void
la_explained_hook_install(void)
{
	prev_ExplainOneQuery = ExplainOneQuery_hook;
	ExplainOneQuery_hook = la_ExplainOneQuery;
}

#endif							/* !LA_HAVE_NODE_HOOK */
