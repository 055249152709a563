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

/* After so many rows a table is looked at for a TOAST table in use. */
#define LA_MANY_ROWS	64

/* Where tables are opened for each look there is one every so many rows. */
#define LA_LOOK_ROWS	4

/* A table that a statement fills. */
typedef struct LaFilled
{
	Relation	rel;			/* NULL: it is opened for each look */
	Oid			oid;			/* then: which one it is */
	Oid			file;			/* and its relfilenode at the last look */
	BlockNumber seen;			/* its target page when last looked at */
	LaGrowth	growth;
	bool		is_ours;		/* opened by us */
	bool		has_toast;		/* its TOAST table is among the others */
} LaFilled;

typedef struct LaFilledTables
{
	MemoryContext context;		/* that lives as long as the statement */
	bool		keeps_none;		/* of what we open: it is not known that the
								 * statement has it open, too */
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
extern LaFilled *la_tables_keep(LaFilledTables *filled, Relation rel);
extern void la_tables_look(LaFilledTables *filled);
extern void la_tables_close(LaFilledTables *filled);

#endif							/* LA_FILLED_TABLES_H */
