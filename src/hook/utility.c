/*-------------------------------------------------------------------------
 *
 * utility.c
 *	  Tells the watcher that a command begins which it may want to follow.
 *
 * The watcher (source/maintenance.c) would see the command by itself, within
 * half a second.  That is all that happens here: a latch is set before the
 * command runs, and nothing of ours is in its path.  Autovacuum comes through
 * no hook and is found by looking.
 *
 * Copyright (c) 2026, the pg_lookahead authors
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "executor/execdesc.h"
#include "hook/hooks.h"
#include "service/lookup.h"
#include "settings.h"
#include "tcop/utility.h"

static ProcessUtility_hook_type prev_ProcessUtility = NULL;

/*
 * Is it a command that can be followed?
 */
static bool
la_is_maintenance(const Node *statement)
{
	switch (nodeTag(statement))
	{
		case T_VacuumStmt:		/* ANALYZE, too */
		case T_IndexStmt:
		case T_ReindexStmt:
		case T_ClusterStmt:
			return true;
		case T_CopyStmt:
			return !((const CopyStmt *) statement)->is_from;
		default:
			return false;
	}
}

static void
la_watch_ProcessUtility(PlannedStmt *pstmt, const char *queryString,
						bool readOnlyTree, ProcessUtilityContext context,
						ParamListInfo params, QueryEnvironment *queryEnv,
						DestReceiver *dest, QueryCompletion *qc)
{
	if (la_enabled && la_maintenance && la_is_maintenance(pstmt->utilityStmt))
		la_watcher_wake();
	if (prev_ProcessUtility)
		prev_ProcessUtility(pstmt, queryString, readOnlyTree, context, params,
							queryEnv, dest, qc);
	else
		standard_ProcessUtility(pstmt, queryString, readOnlyTree, context,
								params, queryEnv, dest, qc);
}

/*
 * Install the hook, where there may be a watcher.
 */
void
la_utility_hooks_install(void)
{
	if (!la_watcher_is_wanted())
		return;
	prev_ProcessUtility = ProcessUtility_hook;
	ProcessUtility_hook = la_watch_ProcessUtility;
}
