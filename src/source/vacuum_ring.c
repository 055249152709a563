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
 *		VACUUM begins	la_vacuum_begin(): notes its tables in their relation
 *						cache entries, if that needs no waiting for a lock
 *		of each table	la_vacuum_ring(), called instead of heap, which then
 *						does what it always does
 *		VACUUM ends		la_vacuum_end(): forgets the tables that it did not
 *						come to
 *
 * The server's ring is left alone where somebody has chosen one
 * (vacuum_buffer_usage_limit and BUFFER_USAGE_LIMIT, from 16 on), where the
 * table is no larger than our ring, and where there is no WAL to wait for
 * (temporary and unlogged tables).  Autovacuum passes by here: it runs no
 * command.
 *
 * An entry that is rebuilt meanwhile, or a VACUUM that ends with an error,
 * leaves all as it is without us.  After an error an entry may stay noted; what
 * scans such a table, or inserts into it, puts heap's routine back.
 *
 * Copyright (c) 2026, the pg_lookahead authors
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/heapam.h"
#include "access/table.h"
#include "catalog/namespace.h"
#include "catalog/pg_class.h"
#include "catalog/pg_inherits.h"
#include "compat.h"
#include "hook/heap_am.h"
#include "settings.h"
#include "source/vacuum_ring.h"
#include "storage/lmgr.h"
#include "utils/relcache.h"
#include "window/guard.h"

/* Tables that one VACUUM is prepared for. */
#define LA_MAX_VACUUMED		1024

static Oid	la_vacuumed[LA_MAX_VACUUMED];
static int	la_nvacuumed = 0;

static inline BlockNumber
la_ring_blocks_wanted(void)
{
	return la_vacuum_buffer_usage_limit / (BLCKSZ / 1024);
}

/*
 * Stand before heap for a table, and for its TOAST table.
 */
static void
la_vacuum_note(Oid relid)
{
	Oid			toast_oid;
	Relation	rel;

	if (la_nvacuumed == LA_MAX_VACUUMED ||
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
 * VACUUM of named tables, with what is below them.
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
		foreach(below, find_all_inheritors(relid, NoLock, NULL))
			la_vacuum_note(lfirst_oid(below));
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
			 class->relkind == RELKIND_MATVIEW) &&
			class->relpages > (int32) la_ring_blocks_wanted())
			large = lappend_oid(large, class->oid);
	}
	table_endscan(scan);
	table_close(classes, AccessShareLock);
	foreach(lc, large)
		la_vacuum_note(lfirst_oid(lc));
	list_free(large);
}

/*
 * Runs under la_guard_run_once().
 */
static void
la_vacuum_begin_body(void *arg)
{
	const VacuumStmt *statement = arg;

	if (statement->rels != NIL)
		la_vacuum_note_named(statement->rels);
	else
		la_vacuum_note_all();
}

/*
 * May a statement be one that reads through a ring that is the server's choice?
 */
static bool
la_is_vacuum_in_place(const VacuumStmt *statement)
{
	ListCell   *lc;

	if (!statement->is_vacuumcmd)
		return false;
	foreach(lc, statement->options)
	{
		const DefElem *option = lfirst_node(DefElem, lc);

		if (strcmp(option->defname, "full") == 0 ||
			strcmp(option->defname, "buffer_usage_limit") == 0)
			return false;
	}
	return true;
}

/*
 * VACUUM, or ANALYZE, is about to run, outside of a transaction block.
 */
void
la_vacuum_begin(const VacuumStmt *statement)
{
	la_nvacuumed = 0;
	if (la_vacuum_buffer_usage_limit <= LA_SERVERS_VACUUM_KB ||
		!la_is_vacuum_in_place(statement) || !la_guard_is_possible())
		return;
	(void) la_guard_run_once(la_vacuum_begin_body, (void *) statement);
}

/*
 * Runs under la_guard_run_once().
 */
static void
la_vacuum_end_body(void *arg)
{
	for (int i = 0; i < la_nvacuumed; i++)
	{
		Relation	rel = RelationIdGetRelation(la_vacuumed[i]);

		if (rel == NULL)
			continue;
		la_heap_am_detach(rel);
		RelationClose(rel);
	}
}

/*
 * It has ended, and well.
 */
void
la_vacuum_end(void)
{
	if (la_nvacuumed > 0)
		(void) la_guard_run_once(la_vacuum_end_body, NULL);
	la_nvacuumed = 0;
}

/*
 * A table has its turn.
 */
static void
la_vacuum_came(Oid relid)
{
	for (int i = 0; i < la_nvacuumed; i++)
		if (la_vacuumed[i] == relid)
		{
			la_vacuumed[i] = la_vacuumed[--la_nvacuumed];
			break;
		}
}

/*
 * The ring for VACUUM of a table: the server's, or a wider one, which lasts as
 * long as the transaction.  The table is locked as VACUUM does.
 */
BufferAccessStrategy
la_vacuum_ring(Relation rel, BufferAccessStrategy servers)
{
	BufferAccessStrategy wider;

	la_vacuum_came(RelationGetRelid(rel));
	if (!la_is_servers_vacuum_ring(servers) ||
		RelationGetNumberOfBlocks(rel) <= la_ring_blocks_wanted())
		return servers;
	wider = la_vacuum_strategy(la_vacuum_buffer_usage_limit);
	if (wider == NULL)
		return servers;
	elog(DEBUG1, "vacuuming relation %u through a ring of up to %d kB",
		 RelationGetRelid(rel), la_vacuum_buffer_usage_limit);
	return wider;
}
