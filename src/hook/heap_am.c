/*-------------------------------------------------------------------------
 *
 * heap_am.c
 *	  Stands between statements that insert and heap.
 *
 * A statement calls the access method of a table through rel->rd_tableam.  For
 * the time of some statements that points at a copy of heap's routine, in which
 * these are ours:
 *
 *		tuple_insert	with an insert state: load.c
 *						without: target_page.c
 *		multi_insert	load.c
 *		scan_begin		puts heap's routine back, calls heap's
 *
 * Nobody else notices.  Parts of the server insist on heap's own routine, but
 * only for scans, and who wants to scan the table while it is being filled (a
 * trigger, a function in a check, pgstattuple) passes scan_begin.  The rest of
 * that statement then goes on without us.  A scan that was open before goes on,
 * but for one that a function in the statement continues by heap_getnext(),
 * which asks for heap's own routine each time; nobody is known to do that.
 *
 * The routine is put back at each end of the statement, an error included: the
 * frame that has put it there catches that, and the relation is open for as
 * long.  If an invalidation rebuilds the relation cache entry it gets heap's
 * routine by itself.
 *
 * Copyright (c) 2026, the pg_lookahead authors
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/heapam.h"
#include "extend/load.h"
#include "hook/heap_am.h"

/* What stands between; filled in when first needed. */
TableAmRoutine la_heap_am;

static void
la_tuple_insert(Relation rel, TupleTableSlot *slot, CommandId cid, int options,
				BulkInsertState bistate)
{
	LaLoad	   *load;

	if (bistate == NULL)
		la_insert_at_target(rel, slot, cid, options);
	else if ((load = la_load_of(rel, bistate)) != NULL)
		la_load_insert(load, slot, cid, options, bistate);
	else
		GetHeapamTableAmRoutine()->tuple_insert(rel, slot, cid, options,
												bistate);
}

static void
la_multi_insert(Relation rel, TupleTableSlot **slots, int nslots,
				CommandId cid, int options, BulkInsertState bistate)
{
	LaLoad	   *load = bistate ? la_load_of(rel, bistate) : NULL;

	if (load)
		la_load_multi_insert(load, slots, nslots, cid, options, bistate);
	else
		GetHeapamTableAmRoutine()->multi_insert(rel, slots, nslots, cid,
												options, bistate);
}

static TableScanDesc
la_scan_begin(Relation rel, Snapshot snapshot, int nkeys,
			  struct ScanKeyData *key, ParallelTableScanDesc pscan,
			  uint32 flags)
{
	la_heap_am_detach(rel);
	return rel->rd_tableam->scan_begin(rel, snapshot, nkeys, key, pscan, flags);
}

/*
 * Is the table heap's, whether we stand between or not?
 */
bool
la_is_heap(Relation rel)
{
	return rel->rd_tableam == GetHeapamTableAmRoutine() ||
		la_heap_am_is_attached(rel);
}

/*
 * Stand between the table and heap.  Returns false if we do already, or if it
 * is not heap's.
 */
bool
la_heap_am_attach(Relation rel)
{
	if (rel->rd_tableam != GetHeapamTableAmRoutine())
		return false;
	if (la_heap_am.type != T_TableAmRoutine)
	{
		memcpy(&la_heap_am, GetHeapamTableAmRoutine(), sizeof(la_heap_am));
		la_heap_am.tuple_insert = la_tuple_insert;
		la_heap_am.multi_insert = la_multi_insert;
		la_heap_am.scan_begin = la_scan_begin;
	}
	rel->rd_tableam = &la_heap_am;
	return true;
}

/*
 * Put heap's routine back, if it is not there.
 */
void
la_heap_am_detach(Relation rel)
{
	if (la_heap_am_is_attached(rel))
		rel->rd_tableam = GetHeapamTableAmRoutine();
}
