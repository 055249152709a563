/*-------------------------------------------------------------------------
 *
 * extend_hooks.c
 *	  Watches statements that fill tables, so that space is made in time.
 *
 *		ExecutorStart	INSERT, UPDATE, MERGE: the node that brings the rows
 *						gets another function, which first looks whether the
 *						server has added pages to the table
 *		ExecutorEnd		INSERT of a single row: look once, now that it is in
 *		ProcessUtility, ExecutorCheckPerms
 *						COPY FROM: a load begins; its table is known as soon as
 *						permissions have been checked
 *		ExecutorRun, object_access
 *						CREATE TABLE AS, materialized views: the same, as soon
 *						as the table has been made
 *		ProcessUtility, object_access, get_relation_info
 *						CREATE INDEX and the like: see extend/index_extend.c
 *		get_relation_info
 *						any plan: see extend/spare.c
 *
 * A look costs one comparison per row: the table's target page, which the
 * server keeps, is the one seen last.  A statement that fills several tables
 * (partitions, TOAST) looks at one of them per row, in turn.  Tables for large
 * values are opened only by statements that have brought some rows.
 *
 * Copyright (c) 2026, the pg_lookahead authors
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/table.h"
#include "catalog/objectaccess.h"
#include "catalog/pg_class.h"
#include "compat.h"
#include "extend/extend.h"
#include "hook/hooks.h"
#include "lib/ilist.h"
#include "optimizer/plancat.h"
#include "settings.h"
#include "tcop/utility.h"
#include "utils/lsyscache.h"

static ExecutorStart_hook_type prev_ExecutorStart = NULL;
static ExecutorRun_hook_type prev_ExecutorRun = NULL;
static ExecutorEnd_hook_type prev_ExecutorEnd = NULL;
static ExecutorCheckPerms_hook_type prev_ExecutorCheckPerms = NULL;
static ProcessUtility_hook_type prev_ProcessUtility = NULL;
static object_access_hook_type prev_object_access = NULL;
static get_relation_info_hook_type prev_get_relation_info = NULL;

/* After so many rows a table is looked at for a TOAST table in use. */
#define LA_MANY_ROWS	64

/* A table that a statement fills. */
typedef struct LaFilled
{
	Relation	rel;
	BlockNumber seen;			/* its target page when last looked at */
	LaGrowth	growth;
	bool		is_toast;		/* opened by us */
	bool		has_toast;		/* its TOAST table is among the others */
} LaFilled;

/* A ModifyTable node that is being watched. */
typedef struct LaFilling
{
	dlist_node	link;
	PlanState  *node;			/* brings the rows; immutable, with the next */
	ExecProcNodeMtd exec;		/* its function without us */
	ModifyTableState *modify;
	EState	   *estate;

	int64		rows;			/* that it was asked for */
	int64		extensions;		/* that were made for it */
	int64		pages;			/* that were added by them */
	int			nrouted;		/* partitions that have been seen */
	int			ntables;
	int			size;			/* room in tables */
	int			next;			/* to be looked at */
	uint32		next_toast;		/* likewise, for its TOAST table */
	LaFilled   *tables;
} LaFilling;

/* Statements that are being watched, the innermost first. */
static dlist_head la_fillings = DLIST_STATIC_INIT(la_fillings);
static LaFilling *la_last_filling = NULL;

/*
 * Where single rows went last.  Tables that share an entry only make us look
 * more often; a table that VACUUM has cut grows by single pages until it is as
 * large again.
 */
#define LA_RECENT	64
static struct
{
	Oid			file;			/* its relfilenode */
	BlockNumber target;
	LaGrowth	growth;
}			la_recent[LA_RECENT];

/* The COPY that has not yet got to the check of permissions. */
static LaLoad *la_copy = NULL;

/* A receiver of rows that has not yet made its table. */
typedef struct LaInto
{
	struct LaInto *outer;
	DestReceiver *dest;
	void		(*startup) (DestReceiver *self, int operation,
							TupleDesc typeinfo);
	LaLoad		load;
} LaInto;

static LaInto *la_intos = NULL; /* on the stack, the innermost first */

/* Relations that were made last, the newest at la_made[0]. */
#define LA_MADE		4
static Oid	la_made[LA_MADE];

/*
 * May pages that are not in the WAL be in the free space map?  Before 15.7 and
 * 16.3 the server does not see that the map, which reaches a standby, names
 * pages that the table does not have there: after a promotion inserts fail.
 */
static bool
la_map_is_checked(void)
{
	int			version = atoi(GetConfigOption("server_version_num", false,
											   false));

	return version >= 160003 || (version >= 150007 && version < 160000);
}

static bool
la_extend_enabled(void)
{
	static int	is_checked = -1;

	if (!la_enabled || la_heap_extend_size == 0)
		return false;
	if (is_checked < 0)
		is_checked = la_map_is_checked();
	return is_checked > 0;
}

/* -------------------------------------------------------------------------
 * INSERT, UPDATE, MERGE
 * -------------------------------------------------------------------------
 */

static void
la_filling_reset(void *arg)
{
	LaFilling  *filling = arg;

	if (la_last_filling == filling)
		la_last_filling = NULL;
	dlist_delete(&filling->link);
}

static LaFilling *
la_filling_of(PlanState *node)
{
	dlist_iter	iter;

	if (likely(la_last_filling && la_last_filling->node == node))
		return la_last_filling;
	dlist_foreach(iter, &la_fillings)
	{
		LaFilling  *filling = dlist_container(LaFilling, link, iter.cur);

		if (filling->node == node)
			return la_last_filling = filling;
	}
	elog(ERROR, "plan node is not watched");
}

/*
 * Watch one more table.
 */
static void
la_filling_add(LaFilling *filling, Relation rel, bool is_toast)
{
	if (filling->ntables == filling->size)
	{
		filling->size = Max(4, filling->size * 2);
		if (filling->tables)
			filling->tables = repalloc(filling->tables,
									   filling->size * sizeof(LaFilled));
		else
			filling->tables =
				MemoryContextAlloc(filling->estate->es_query_cxt,
								   filling->size * sizeof(LaFilled));
	}
	filling->tables[filling->ntables].rel = rel;
	filling->tables[filling->ntables].seen = InvalidBlockNumber;
	la_growth_init(&filling->tables[filling->ntables].growth);
	filling->tables[filling->ntables].is_toast = is_toast;
	filling->tables[filling->ntables].has_toast = false;
	filling->ntables++;
}

/*
 * Watch the table for large values of a table, once one was stored there.
 */
static void
la_filling_add_toast(LaFilling *filling, int which)
{
	LaFilled   *table = &filling->tables[which];
	Oid			toast = table->rel->rd_rel->reltoastrelid;

	if (table->is_toast || table->has_toast || !OidIsValid(toast) ||
		!la_toast_is_used(toast))
		return;
	table->has_toast = true;
	la_filling_add(filling, table_open(toast, NoLock), true);
}

/*
 * Watch partitions that rows were routed to since we looked.
 */
static void
la_filling_add_routed(LaFilling *filling)
{
	List	   *routed = filling->estate->es_tuple_routing_result_relations;

	while (filling->nrouted < list_length(routed))
	{
		ResultRelInfo *info = list_nth(routed, filling->nrouted++);
		Relation	rel = info->ri_RelationDesc;

		if (!la_extend_wanted(rel))
			continue;
		la_filling_add(filling, rel, false);
	}
}

/*
 * Look at the next table of a statement.
 */
static void
la_filling_look(LaFilling *filling)
{
	LaFilled   *table;
	BlockNumber target;

	filling->rows++;
	if (filling->nrouted !=
		list_length(filling->estate->es_tuple_routing_result_relations))
		la_filling_add_routed(filling);
	if (filling->ntables == 0)
		return;

	if (filling->next >= filling->ntables)
		filling->next = 0;
	if (filling->rows % LA_MANY_ROWS == 0)
		la_filling_add_toast(filling, filling->next_toast++ %
							 filling->ntables);
	table = &filling->tables[filling->next++];
	target = RelationGetTargetBlock(table->rel);
	if (target == table->seen || target == InvalidBlockNumber)
		return;
	table->seen = target;
	filling->extensions -= la_extend_counters.extensions_total;
	filling->pages -= la_extend_counters.pages_added_total;
	/* The last piece of a large value may go to an older page. */
	la_heap_filled(table->rel,
				   table->is_toast ? InvalidBlockNumber : target,
				   &table->growth);
	filling->extensions += la_extend_counters.extensions_total;
	filling->pages += la_extend_counters.pages_added_total;
}

/*
 * PlanState.ExecProcNode of the node that brings the rows.
 */
static TupleTableSlot *
la_ExecFilling(PlanState *node)
{
	LaFilling  *filling = la_filling_of(node);

	la_filling_look(filling);
	return filling->exec(node);
}

/*
 * Does the node bring a single row?
 */
static bool
la_is_single_row(const PlanState *node)
{
	return IsA(node, ResultState) && outerPlanState(node) == NULL;
}

/*
 * Watch a ModifyTable node.
 */
static void
la_filling_begin(ModifyTableState *modify)
{
	EState	   *estate = modify->ps.state;
	PlanState  *node = outerPlanState(modify);
	LaFilling  *filling;
	MemoryContextCallback *callback;

	if (modify->operation == CMD_DELETE || node == NULL ||
		la_is_single_row(node))
		return;

	filling = MemoryContextAllocZero(estate->es_query_cxt, sizeof(LaFilling));
	callback = MemoryContextAlloc(estate->es_query_cxt, sizeof(*callback));
	filling->node = node;
	filling->exec = node->ExecProcNodeReal;
	filling->modify = modify;
	filling->estate = estate;
	for (int i = 0; i < modify->mt_nrels; i++)
		if (la_extend_wanted(modify->resultRelInfo[i].ri_RelationDesc))
			la_filling_add(filling, modify->resultRelInfo[i].ri_RelationDesc,
						   false);

	dlist_push_head(&la_fillings, &filling->link);
	callback->func = la_filling_reset;
	callback->arg = filling;
	MemoryContextRegisterResetCallback(estate->es_query_cxt, callback);
	ExecSetExecProcNode(node, la_ExecFilling);
}

/*
 * What was made for a ModifyTable node.  Returns false if that is nothing.
 */
bool
la_extend_made(const ModifyTableState *modify, LaExtendCounters *counters)
{
	dlist_iter	iter;

	memset(counters, 0, sizeof(*counters));
	dlist_foreach(iter, &la_fillings)
	{
		LaFilling  *filling = dlist_container(LaFilling, link, iter.cur);

		if (filling->modify != modify)
			continue;
		counters->extensions_total = filling->extensions;
		counters->pages_added_total = filling->pages;
	}
	return counters->extensions_total > 0;
}

/*
 * The statement ends: show what was made, if it is explained, and give back
 * what we have opened.
 */
static void
la_filling_end(QueryDesc *desc)
{
	EState	   *estate = desc->estate;
	List	   *modifies = NIL;
	dlist_iter	iter;

	dlist_foreach(iter, &la_fillings)
	{
		LaFilling  *filling = dlist_container(LaFilling, link, iter.cur);

		if (filling->estate != estate)
			continue;
		modifies = lappend(modifies, filling->modify);
		for (int i = 0; i < filling->ntables; i++)
			if (filling->tables[i].is_toast)
				table_close(filling->tables[i].rel, NoLock);
		filling->ntables = 0;
	}
	if (modifies)
		la_space_query_ends(desc, modifies);
	list_free(modifies);
}

/*
 * A single row has gone to a table.
 */
static void
la_row_inserted(Relation rel)
{
	Oid			file = rel->rd_rel->relfilenode;
	int			i = file % LA_RECENT;
	BlockNumber target = RelationGetTargetBlock(rel);

	if (target == InvalidBlockNumber ||
		(la_recent[i].file == file &&
		 la_recent[i].target == target))
		return;
	if (la_recent[i].file != file)
		la_growth_init(&la_recent[i].growth);
	la_recent[i].file = file;
	la_recent[i].target = target;
	if (la_extend_wanted(rel))
		la_heap_filled(rel, target, &la_recent[i].growth);
}

/*
 * Call a function for each ModifyTable node of a plan: at the top, and at the
 * top of each WITH query.
 */
static void
la_walk_modify(QueryDesc *desc, void (*visit) (ModifyTableState *modify))
{
	ListCell   *lc;

	if (desc->operation == CMD_SELECT && !desc->plannedstmt->hasModifyingCTE)
		return;
	if (desc->planstate && IsA(desc->planstate, ModifyTableState))
		visit((ModifyTableState *) desc->planstate);
	if (!desc->plannedstmt->hasModifyingCTE)
		return;
	foreach(lc, desc->estate->es_subplanstates)
		if (lfirst(lc) && IsA(lfirst(lc), ModifyTableState))
			visit((ModifyTableState *) lfirst(lc));
}

/*
 * A ModifyTable node ends: if it was for a single row, look where that went.
 */
static void
la_single_row_end(ModifyTableState *modify)
{
	ListCell   *lc;

	if (modify->operation != CMD_INSERT ||
		!la_is_single_row(outerPlanState(modify)))
		return;
	for (int i = 0; i < modify->mt_nrels; i++)
		la_row_inserted(modify->resultRelInfo[i].ri_RelationDesc);
	foreach(lc, modify->ps.state->es_tuple_routing_result_relations)
		la_row_inserted(((ResultRelInfo *) lfirst(lc))->ri_RelationDesc);
}

static void
la_extend_ExecutorStart(QueryDesc *desc, int eflags)
{
	LaLoad	   *copy = la_copy;

	/*
	 * A plan that is run by a COPY that has not got to its own check: by a
	 * function in its WHERE, which is called when that is simplified.  The
	 * check that comes now is the plan's.
	 */
	la_copy = NULL;
	if (prev_ExecutorStart)
		prev_ExecutorStart(desc, eflags);
	else
		standard_ExecutorStart(desc, eflags);
	la_copy = copy;

	if (la_extend_enabled() && !(eflags & EXEC_FLAG_EXPLAIN_ONLY))
		la_walk_modify(desc, la_filling_begin);
}

static void
la_extend_ExecutorEnd(QueryDesc *desc)
{
	if (la_extend_enabled() &&
		!(desc->estate->es_top_eflags & EXEC_FLAG_EXPLAIN_ONLY))
		la_walk_modify(desc, la_single_row_end);
	la_filling_end(desc);

	if (prev_ExecutorEnd)
		prev_ExecutorEnd(desc);
	else
		standard_ExecutorEnd(desc);
}

/* -------------------------------------------------------------------------
 * Loads
 * -------------------------------------------------------------------------
 */

static void
la_object_access(ObjectAccessType access, Oid classId, Oid objectId,
				 int subId, void *arg)
{
	if (prev_object_access)
		prev_object_access(access, classId, objectId, subId, arg);
	if (access == OAT_POST_CREATE && classId == RelationRelationId &&
		subId == 0)
	{
		memmove(&la_made[1], &la_made[0], (LA_MADE - 1) * sizeof(Oid));
		la_made[0] = objectId;
		la_index_created(objectId);
	}
}

static void
la_get_relation_info(PlannerInfo *root, Oid relationObjectId, bool inhparent,
					 RelOptInfo *rel)
{
	if (prev_get_relation_info)
		prev_get_relation_info(root, relationObjectId, inhparent, rel);
	la_index_planned(relationObjectId);
	if (!inhparent)
		la_spare_planned(relationObjectId, rel);
}

/*
 * The receiver of rows makes its table, or opens it.  Of what has been made
 * since the statement began the newest table is the one; after it come only its
 * table for large values and the index of that.
 */
static void
la_startup(DestReceiver *self, int operation, TupleDesc typeinfo)
{
	LaInto	   *into = la_intos;

	while (into->dest != self)
		into = into->outer;
	self->rStartup = into->startup;
	self->rStartup(self, operation, typeinfo);

	for (int i = 0; i < LA_MADE && OidIsValid(la_made[i]); i++)
	{
		char		kind = get_rel_relkind(la_made[i]);

		if (kind != RELKIND_RELATION && kind != RELKIND_MATVIEW)
			continue;
		la_load_attach(&into->load, la_made[i]);
		break;
	}
}

static void
la_run(LA_RUN_PARAMS)
{
	if (prev_ExecutorRun)
		prev_ExecutorRun(LA_RUN_ARGS);
	else
		standard_ExecutorRun(LA_RUN_ARGS);
}

static void
la_extend_ExecutorRun(LA_RUN_PARAMS)
{
	DestReceiver *dest = queryDesc->dest;
	LaInto		into;
	volatile bool is_good = false;

	if (!la_extend_enabled() || dest == NULL ||
		(dest->mydest != DestIntoRel && dest->mydest != DestTransientRel))
	{
		la_run(LA_RUN_ARGS);
		return;
	}

	/* A table of CREATE TABLE AS is made by rStartup, others were before. */
	if (dest->mydest == DestIntoRel)
		memset(la_made, 0, sizeof(la_made));
	la_load_begin(&into.load);
	into.dest = dest;
	into.startup = dest->rStartup;
	into.outer = la_intos;
	la_intos = &into;
	dest->rStartup = la_startup;
	PG_TRY();
	{
		la_run(LA_RUN_ARGS);
		is_good = true;
	}
	PG_FINALLY();
	{
		la_intos = into.outer;
		dest->rStartup = into.startup;
		la_load_end(&into.load, is_good);
	}
	PG_END_TRY();
}

/*
 * COPY asks for permission when it has opened its table.  A plan that is run
 * before that does so in ExecutorStart, see there.
 */
static bool
la_extend_ExecutorCheckPerms(LA_PERMS_PARAMS)
{
	LaLoad	   *load = la_copy;
	RangeTblEntry *rte;

	if (prev_ExecutorCheckPerms &&
		!prev_ExecutorCheckPerms(LA_PERMS_ARGS))
		return false;

	if (load == NULL || list_length(rangeTable) != 1 ||
		(LA_REQUIRED_PERMS & ACL_INSERT) == 0)
		return true;

	la_copy = NULL;
	rte = linitial_node(RangeTblEntry, rangeTable);
	if (rte->rtekind == RTE_RELATION && rte->relkind == RELKIND_RELATION)
		la_load_attach(load, rte->relid);
	return true;
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

static void
la_extend_ProcessUtility(PlannedStmt *pstmt, const char *queryString,
						 bool readOnlyTree, ProcessUtilityContext context,
						 ParamListInfo params, QueryEnvironment *queryEnv,
						 DestReceiver *dest, QueryCompletion *qc)
{
	Node	   *statement = pstmt->utilityStmt;
	volatile bool builds = la_builds_indexes(statement);
	volatile bool loads = la_extend_enabled() && IsA(statement, CopyStmt) &&
		((CopyStmt *) statement)->is_from;
	LaLoad		load;
	volatile bool is_good = false;

	if (IsA(statement, RefreshMatViewStmt))
		memset(la_made, 0, sizeof(la_made));
	if (!builds && !loads)
	{
		la_utility(pstmt, queryString, readOnlyTree, context, params, queryEnv,
				   dest, qc);
		return;
	}

	if (builds)
		la_index_builds_begin();
	if (loads)
	{
		la_load_begin(&load);
		la_copy = &load;
	}
	PG_TRY();
	{
		la_utility(pstmt, queryString, readOnlyTree, context, params, queryEnv,
				   dest, qc);
		is_good = true;
	}
	PG_FINALLY();
	{
		if (builds)
			la_index_builds_end(is_good);
		if (loads)
		{
			if (la_copy == &load)
				la_copy = NULL;
			la_load_end(&load, is_good);
		}
	}
	PG_END_TRY();
}

/*
 * Install the hooks.  After those that give scans another function: ours is to
 * call theirs.
 */
void
la_extend_hooks_install(void)
{
	prev_ExecutorStart = ExecutorStart_hook;
	ExecutorStart_hook = la_extend_ExecutorStart;
	prev_ExecutorRun = ExecutorRun_hook;
	ExecutorRun_hook = la_extend_ExecutorRun;
	prev_ExecutorEnd = ExecutorEnd_hook;
	ExecutorEnd_hook = la_extend_ExecutorEnd;
	prev_ExecutorCheckPerms = ExecutorCheckPerms_hook;
	ExecutorCheckPerms_hook = la_extend_ExecutorCheckPerms;
	prev_ProcessUtility = ProcessUtility_hook;
	ProcessUtility_hook = la_extend_ProcessUtility;
	prev_object_access = object_access_hook;
	object_access_hook = la_object_access;
	prev_get_relation_info = get_relation_info_hook;
	get_relation_info_hook = la_get_relation_info;
	la_space_explain_install();
}
