/*-------------------------------------------------------------------------
 *
 * filled_tables.h
 *	  The tables that a statement fills row by row.
 *
 * Copyright (c) 2026, the pg_lookahead authors
 *
 *-------------------------------------------------------------------------
 */
#ifndef LA_FILLED_TABLES_H
#define LA_FILLED_TABLES_H

#include "extend/extend.h"
#include "utils/resowner.h"

/* After so many rows a table is looked at for a TOAST table in use. */
#define LA_MANY_ROWS	64

/* A table that a statement fills. */
typedef struct LaFilled
{
	Relation	rel;
	BlockNumber seen;			/* its target page when last looked at */
	LaGrowth	growth;
	bool		is_ours;		/* opened by us */
	bool		has_toast;		/* its TOAST table is among the others */
} LaFilled;

typedef struct LaFilledTables
{
	MemoryContext context;		/* that lives as long as the statement */
	ResourceOwner owner;		/* has what is opened by us; NULL: whoever is
								 * the current one then */
	uint32		rows;			/* that it was asked for */
	int64		extensions;		/* that were made for it */
	int64		pages;			/* that were added by them */
	int			ntables;
	int			size;			/* room in tables */
	int			next;			/* to be looked at */
	uint32		next_toast;		/* likewise, for its TOAST table */
	LaFilled   *tables;
} LaFilledTables;

extern LaFilled *la_tables_add(LaFilledTables *filled, Relation rel);
extern Relation la_tables_open(const LaFilledTables *filled, Oid relid);
extern void la_tables_give_back(const LaFilledTables *filled, Relation rel);
extern LaFilled *la_tables_keep(LaFilledTables *filled, Relation rel);
extern void la_tables_look(LaFilledTables *filled);
extern void la_tables_close(LaFilledTables *filled);

#endif							/* LA_FILLED_TABLES_H */
