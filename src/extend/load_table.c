/*-------------------------------------------------------------------------
 *
 * load_table.c
 *	  Finds out which table a load fills, and when it begins and ends.
 *
 * A load (load.c) begins before anybody knows its table.
 *
 *	COPY FROM	The statement is known when the command begins
 *				(la_copy_begin).  COPY opens its table and asks for
 *				permission, which is when we see it (la_copy_checked).  A
 *				plan may ask before that, or another COPY: one that is run
 *				by a function in the WHERE of COPY, which is called when
 *				that is simplified.  So plans set the COPY aside while they
 *				start, and commands while they run, whether they are loads
 *				of ours or not.
 *	CREATE TABLE AS, SELECT INTO, materialized views
 *				Rows go to a receiver.  When it starts up the table exists,
 *				and is the newest that has been made since the statement
 *				began (la_into_begin).
 *
 * Copyright (c) 2026, the pg_lookahead authors
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/xact.h"
#include "catalog/pg_class.h"
#include "compat.h"
#include "extend/extend.h"
#include "extend/load.h"
#include "utils/acl.h"
#include "utils/lsyscache.h"

LaLoad	   *la_copy = NULL;

static LaInto *la_intos = NULL; /* on the stack, the innermost first */

/* Relations that were made last, the newest at la_made[0]. */
#define LA_MADE		4
static Oid	la_made[LA_MADE];

/*
 * A COPY FROM begins.  The caller sees to it that la_copy_end() is called,
 * whatever happens.
 */
void
la_copy_begin(LaLoad *load)
{
	la_load_begin(load);
	load->owner = CurrentResourceOwner;
	load->nest_level = GetCurrentTransactionNestLevel();
	la_copy = load;
}

/*
 * A COPY FROM ends.
 */
void
la_copy_end(LaLoad *load, bool is_good)
{
	if (la_copy == load)
		la_copy = NULL;
	la_load_end(load, is_good);
}

/*
 * Permissions have been checked, and granted, while there is a COPY.  If that
 * was for it its table is known now.
 */
void
la_copy_checked(const List *tables, AclMode required)
{
	LaLoad	   *load = la_copy;
	RangeTblEntry *rte;

	if (list_length(tables) != 1 || !(required & ACL_INSERT))
		return;

	/*
	 * COPY asks where it began.  What is opened elsewhere may be closed before
	 * the COPY has ended.
	 */
	if (load->owner != CurrentResourceOwner ||
		load->nest_level != GetCurrentTransactionNestLevel())
		return;

	la_copy = NULL;
	rte = linitial_node(RangeTblEntry, tables);
	if (rte->rtekind != RTE_RELATION)
		return;
	if (rte->relkind == RELKIND_RELATION)
		la_load_attach(load, rte->relid);
	else if (rte->relkind == RELKIND_PARTITIONED_TABLE && !LA_HAVE_EXTEND_BY)
		load->routed = la_routed_begin(rte->relid);
}

/*
 * A relation has been made.
 */
void
la_table_made(Oid relid)
{
	memmove(&la_made[1], &la_made[0], (LA_MADE - 1) * sizeof(Oid));
	la_made[0] = relid;
}

/*
 * A statement begins that will load the table that it makes next.
 */
void
la_forget_tables_made(void)
{
	memset(la_made, 0, sizeof(la_made));
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

	Assert(la_intos != NULL);
	while (into != NULL && into->dest != self)
		into = into->outer;
	self->rStartup = into ? into->startup : la_intos->startup;
	self->rStartup(self, operation, typeinfo);
	if (into == NULL)
		return;					/* another extension's copy of the receiver */

	for (int i = 0; i < LA_MADE && OidIsValid(la_made[i]); i++)
	{
		char		kind = get_rel_relkind(la_made[i]);

		if (kind != RELKIND_RELATION && kind != RELKIND_MATVIEW)
			continue;
		la_load_attach(&into->load, la_made[i]);
		break;
	}
}

/*
 * A query begins to run whose rows fill a table.  The caller sees to it that
 * la_into_end() is called, whatever happens.
 */
void
la_into_begin(LaInto *into, DestReceiver *dest)
{
	/* A table of CREATE TABLE AS is made by rStartup, others were before. */
	if (dest->mydest == DestIntoRel)
		la_forget_tables_made();
	la_load_begin(&into->load);
	into->dest = dest;
	into->startup = dest->rStartup;
	into->outer = la_intos;
	la_intos = into;
	dest->rStartup = la_startup;
}

/*
 * The query has run.
 */
void
la_into_end(LaInto *into, bool is_good)
{
	la_intos = into->outer;
	into->dest->rStartup = into->startup;
	la_load_end(&into->load, is_good);
}
