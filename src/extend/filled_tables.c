/*-------------------------------------------------------------------------
 *
 * filled_tables.c
 *	  The tables that a statement fills row by row.
 *
 * One of them is looked at per row, in turn.  A look costs one comparison: the
 * table's target page, which the server keeps, is the one seen last.  Tables
 * for large values are opened only by statements that have brought some rows.
 *
 * What the statement itself has open may be kept open.  Where that is not known
 * (load_routed.c) the session may want to truncate or drop the table in the
 * middle, which is refused as long as it is open.  So it is opened for each
 * look and closed again.  That costs more than the comparison, so only some of
 * the rows have a look.
 *
 * Copyright (c) 2026, the pg_lookahead authors
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/relation.h"
#include "extend/filled_tables.h"
#include "extend/wal_ahead.h"

/*
 * Watch one more table.
 */
LaFilled *
la_tables_add(LaFilledTables *filled, Relation rel)
{
	LaFilled   *table;

	if (filled->ntables == filled->size)
	{
		filled->size = Max(4, filled->size * 2);
		if (filled->tables)
			filled->tables = repalloc(filled->tables,
									  filled->size * sizeof(LaFilled));
		else
			filled->tables =
				MemoryContextAlloc(filled->context,
								   filled->size * sizeof(LaFilled));
	}
	table = &filled->tables[filled->ntables++];
	memset(table, 0, sizeof(*table));
	table->rel = rel;
	table->seen = InvalidBlockNumber;
	la_growth_init(&table->growth);
	return table;
}

/*
 * Watch a table that we have opened, and that this transaction has locked, if
 * it is one that may grow ahead.  It is no longer the caller's to close.
 */
LaFilled *
la_tables_keep(LaFilledTables *filled, Relation rel)
{
	LaFilled   *table;

	if (!la_extend_wanted(rel))
	{
		relation_close(rel, NoLock);
		return NULL;
	}
	table = la_tables_add(filled, rel);
	if (filled->keeps_none)
	{
		table->rel = NULL;
		table->oid = RelationGetRelid(rel);
		table->file = rel->rd_rel->relfilenode;
		relation_close(rel, NoLock);
	}
	else
		table->is_ours = true;
	return table;
}

/*
 * Open a table for a look, unless it is.  Returns NULL if it is gone, or is not
 * one any more that may grow ahead.
 */
static Relation
la_table_open(LaFilled *table)
{
	Relation	rel = table->rel;
	BufferAccessStrategy ring = table->growth.ring;

	if (rel)
		return rel;
	rel = RelationIdGetRelation(table->oid);
	if (rel == NULL || rel->rd_rel->relfilenode == table->file)
		return rel;
	if (!la_extend_wanted(rel))
	{
		RelationClose(rel);
		return NULL;
	}

	/* What is known of its pages is of another file. */
	table->file = rel->rd_rel->relfilenode;
	table->seen = InvalidBlockNumber;
	la_growth_init(&table->growth);
	table->growth.ring = ring;
	return rel;
}

static void
la_table_close(const LaFilled *table, Relation rel)
{
	if (table->rel == NULL)
		RelationClose(rel);
}

/*
 * Watch the table for large values of a table, once one was stored there.
 */
static void
la_tables_add_toast(LaFilledTables *filled, int which)
{
	LaFilled   *table = &filled->tables[which];
	Relation	rel;
	Oid			toast;

	if (table->has_toast)
		return;
	rel = la_table_open(table);
	if (rel == NULL)
		return;
	toast = rel->rd_rel->reltoastrelid;
	la_table_close(table, rel);
	if (!OidIsValid(toast) || !la_toast_is_used(toast))
		return;
	table->has_toast = true;
	rel = try_relation_open(toast, NoLock);
	if (rel)
		la_tables_keep(filled, rel);
}

/*
 * A row has come, or is about to: look at the next table.
 */
void
la_tables_look(LaFilledTables *filled)
{
	LaFilled   *table;
	Relation	rel;
	BlockNumber target;

	la_wal_ahead();
	filled->rows++;
	if (filled->ntables == 0 ||
		(filled->keeps_none && filled->rows % LA_LOOK_ROWS != 0))
		return;
	if (filled->next >= filled->ntables)
		filled->next = 0;
	if (filled->rows % LA_MANY_ROWS == 0)
		la_tables_add_toast(filled, filled->next_toast++ % filled->ntables);
	table = &filled->tables[filled->next];
	rel = la_table_open(table);
	if (rel == NULL)
	{
		*table = filled->tables[--filled->ntables];
		return;
	}
	filled->next++;
	target = RelationGetTargetBlock(rel);
	if (target != table->seen && target != InvalidBlockNumber)
	{
		table->seen = target;
		table->growth.is_row = filled->rows < LA_MANY_ROWS;
		filled->extensions -= la_extend_counters.extensions_total;
		filled->pages -= la_extend_counters.pages_added_total;
		la_heap_filled(rel, target, &table->growth);
		filled->extensions += la_extend_counters.extensions_total;
		filled->pages += la_extend_counters.pages_added_total;
	}
	la_table_close(table, rel);
}

/*
 * Close what we have kept open.
 */
void
la_tables_close(LaFilledTables *filled)
{
	for (int i = 0; i < filled->ntables; i++)
		if (filled->tables[i].is_ours)
			relation_close(filled->tables[i].rel, NoLock);
	filled->ntables = 0;
}
