/*-------------------------------------------------------------------------
 *
 * fill.c
 *	  Watches statements that fill tables row by row.
 *
 * INSERT, UPDATE and MERGE have no insert state of their own (load.c is about
 * those that have).  hook/executor.c tells when they begin and end:
 *
 *	begin	the node that brings the rows gets another function, which first
 *			looks whether the server has added pages to the table
 *	run		for its time we stand between the table that INSERT fills and heap,
 *			and know where its target page is (target_page.c)
 *	end		INSERT of a single row: look once, now that it is in
 *
 * What a look is, and at which of several tables (partitions, TOAST), is in
 * filled_tables.c.  Where all rows pass target_page.c (INSERT without ON
 * CONFLICT) that tells when the target page is another, and nothing else is
 * looked at.
 *
 * Copyright (c) 2026, the pg_lookahead authors
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/table.h"
#include "executor/executor.h"
#include "by_address.h"
#include "extend/filled_tables.h"
#include "hook/heap_am.h"
#include "lib/ilist.h"

/* A ModifyTable node that is being watched. */
typedef struct LaFilling
{
	dlist_node	link;
	PlanState  *node;			/* brings the rows; immutable, with the next */
	ExecProcNodeMtd exec;		/* its function without us */
	ModifyTableState *modify;
	EState	   *estate;

	Relation	attached;		/* that we stand before, or NULL */
	bool		sees_all;		/* rows, if it is attached */
	uint32		moves;			/* la_target_moves at the last look */
	int			nrouted;		/* partitions that have been seen */
	LaFilledTables filled;
} LaFilling;

/* Statements that are being watched, the innermost first. */
static dlist_head la_fillings = DLIST_STATIC_INIT(la_fillings);
static LaByAddress la_filling_nodes;	/* the same by "node" */

/* Single rows between two looks at where large values go. */
#define LA_TOAST_ROWS	4

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

static void
la_filling_reset(void *arg)
{
	LaFilling  *filling = arg;

	la_by_address_remove(&la_filling_nodes, filling->node, filling);
	dlist_delete(&filling->link);
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

		if (la_extend_wanted(info->ri_RelationDesc))
			la_tables_add(&filling->filled, info->ri_RelationDesc);
	}
}

/*
 * Look at the next table of a statement.
 */
static void
la_filling_look(LaFilling *filling)
{
	filling->moves = la_target_moves;
	if (filling->nrouted !=
		list_length(filling->estate->es_tuple_routing_result_relations))
		la_filling_add_routed(filling);
	la_tables_look(&filling->filled);
}

/*
 * Is the only table's target page still the one that was seen last?
 */
static inline bool
la_filling_is_seen(const LaFilling *filling)
{
	return filling->sees_all && filling->attached != NULL &&
		filling->filled.ntables == 1 &&
		filling->moves == la_target_moves &&
		(filling->filled.rows + 1) % LA_MANY_ROWS != 0 &&
		la_heap_am_is_attached(filling->attached);
}

/*
 * A row that may have to be preceded by a look.
 */
static pg_noinline TupleTableSlot *
la_ExecFilling_look(PlanState *node)
{
	LaFilling  *filling = la_by_address_get(&la_filling_nodes, node);

	Assert(filling != NULL);
	la_filling_look(filling);
	return filling->exec(node);
}

/*
 * PlanState.ExecProcNode of the node that brings the rows.  Needs no stack
 * frame, for most of them.
 */
static TupleTableSlot *
la_ExecFilling(PlanState *node)
{
	LaFilling  *filling = la_by_address_peek(&la_filling_nodes, node);

	if (unlikely(filling == NULL || !la_filling_is_seen(filling)))
		return la_ExecFilling_look(node);
	filling->filled.rows++;
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
 * A relation that a ModifyTable node writes to, or NULL if pruning has left it
 * out.  Not by the node's array of ResultRelInfo: minor versions have changed
 * the size of that.
 */
static Relation
la_result_relation(const ModifyTableState *modify, int rti)
{
	return modify->ps.state->es_relations[rti - 1];
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
	ListCell   *lc;

	if (modify->operation == CMD_DELETE || node == NULL ||
		la_is_single_row(node))
		return;

	filling = MemoryContextAllocZero(estate->es_query_cxt, sizeof(LaFilling));
	callback = MemoryContextAlloc(estate->es_query_cxt, sizeof(*callback));
	filling->node = node;
	filling->exec = node->ExecProcNodeReal;
	filling->modify = modify;
	filling->estate = estate;
	filling->filled.context = estate->es_query_cxt;
	filling->moves = la_target_moves - 1;
	filling->sees_all = modify->operation == CMD_INSERT &&
		castNode(ModifyTable, modify->ps.plan)->onConflictAction ==
		ONCONFLICT_NONE;
	foreach(lc, castNode(ModifyTable, modify->ps.plan)->resultRelations)
	{
		Relation	rel = la_result_relation(modify, lfirst_int(lc));

		if (rel != NULL && la_extend_wanted(rel))
			la_tables_add(&filling->filled, rel);
	}

	la_by_address_put(&la_filling_nodes, node, filling);
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
la_fill_made(const ModifyTableState *modify, LaExtendCounters *counters)
{
	dlist_iter	iter;

	memset(counters, 0, sizeof(*counters));
	dlist_foreach(iter, &la_fillings)
	{
		LaFilling  *filling = dlist_container(LaFilling, link, iter.cur);

		if (filling->modify != modify)
			continue;
		counters->extensions_total = filling->filled.extensions;
		counters->pages_added_total = filling->filled.pages;
	}
	return counters->extensions_total > 0;
}

/*
 * The ModifyTable nodes of a statement that are being watched.
 */
List *
la_fill_nodes(const EState *estate)
{
	List	   *modifies = NIL;
	dlist_iter	iter;

	dlist_foreach(iter, &la_fillings)
	{
		LaFilling  *filling = dlist_container(LaFilling, link, iter.cur);

		if (filling->estate == estate)
			modifies = lappend(modifies, filling->modify);
	}
	return modifies;
}

/*
 * Give back what we have opened for a statement.
 */
static void
la_fill_close(const EState *estate)
{
	dlist_iter	iter;

	dlist_foreach(iter, &la_fillings)
	{
		LaFilling  *filling = dlist_container(LaFilling, link, iter.cur);

		if (filling->estate == estate)
			la_tables_close(&filling->filled);
	}
}

/*
 * Something of a single row has gone to a table.
 */
static void
la_row_stored(Relation rel)
{
	Oid			file = rel->rd_rel->relfilenode;
	int			i = file % LA_RECENT;
	BlockNumber target = RelationGetTargetBlock(rel);

	if (target == InvalidBlockNumber ||
		(la_recent[i].file == file &&
		 la_recent[i].target == target))
		return;
	if (la_recent[i].file != file)
	{
		la_growth_init(&la_recent[i].growth);
		la_recent[i].growth.is_row = true;
	}
	la_recent[i].file = file;
	la_recent[i].target = target;
	if (la_extend_wanted(rel))
		la_heap_filled(rel, target, &la_recent[i].growth);
}

/*
 * A single row has gone to a table, and large values of it perhaps to another,
 * at which every few rows look.
 */
static void
la_row_inserted(Relation rel)
{
	static uint32 nrows = 0;
	Oid			toast = rel->rd_rel->reltoastrelid;

	la_row_stored(rel);
	if (++nrows % LA_TOAST_ROWS != 0 || !OidIsValid(toast) ||
		!la_toast_is_used(toast))
		return;
	rel = table_open(toast, NoLock);
	la_row_stored(rel);
	table_close(rel, NoLock);
}

/*
 * Call a function for each ModifyTable node of a plan: at the top, and at the
 * top of each WITH query.
 */
static void
la_walk_modify(const QueryDesc *desc, void (*visit) (ModifyTableState *modify))
{
	ListCell   *lc;

	Assert(la_may_fill(desc));
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
	foreach(lc, castNode(ModifyTable, modify->ps.plan)->resultRelations)
	{
		Relation	rel = la_result_relation(modify, lfirst_int(lc));

		if (rel != NULL)
			la_row_inserted(rel);
	}
	foreach(lc, modify->ps.state->es_tuple_routing_result_relations)
		la_row_inserted(((ResultRelInfo *) lfirst(lc))->ri_RelationDesc);
}

/*
 * A statement begins, and its plan state has been made.  Scans of it that are
 * followed have their function already: ours is to call theirs.
 */
void
la_fill_begin(const QueryDesc *desc)
{
	if (la_extend_enabled())
		la_walk_modify(desc, la_filling_begin);
}

/*
 * A statement's plan begins to run.  Returns whether la_fill_run_end() must be
 * called when it has run, whatever happens.  Rows for partitions, and those
 * that UPDATE moves, go another way.
 */
bool
la_fill_run_begin(const EState *estate)
{
	bool		is_any = false;
	dlist_iter	iter;

	dlist_foreach(iter, &la_fillings)
	{
		LaFilling  *filling = dlist_container(LaFilling, link, iter.cur);

		if (filling->estate != estate || filling->filled.ntables == 0 ||
			filling->modify->operation == CMD_UPDATE ||
			filling->modify->mt_nrels > 1 ||
			!la_heap_am_attach(filling->filled.tables[0].rel))
			continue;
		filling->attached = filling->filled.tables[0].rel;
		is_any = true;
	}
	if (is_any)
		la_target_forget();
	return is_any;
}

/*
 * A statement's plan has run, or failed.
 */
void
la_fill_run_end(const EState *estate)
{
	dlist_iter	iter;

	dlist_foreach(iter, &la_fillings)
	{
		LaFilling  *filling = dlist_container(LaFilling, link, iter.cur);

		if (filling->estate != estate || filling->attached == NULL)
			continue;
		la_heap_am_detach(filling->attached);
		filling->attached = NULL;
	}
}

/*
 * A statement ends well.
 */
void
la_fill_end(const QueryDesc *desc)
{
	if (la_extend_enabled())
		la_walk_modify(desc, la_single_row_end);
	la_fill_close(desc->estate);
}
