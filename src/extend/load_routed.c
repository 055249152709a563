/*-------------------------------------------------------------------------
 *
 * load_routed.c
 *	  Space for COPY FROM into a partitioned table, on 15.
 *
 * From 16 on COPY adds up to 64 pages to a partition at a time by itself, and
 * ours would only be more calls.
 *
 * COPY opens a partition when the first row comes for it, on a road where
 * nobody can look.  But it locks it as who inserts does, and keeps it open, so
 * among the table's partitions those in use can be told.  And it reads each row
 * into a slot of its own, which it has made for the partitioned table, and
 * which is emptied before the next row, if not more often.  Then we look:
 *
 *	table known		the partitioned table, which has no access method, gets one
 *					that can only say what slots are like
 *	slot made		it has none any more; emptying that slot is ours
 *	slot emptied	one of the partitions in use is looked at, as for INSERT
 *					(filled_tables.c), but not for each row; now and then some
 *					that were not in use yet
 *	end				the partitioned table is closed
 *
 * Somebody else of this session, a cursor, may have a partition open as well,
 * which cannot be told from COPY.  So none is kept open from one look to the
 * next: nobody is refused to truncate it because of us.
 *
 * Pages go into the free space map, where COPY looks for them, with insert
 * states or without: those come and go as rows change between partitions.  They
 * are made in a ring of buffers for each partition, as COPY has, so that a
 * large load does not go through all of shared buffers.
 *
 * If the slot is made for somebody else (a function that COPY runs before) or
 * an invalidation comes before it is, the COPY goes on without us.
 *
 * Copyright (c) 2026, the pg_lookahead authors
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/relation.h"
#include "access/tableam.h"
#include "compat.h"
#include "executor/tuptable.h"
#include "extend/filled_tables.h"
#include "extend/load.h"
#include "partitioning/partdesc.h"
#include "storage/bufmgr.h"
#include "storage/lock.h"

/* Every so many rows a few partitions that were not in use are looked at. */
#define LA_UNUSED_ROWS	16
#define LA_UNUSED_LOOKS 4

/* A COPY into a partitioned table. */
struct LaRouted
{
	LaRouted   *outer;			/* of a statement that runs this one */
	Relation	root;
	TupleTableSlot *slot;		/* its rows as they are read; NULL before */
	LaFilledTables filled;
	int			nunused;
	int			size;			/* room in unused */
	int			next;			/* of them, to be looked at before */
	Oid		   *unused;			/* partitions, some of them partitioned */
};

static LaRouted *la_routeds = NULL; /* the innermost first */

/* What stands for an access method, and its slots; made when first needed. */
static TableAmRoutine la_routed_am;
static TupleTableSlotOps la_routed_ops;

/*
 * Note the partitions of a table.
 */
static void
la_routed_note(LaRouted *routed, Relation rel)
{
	PartitionDesc desc = RelationGetPartitionDesc(rel, false);

	if (desc->nparts == 0)
		return;
	if (routed->nunused + desc->nparts > routed->size)
	{
		routed->size = routed->nunused + desc->nparts;
		if (routed->unused)
			routed->unused = repalloc(routed->unused,
									  routed->size * sizeof(Oid));
		else
			routed->unused = MemoryContextAlloc(routed->filled.context,
												routed->size * sizeof(Oid));
	}
	memcpy(routed->unused + routed->nunused, desc->oids,
		   desc->nparts * sizeof(Oid));
	routed->nunused += desc->nparts;
}

/*
 * Watch a partition that is in use, and close it.
 */
static void
la_routed_watch(LaRouted *routed, Relation rel)
{
	LaFilled   *table = la_tables_keep(&routed->filled, rel);
	MemoryContext save;

	if (table == NULL)
		return;
	save = MemoryContextSwitchTo(routed->filled.context);
	table->growth.ring = GetAccessStrategy(BAS_BULKWRITE);
	MemoryContextSwitchTo(save);
}

/*
 * Look whether one more partition is in use, from the last one on: where they
 * follow one another in time that is the one.
 *
 * The lock alone does not say so.  The transaction may have it from before, and
 * may do with the partition what it likes as long as nobody has it open.
 */
static void
la_routed_find(LaRouted *routed)
{
	Oid			partition;
	LOCKTAG		tag;
	Relation	rel;

	if (routed->next == 0)
		routed->next = routed->nunused;
	partition = routed->unused[--routed->next];
	SET_LOCKTAG_RELATION(tag, MyDatabaseId, partition);
	if (!la_lock_is_held(&tag, RowExclusiveLock))
		return;
	rel = try_relation_open(partition, NoLock);
	if (rel && rel->rd_refcnt == 1)
	{
		relation_close(rel, NoLock);
		return;
	}
	/* Those behind it have been looked at in this turn. */
	routed->unused[routed->next] = routed->unused[--routed->nunused];
	if (rel == NULL)
		return;
	if (rel->rd_rel->relkind == RELKIND_PARTITIONED_TABLE)
	{
		la_routed_note(routed, rel);
		relation_close(rel, NoLock);
	}
	else
		la_routed_watch(routed, rel);
}

/*
 * TableAmRoutine.slot_callbacks of the partitioned table: says it once.
 */
static const TupleTableSlotOps *
la_routed_slot_callbacks(Relation root)
{
	root->rd_tableam = NULL;
	return &la_routed_ops;
}

/*
 * TupleTableSlotOps.init
 */
static void
la_routed_init(TupleTableSlot *slot)
{
	TTSOpsVirtual.init(slot);
	if (la_routeds && la_routeds->slot == NULL)
		la_routeds->slot = slot;
}

/*
 * TupleTableSlotOps.clear: a row is done with.
 */
static void
la_routed_clear(TupleTableSlot *slot)
{
	LaRouted   *routed = la_routeds;

	TTSOpsVirtual.clear(slot);
	if (routed == NULL || routed->slot != slot)
		return;
	la_tables_look(&routed->filled);
	if (routed->filled.rows % LA_UNUSED_ROWS != 0)
		return;
	for (int i = 0; i < LA_UNUSED_LOOKS && routed->nunused > 0; i++)
		la_routed_find(routed);
}

/*
 * A COPY into a partitioned table begins, which is open and locked.  The caller
 * sees to it that la_routed_end() is called, whatever happens.
 */
LaRouted *
la_routed_begin(Oid relid)
{
	Relation	root = relation_open(relid, NoLock);
	MemoryContext context;
	MemoryContext save;
	LaRouted   *routed;

	if (la_routed_am.type != T_TableAmRoutine)
	{
		memcpy(&la_routed_ops, &TTSOpsVirtual, sizeof(la_routed_ops));
		la_routed_ops.init = la_routed_init;
		la_routed_ops.clear = la_routed_clear;
		la_routed_am.slot_callbacks = la_routed_slot_callbacks;
		la_routed_am.type = T_TableAmRoutine;
	}

	context = AllocSetContextCreate(CurTransactionContext,
									"pg_lookahead COPY into partitions",
									ALLOCSET_SMALL_SIZES);
	save = MemoryContextSwitchTo(context);
	routed = palloc0(sizeof(LaRouted));
	routed->root = root;
	routed->filled.context = context;
	routed->filled.keeps_none = true;
	la_routed_note(routed, root);
	MemoryContextSwitchTo(save);
	if (root->rd_tableam == NULL)
		root->rd_tableam = &la_routed_am;
	routed->outer = la_routeds;
	la_routeds = routed;
	return routed;
}

/*
 * It ends.  After an error the reference goes with its owner.
 */
void
la_routed_end(LaRouted *routed, bool is_good)
{
	Assert(la_routeds == routed);
	la_routeds = routed->outer;
	if (routed->root->rd_tableam == &la_routed_am)
		routed->root->rd_tableam = NULL;
	if (is_good)
		relation_close(routed->root, NoLock);
	MemoryContextDelete(routed->filled.context);
}
