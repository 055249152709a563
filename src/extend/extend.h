/*-------------------------------------------------------------------------
 *
 * extend.h
 *	  Space before it is needed: tables grow by more than a page at a time.
 *
 *	heap_extend.c	when a table grows, and by how much
 *	space.c			how: a run of empty pages at the end, in the free space map
 *	file_extend.c	how the file is made longer where the server cannot do it
 *					in one piece (15)
 *	index_extend.c	indexes that are being built
 *	fill.c			INSERT, UPDATE, MERGE: looks as the rows come
 *	filled_tables.c	the tables that are looked at then
 *	target_page.c	INSERT: the buffer of the page that is being filled
 *	load.c			COPY, CREATE TABLE AS, materialized views: pages through
 *					the statement's own insert state (load.h)
 *	load_routed.c	COPY into a partitioned table: as for INSERT (15)
 *	load_table.c	which table that is
 *	write_combine.c	what was filled is written out many pages at a time
 *	wal_ahead.c		the WAL of it is flushed in advance
 *	spare.c			what was added and is not used yet, and the planner
 *	extend_stats.c	counters
 *	../hook/		who calls all this
 *	../report/explain_space.c	what EXPLAIN shows of it
 *
 * Copyright (c) 2026, the pg_lookahead authors
 *
 *-------------------------------------------------------------------------
 */
#ifndef LA_EXTEND_H
#define LA_EXTEND_H

#include <sys/statvfs.h>

#include "executor/execdesc.h"
#include "nodes/execnodes.h"
#include "nodes/pathnodes.h"
#include "storage/block.h"
#include "storage/buf.h"
#include "utils/rel.h"

/*
 * A table grows by at most this part of its size.  VACUUM gives a sixteenth of
 * a table back to the file system if it finds it empty at the end, or 1000
 * pages, for which it needs an exclusive lock; what we add is just below that,
 * unless heap_extend_size is more than 999, or a load of a table of less than
 * 496 pages ends with up to 31 (see load.c).
 */
#define LA_EXTEND_FRACTION		16

/*
 * By less than this it does not pay, so tables under 256 pages (2 MB) are left
 * alone altogether.
 */
#define LA_EXTEND_MIN_BLOCKS	16

/* Smallest table that grows ahead. */
#define LA_EXTEND_MIN_TABLE		(LA_EXTEND_FRACTION * LA_EXTEND_MIN_BLOCKS)

/* Free space from which on a page counts as empty. */
#define LA_EMPTY_SPACE			(BLCKSZ - BLCKSZ / 16)

/* Pages that are asked for in one call, and pinned for that long. */
#define LA_EXTEND_MAX_BUFFERS	512

/* After an error the session does not try again for this long. */
#define LA_RETRY_NS				INT64CONST(10000000000)

typedef struct LaExtendCounters
{
	int64		extensions_total;	/* runs of pages that were added */
	int64		pages_added_total;
	int64		pages_returned_total;	/* to the free space map, by a load that
										 * did not need them */
	int64		busy_total;		/* not done: somebody else was extending */
	int64		errors_total;	/* not done: an error, such as a full disk */
	int64		index_builds_total; /* that got a worker */
	int64		index_pages_total;	/* that workers made space for */
	int64		time_us_total;	/* that extending took, if in vain, too */
	int64		writes_total;	/* calls that wrote what had been filled */
	int64		pages_written_total;	/* by them */
	int64		wal_wakeups_total;	/* of the WAL writer */
} LaExtendCounters;

/* What the free space map must say of a table before pages are added to it. */
typedef enum LaSpaceWhen
{
	LA_ALWAYS,					/* it is not asked */
	LA_IF_NO_ROOM,				/* other pages than the last have no room */
	LA_IF_FULL					/* and no page is empty */
} LaSpaceWhen;

/* Pages that are to be added to a table. */
typedef struct LaSpaceRequest
{
	uint32		npages;
	BufferAccessStrategy ring;	/* buffers to keep them in, or NULL */
	LaSpaceWhen when;
	BlockNumber left;			/* for lack of room, or invalid */
	bool		keep;			/* the caller knows what to do with them */
	bool		unbuffered;		/* 15: to be read when they are used */
} LaSpaceRequest;

/* A run of pages that were added. */
typedef struct LaSpace
{
	BlockNumber first;
	uint32		npages;			/* 0: none were added */
	bool		busy;			/* because somebody else is extending */
} LaSpace;

/*
 * Pages that a load adds at a time at most.  They are in the ring of buffers
 * that the load writes through, which is 16 MB, and take room from pages that
 * it would otherwise have to write out later, or never.
 */
#define LA_LOAD_MAX_BLOCKS	128

/* What a statement knows of the growth of a table that it fills. */
typedef struct LaGrowth
{
	BlockNumber size;			/* its pages when looked at last, or invalid */
	BlockNumber target;			/* where rows went then, or invalid */
	BlockNumber refused;		/* its pages when none were added because it
								 * has room, or invalid */
	BufferAccessStrategy ring;	/* buffers that pages are filled in, or NULL */
	bool		is_row;			/* the statement has brought few rows */
	BlockNumber made;			/* the last page made for us, or invalid */
	int			alone;			/* times in a row that the table ended with
								 * that when more were made */
} LaGrowth;

/* heap_extend.c */
extern bool la_extend_enabled(void);
extern bool la_extend_wanted(Relation rel);
extern bool la_toast_is_used(Oid toast);
extern uint32 la_extend_step(BlockNumber nblocks);
extern BlockNumber la_heap_size(Relation rel);
extern void la_growth_init(LaGrowth *growth);
extern void la_heap_filled(Relation rel, BlockNumber target,
						   LaGrowth *growth);

/* space.c */
extern bool la_space_add(Relation rel, BlockNumber nblocks,
						 const LaSpaceRequest *request, LaSpace *space);
extern void la_space_failed(void);
extern bool la_space_is_possible(void);
extern bool la_disk_has_room(const struct statvfs *disk, uint64 length);
extern bool la_space_take(Relation rel, BlockNumber nblocks, BlockNumber first,
						  uint32 most, LaSpace *space);
extern void la_space_return(Relation rel, BlockNumber first, BlockNumber last,
							bool may_be_used, BlockNumber taken_end);

/* spare.c */
extern bool la_page_is_in_use(Relation rel, BlockNumber block);
extern Size la_spare_shmem_size(void);
extern void la_spare_shmem_attach(void *area, bool is_new);
extern void la_spare_note(Relation rel, BlockNumber last);
extern void la_spare_note_end(Relation rel, BlockNumber last);
extern BlockNumber la_spare_end(Relation rel);
extern BlockNumber la_spare_pages(Relation rel, BlockNumber nblocks);
extern void la_spare_planned(Oid relid, RelOptInfo *info);

/* file_extend.c */
extern uint32 la_file_room(BlockNumber nblocks, uint32 npages);
extern bool la_file_ends_at(Relation rel, BlockNumber nblocks);
extern bool la_file_extend(Relation rel, BlockNumber nblocks, uint32 npages);

/* index_extend.c */
extern int	la_index_builds;

extern bool la_index_builds_begin(bool may_put_off);
extern void la_index_builds_end(bool outer, bool is_good);
extern void la_index_created(Oid relid);
extern void la_index_planned(Oid table);
extern PGDLLEXPORT void la_index_space_main(Datum arg);

/* extend_stats.c */
extern LaExtendCounters la_extend_counters;

extern void la_extend_count(const LaExtendCounters *change);
extern void la_extend_shmem_request(void);
extern void la_extend_shmem_startup(void);

/* target_page.c */
extern uint32 la_target_moves;

extern void la_target_forget(void);
extern void la_insert_at_target(Relation rel, TupleTableSlot *slot,
								CommandId cid, int options);

/*
 * May a statement fill tables?  Most do not, and need nothing of fill.c.
 */
static inline bool
la_may_fill(const QueryDesc *desc)
{
	return desc->operation != CMD_SELECT ||
		desc->plannedstmt->hasModifyingCTE;
}

/* fill.c */
extern void la_fill_begin(const QueryDesc *desc);
extern bool la_fill_run_begin(const EState *estate);
extern void la_fill_run_end(const EState *estate);
extern void la_fill_end(const QueryDesc *desc);
extern List *la_fill_nodes(const EState *estate);
extern bool la_fill_made(const ModifyTableState *modify,
						 LaExtendCounters *counters);

#endif							/* LA_EXTEND_H */
