/*-------------------------------------------------------------------------
 *
 * space.c
 *	  Adds a run of empty pages to the end of a table.
 *
 * The pages are what the server itself makes when several sessions fill one
 * table: all zeros, not in the WAL, and in the free space map, so that the next
 * insert finds them there.  VACUUM, scans, checksums, base backups, standbys
 * and crash recovery have to know such pages anyway.  Whatever happens next,
 * they are space of the table and not lost: the free space map is a hint, and
 * should it forget them VACUUM puts them there again.
 *
 *	16 on	ExtendBufferedRelBy(), as often as needed: the server limits how
 *			many buffers one process may pin, and so how many pages come with
 *			one call.  It allocates the space with the file system
 *			(posix_fallocate), under the extension lock, and leaves the pages
 *			in shared buffers, where they need not be read.  Where a quota ends
 *			in the middle the call fails, but the file may be longer: what it
 *			has got goes into the free space map, too.
 *
 *	15		can only add single pages.  We make the file longer ourselves
 *			(file_extend.c), under the extension lock, which everybody holds
 *			who wants to add pages.  Before that the pages are put into shared
 *			buffers, where they are clean and beyond the end.  If the file does
 *			not get longer after all they stay there as that: the server knows
 *			such pages, from reads that failed, and extends by them.  Other
 *			pages may have to be written out for it.  So if anybody waits for
 *			the lock this ends after a millisecond; the rest is read when it is
 *			used, which costs more.
 *
 * Who makes space holds the lock of the table's first page, which nobody else
 * takes for a heap; others go away.  Nobody waits for the extension lock,
 * either: if it is taken somebody else is just making space.  From 16 on it is
 * tried first and given back, because victim buffers are to be written out
 * without it, and ExtendBufferedRelBy() then takes it again; if another session
 * was faster, it is waited for as long as an ordinary extension takes.  Before
 * we write out victims ourselves (write_combine.c) it is tried as well, so that
 * this is not in vain.
 *
 * All of it runs in a guard: an error (no space, a quota, no free buffer) is
 * counted and forgotten.  The server then extends by a single page when it
 * needs one, and raises its own error if that fails.
 *
 * Copyright (c) 2026, the pg_lookahead authors
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "common/pg_prng.h"
#include "common/relpath.h"
#include "compat.h"
#include "executor/instrument.h"
#include "extend/extend.h"
#include "extend/write_combine.h"
#include "storage/bufpage.h"
#include "storage/freespace.h"
#include "storage/lmgr.h"
#include "window/guard.h"
#include "window/waits.h"

/* Nothing is added in advance if the disk has room for fewer steps. */
#define LA_FREE_STEPS	64

/*
 * Others wait for no longer than this, in microseconds, and one page more,
 * while pages are put into shared buffers (15): into no larger part of them.
 */
#define LA_ZERO_US		1000
#define LA_ZERO_PART	32

/* After this few pages in one call there is nothing to win by another. */
#define LA_FEW_PAGES	4

/* What the server takes off a process' share; see LimitAdditionalPins(). */
#define LA_RESERVED_PINS	8

/*
 * Pages that are looked up to see whether a table has room elsewhere.  If a
 * twentieth of its pages has, 96 of 100 times one of them is found; what is
 * overlooked now is found later, as it becomes more while it is not used.
 */
#define LA_ROOM_LOOKS	64

/*
 * In a table of more than 2 GB each of these is on another page of the map.  If
 * so many of those had to be read the others are not looked at this time: a
 * client waits, and locks are held.  The next look begins elsewhere.
 */
#define LA_ROOM_READS	4

/* From one part to the next; it has no divisor in common with the looks. */
#define LA_ROOM_STRIDE	27

/*
 * A page with this much beyond what fillfactor keeps free has room: for any row
 * of which nothing is stored elsewhere.  So has an empty one, whatever
 * fillfactor keeps free.  Where rows are wider, because no value of theirs may
 * be stored elsewhere, a page has room with this much beyond what the page has
 * that was left for lack of it.
 */
#define LA_ROOM			(BLCKSZ / 4)
#define LA_ROOM_BEYOND	(BLCKSZ / 16)

static int64 la_retry_ns = 0;	/* no space before that; la_wall_ns() */

/* What the guarded body is to do and has done. */
typedef struct LaSpaceRun
{
	Relation	rel;
	BlockNumber nblocks;		/* size that the caller has seen, or we */
	LaSpaceRequest request;
	BlockNumber end;			/* of what was added and is known of; 0:
								 * nothing was to be added */
	bool		may_be_used;	/* to be returned, but for what is used */
	LaSpace		space;
} LaSpaceRun;

/*
 * Something has failed.  The session leaves all tables to the server for a
 * while.
 */
void
la_space_failed(void)
{
	la_retry_ns = la_wall_ns() + LA_RETRY_NS;
	la_extend_count(&(LaExtendCounters) {.errors_total = 1});
}

/*
 * Has a process the buffers to add several pages at a time?  From 16 on the
 * server hands them to it, but leaves every process its share.  With one or
 * two pages for each call that would be dearer than to leave it.  What scans
 * of the statement have pinned at this moment does not count: it passes.
 */
static inline bool
la_has_buffers(void)
{
	return !LA_HAVE_EXTEND_BY ||
		NBuffers / (MaxBackends + NUM_AUXILIARY_PROCS) >=
		LA_RESERVED_PINS + LA_FEW_PAGES;
}

/*
 * May pages be added now?  Not for a while after a failure.
 */
bool
la_space_is_possible(void)
{
	return la_guard_is_possible() && la_wall_ns() >= la_retry_ns &&
		la_has_buffers();
}

/*
 * Put pages into the free space map, as empty.
 */
static void
la_record(Relation rel, BlockNumber first, BlockNumber last)
{
	for (BlockNumber block = first; block <= last; block++)
		RecordPageWithFreeSpace(rel, block, BLCKSZ - SizeOfPageHeaderData);
}

/*
 * Take the extension lock if nobody has it and the table has the size that the
 * caller has seen.
 */
static bool
la_lock_end(LaSpaceRun *run)
{
	if (!ConditionalLockRelationForExtension(run->rel, ExclusiveLock))
	{
		run->space.busy = true;
		return false;
	}
	if (RelationGetNumberOfBlocks(run->rel) != run->nblocks)
	{
		UnlockRelationForExtension(run->rel, ExclusiveLock);
		run->space.busy = true;
		return false;
	}
	return true;
}

#if LA_HAVE_EXTEND_BY
/*
 * Does nobody extend the table right now?
 */
static bool
la_end_is_free(Relation rel)
{
	if (!ConditionalLockRelationForExtension(rel, ExclusiveLock))
		return false;
	UnlockRelationForExtension(rel, ExclusiveLock);
	return true;
}

/*
 * Likewise, and has it the size that the caller has seen?
 */
static bool
la_end_is_as_seen(LaSpaceRun *run)
{
	if (!la_lock_end(run))
		return false;
	UnlockRelationForExtension(run->rel, ExclusiveLock);
	return true;
}

static void
la_add_pages(LaSpaceRun *run)
{
	Relation	rel = run->rel;
	BlockNumber last = InvalidBlockNumber;
	uint32		left = run->request.npages;

	/* An error at a later file would leave pages here that nobody knows of. */
	left = Min(left, RELSEG_SIZE - run->nblocks % RELSEG_SIZE);

	if (!la_end_is_as_seen(run))
		return;
	if (run->request.ring == NULL)
	{
		la_victims_write(rel, run->request.npages);
		/* It may have taken a while. */
		if (!la_end_is_as_seen(run))
			return;
	}

	run->end = run->nblocks;
	while (left > 0)
	{
		Buffer		buffers[LA_EXTEND_MAX_BUFFERS];
		BlockNumber first;
		uint32		got;

		/* What is kept is not in the map yet. */
		if (!run->request.keep)
			CHECK_FOR_INTERRUPTS();
		first = ExtendBufferedRelBy(BMR_REL(rel), MAIN_FORKNUM,
									run->request.ring, 0,
									Min(left, LA_EXTEND_MAX_BUFFERS),
									buffers, &got);
		for (uint32 i = 0; i < got; i++)
			ReleaseBuffer(buffers[i]);
		la_extend_count(&(LaExtendCounters) {.pages_added_total = got});
		la_spare_note(rel, first + got - 1);

		if (run->space.npages == 0)
			run->space.first = first;
		else if (run->request.keep && first != last + 1)
		{
			/* Somebody came between.  The caller wants one run. */
			la_record(rel, first, first + got - 1);
			FreeSpaceMapVacuumRange(rel, first, first + got);
			return;
		}
		last = first + got - 1;
		run->space.npages += got;
		if (!run->request.keep)
		{
			la_record(rel, first, last);
			FreeSpaceMapVacuumRange(rel, first, last + 1);
		}
		run->end = last + 1;

		left -= Min(left, got);
		if (got < LA_FEW_PAGES ||
			(run->space.npages >= LA_EXTEND_MIN_BLOCKS && left > 0 &&
			 !la_end_is_free(rel)))
			return;
	}
}

/*
 * A call has failed.  Put into the map what it has left at the end of the file,
 * or what others have added there meanwhile: who takes a page that is full
 * corrects the map, and who estimates looks at the pages.
 */
static void
la_record_part(void *arg)
{
	LaSpaceRun *run = arg;
	BlockNumber nblocks = RelationGetNumberOfBlocks(run->rel);
	BlockNumber after = Min(nblocks, run->nblocks + run->request.npages);

	if (run->end == 0 || after <= run->end)
		return;
	la_record(run->rel, run->end, after - 1);
	FreeSpaceMapVacuumRange(run->rel, run->end, after);
	if (after == nblocks)
		la_spare_note(run->rel, after - 1);
}
#else
/*
 * Does anybody wait for the extension lock, which we hold?  We count, too.
 */
static bool
la_is_waited_for(Relation rel)
{
	return RelationExtensionLockWaiterCount(rel) > 1;
}

/*
 * Put pages that are about to be added into shared buffers, as zeros.
 *
 * The extension lock is held, so nobody knows of them before the file is
 * longer.  The other way round a page might have been filled and written out
 * by then, and would be zeros again.
 */
static void
la_zero_pages(const LaSpaceRun *run, uint32 npages)
{
	instr_time	start;

	INSTR_TIME_SET_CURRENT(start);
	for (uint32 i = 0; i < npages; i++)
	{
		Buffer		buffer;
		bool		is_new;
		instr_time	now;

		buffer = ReadBufferExtended(run->rel, MAIN_FORKNUM, run->nblocks + i,
									RBM_ZERO_AND_LOCK, run->request.ring);
		is_new = PageIsNew(BufferGetPage(buffer));
		UnlockReleaseBuffer(buffer);
		if (!is_new)
			elog(ERROR, "unexpected data beyond the end of \"%s\"",
				 RelationGetRelationName(run->rel));

		/* Another page may have had to be written out for it. */
		INSTR_TIME_SET_CURRENT(now);
		INSTR_TIME_SUBTRACT(now, start);
		if (INSTR_TIME_GET_MICROSEC(now) >= LA_ZERO_US &&
			(InterruptPending || la_is_waited_for(run->rel)))
			return;
	}
}

static void
la_add_pages(LaSpaceRun *run)
{
	Relation	rel = run->rel;
	uint32		npages = la_file_room(run->nblocks, run->request.npages);
	BlockNumber after;

	if (npages == 0 || !la_lock_end(run))
		return;
	if (!la_file_ends_at(rel, run->nblocks))
		elog(ERROR, "\"%s\" does not end where it seems to",
			 RelationGetRelationName(rel));
	if (!run->request.unbuffered)
		la_zero_pages(run, Min(npages, NBuffers / LA_ZERO_PART));
	if (!la_file_extend(rel, run->nblocks, npages))
		la_space_failed();

	/*
	 * Ask what there is: a full disk may have given us a part.  Who waits for
	 * the lock will look into the free space map when it gets it, and make
	 * pages of its own if there are none.
	 */
	after = RelationGetNumberOfBlocks(rel);
	if (after > run->nblocks)
	{
		run->space.first = run->nblocks;
		run->space.npages = after - run->nblocks;
		la_extend_count(&(LaExtendCounters)
						{.pages_added_total = run->space.npages});
		la_spare_note(rel, after - 1);
		if (!run->request.keep)
		{
			la_record(rel, run->nblocks, after - 1);
			FreeSpaceMapVacuumRange(rel, run->nblocks, after);
		}
	}
	UnlockRelationForExtension(rel, ExclusiveLock);
}
#endif

/*
 * Does the table have room before its last pages?  A sample says so.  A table
 * that may grow ahead has pages enough for it.
 */
static bool
la_has_room(const LaSpaceRun *run)
{
	Relation	rel = run->rel;
	uint32		step = la_extend_step(run->nblocks);
	BlockNumber before = run->nblocks - 2 * step;
	Size		reserve =
		RelationGetTargetPageFreeSpace(rel, HEAP_DEFAULT_FILLFACTOR);
	Size		wanted = LA_ROOM + reserve;
	int64		most_reads = pgBufferUsage.shared_blks_read + LA_ROOM_READS;
	int			start = pg_prng_uint64_range(&pg_global_prng_state,
											 0, LA_ROOM_LOOKS - 1);

	if (run->request.left != InvalidBlockNumber)
		wanted = Max(wanted, LA_ROOM_BEYOND +
					 GetRecordedFreeSpace(rel, run->request.left));
	wanted = Min(wanted, LA_EMPTY_SPACE);

	for (int n = 0; n < LA_ROOM_LOOKS; n++)
	{
		int			i = (start + n * LA_ROOM_STRIDE) % LA_ROOM_LOOKS;
		BlockNumber first = (uint64) before * i / LA_ROOM_LOOKS;
		BlockNumber next = (uint64) before * (i + 1) / LA_ROOM_LOOKS;
		BlockNumber block = pg_prng_uint64_range(&pg_global_prng_state,
												 first, next - 1);

		if (GetRecordedFreeSpace(rel, block) >= wanted)
			return true;
		if (pgBufferUsage.shared_blks_read >= most_reads)
			break;
	}
	return false;
}

/*
 * Has the disk so much room that this much may be taken in advance?  The last
 * space is for those who need it now.
 */
bool
la_disk_has_room(const struct statvfs *disk, uint64 length)
{
	return (uint64) disk->f_bavail * disk->f_frsize >= length * LA_FREE_STEPS;
}

static void
la_require_room(const LaSpaceRun *run)
{
	char	   *path = la_rel_path(run->rel);
	struct statvfs disk;

	if (statvfs(path, &disk) != 0)
		elog(ERROR, "could not get the size of the disk of \"%s\": %m", path);
	if (!la_disk_has_room(&disk, (uint64) run->request.npages * BLCKSZ))
		elog(ERROR, "too little space is left to add pages to \"%s\"", path);
	pfree(path);
}

static bool
la_is_time(const LaSpaceRun *run)
{
	switch (run->request.when)
	{
		case LA_ALWAYS:
			return true;
		case LA_IF_NO_ROOM:
			return !la_has_room(run);
		case LA_IF_FULL:
			/* The search goes on behind the page that it finds. */
			return !la_has_room(run) &&
				GetPageWithFreeSpace(run->rel, LA_EMPTY_SPACE) ==
				InvalidBlockNumber;
	}
	return false;
}

static void
la_add_body(void *arg)
{
	LaSpaceRun *run = arg;

	/* One session at a time: the next would find nothing yet, and add more. */
	if (!ConditionalLockPage(run->rel, 0, ExclusiveLock))
	{
		run->space.busy = true;
		return;
	}
	if (la_is_time(run))
	{
		la_require_room(run);
		la_add_pages(run);
	}
	UnlockPage(run->rel, 0, ExclusiveLock);
}

/*
 * Add pages to the end of a table that has nblocks.
 *
 * request->when is what the free space map must say first.  The new pages are
 * put there, unless the caller keeps them.  Returns true if space says which
 * pages were added.
 *
 * The caller must hold a lock on the table with which it may insert, and no
 * lock on a buffer.
 */
bool
la_space_add(Relation rel, BlockNumber nblocks, const LaSpaceRequest *request,
			 LaSpace *space)
{
	LaSpaceRun	run;
	int64		start;

	memset(&run, 0, sizeof(run));
	*space = run.space;
	if (request->npages == 0 || !la_space_is_possible())
		return false;
	start = la_wall_ns();
	run.rel = rel;
	run.nblocks = nblocks;
	run.request = *request;

	if (!la_guard_run_once(la_add_body, &run))
	{
		la_space_failed();
#if LA_HAVE_EXTEND_BY
		(void) la_guard_run_once(la_record_part, &run);
#endif
	}

	if (run.space.busy)
		la_extend_count(&(LaExtendCounters) {.busy_total = 1});
	la_extend_count(&(LaExtendCounters)
					{.extensions_total = run.space.npages > 0,
					.time_us_total = (la_wall_ns() - start) / 1000});
	*space = run.space;
	return run.space.npages > 0;
}

static void
la_take_body(void *arg)
{
	LaSpaceRun *run = arg;
	Relation	rel = run->rel;
	BlockNumber first = run->space.first;
	BlockNumber block;

	if (first == InvalidBlockNumber)
		first = run->nblocks - la_spare_pages(rel, run->nblocks);
	for (block = first; block < run->nblocks; block++)
	{
		if (block - first >= run->request.npages ||
			GetRecordedFreeSpace(rel, block) < LA_EMPTY_SPACE)
			break;
		RecordPageWithFreeSpace(rel, block, 0);
	}
	if (block == first)
		return;
	FreeSpaceMapVacuumRange(rel, first, block);
	run->space.first = first;
	run->space.npages = block - first;
}

/*
 * Take empty pages at the end of a table of nblocks out of the free space map:
 * from page "first" on, or those before which none is empty if that is invalid.
 * No more than "most".  Returns true if space says which pages they are.
 *
 * It is for loads that would not look there, of a table that nobody but this
 * transaction can fill.  What the map says is a hint, as ever: the caller gives
 * the pages to heap, which looks at each when it has locked it.
 */
bool
la_space_take(Relation rel, BlockNumber nblocks, BlockNumber first,
			  uint32 most, LaSpace *space)
{
	LaSpaceRun	run;

	memset(&run, 0, sizeof(run));
	run.rel = rel;
	run.nblocks = nblocks;
	run.request.npages = most;
	run.space.first = first;
	if (!la_guard_run_once(la_take_body, &run))
		la_space_failed();
	*space = run.space;
	return space->npages > 0;
}

static void
la_return_body(void *arg)
{
	LaSpaceRun *run = arg;
	LaSpace    *space = &run->space;
	BlockNumber last = space->first + space->npages - 1;

	/* They are used in their order. */
	while (run->may_be_used && space->npages > 0 &&
		   la_page_is_in_use(run->rel, space->first))
	{
		space->first++;
		space->npages--;
	}
	if (space->npages == 0)
		return;
	la_record(run->rel, space->first, last);
	FreeSpaceMapVacuumRange(run->rel, space->first, last + 1);
	run->nblocks = RelationGetNumberOfBlocks(run->rel);
}

/*
 * Put pages that were kept and not used into the free space map.  If the first
 * of them may have been used they are looked at.  Those before taken_end were
 * there before, and are not counted again.
 */
void
la_space_return(Relation rel, BlockNumber first, BlockNumber last,
				bool may_be_used, BlockNumber taken_end)
{
	LaSpaceRun	run;
	BlockNumber after = last + 1;

	if (!la_guard_is_possible())
		return;
	memset(&run, 0, sizeof(run));
	run.rel = rel;
	run.may_be_used = may_be_used;
	run.space.first = first;
	run.space.npages = after - first;
	if (!la_guard_run_once(la_return_body, &run))
	{
		la_extend_count(&(LaExtendCounters) {.errors_total = 1});
		return;
	}
	if (run.space.npages == 0)
		return;
	la_extend_count(&(LaExtendCounters)
					{.pages_returned_total =
					after - Min(after, Max(run.space.first, taken_end))});
	if (run.nblocks == after)
		la_spare_note(rel, last);
}
