/*-------------------------------------------------------------------------
 *
 * heap_am.c
 *	  Stands between statements that insert, or vacuum, and heap.
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
 * For VACUUM it is another copy, with these:
 *
 *		relation_vacuum	puts heap's routine back, calls heap's with the ring
 *						that source/vacuum_ring.c gives
 *		scan_begin		as above
 *
 * Nobody else notices.  Parts of the server insist on heap's own routine, but
 * only for scans, and who wants to scan the table while it is being filled (a
 * trigger, a function in a check, pgstattuple) passes scan_begin.  The rest of
 * that statement then goes on without us.  A scan that was open before goes on,
 * but for one that a function in the statement continues by heap_getnext(),
 * which asks for heap's own routine each time; nobody is known to do that.
 *
 * The routine is put back at each end of a statement that inserts, an error
 * included: the frame that has put it there catches that, and the relation is
 * open for as long.  VACUUM opens its tables one by one, later, so it stays
 * there between its statement and the table, and longer if VACUUM does not come
 * to that, until something scans the table.  If an invalidation rebuilds the
 * relation cache entry it gets heap's routine by itself.
 *
 * Copyright (c) 2026, the pg_lookahead authors
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/heapam.h"
#include "extend/load.h"
#include "hook/heap_am.h"
#include "source/vacuum_ring.h"

/* What stands between; filled in when first needed. */
TableAmRoutine la_heap_am;
static TableAmRoutine la_heap_vacuum_am;

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

static void
la_relation_vacuum(Relation rel, struct VacuumParams *params,
				   BufferAccessStrategy ring)
{
	la_heap_am_detach(rel);
	rel->rd_tableam->relation_vacuum(rel, params, la_vacuum_ring(rel, ring));
}

/*
 * Is the table heap's, whether we stand between or not?
 */
bool
la_is_heap(Relation rel)
{
	return rel->rd_tableam == GetHeapamTableAmRoutine() ||
		rel->rd_tableam == &la_heap_am ||
		rel->rd_tableam == &la_heap_vacuum_am;
}

/*
 * Stand between the table and heap.  Returns false if a statement that inserts
 * does so already, or if it is not heap's.
 */
bool
la_heap_am_attach(Relation rel)
{
	if (la_heap_am_is_attached(rel) || !la_is_heap(rel))
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
 * Stand between the table and heap until it is vacuumed.  Returns false if it
 * is not heap's, or rows are being inserted.
 */
bool
la_heap_am_attach_vacuum(Relation rel)
{
	if (la_heap_am_is_attached(rel) || !la_is_heap(rel))
		return false;
	if (la_heap_vacuum_am.type != T_TableAmRoutine)
	{
		memcpy(&la_heap_vacuum_am, GetHeapamTableAmRoutine(),
			   sizeof(la_heap_vacuum_am));
		la_heap_vacuum_am.relation_vacuum = la_relation_vacuum;
		la_heap_vacuum_am.scan_begin = la_scan_begin;
	}
	rel->rd_tableam = &la_heap_vacuum_am;
	return true;
}

/*
 * Put heap's routine back, if it is not there.
 */
void
la_heap_am_detach(Relation rel)
{
	if (la_is_heap(rel))
		rel->rd_tableam = GetHeapamTableAmRoutine();
}
