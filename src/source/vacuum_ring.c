/*-------------------------------------------------------------------------
 *
 * vacuum_ring.c
 *	  Gives VACUUM of a large table a wider ring of buffers.
 *
 * VACUUM reads into a ring of a few buffers and uses them again and again.
 * When it comes round to a page that it has changed, the page must be written,
 * and before that the WAL of the change flushed:
 *
 *		ring	.. 29 30 31 | 0 1 2 ..		VACUUM is here ^, and wants the
 *				   changed ^  ^				buffer of the page that it changed
 *											one round ago
 *
 * Where each page has dead rows that is one flush a round, which it waits for:
 * every 32 pages on 15 and 16, every 256 from 17 on.  One round takes less than
 * a millisecond of computing on 15, a flush as long, or several times that.  A
 * ring of 16 MB makes it one flush every 2,048 pages, and what the WAL writer
 * has flushed meanwhile costs nothing.
 *
 * The server makes the ring of a VACUUM that somebody runs before it opens a
 * table.  So we stand before heap (hook/heap_am.c) for the tables that are
 * about to be vacuumed, and pass on a ring of our own:
 *
 *		VACUUM begins	la_vacuum_begin(): notes its tables, here and in their
 *						relation cache entries, if they can be locked at once
 *		of each table	la_vacuum_ring(), called instead of heap, which then
 *						does what it always does
 *		VACUUM ends		la_vacuum_end(): nothing is noted here any more
 *
 * The server's ring is left alone where somebody has chosen one
 * (vacuum_buffer_usage_limit and BUFFER_USAGE_LIMIT, from 16 on), where the
 * table is no larger than our ring, and where there is no WAL to wait for
 * (temporary and unlogged tables).  Autovacuum passes by here: it runs no
 * command.
 *
 * An entry that is rebuilt meanwhile has lost our note, and its table gets the
 * server's ring.  An entry of a table that VACUUM did not come to keeps it,
 * which does nothing: only what is noted here, too, gets a ring of ours.  What
 * scans such a table puts heap's routine back.
 *
 * To open tables may fail, where the catalogs are damaged, and what such an
 * error leaves in the relation cache only the end of a transaction puts right:
 * so it is done in a subtransaction.  VACUUM will meet the same error when it
 * comes to that table.
 *
 * Copyright (c) 2026, the pg_lookahead authors
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/heapam.h"
#include "access/table.h"
#include "access/xact.h"
#include "catalog/namespace.h"
#include "catalog/pg_class.h"
#include "catalog/pg_inherits.h"
#include "commands/defrem.h"
#include "compat.h"
#include "hook/heap_am.h"
#include "settings.h"
#include "source/vacuum_ring.h"
#include "storage/lmgr.h"
#include "utils/lsyscache.h"

/* Tables that one VACUUM is prepared for. */
#define LA_MAX_VACUUMED		1024

static Oid	la_vacuumed[LA_MAX_VACUUMED];
static int	la_nvacuumed = 0;

/*
 * How many pages would a ring of ours have?  The server makes none larger than
 * an eighth of shared buffers.  0: none that is larger than its own.
 */
static BlockNumber
la_vacuum_ring_blocks(void)
{
	int			kb = Min(la_vacuum_buffer_usage_limit, LA_MOST_VACUUM_KB);
	int			nblocks = Min(kb / (BLCKSZ / 1024), NBuffers / 8);

	if (kb < LA_LEAST_VACUUM_KB ||
		nblocks <= LA_SERVERS_VACUUM_KB / (BLCKSZ / 1024))
		return 0;
	return nblocks;
}

static bool
la_is_noted(Oid relid)
{
	for (int i = 0; i < la_nvacuumed; i++)
		if (la_vacuumed[i] == relid)
			return true;
	return false;
}

/*
 * Stand before heap for a table, and for its TOAST table.
 */
static void
la_vacuum_note(Oid relid)
{
	Oid			toast_oid;
	Relation	rel;

	if (la_nvacuumed == LA_MAX_VACUUMED || la_is_noted(relid) ||
		!ConditionalLockRelationOid(relid, AccessShareLock))
		return;
	rel = try_relation_open(relid, NoLock);
	if (rel == NULL)
	{
		UnlockRelationOid(relid, AccessShareLock);
		return;
	}
	toast_oid = rel->rd_rel->reltoastrelid;
	if (RelationNeedsWAL(rel) && la_heap_am_attach_vacuum(rel))
		la_vacuumed[la_nvacuumed++] = relid;
	relation_close(rel, AccessShareLock);
	if (OidIsValid(toast_oid))
		la_vacuum_note(toast_oid);
}

/*
 * VACUUM of named tables, and of those below them that go with them.
 */
static void
la_vacuum_note_named(const List *tables)
{
	ListCell   *lc;

	foreach(lc, tables)
	{
		const VacuumRelation *named = lfirst_node(VacuumRelation, lc);
		Oid			relid = named->oid;
		ListCell   *below;

		if (!OidIsValid(relid))
			relid = RangeVarGetRelid(named->relation, NoLock, true);
		if (!OidIsValid(relid))
			continue;
		if (la_vacuum_goes_below(named, get_rel_relkind(relid)))
			foreach(below, find_all_inheritors(relid, NoLock, NULL))
				la_vacuum_note(lfirst_oid(below));
		else
			la_vacuum_note(relid);
	}
}

/*
 * VACUUM of a whole database: of its tables those that are large.  One of them
 * may be the catalog that we read here.
 */
static void
la_vacuum_note_all(void)
{
	List	   *large = NIL;
	ListCell   *lc;
	Relation	classes = table_open(RelationRelationId, AccessShareLock);
	TableScanDesc scan = table_beginscan_catalog(classes, 0, NULL);
	HeapTuple	tuple;

	while ((tuple = heap_getnext(scan, ForwardScanDirection)) != NULL)
	{
		Form_pg_class class = (Form_pg_class) GETSTRUCT(tuple);

		if ((class->relkind == RELKIND_RELATION ||
			 class->relkind == RELKIND_MATVIEW ||
			 class->relkind == RELKIND_TOASTVALUE) &&
			(BlockNumber) class->relpages > la_vacuum_ring_blocks())
			large = lappend_oid(large, class->oid);
	}
	table_endscan(scan);
	table_close(classes, AccessShareLock);
	foreach(lc, large)
		la_vacuum_note(lfirst_oid(lc));
	list_free(large);
}

/*
 * Does a statement read through a ring that is the server's choice?
 */
static bool
la_is_vacuum_in_place(const VacuumStmt *statement)
{
	ListCell   *lc;

	foreach(lc, statement->options)
	{
		DefElem    *option = lfirst_node(DefElem, lc);

		if (strcmp(option->defname, "buffer_usage_limit") == 0)
			return false;
		if ((strcmp(option->defname, "full") == 0 ||
			 strcmp(option->defname, "only_database_stats") == 0) &&
			defGetBoolean(option))
			return false;
	}
	return true;
}

static void
la_vacuum_note_tables(const VacuumStmt *statement)
{
	if (!la_is_vacuum_in_place(statement))
		return;
	if (statement->rels != NIL)
		la_vacuum_note_named(statement->rels);
	else
		la_vacuum_note_all();
}

/*
 * May this error end here?  Not if somebody has asked for it: a statement that
 * is cancelled, or that waits for a catalog longer than it is to.
 */
static bool
la_vacuum_may_go_on(const ErrorData *edata)
{
	return ERRCODE_TO_CATEGORY(edata->sqlerrcode) !=
		ERRCODE_TO_CATEGORY(ERRCODE_OPERATOR_INTERVENTION) &&
		edata->sqlerrcode != ERRCODE_LOCK_NOT_AVAILABLE;
}

/*
 * VACUUM, or ANALYZE, is about to run, outside of a transaction block.
 */
void
la_vacuum_begin(const VacuumStmt *statement)
{
	MemoryContext context = CurrentMemoryContext;
	ResourceOwner owner = CurrentResourceOwner;

	la_nvacuumed = 0;
	if (!statement->is_vacuumcmd || RecoveryInProgress() ||
		la_vacuum_ring_blocks() == 0)
		return;
	BeginInternalSubTransaction(NULL);
	MemoryContextSwitchTo(context);
	PG_TRY();
	{
		la_vacuum_note_tables(statement);
		ReleaseCurrentSubTransaction();
	}
	PG_CATCH();
	{
		ErrorData  *edata;

		MemoryContextSwitchTo(context);
		edata = CopyErrorData();
		FlushErrorState();
		RollbackAndReleaseCurrentSubTransaction();
		MemoryContextSwitchTo(context);
		CurrentResourceOwner = owner;
		if (!la_vacuum_may_go_on(edata))
			ReThrowError(edata);
		FreeErrorData(edata);
	}
	PG_END_TRY();
	MemoryContextSwitchTo(context);
	CurrentResourceOwner = owner;
}

/*
 * It has ended, well or by an error.
 */
void
la_vacuum_end(void)
{
	la_nvacuumed = 0;
}

/*
 * The ring for VACUUM of a table: the server's, or a wider one, which lasts as
 * long as the transaction.  The table is locked as VACUUM does.
 */
BufferAccessStrategy
la_vacuum_ring(Relation rel, BufferAccessStrategy servers)
{
	if (!la_is_noted(RelationGetRelid(rel)) ||
		!la_is_servers_vacuum_ring(servers) ||
		RelationGetNumberOfBlocks(rel) <= la_vacuum_ring_blocks())
		return servers;
	elog(DEBUG1, "vacuuming relation %u through a ring of %u buffers",
		 RelationGetRelid(rel), la_vacuum_ring_blocks());
	return la_vacuum_strategy(la_vacuum_buffer_usage_limit);
}
