/*-------------------------------------------------------------------------
 *
 * executor.c
 *	  Passes on to our parts how far a query has come.
 *
 * All of the executor's hooks are here, and nothing else.  What we do comes
 * after the server's own work, unless it says before:
 *
 *			scans that are followed		tables that are filled
 *			(source/query.c)			(extend/fill.c, load_table.c)
 *	Start	register or defer them		before: set a COPY aside
 *										watch the tables of this plan
 *	CheckPerms							a COPY has opened its table
 *	Run		before: resume; then pause,	around it: a load, if the rows go to
 *			so that no pin survives		a table, and INSERT's target page
 *	Finish	end the work
 *	End		before: the same, unless	before: look where a single row went,
 *			Finish was not called;		close what was opened
 *			then report
 *
 * Most queries find one row or a few, and have nothing of ours.  What they pass
 * through is kept small, in few functions that lie beside each other (those
 * marked as hot): a query begins with cold caches, and each page of code costs
 * more than what it does.
 *
 * In Start tables come second: the node that brings the rows may be a scan that
 * is followed, and ours is to call its function.  EXPLAIN's summary (15 to 17)
 * is printed before End, when both have ended.
 *
 * Copyright (c) 2026, the pg_lookahead authors
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "compat.h"
#include "extend/load.h"
#include "hook/hooks.h"
#include "settings.h"
#include "source/deferred.h"
#include "source/query.h"

static ExecutorStart_hook_type prev_ExecutorStart = NULL;
static ExecutorCheckPerms_hook_type prev_ExecutorCheckPerms = NULL;
static ExecutorRun_hook_type prev_ExecutorRun = NULL;
static ExecutorFinish_hook_type prev_ExecutorFinish = NULL;
static ExecutorEnd_hook_type prev_ExecutorEnd = NULL;

static pg_attribute_hot void
la_ExecutorStart(QueryDesc *queryDesc, int eflags)
{
	LaLoad	   *copy = la_copy_set_aside();

	if (prev_ExecutorStart)
		prev_ExecutorStart(queryDesc, eflags);
	else
		standard_ExecutorStart(queryDesc, eflags);
	la_copy_resume(copy);

	if (!la_enabled || (eflags & EXEC_FLAG_EXPLAIN_ONLY) != 0)
		return;
	la_query_begin(queryDesc);
	if (la_may_fill(queryDesc))
		la_fill_begin(queryDesc);
}

static pg_attribute_hot bool
la_ExecutorCheckPerms(LA_PERMS_PARAMS)
{
	if (prev_ExecutorCheckPerms && !prev_ExecutorCheckPerms(LA_PERMS_ARGS))
		return false;
	if (unlikely(la_copy != NULL))
		la_copy_checked(rangeTable, LA_REQUIRED_PERMS);
	return true;
}

static inline void
la_run(LA_RUN_PARAMS)
{
	if (la_follows_queries())
		la_query_resume(queryDesc);
	if (prev_ExecutorRun)
		prev_ExecutorRun(LA_RUN_ARGS);
	else
		standard_ExecutorRun(LA_RUN_ARGS);
	la_deferred_pause(queryDesc);
	if (la_follows_queries())
		la_query_pause(queryDesc);
}

/*
 * Run a plan whose rows go to a table.
 */
static pg_noinline void
la_run_filling(bool is_load, bool is_fill, LA_RUN_PARAMS)
{
	LaInto		into;
	volatile bool is_good = false;

	if (is_load)
		la_into_begin(&into, queryDesc->dest);
	PG_TRY();
	{
		la_run(LA_RUN_ARGS);
		is_good = true;
	}
	PG_FINALLY();
	{
		/* In this order: a cancel may reach the end of a load. */
		if (is_fill)
			la_fill_run_end(queryDesc->estate);
		if (is_load)
			la_into_end(&into, is_good);
	}
	PG_END_TRY();
}

static pg_attribute_hot void
la_ExecutorRun(LA_RUN_PARAMS)
{
	bool		is_load = la_into_is_load(queryDesc->dest);
	bool		is_fill = la_may_fill(queryDesc) &&
		la_fill_run_begin(queryDesc->estate);

	if (is_load || is_fill)
		la_run_filling(is_load, is_fill, LA_RUN_ARGS);
	else
		la_run(LA_RUN_ARGS);
}

static pg_attribute_hot void
la_ExecutorFinish(QueryDesc *queryDesc)
{
	if (prev_ExecutorFinish)
		prev_ExecutorFinish(queryDesc);
	else
		standard_ExecutorFinish(queryDesc);
	if (la_follows_queries())
		la_query_finish(queryDesc);
}

static pg_attribute_hot void
la_ExecutorEnd(QueryDesc *queryDesc)
{
	if (!(queryDesc->estate->es_top_eflags & EXEC_FLAG_EXPLAIN_ONLY))
	{
		if (la_may_fill(queryDesc))
			la_fill_end(queryDesc);
		if (la_follows_queries())
		{
			la_query_finish(queryDesc);
			la_query_report(queryDesc);
		}
		if (queryDesc->estate->es_instrument != 0)
			la_explain_query_ends(queryDesc);
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
	prev_ExecutorCheckPerms = ExecutorCheckPerms_hook;
	ExecutorCheckPerms_hook = la_ExecutorCheckPerms;
	prev_ExecutorRun = ExecutorRun_hook;
	ExecutorRun_hook = la_ExecutorRun;
	prev_ExecutorFinish = ExecutorFinish_hook;
	ExecutorFinish_hook = la_ExecutorFinish;
	prev_ExecutorEnd = ExecutorEnd_hook;
	ExecutorEnd_hook = la_ExecutorEnd;
}
