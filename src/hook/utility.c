/*-------------------------------------------------------------------------
 *
 * utility.c
 *	  Passes on to our parts which commands go past the executor.
 *
 *	VACUUM, ANALYZE, CREATE INDEX, REINDEX, CLUSTER, COPY TO
 *				The watcher (source/maintenance.c) would see the command by
 *				itself, within half a second.  All that happens here is that
 *				a latch is set before it runs; nothing of ours is in its
 *				path.  Autovacuum comes through no hook and is found by
 *				looking.
 *	CREATE INDEX, REINDEX, ALTER TABLE
 *				space for what they build: extend/index_extend.c
 *	COPY FROM	a load: extend/load_table.c.  A materialized view is loaded
 *				through the executor, but its table is made before.
 *	VACUUM		a wider ring of buffers: source/vacuum_ring.c
 *	LOCK NOWAIT	and what else does not wait for locks, or not for long:
 *				service/give_way.c
 *	any command	that runs while a COPY FROM has not got to its table yet: it
 *				sets the COPY aside, as a plan does
 *
 * Copyright (c) 2026, the pg_lookahead authors
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/xact.h"
#include "extend/load.h"
#include "hook/hooks.h"
#include "service/lookup.h"
#include "settings.h"
#include "source/vacuum_ring.h"
#include "storage/proc.h"
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
			/* Of a query it runs a plan. */
			return !((const CopyStmt *) statement)->is_from &&
				((const CopyStmt *) statement)->relation != NULL;
		default:
			return false;
	}
}

static void
la_utility(PlannedStmt *pstmt, const char *queryString, bool readOnlyTree,
		   ProcessUtilityContext context, ParamListInfo params,
		   QueryEnvironment *queryEnv, DestReceiver *dest, QueryCompletion *qc)
{
	if (prev_ProcessUtility)
		prev_ProcessUtility(pstmt, queryString, readOnlyTree, context, params,
							queryEnv, dest, qc);
	else
		standard_ProcessUtility(pstmt, queryString, readOnlyTree, context,
								params, queryEnv, dest, qc);
}

/*
 * Can the command build an index of a table that holds something?
 */
static bool
la_builds_indexes(const Node *statement)
{
	return IsA(statement, IndexStmt) || IsA(statement, ReindexStmt) ||
		IsA(statement, AlterTableStmt);
}

/*
 * If so, can it make one that it does not build then?  ALTER TABLE can, if it
 * does something else than add constraints.
 */
static bool
la_may_put_off_builds(const Node *statement)
{
	ListCell   *lc;

	if (!IsA(statement, AlterTableStmt))
		return false;
	foreach(lc, ((const AlterTableStmt *) statement)->cmds)
		if (lfirst_node(AlterTableCmd, lc)->subtype != AT_AddConstraint)
			return true;
	return false;
}

/*
 * Has VACUUM such an option?  That it is switched off is not looked at.
 */
static bool
la_vacuum_has(const VacuumStmt *vacuum, const char *name)
{
	ListCell   *lc;

	foreach(lc, vacuum->options)
		if (strcmp(lfirst_node(DefElem, lc)->defname, name) == 0)
			return true;
	return false;
}

/*
 * Does a command give up if a lock that conflicts with readers' is not free?
 * Those are named that take one as a rule.  What EXECUTE runs comes here by
 * itself.
 */
static bool
la_is_impatient(const Node *statement)
{
	bool		nowait = false;

	switch (nodeTag(statement))
	{
		case T_LockStmt:
			if (((const LockStmt *) statement)->mode != AccessExclusiveLock)
				return false;
			nowait = ((const LockStmt *) statement)->nowait;
			break;
		case T_VacuumStmt:
			if (!la_vacuum_has((const VacuumStmt *) statement, "full"))
				return false;
			nowait = la_vacuum_has((const VacuumStmt *) statement,
								   "skip_locked");
			break;
		case T_AlterTableMoveAllStmt:
			nowait = ((const AlterTableMoveAllStmt *) statement)->nowait;
			break;
		case T_CreateStmt:
			/* Of a table with a default partition, which it locks. */
			if (((const CreateStmt *) statement)->partbound == NULL)
				return false;
			break;
		case T_AlterDatabaseStmt:
		case T_AlterObjectSchemaStmt:
		case T_AlterPolicyStmt:
		case T_AlterTableStmt:
		case T_ClusterStmt:
		case T_CreatePolicyStmt:
		case T_DropdbStmt:
		case T_DropOwnedStmt:
		case T_DropStmt:
		case T_RefreshMatViewStmt:
		case T_ReassignOwnedStmt:
		case T_ReindexStmt:
		case T_RenameStmt:
		case T_RuleStmt:
		case T_TruncateStmt:
			break;
		default:
			return false;
	}
	return nowait || LockTimeout > 0;
}

static bool
la_is_load(const Node *statement)
{
	return IsA(statement, CopyStmt) && ((const CopyStmt *) statement)->is_from;
}

static void
la_ProcessUtility(PlannedStmt *pstmt, const char *queryString,
				  bool readOnlyTree, ProcessUtilityContext context,
				  ParamListInfo params, QueryEnvironment *queryEnv,
				  DestReceiver *dest, QueryCompletion *qc)
{
	Node	   *statement = pstmt->utilityStmt;
	volatile bool builds = la_builds_indexes(statement);
	volatile bool loads = la_extend_enabled() && la_is_load(statement);
	LaLoad	   *copy = la_copy_set_aside();
	LaLoad		load;
	volatile bool is_good = false;
	volatile bool outer = false;
	const bool	vacuums = la_enabled && IsA(statement, VacuumStmt) &&
		context == PROCESS_UTILITY_TOPLEVEL && !IsTransactionBlock();

	if (la_service != NULL && la_is_impatient(statement))
		la_workers_give_way(IsA(statement, LockStmt), LockTimeout);
	if (la_enabled && la_maintenance && la_is_maintenance(statement))
		la_watcher_wake();
	if (IsA(statement, RefreshMatViewStmt))
		la_forget_tables_made();
	if (!builds && !loads && !vacuums && copy == NULL)
	{
		la_utility(pstmt, queryString, readOnlyTree, context, params, queryEnv,
				   dest, qc);
		return;
	}

	if (builds)
		outer = la_index_builds_begin(la_may_put_off_builds(statement));
	if (loads)
		la_copy_begin(&load);
	PG_TRY();
	{
		if (vacuums)
			la_vacuum_begin((const VacuumStmt *) statement);
		la_utility(pstmt, queryString, readOnlyTree, context, params, queryEnv,
				   dest, qc);
		is_good = true;
	}
	PG_FINALLY();
	{
		if (builds)
			la_index_builds_end(outer, is_good);
		if (loads)
			la_copy_end(&load, is_good);
		if (vacuums)
			la_vacuum_end();
		la_copy_resume(copy);
	}
	PG_END_TRY();
}

/*
 * Put ourselves into the hook of commands.
 */
void
la_utility_hooks_install(void)
{
	prev_ProcessUtility = ProcessUtility_hook;
	ProcessUtility_hook = la_ProcessUtility;
}
