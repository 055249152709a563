/*-------------------------------------------------------------------------
 *
 * spare.c
 *	  Pages that were added and not yet used, and the planner.
 *
 * The planner takes the pages of a table as a measure of its rows.  Empty pages
 * at the end that we have added must not count, or plans would change, if only
 * of tables that have not been analyzed since.  So their number is taken off
 * what the planner has been told:
 *
 *		pages	0 .. 8191 filled, 8192 .. 8703 spare
 *		server	8704 pages, of 80 rows			696,320 rows
 *		here	less 512 pages					655,360 rows
 *
 * VACUUM and ANALYZE count rows, and write down for how many pages that was.
 * Of those pages none is taken off: that they are empty is in the numbers.
 *
 * How it is known.  Who adds pages leaves a note, one word in shared memory:
 * the table and its last page.  If there is one of a table that is being
 * planned, and the table still ends with that page, the free space map is asked
 * how many of the last pages are empty.  What it said holds for LA_SPARE_US: a
 * table that grows has such a note nearly always, and many queries of it are
 * planned.  Without a note nothing is looked at; when nothing is spare any more
 * the note is removed.  Tables share places for notes, so one may get lost, and
 * with the library loaded into single sessions only those know of theirs; then
 * the planner counts the empty pages, as it does those that the server itself
 * adds for many sessions.
 *
 * A second note, of the same kind, says where a table that is being filled
 * ends, with the pages of the server too: see la_keep_ahead().
 *
 * Copyright (c) 2026, the pg_lookahead authors
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include <math.h>

#include "access/relation.h"
#include "catalog/pg_class.h"
#include "common/hashfn.h"
#include "compat.h"
#include "extend/extend.h"
#include "fmgr.h"
#include "miscadmin.h"
#include "port/atomics.h"
#include "portability/instr_time.h"
#include "settings.h"
#include "storage/bufpage.h"
#include "storage/freespace.h"
#include "storage/lmgr.h"
#include "storage/shmem.h"
#include "window/guard.h"

PG_FUNCTION_INFO_V1(pg_lookahead_unused_pages);

/* Pages that may be in use though the map says that they are empty. */
#define LA_MAX_LOOKS	32

/* Microseconds for which the planner goes by what the free space map said. */
#define LA_SPARE_US		10000

/* Tables of which this process knows for so long what it has said. */
#define LA_SPARE_KNOWN	64

/* Places for notes. */
#define LA_NOTES	256

/*
 * The last page in the lower half; 0: no note.  In the upper half the table of
 * "added", which is all that the planner's hook is told of it, and the file of
 * "ends".
 */
typedef struct LaNotes
{
	pg_atomic_uint64 added[LA_NOTES];	/* by us */
	pg_atomic_uint64 ends[LA_NOTES];	/* by anybody */
} LaNotes;

static LaNotes *la_notes = NULL;
static LaNotes la_own_notes;

Size
la_spare_shmem_size(void)
{
	return sizeof(LaNotes);
}

static void
la_notes_init(LaNotes *notes)
{
	for (int i = 0; i < LA_NOTES; i++)
	{
		pg_atomic_init_u64(&notes->added[i], 0);
		pg_atomic_init_u64(&notes->ends[i], 0);
	}
}

/*
 * Take notes there; they are empty if the memory is new.
 */
void
la_spare_shmem_attach(void *area, bool is_new)
{
	la_notes = area;
	if (is_new)
		la_notes_init(la_notes);
}

/*
 * The notes, which are our own if there is no shared memory for them.
 */
static LaNotes *
la_notes_there(void)
{
	if (la_notes == NULL)
	{
		la_notes = &la_own_notes;
		la_notes_init(la_notes);
	}
	return la_notes;
}

/*
 * What stands for a table, or a file, in a note.  Databases made from one
 * template have some of the same number.
 */
static inline uint32
la_note_key(Oid number)
{
	static uint32 database = 0;

	if (unlikely(database == 0))
		database = hash_bytes_uint32(MyDatabaseId);
	return (uint32) number ^ database;
}

static inline uint64
la_note(uint32 key, BlockNumber last)
{
	return (uint64) key << 32 | last;
}

static inline pg_atomic_uint64 *
la_note_of(uint32 table)
{
	return &la_notes_there()->added[table % LA_NOTES];
}

static pg_atomic_uint64 *
la_end_of(uint32 file)
{
	return &la_notes_there()->ends[file % LA_NOTES];
}

/*
 * The table that the planner will know a file by.  To refresh a materialized
 * view the server fills a table that it names after the view's number, and then
 * has the two exchange their files.
 */
static Oid
la_note_table(Relation rel)
{
	const char *name = RelationGetRelationName(rel);
	unsigned int other;

	if (sscanf(name, "pg_temp_%u", &other) == 1)
		return (Oid) other;
	return RelationGetRelid(rel);
}

/*
 * Note that we have added this page, as the last one.
 */
void
la_spare_note(Relation rel, BlockNumber last)
{
	uint32		table = la_note_key(la_note_table(rel));
	uint32		file = la_note_key(rel->rd_rel->relfilenode);

	pg_atomic_write_u64(la_note_of(table), la_note(table, last));
	pg_atomic_write_u64(la_end_of(file), la_note(file, last));
}

/*
 * Note that a table ends with this page.  Who has looked at it earlier, and
 * comes later, changes nothing.
 */
void
la_spare_note_end(Relation rel, BlockNumber last)
{
	uint32		file = la_note_key(rel->rd_rel->relfilenode);
	pg_atomic_uint64 *place = la_end_of(file);
	uint64		note = la_note(file, last);
	uint64		there = pg_atomic_read_u64(place);

	while ((there >> 32 != note >> 32 || there < note) &&
		   !pg_atomic_compare_exchange_u64(place, &there, note))
		 /* there has what is there now */ ;
}

/*
 * The last page of a table that is being filled, or InvalidBlockNumber if there
 * is no note of it.  Others may have been added since.
 */
BlockNumber
la_spare_end(Relation rel)
{
	uint32		file = la_note_key(rel->rd_rel->relfilenode);
	uint64		note = pg_atomic_read_u64(la_end_of(file));

	if (note >> 32 != file)
		return InvalidBlockNumber;
	return (BlockNumber) note;
}

/*
 * Does a page have rows?  Raises errors.
 */
bool
la_page_is_in_use(Relation rel, BlockNumber block)
{
	Buffer		buffer = ReadBuffer(rel, block);
	Page		page = BufferGetPage(buffer);
	bool		is_in_use;

	LockBuffer(buffer, BUFFER_LOCK_SHARE);
	is_in_use = !PageIsNew(page) && !PageIsEmpty(page);
	UnlockReleaseBuffer(buffer);
	return is_in_use;
}

static bool
la_is_empty(Relation rel, BlockNumber block)
{
	return GetRecordedFreeSpace(rel, block) >= LA_EMPTY_SPACE;
}

/*
 * The free space map does not know yet of a page that is being filled.  So look
 * at the first of n pages at the end; returns how many are left.
 */
static BlockNumber
la_without_used(Relation rel, BlockNumber nblocks, BlockNumber n)
{
	for (int i = 0; i < LA_MAX_LOOKS && n > 0; i++)
	{
		if (!la_page_is_in_use(rel, nblocks - n))
			break;
		n--;
	}
	return n;
}

/*
 * Find out how many of the last "limit" pages are spare.  They are filled from
 * the front on, more or less, so a binary search comes close enough.
 */
static BlockNumber
la_spare_estimate(Relation rel, BlockNumber nblocks, BlockNumber limit)
{
	BlockNumber low = 0;		/* so many are spare */
	BlockNumber high = limit;	/* not more */

	while (low < high)
	{
		BlockNumber n = low + (high - low + 1) / 2;

		if (la_is_empty(rel, nblocks - n))
			low = n;
		else
			high = n - 1;
	}
	return la_without_used(rel, nblocks, low);
}

/*
 * How many of the last pages of a table does the free space map know to be
 * empty?  None if the last one is not.  Raises errors.
 */
BlockNumber
la_spare_pages(Relation rel, BlockNumber nblocks)
{
	if (nblocks == 0 || !la_is_empty(rel, nblocks - 1))
		return 0;
	return la_spare_estimate(rel, nblocks,
							 Min(nblocks, LA_MAX_HEAP_EXTEND_SIZE));
}

/* What was found when note and pg_class.relpages were these. */
static struct
{
	uint64		note;
	BlockNumber analyzed;
	BlockNumber spare;
	uint64		until_us;
}			la_known[LA_SPARE_KNOWN];

typedef struct LaSpareLook
{
	Relation	rel;
	BlockNumber nblocks;
	BlockNumber limit;
	BlockNumber spare;
} LaSpareLook;

static void
la_spare_body(void *arg)
{
	LaSpareLook *look = arg;

	look->spare = la_spare_estimate(look->rel, look->nblocks, look->limit);
}

/*
 * Take pages off what the planner has been told of a table, and off its
 * indexes, which have as many entries as it has rows.
 */
static void
la_spare_take_off(RelOptInfo *info, BlockNumber spare)
{
	double		part = (double) (info->pages - spare) / info->pages;
	ListCell   *lc;

	info->tuples = rint(info->tuples * part);
	info->allvisfrac = Min(1.0, info->allvisfrac / part);
	info->pages -= spare;
	foreach(lc, info->indexlist)
	{
		IndexOptInfo *index = lfirst_node(IndexOptInfo, lc);

		index->tuples = Min(index->tuples, info->tuples);
	}
}

/*
 * How many pages of a table of which there is a note are spare?
 */
static BlockNumber
la_spare_look(Relation rel, BlockNumber nblocks, BlockNumber analyzed,
			  pg_atomic_uint64 *place, uint64 note)
{
	LaSpareLook look = {.rel = rel, .nblocks = nblocks};

	if (analyzed >= nblocks || !la_extend_wanted(rel))
		return 0;
	look.limit = Min(nblocks - analyzed, LA_MAX_HEAP_EXTEND_SIZE);
	/* A page that cannot be read is for those to report who need it. */
	if (!la_guard_run_once(la_spare_body, &look))
		return 0;
	if (look.spare == 0)
		(void) pg_atomic_compare_exchange_u64(place, &note, 0);
	return look.spare;
}

/*
 * There is a note of this table, which the planner has locked: take off what is
 * spare.
 */
static pg_noinline void
la_spare_noted(Oid relid, RelOptInfo *info, pg_atomic_uint64 *place,
			   uint64 note)
{
	/* The numbers of partitions may all be the same distance apart. */
	int			i = murmurhash32(relid) % LA_SPARE_KNOWN;
	instr_time	clock;
	uint64		now;
	Relation	rel;
	BlockNumber analyzed;

	/* A damaged page must be warned of when the query reads it, not here. */
	if (la_damage_is_accepted() || !la_guard_is_possible())
		return;
	rel = relation_open(relid, NoLock);
	analyzed = (BlockNumber) rel->rd_rel->relpages;
	INSTR_TIME_SET_CURRENT(clock);
	now = INSTR_TIME_GET_MICROSEC(clock);
	if (la_known[i].note != note || la_known[i].analyzed != analyzed ||
		la_known[i].until_us <= now)
	{
		la_known[i].spare = la_spare_look(rel, info->pages, analyzed, place,
										  note);
		la_known[i].note = note;
		la_known[i].analyzed = analyzed;
		la_known[i].until_us = now + LA_SPARE_US;
	}
	relation_close(rel, NoLock);
	if (la_known[i].spare > 0 && la_known[i].spare < info->pages)
		la_spare_take_off(info, la_known[i].spare);
}

/*
 * The planner has looked at the size of a table.  This is all that nearly every
 * query gets.
 */
pg_attribute_hot void
la_spare_planned(Oid relid, RelOptInfo *info)
{
	uint32		table;
	pg_atomic_uint64 *place;
	uint64		note;

	if (info->pages < LA_EXTEND_MIN_TABLE)
		return;
	table = la_note_key(relid);
	place = la_note_of(table);
	note = la_note(table, info->pages - 1);
	if (unlikely(pg_atomic_read_u64(place) == note))
		la_spare_noted(relid, info, place, note);
}

/*
 * SQL: pg_lookahead_unused_pages(table regclass).  NULL if there is no such
 * table any more.
 */
Datum
pg_lookahead_unused_pages(PG_FUNCTION_ARGS)
{
	Oid			relid = PG_GETARG_OID(0);
	Relation	rel = try_relation_open(relid, AccessShareLock);
	BlockNumber nblocks;
	BlockNumber spare = 0;

	if (rel == NULL)
		PG_RETURN_NULL();
	if (rel->rd_rel->relkind != RELKIND_RELATION &&
		rel->rd_rel->relkind != RELKIND_MATVIEW &&
		rel->rd_rel->relkind != RELKIND_TOASTVALUE)
		ereport(ERROR,
				errcode(ERRCODE_WRONG_OBJECT_TYPE),
				errmsg("\"%s\" is not a table, materialized view, or TOAST table",
					   RelationGetRelationName(rel)));
	if (RELATION_IS_OTHER_TEMP(rel))
		ereport(ERROR,
				errcode(ERRCODE_FEATURE_NOT_SUPPORTED),
				errmsg("cannot access temporary tables of other sessions"));
	nblocks = RelationGetNumberOfBlocks(rel);
	while (spare < nblocks && la_is_empty(rel, nblocks - 1 - spare))
	{
		CHECK_FOR_INTERRUPTS();
		spare++;
	}
	spare = la_without_used(rel, nblocks, spare);
	relation_close(rel, AccessShareLock);
	PG_RETURN_INT64(spare);
}
