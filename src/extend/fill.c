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
 * A look costs one comparison per row: the table's target page, which the
 * server keeps, is the one seen last.  Where all rows pass target_page.c
 * (INSERT without ON CONFLICT) that tells when there is another, and nothing
 * else is looked at.  A statement that fills several tables (partitions, TOAST)
 * looks at one of them per row, in turn.  Tables for large values are opened
 * only by statements that have brought some rows.
 *
 * Copyright (c) 2026, the pg_lookahead authors
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/table.h"
#include "executor/executor.h"
#include "extend/extend.h"
#include "by_address.h"
#include "hook/heap_am.h"
#include "lib/ilist.h"

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

	Relation	attached;		/* that we stand before, or NULL */
	bool		sees_all;		/* rows, if it is attached */
	uint32		moves;			/* la_target_moves at the last look */
	uint32		rows;			/* that it was asked for */
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
static LaByAddress la_filling_nodes;	/* the same by "node" */

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
	filling->moves = la_target_moves;
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
 * Is the only table's target page still the one that was seen last?
 */
static inline bool
la_filling_is_seen(const LaFilling *filling)
{
	return filling->sees_all && filling->attached != NULL &&
		filling->ntables == 1 &&
		filling->moves == la_target_moves &&
		(filling->rows + 1) % LA_MANY_ROWS != 0 &&
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
	filling->rows++;
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
	filling->moves = la_target_moves - 1;
	filling->sees_all = modify->operation == CMD_INSERT &&
		castNode(ModifyTable, modify->ps.plan)->onConflictAction ==
		ONCONFLICT_NONE;
	for (int i = 0; i < modify->mt_nrels; i++)
		if (la_extend_wanted(modify->resultRelInfo[i].ri_RelationDesc))
			la_filling_add(filling, modify->resultRelInfo[i].ri_RelationDesc,
						   false);

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
		counters->extensions_total = filling->extensions;
		counters->pages_added_total = filling->pages;
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

		if (filling->estate != estate)
			continue;
		for (int i = 0; i < filling->ntables; i++)
			if (filling->tables[i].is_toast)
				table_close(filling->tables[i].rel, NoLock);
		filling->ntables = 0;
	}
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
	for (int i = 0; i < modify->mt_nrels; i++)
		la_row_inserted(modify->resultRelInfo[i].ri_RelationDesc);
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

		if (filling->estate != estate || filling->ntables == 0 ||
			filling->modify->operation == CMD_UPDATE ||
			filling->modify->mt_nrels > 1 ||
			!la_heap_am_attach(filling->tables[0].rel))
			continue;
		filling->attached = filling->tables[0].rel;
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
