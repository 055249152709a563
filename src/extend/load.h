/*-------------------------------------------------------------------------
 *
 * load.h
 *	  Statements that insert with a state of their own.
 *
 * COPY FROM, CREATE TABLE AS, SELECT INTO and materialized views are loads.
 *
 * Copyright (c) 2026, the pg_lookahead authors
 *
 *-------------------------------------------------------------------------
 */
#ifndef LA_LOAD_H
#define LA_LOAD_H

#include "access/heapam.h"
#include "extend/extend.h"
#include "extend/write_combine.h"
#include "nodes/parsenodes.h"
#include "tcop/dest.h"
#include "utils/resowner.h"

typedef struct LaLoad LaLoad;
typedef struct LaRouted LaRouted;

struct LaLoad
{
	LaLoad	   *outer;			/* of a statement that runs this one */
	Relation	rel;			/* NULL: not known yet, or not ours */
	LaRouted   *routed;			/* it is a partitioned table; or NULL */
	BulkInsertState bistate;	/* the statement's; NULL before its first row */
	bool		has_attached;	/* it is this load that stands before heap */
	ResourceOwner owner;		/* has the relations open */
	int			nest_level;		/* of transactions, where a COPY began */
	Oid			toast_oid;		/* its table for large values, or InvalidOid */
	Relation	toast;			/* the same once it is in use, or NULL */
	uint32		toast_turn;		/* see la_load_open_toast() */
	BlockNumber toast_seen;		/* page of that which was looked at last */
	LaGrowth	toast_growth;
	BlockNumber seen;			/* page that was looked at last */
	LaGrowth	growth;
	BlockNumber pool_first;		/* pages that only this load knows of */
	BlockNumber pool_last;
	BlockNumber taken_end;		/* pages before this that it had were in the
								 * free space map before; 0: none */
	uint32		added;			/* pages that were added for it, or taken from
								 * the map, so far */
	uint32		asked;			/* of these, when the map was asked last */
	BlockNumber overtaken;		/* last of its pages when others had come
								 * behind them, or InvalidBlockNumber */
	BlockNumber refused;		/* pages of the table when that had room, or
								 * there were too many to share it */
	BlockNumber next_free;		/* what it had not used when last seen; 15:
								 * what it has */
	BlockNumber last_free;
	BlockNumber noted;			/* page that was noted last in "filled" */
	LaFilledPages filled;
};

/* A receiver of rows that has not yet made its table. */
typedef struct LaInto
{
	struct LaInto *outer;
	DestReceiver *dest;
	void		(*startup) (DestReceiver *self, int operation,
							TupleDesc typeinfo);
	LaLoad		load;
} LaInto;

/* load.c */
extern void la_load_begin(LaLoad *load);
extern void la_load_attach(LaLoad *load, Oid relid);
extern void la_load_end(LaLoad *load, bool is_good);
extern LaLoad *la_load_of(Relation rel, BulkInsertState bistate);
extern void la_load_insert(LaLoad *load, TupleTableSlot *slot, CommandId cid,
						   int options, BulkInsertState bistate);
extern void la_load_multi_insert(LaLoad *load, TupleTableSlot **slots,
								 int nslots, CommandId cid, int options,
								 BulkInsertState bistate);

/* The COPY that has not yet got to the check of permissions. */
extern LaLoad *la_copy;

/*
 * A plan starts, or another command runs, and may have its permissions checked:
 * that is not COPY's check.  Returns what la_copy_resume() is to be given
 * afterwards.  If that is not called because of an error, and a function
 * catches it, the COPY goes on without pages added for it.
 */
static inline LaLoad *
la_copy_set_aside(void)
{
	LaLoad	   *copy = la_copy;

	la_copy = NULL;
	return copy;
}

/*
 * The plan has started, or the command has ended.
 */
static inline void
la_copy_resume(LaLoad *copy)
{
	la_copy = copy;
}

/*
 * Do the rows for this receiver fill a table that may grow ahead?
 */
static inline bool
la_into_is_load(const DestReceiver *dest)
{
	return dest != NULL &&
		(dest->mydest == DestIntoRel || dest->mydest == DestTransientRel) &&
		la_extend_enabled();
}

/* load_routed.c */
extern LaRouted *la_routed_begin(Oid relid);
extern void la_routed_end(LaRouted *routed, bool is_good);

/* load_table.c */
extern void la_copy_begin(LaLoad *load);
extern void la_copy_end(LaLoad *load, bool is_good);
extern void la_copy_checked(const List *tables, AclMode required);
extern void la_table_made(Oid relid);
extern void la_forget_tables_made(void);
extern void la_into_begin(LaInto *into, DestReceiver *dest);
extern void la_into_end(LaInto *into, bool is_good);

#endif							/* LA_LOAD_H */
