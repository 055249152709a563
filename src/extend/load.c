/*-------------------------------------------------------------------------
 *
 * load.c
 *	  Space for statements that insert with a state of their own.
 *
 * These are COPY FROM, CREATE TABLE AS, SELECT INTO and materialized views.
 * Their insert state says which page they fill, and from 16 on which further
 * pages they have for themselves (next_free to last_free).  It is private to
 * the statement and is seen only by the table's access method.  So for the time
 * of the statement we stand between the table and heap (hook/heap_am.c), look
 * at the insert state, make space if it is about to run out, and call heap.  If
 * we are sent away (a trigger scans the table) the rest of the load goes on
 * without us; which of the pages that it had then are still empty at the end,
 * the pages tell.
 *
 * Where the pages go:
 *
 *	16 on		into the insert state, as pages that the statement has for
 *				itself.  It is the road that the server's own larger
 *				extensions take, and works for tables without free space map
 *				(created in this transaction) as well.  At the end what is
 *				left goes into the free space map.  As long as it has such
 *				pages the server does not ask that map.  So now and then we
 *				do, and if the table has room elsewhere they are used up
 *				first.
 *	15			into the free space map, as for other inserts.  A table created
 *				in this transaction is not loaded through it.  There we keep the
 *				pages, and make the next one the page that the insert state
 *				fills when a row does not fit any more.  COPY with many rows at
 *				a time cannot be helped in this way, and is left alone.
 *
 * What a load keeps and does not use goes into the free space map at its end,
 * but is lost to that until VACUUM comes if the load fails.  So it never has
 * more than it has filled, or LA_BATCH_BLOCKS more as soon as it has fewer.
 *
 * A load of a table that was created or emptied in this transaction does not
 * ask the map, so it would leave behind what one before it has put there, and
 * many such loads would make a table of mostly empty pages.  So it begins with
 * empty pages that the map knows at the end of the table, whoever put them
 * there, and these are taken out of the map meanwhile:
 *
 *		first COPY		fills .. 1000, has 1001 .. 1016 left: into the map
 *		second COPY		goes on with 1000, as always
 *						takes 1001 .. 1016 from the map, fills .. 1003
 *						1004 .. 1016 into the map
 *
 * Nobody else can see such a table, or has it locked.  That a page is still
 * empty heap sees for itself, when it has locked it.
 *
 * Copyright (c) 2026, the pg_lookahead authors
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/heapam.h"
#include "access/heaptoast.h"
#include "access/hio.h"
#include "access/relation.h"
#include "access/tableam.h"
#include "compat.h"
#include "extend/load.h"
#include "extend/wal_ahead.h"
#include "hook/heap_am.h"
#include "settings.h"
#include "window/guard.h"
#include "window/waits.h"

/*
 * Pages that one call of multi_insert fills at least: it brings up to 64 kB of
 * rows as they were read, which may be more on the page.
 */
#define LA_BATCH_BLOCKS		16

/* Part of a table that the pages of all loads of it may be. */
#define LA_EIGHTH			8

/* Calls between two looks for a TOAST table in use. */
#define LA_TOAST_TURNS		16

/*
 * Those who write to a table are counted again after LA_COUNT_NS, or when it
 * has grown by LA_LOAD_MAX_BLOCKS, but not before LA_COUNT_LEAST_NS.  A session
 * remembers the number of so many tables.
 */
#define LA_COUNT_NS			INT64CONST(1000000000)
#define LA_COUNT_LEAST_NS	INT64CONST(100000000)
#define LA_COUNTED_TABLES	8

static LaLoad *la_loads = NULL; /* the innermost first */

/*
 * The load that a row is of, which is inserted with some insert state; NULL if
 * it is of none.  While the rows of a load are being inserted it is the
 * innermost.  A trigger may fill the table as well, by a statement that is no
 * load of ours: that has an insert state of its own.
 */
LaLoad *
la_load_of(Relation rel, BulkInsertState bistate)
{
	LaLoad	   *load = la_loads;

	if (load == NULL || load->rel != rel)
		return NULL;
	if (load->bistate == NULL)
		load->bistate = bistate;
	return load->bistate == bistate ? load : NULL;
}

/*
 * Open the table for large values, once one was stored there.
 */
static void
la_load_open_toast(LaLoad *load)
{
	ResourceOwner save = CurrentResourceOwner;

	if (load->toast_turn++ % LA_TOAST_TURNS != 0 ||
		!la_toast_is_used(load->toast_oid))
		return;
	/* As the table itself: whoever closes it must be who has opened it. */
	CurrentResourceOwner = load->owner;
	load->toast = relation_open(load->toast_oid, NoLock);
	CurrentResourceOwner = save;
}

/*
 * Look at the table for large values.  They go there through its free space
 * map; who does not use that would not find the pages.
 */
static void
la_load_toast(LaLoad *load, int options)
{
	BlockNumber target;

	if (!OidIsValid(load->toast_oid) || (options & HEAP_INSERT_SKIP_FSM))
		return;
	if (load->toast == NULL)
		la_load_open_toast(load);
	if (load->toast == NULL)
		return;
	target = RelationGetTargetBlock(load->toast);
	if (target == load->toast_seen || target == InvalidBlockNumber)
		return;
	load->toast_seen = target;
	la_heap_filled(load->toast, target, &load->toast_growth);
}

/*
 * Does the statement use pages that were added for it, so that it will need
 * more of them?  Those are pages that we have made, and a last page that was
 * not there when we looked before.
 */
static bool
la_is_at_end(const LaLoad *load, BlockNumber target, BlockNumber nblocks)
{
	if (target >= load->pool_first && target <= load->pool_last)
		return true;
	return target + 1 == nblocks && load->growth.size != InvalidBlockNumber &&
		nblocks > load->growth.size;
}

/*
 * The load keeps pages, in front of which it may have some already: count them.
 */
static void
la_load_keep(LaLoad *load, BlockNumber first, const LaSpace *space)
{
	load->added += space->npages;
	load->pool_first = first;
	load->pool_last = space->first + space->npages - 1;
}

/*
 * How many pages more may a load get that has "left" still, if its table may
 * grow by "step"?  It is to have no more than it has filled, but
 * LA_BATCH_BLOCKS more as soon as it has fewer.
 */
static uint32
la_load_portion(const LaLoad *load, uint32 step, uint32 left)
{
	/* The server may have given it some, too. */
	uint32		filled = load->added - Min(load->added, left);
	uint32		most = Min(Min(step, LA_LOAD_MAX_BLOCKS), filled);

	return step == 0 ? 0 : Max(most, left + LA_BATCH_BLOCKS) - left;
}

/*
 * For a load that does not look into the free space map: take empty pages that
 * the map knows at the end of the table, from page "first" on; if that is
 * invalid, from where they begin.  As many as would be added: most loads of
 * such a kind are small.  The load has "left" of its own.
 */
static bool
la_load_take(LaLoad *load, BlockNumber nblocks, BlockNumber first,
			 uint32 left, LaSpace *space)
{
	uint32		most = la_load_portion(load, LA_LOAD_MAX_BLOCKS, left);

	if (nblocks == InvalidBlockNumber || nblocks < LA_EXTEND_MIN_TABLE ||
		!la_space_take(load->rel, nblocks, first, most, space))
		return false;
	load->taken_end = space->first + space->npages;
	/* Nobody has filled them before. */
	load->filled.first_new = Min(load->filled.first_new, space->first);
	return true;
}

/*
 * What the load has not used is for everybody.
 */
static void
la_load_return(LaLoad *load, BlockNumber first, BlockNumber last,
			   bool may_be_used)
{
	la_space_return(load->rel, first, last, may_be_used, load->taken_end);
}

#if LA_HAVE_EXTEND_BY

/*
 * Pages that the statement has for itself and has not begun.
 */
static uint32
la_pages_left(const BulkInsertStateData *bistate)
{
	return bistate->next_free == InvalidBlockNumber ? 0 :
		bistate->last_free - bistate->next_free + 1;
}

/*
 * Write out what has been filled, if the ring of buffers is nearly full of it.
 */
static void
la_load_write(LaLoad *load, BulkInsertState bistate)
{
	BlockNumber target = BufferGetBlockNumber(bistate->current_buf);

	if (target == load->noted)
		return;
	load->noted = target;
	la_filled_note(&load->filled, target, bistate->strategy);
	la_filled_write(&load->filled, load->rel, la_pages_left(bistate));
}

typedef struct LaCountCall
{
	Relation	rel;
	int			beside;
} LaCountCall;

static void
la_count_body(void *arg)
{
	LaCountCall *call = arg;
	const LockRelId *id = &call->rel->rd_lockInfo.lockRelId;
	LOCKTAG		tag;

	SET_LOCKTAG_RELATION(tag, id->dbId, id->relId);
	pfree(GetLockConflicts(&tag, ShareLock, &call->beside));
}

/*
 * How many others have a table of nblocks locked to write, or had lately?
 */
static int
la_count_beside(Relation rel, BlockNumber nblocks)
{
	static struct
	{
		Oid			relid;
		BlockNumber nblocks;
		int			beside;
		int64		at_ns;
	}			counts[LA_COUNTED_TABLES];
	const Oid	relid = RelationGetRelid(rel);
	const int	place = relid % LA_COUNTED_TABLES;
	int64		now = la_wall_ns();
	int64		age = now - counts[place].at_ns;
	LaCountCall call = {.rel = rel};

	if (counts[place].relid == relid &&
		(age < LA_COUNT_LEAST_NS ||
		 (age < LA_COUNT_NS &&
		  nblocks < counts[place].nblocks + LA_LOAD_MAX_BLOCKS)))
		return counts[place].beside;
	if (!la_guard_run_once(la_count_body, &call))
		la_space_failed();
	counts[place].beside = call.beside;
	counts[place].relid = relid;
	counts[place].nblocks = nblocks;
	counts[place].at_ns = now;
	return counts[place].beside;
}

/*
 * By how many pages may a load let its table of nblocks grow?  Others may be
 * loading it, too, and each keeps its pages to itself: the step is for all who
 * have the table locked to write.  Each gets LA_BATCH_BLOCKS at least, as long
 * as that is an eighth of the table for all of them; with those that are left
 * of the ones before it may have nearly twice as many for a while.
 *
 * They are counted seldom, also by a session of many small loads: it takes a
 * lock of every process of the server.
 */
static uint32
la_load_step(LaLoad *load, BlockNumber nblocks)
{
	uint32		step = la_extend_step(nblocks);
	uint32		sharing;

	if (step == 0 || load->rel->rd_createSubid != InvalidSubTransactionId)
		return step;
	sharing = 1 + la_count_beside(load->rel, nblocks);
	step /= sharing;
	if (step >= LA_BATCH_BLOCKS)
		return step;
	return nblocks / LA_EIGHTH >= LA_BATCH_BLOCKS * sharing ?
		LA_BATCH_BLOCKS : 0;
}

/*
 * Give the insert state pages that follow on those that it has, if any.
 */
static void
la_load_give(LaLoad *load, BulkInsertState bistate, const LaSpace *space)
{
	if (bistate->next_free == InvalidBlockNumber)
		bistate->next_free = space->first;
	bistate->last_free = space->first + space->npages - 1;
	la_load_keep(load, bistate->next_free, space);
}

/*
 * A load begins that does not look into the free space map.
 */
static void
la_load_resume(LaLoad *load, BulkInsertState bistate)
{
	Relation	rel = load->rel;
	LaSpace		space;

	if (!la_load_take(load, la_heap_size(rel), InvalidBlockNumber, 0, &space))
		return;
	la_load_give(load, bistate, &space);
	/* Who knows of no page begins with the last one, which is one of these. */
	if (RelationGetTargetBlock(rel) == InvalidBlockNumber && space.first > 0)
		RelationSetTargetBlock(rel, space.first - 1);
}

/*
 * Add pages to the table, of nblocks, which ends with those that the insert
 * state has, or fills.  Before the page that it fills now it filled "before".
 */
static void
la_load_add(LaLoad *load, BulkInsertState bistate, BlockNumber nblocks,
			BlockNumber before, bool use_fsm)
{
	uint32		left = la_pages_left(bistate);
	uint32		step;
	LaSpaceWhen when = LA_ALWAYS;
	LaSpace		space;

	if (load->refused != InvalidBlockNumber &&
		nblocks < load->refused + LA_BATCH_BLOCKS)
		return;
	step = la_load_step(load, nblocks);
	if (step == 0)
	{
		load->refused = nblocks;
		return;
	}
	if (use_fsm && left == 0)
		when = LA_IF_FULL;
	else if (use_fsm && load->added - load->asked >= la_extend_step(nblocks))
		when = LA_IF_NO_ROOM;

	if (!la_space_add(load->rel, nblocks, &(LaSpaceRequest)
					  {.npages = la_load_portion(load, step, left),
					  .ring = bistate->strategy,
					  .when = when,
					  .left = before,
					  .keep = true}, &space))
	{
		if (when != LA_ALWAYS && !space.busy)
			load->refused = nblocks;
		return;
	}
	load->refused = InvalidBlockNumber;
	if (when != LA_ALWAYS)
		load->asked = load->added;
	if (left > 0 && space.first != bistate->last_free + 1)
	{
		/* Somebody came between.  What we had is for everybody. */
		la_load_return(load, bistate->next_free, bistate->last_free, false);
		bistate->next_free = InvalidBlockNumber;
	}
	la_load_give(load, bistate, &space);
}

/*
 * Give the insert state more pages if it has few, and clean buffers for them.
 */
static void
la_load_feed(LaLoad *load, BulkInsertState bistate, bool use_fsm)
{
	Relation	rel = load->rel;
	BlockNumber target;
	BlockNumber before = load->seen;
	BlockNumber nblocks;
	BlockNumber after;
	uint32		left = la_pages_left(bistate);
	bool		at_end;
	LaSpace		space;

	if (bistate->current_buf != InvalidBuffer)
		la_load_write(load, bistate);
	if (left == 0 && load->next_free != InvalidBlockNumber)
	{
		/* It has forgotten them.  They are for everybody, then. */
		la_load_return(load, load->next_free, load->last_free, false);
		load->next_free = load->last_free = InvalidBlockNumber;
	}
	if (left == 0 && bistate->current_buf == InvalidBuffer && !use_fsm)
		la_load_resume(load, bistate);
	if (left >= LA_BATCH_BLOCKS || bistate->current_buf == InvalidBuffer)
		return;
	target = BufferGetBlockNumber(bistate->current_buf);
	if (target == load->seen)
		return;
	load->seen = target;
	if (left > 0 && bistate->last_free == load->overtaken)
		return;					/* wait until they are used */

	if (left == 0 && load->growth.size != InvalidBlockNumber &&
		target < load->growth.size &&
		(target < load->pool_first || target > load->pool_last))
		return;					/* it fills pages that were there before */

	nblocks = la_heap_size(rel);
	if (nblocks == InvalidBlockNumber)
		return;
	at_end = left > 0 || la_is_at_end(load, target, nblocks);
	load->growth.size = nblocks;
	if (!at_end)
		return;
	after = left > 0 ? bistate->last_free + 1 : target + 1;
	if (after != nblocks && !use_fsm &&
		la_load_take(load, nblocks, left > 0 ? after : InvalidBlockNumber,
					 left, &space))
		la_load_give(load, bistate, &space);
	else if (after != nblocks && left > 0)
	{
		/* It stays so: the size is not asked for at each of them. */
		load->overtaken = bistate->last_free;
	}
	else
		la_load_add(load, bistate, nblocks, before, use_fsm);
}

static void
la_load_remember(LaLoad *load, BulkInsertState bistate)
{
	load->next_free = bistate->next_free;
	load->last_free = bistate->last_free;
}

/*
 * Heap's tuple_insert takes pages from the insert state by itself.
 */
static void
la_insert_one(LaLoad *load, TupleTableSlot *slot, CommandId cid, int options,
			  BulkInsertState bistate)
{
	Relation	rel = load->rel;

	la_load_feed(load, bistate, !(options & HEAP_INSERT_SKIP_FSM));
	GetHeapamTableAmRoutine()->tuple_insert(rel, slot, cid, options, bistate);
	la_load_remember(load, bistate);
}

#else

static void
la_load_feed(LaLoad *load, BulkInsertState bistate, bool use_fsm)
{
	BlockNumber target;

	if (!use_fsm || bistate->current_buf == InvalidBuffer)
		return;
	target = BufferGetBlockNumber(bistate->current_buf);
	if (target == load->seen)
		return;
	load->seen = target;
	load->growth.ring = bistate->strategy;
	la_heap_filled(load->rel, target, &load->growth);
}

static void
la_load_remember(LaLoad *load, BulkInsertState bistate)
{
}

typedef struct LaTurn
{
	LaLoad	   *load;
	BufferAccessStrategy ring;
	BlockNumber block;
	Buffer		buffer;			/* pinned for the owner of the guard */
} LaTurn;

static void
la_turn_body(void *arg)
{
	LaTurn	   *turn = arg;

	turn->buffer = ReadBufferExtended(turn->load->rel, MAIN_FORKNUM,
									  turn->block, RBM_NORMAL, turn->ring);
}

/*
 * Make a page the one that the insert state fills.  It may have to be read: if
 * that fails we return false.
 */
static bool
la_load_go_to(LaLoad *load, BulkInsertState bistate, BlockNumber block)
{
	LaTurn		turn = {
		.load = load,
		.ring = bistate->strategy,
		.block = block,
	};
	ResourceOwner owner = la_guard_owner_create();

	if (!la_guard_run(owner, la_turn_body, &turn))
	{
		la_space_failed();
		return false;
	}
	IncrBufferRefCount(turn.buffer);
	LA_WITH_OWNER(owner, ReleaseBuffer(turn.buffer));
	la_guard_owner_free(owner, true);

	if (bistate->current_buf != InvalidBuffer)
		ReleaseBuffer(bistate->current_buf);
	bistate->current_buf = turn.buffer;
	return true;
}

/*
 * The first of the load's pages is none of those that are left.
 */
static void
la_load_begin_next(LaLoad *load)
{
	if (load->next_free < load->last_free)
		load->next_free++;
	else
		load->next_free = InvalidBlockNumber;
}

/*
 * Make the next of the load's pages the one that the insert state fills.  It
 * may have left shared buffers.  If it cannot be read again it is left to
 * VACUUM, those behind it are for everybody, and the server makes a page, as it
 * would have without us.
 */
static void
la_load_turn(LaLoad *load, BulkInsertState bistate)
{
	BlockNumber next = load->next_free;

	if (!la_guard_is_possible())
		return;
	la_load_begin_next(load);
	if (!la_load_go_to(load, bistate, next) &&
		load->next_free != InvalidBlockNumber)
	{
		la_load_return(load, load->next_free, load->last_free, false);
		load->next_free = InvalidBlockNumber;
	}
}

/*
 * The first row of a load is about to come.  If the table ends with empty pages
 * these are the load's, and the insert state fills what the server would fill
 * now: the target page, or the last one that is not empty.  It needs the page
 * already, so that we see whether the row has room there before the server
 * looks.  Returns whether it has it.
 */
static bool
la_load_resume(LaLoad *load, BulkInsertState bistate)
{
	Relation	rel = load->rel;
	BlockNumber target = RelationGetTargetBlock(rel);
	LaSpace		space;

	if (load->next_free != InvalidBlockNumber ||
		!la_load_take(load, la_heap_size(rel), InvalidBlockNumber, 0, &space))
		return false;
	load->next_free = space.first;
	load->last_free = space.first + space.npages - 1;
	la_load_keep(load, space.first, &space);
	if (target == InvalidBlockNumber)
		target = space.first > 0 ? space.first - 1 : 0;
	if (!la_load_go_to(load, bistate, target))
	{
		la_load_return(load, load->next_free, load->last_free, false);
		load->next_free = InvalidBlockNumber;
		return false;
	}
	/* It has no row yet, or the table has none. */
	if (target == load->next_free)
		la_load_begin_next(load);
	return true;
}

/*
 * The load has begun a page, and has no further ones.  If that page was added
 * for it, by us or by the server, it gets some.
 */
static void
la_load_more(LaLoad *load, BulkInsertState bistate, BlockNumber target)
{
	BlockNumber nblocks = la_heap_size(load->rel);
	bool		at_end = la_is_at_end(load, target, nblocks);
	uint32		step;
	LaSpace		space;

	load->seen = target;
	load->growth.size = nblocks;
	if (nblocks == InvalidBlockNumber || !at_end)
		return;
	step = la_extend_step(nblocks);
	if (target + 1 < nblocks ?
		!la_load_take(load, nblocks, InvalidBlockNumber, 0, &space) :
		!la_space_add(load->rel, nblocks, &(LaSpaceRequest)
					  {.npages = la_load_portion(load, step, 0),
					  .ring = bistate->strategy,
					  .when = LA_ALWAYS,
					  .left = InvalidBlockNumber,
					  .keep = true}, &space))
		return;
	load->next_free = space.first;
	load->last_free = space.first + space.npages - 1;
	la_load_keep(load, space.first, &space);
}

/*
 * A row of this length is about to come to a table that only this transaction
 * knows.  If the page in hand has no room for it, turn to a page that we have
 * made, before the server makes one.
 *
 * The server looks again.  If it sees things differently (a large value that
 * will be stored elsewhere) it makes a page, and ours is used next.
 */
static void
la_load_room(LaLoad *load, BulkInsertState bistate, Size length)
{
	Relation	rel = load->rel;
	BlockNumber target;
	Size		wanted;

	if (bistate->current_buf == InvalidBuffer &&
		!la_load_resume(load, bistate))
		return;
	target = BufferGetBlockNumber(bistate->current_buf);
	if (load->next_free == InvalidBlockNumber && target != load->seen)
		la_load_more(load, bistate, target);
	if (load->next_free == InvalidBlockNumber ||
		length > TOAST_TUPLE_THRESHOLD)
		return;
	wanted = MAXALIGN(length) +
		RelationGetTargetPageFreeSpace(rel, HEAP_DEFAULT_FILLFACTOR);
	if (PageGetHeapFreeSpace(BufferGetPage(bistate->current_buf)) < wanted)
		la_load_turn(load, bistate);
}

/*
 * What heap's tuple_insert does, but with a look at the row's length.
 */
static void
la_insert_one(LaLoad *load, TupleTableSlot *slot, CommandId cid, int options,
			  BulkInsertState bistate)
{
	Relation	rel = load->rel;
	bool		is_copy;
	HeapTuple	tuple;

	if (!(options & HEAP_INSERT_SKIP_FSM))
	{
		la_load_feed(load, bistate, true);
		GetHeapamTableAmRoutine()->tuple_insert(rel, slot, cid, options,
												bistate);
		return;
	}

	tuple = ExecFetchSlotHeapTuple(slot, true, &is_copy);
	slot->tts_tableOid = RelationGetRelid(rel);
	tuple->t_tableOid = slot->tts_tableOid;
	la_load_room(load, bistate, tuple->t_len);
	heap_insert(rel, tuple, cid, options, bistate);
	ItemPointerCopy(&tuple->t_self, &slot->tts_tid);
	if (is_copy)
		pfree(tuple);
}

#endif

/*
 * tuple_insert of a load.
 */
void
la_load_insert(LaLoad *load, TupleTableSlot *slot, CommandId cid, int options,
			   BulkInsertState bistate)
{
	la_wal_ahead();
	la_load_toast(load, options);
	la_insert_one(load, slot, cid, options, bistate);
}

/*
 * multi_insert of a load.
 */
void
la_load_multi_insert(LaLoad *load, TupleTableSlot **slots, int nslots,
					 CommandId cid, int options, BulkInsertState bistate)
{
	la_wal_ahead();
	la_load_toast(load, options);
	la_load_feed(load, bistate, !(options & HEAP_INSERT_SKIP_FSM));
	GetHeapamTableAmRoutine()->multi_insert(load->rel, slots, nslots, cid,
											options, bistate);
	la_load_remember(load, bistate);
}

/*
 * A load begins.  The caller sees to it that la_load_end() is called, whatever
 * happens.
 */
void
la_load_begin(LaLoad *load)
{
	memset(load, 0, sizeof(*load));
	load->seen = load->noted = load->toast_seen = InvalidBlockNumber;
	la_growth_init(&load->growth);
	la_growth_init(&load->toast_growth);
	load->pool_first = load->pool_last = InvalidBlockNumber;
	load->next_free = load->last_free = InvalidBlockNumber;
	load->overtaken = load->refused = InvalidBlockNumber;
	load->outer = la_loads;
	la_loads = load;
}

/*
 * The table that is being loaded is known.  It is open and locked for inserts,
 * and stays locked until the end of the transaction.
 */
void
la_load_attach(LaLoad *load, Oid relid)
{
	Relation	rel;

	if (load->rel)
		return;
	rel = relation_open(relid, NoLock);
	if (!la_extend_wanted(rel))
	{
		relation_close(rel, NoLock);
		return;
	}
	load->toast_oid = rel->rd_rel->reltoastrelid;
	load->owner = CurrentResourceOwner;
	/* If it is not known, what is filled is not written several at a time. */
	load->filled.first_new = la_guard_size(rel);
	if (load->filled.first_new == InvalidBlockNumber && la_guard_is_possible())
		la_space_failed();
	load->filled.context = CurTransactionContext;
	load->has_attached = la_heap_am_attach(rel);
	load->rel = rel;
}

/*
 * A load ends.  If it ends well, pages that it has not used are for everybody.
 */
void
la_load_end(LaLoad *load, bool is_good)
{
	Relation	rel = load->rel;
	bool		is_known;

	Assert(la_loads == load);
	la_loads = load->outer;
	if (load->routed)
		la_routed_end(load->routed, is_good);
	if (rel == NULL)
		return;

	/*
	 * From 16 on the server takes pages from what is kept here, also when a
	 * scan, or an invalidation, has detached us.
	 */
	is_known = !LA_HAVE_EXTEND_BY || la_heap_am_is_attached(rel);
	if (load->has_attached)
		la_heap_am_detach(rel);
	if (!is_good)
		return;					/* the reference goes with its owner */
	if (load->next_free != InvalidBlockNumber)
		la_load_return(load, load->next_free, load->last_free, !is_known);
	if (load->toast)
		relation_close(load->toast, NoLock);
	la_filled_free(&load->filled);
	relation_close(rel, NoLock);
}
