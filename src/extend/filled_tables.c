/*-------------------------------------------------------------------------
 *
 * filled_tables.c
 *	  The tables that a statement fills row by row.
 *
 * One of them is looked at per row, in turn.  A look costs one comparison: the
 * table's target page, which the server keeps, is the one seen last.  Tables
 * for large values are opened only by statements that have brought some rows.
 *
 * Copyright (c) 2026, the pg_lookahead authors
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/relation.h"
#include "extend/filled_tables.h"

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
 * Open a table that this transaction has locked, unless it has dropped it: then
 * returns NULL.
 */
Relation
la_tables_open(const LaFilledTables *filled, Oid relid)
{
	ResourceOwner save = CurrentResourceOwner;
	Relation	rel;

	if (filled->owner)
		CurrentResourceOwner = filled->owner;
	rel = try_relation_open(relid, NoLock);
	CurrentResourceOwner = save;
	return rel;
}

/*
 * Close what la_tables_open() has opened.
 */
void
la_tables_give_back(const LaFilledTables *filled, Relation rel)
{
	ResourceOwner save = CurrentResourceOwner;

	if (filled->owner)
		CurrentResourceOwner = filled->owner;
	relation_close(rel, NoLock);
	CurrentResourceOwner = save;
}

/*
 * Watch a table that la_tables_open() has opened, if it is one that may grow
 * ahead.
 */
LaFilled *
la_tables_keep(LaFilledTables *filled, Relation rel)
{
	LaFilled   *table;

	if (!la_extend_wanted(rel))
	{
		la_tables_give_back(filled, rel);
		return NULL;
	}
	table = la_tables_add(filled, rel);
	table->is_ours = true;
	return table;
}

/*
 * Watch the table for large values of a table, once one was stored there.
 */
static void
la_tables_add_toast(LaFilledTables *filled, int which)
{
	LaFilled   *table = &filled->tables[which];
	Oid			toast = table->rel->rd_rel->reltoastrelid;
	Relation	rel;

	if (table->has_toast || !OidIsValid(toast) || !la_toast_is_used(toast))
		return;
	table->has_toast = true;
	rel = la_tables_open(filled, toast);
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
	BlockNumber target;

	filled->rows++;
	if (filled->ntables == 0)
		return;
	if (filled->next >= filled->ntables)
		filled->next = 0;
	if (filled->rows % LA_MANY_ROWS == 0)
		la_tables_add_toast(filled, filled->next_toast++ % filled->ntables);
	table = &filled->tables[filled->next++];
	target = RelationGetTargetBlock(table->rel);
	if (target == table->seen || target == InvalidBlockNumber)
		return;
	table->seen = target;
	filled->extensions -= la_extend_counters.extensions_total;
	filled->pages -= la_extend_counters.pages_added_total;
	la_heap_filled(table->rel, target, &table->growth);
	filled->extensions += la_extend_counters.extensions_total;
	filled->pages += la_extend_counters.pages_added_total;
}

/*
 * Give back what we have opened.
 */
void
la_tables_close(LaFilledTables *filled)
{
	for (int i = 0; i < filled->ntables; i++)
		if (filled->tables[i].is_ours)
			la_tables_give_back(filled, filled->tables[i].rel);
	filled->ntables = 0;
}
