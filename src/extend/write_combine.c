/*-------------------------------------------------------------------------
 *
 * write_combine.c
 *	  Pages that were filled are written out many at a time.
 *
 * Who fills a table needs one buffer after the other.  Once all have been used,
 * an old page has to be written out for each new one, which the server does one
 * by one: 8 kB and a system call, or a request to the storage, for each.  The
 * old pages are the table's own for the most part, and follow one another in
 * the file.  So shortly before it is their turn we write as many as fit into
 * one call.  Whose turn it is depends on where the buffers come from:
 *
 *	ring	COPY and its like fill their pages in a ring of 16 MB.  What a load
 *			has filled is noted when its target page moves on, by
 *			la_filled_note(); it is due when the ring is full of that, short of
 *			what may be added next: la_filled_write()
 *
 *		file	....written|.......filled, in the ring.......|target
 *							^^^^ due					left ^ for what
 *		ring	  its next buffers, clean by then		   comes next
 *
 *	sweep	INSERT and UPDATE take any buffer that the clock sweep finds unused.
 *			When we are about to add pages to the table, la_victims_write()
 *			looks ahead of the sweep, at the buffers that it will come to next
 *
 * With a page that is due go those beside it in the file, if they are to be
 * written.  A page that is in use, has been written by the checkpointer, or
 * cannot be locked at once is left to the server, which will do as without us.
 *
 * How many: writes into the kernel's page cache take no time worth mentioning.
 * There four pages go with one call, which saves most of the calls; of larger
 * pieces the kernel makes larger folios, and memory for those is dearer to get
 * (beyond 32 kB it is not kept at hand).  Where calls are seen to take long
 * each of them is for twice as many pages as the one before, up to the setting.
 *
 * How a page is written is the server's way, with the same calls in the same
 * order as in its FlushBuffer(), so everybody else sees what they always see: a
 * page that is pinned, and whose I/O is in progress.
 *
 *	1	pin it, if nobody has; lock it for reading, if that does not wait
 *	2	start I/O: from here on nobody else writes it, drops it or cleans it
 *	3	note how far the WAL must be flushed, and that changes are to be seen
 *	4	copy it, unlock it, and put its checksum into the copy
 *	5	flush the WAL, write all copies with one call, which also registers the
 *		file for the next checkpoint's fsync
 *	6	end I/O: it is clean, unless it has been changed since 3
 *
 * The server keeps the lock until 6.  As the copy has been taken, and a change
 * after 3 leaves the page dirty, there is no need for it.  Nothing is waited
 * for while I/O is in progress but the WAL, the storage, and the buffer table's
 * locks, under which nobody waits for I/O: no lock of a page, no other I/O.
 *
 * All of it runs in a guard.  After an error the pages are dirty as before, and
 * not marked as such that could not be written: that is for the server.  Then
 * nothing more is combined for the load, or ahead of the sweep for ten seconds,
 * and the server writes them, or raises its own error.
 *
 * From 17 on: before, the storage manager writes single pages only.
 *
 * Copyright (c) 2026, the pg_lookahead authors
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/xlog.h"
#include "compat.h"
#include "extend/extend.h"
#include "extend/write_combine.h"
#include "settings.h"
#include "storage/bufpage.h"
#include "utils/memutils.h"
#include "window/guard.h"
#include "window/waits.h"
#include "window/window.h"

#if LA_HAVE_WRITE_RUNS

/* Pages of a ring that are kept clean for what the load adds next. */
#define LA_CLEAN_AHEAD		(LA_LOAD_MAX_BLOCKS + 128)

/* A smaller ring is left alone: shared buffers are scarce then. */
#define LA_MIN_RING			(4 * LA_CLEAN_AHEAD)

/* This part of the ring stays as it was filled, though its WAL is flushed. */
#define LA_EARLY_PART		4

/*
 * Pages that are written with one call at least, and from what time on, in
 * microseconds, a call has taken long.
 */
#define LA_MIN_CALL			4
#define LA_LONG_US			300

/* A step of the target page that is not wider fills what it passes. */
#define LA_MAX_STEP			32

/* Buffers that are looked at for each page that is about to be added. */
#define LA_VICTIM_LOOKS		2

/* A load that went elsewhere so often is not the only one of its table. */
#define LA_MANY_JUMPS		8

/* Which pages are to be written, and on what account. */
typedef struct LaDue
{
	uint32		max_usage;		/* at most so often used since the sweep */
	IOContext	context;		/* for pg_stat_io */
	XLogRecPtr	max_lsn;		/* changed last before that */
} LaDue;

static const LaDue la_due_in_ring = {
	BM_MAX_USAGE_COUNT, IOCONTEXT_BULKWRITE, PG_UINT64_MAX
};
static const LaDue la_due_in_sweep = {0, IOCONTEXT_NORMAL, PG_UINT64_MAX};

/* What a guarded call is to write: what is due of some pages in a row. */
typedef struct LaWriteOrder
{
	Relation	rel;
	LaDue		due;
	BlockNumber least;			/* no page before this one */
	BlockNumber first;
	BlockNumber end;			/* the one after the last */
} LaWriteOrder;

/* Pages that are being written with one call. */
typedef struct LaWriteRun
{
	const LaWriteOrder *order;
	BlockNumber first;
	int			npages;
	XLogRecPtr	lsn;			/* of the newest change to one of them */
	bool		is_ahead;		/* of WAL was the page that was not taken */
	Buffer		buffers[LA_MAX_WRITE_COMBINE_SIZE];
} LaWriteRun;

/* The copies of the pages of a run; made when first needed. */
static char *la_copies = NULL;

/* Pages that are to be written with the next call. */
static uint32 la_call_size = LA_MIN_CALL;

/* Nothing is written ahead of the sweep before that; la_wall_ns(). */
static int64 la_sweep_retry_ns = 0;

static void
la_filled_add(LaFilledPages *filled, BlockNumber block)
{
	if (filled->npages == filled->size)
	{
		filled->oldest = (filled->oldest + 1) % filled->size;
		filled->npages--;
	}
	filled->pages[(filled->oldest + filled->npages) % filled->size] = block;
	filled->npages++;
	filled->last = block;
}

/*
 * The load fills this page now, in a ring of buffers.  What it has passed since
 * it was asked last has been filled; if it went elsewhere only the page itself
 * is known.  A page that the table had before the load may be in shared buffers
 * for other reasons, and need no writing.
 */
void
la_filled_note(LaFilledPages *filled, BlockNumber target,
			   BufferAccessStrategy ring)
{
	if (filled->is_off || la_write_combine_size == 0 ||
		target < filled->first_new)
		return;
	if (filled->size == 0)
	{
		filled->size = ring ? GetAccessStrategyBufferCount(ring) : 0;
		filled->is_off = filled->size < LA_MIN_RING;
		if (filled->is_off)
			return;
		filled->pages = MemoryContextAllocExtended(filled->context,
												   filled->size *
												   sizeof(BlockNumber),
												   MCXT_ALLOC_NO_OOM);
		filled->is_off = filled->pages == NULL;
		if (filled->is_off)
			return;
	}
	if (filled->npages > 0 && target > filled->last &&
		target - filled->last <= LA_MAX_STEP)
		for (BlockNumber block = filled->last + 1; block < target; block++)
			la_filled_add(filled, block);
	else if (filled->npages > 0 && filled->njumps < LA_MANY_JUMPS)
		filled->njumps++;
	la_filled_add(filled, target);
}

/*
 * Begin to write a page, which has been pinned: steps 1 (the lock) to 4.
 * Returns false if it is not to be written, or not now.
 */
static bool
la_copy_page(LaWriteRun *run, Buffer buffer, BlockNumber block)
{
	BufferDesc *desc = GetBufferDescriptor(buffer - 1);
	LWLock	   *lock = BufferDescriptorGetContentLock(desc);
	char	   *copy = la_copies + run->npages * BLCKSZ;
	uint32		state;
	XLogRecPtr	lsn;

	if (!LWLockConditionalAcquire(lock, LW_SHARED))
		return false;
	run->is_ahead = PageGetLSN(BufferGetPage(buffer)) > run->order->due.max_lsn;
	if (run->is_ahead || !la_start_buffer_write(desc))
	{
		LWLockRelease(lock);
		return false;
	}
	state = LockBufHdr(desc);
	lsn = PageGetLSN(BufferGetPage(buffer));
	state &= ~BM_JUST_DIRTIED;
	UnlockBufHdr(desc, state);
	memcpy(copy, BufferGetPage(buffer), BLCKSZ);
	LWLockRelease(lock);

	PageSetChecksumInplace((Page) copy, block);
	if (state & BM_PERMANENT)
		run->lsn = Max(run->lsn, lsn);
	return true;
}

/*
 * Only a look: is the page dirty, and nobody uses it?  One that could not be
 * written before is left to the server, which warns if that fails again.
 */
static inline bool
la_is_to_be_written(Buffer buffer, const LaDue *due)
{
	uint32		state =
		pg_atomic_read_u32(&GetBufferDescriptor(buffer - 1)->state);

	return (state & (BM_VALID | BM_DIRTY)) == (BM_VALID | BM_DIRTY) &&
		!(state & (BM_IO_IN_PROGRESS | BM_IO_ERROR)) &&
		BUF_STATE_GET_REFCOUNT(state) == 0 &&
		BUF_STATE_GET_USAGECOUNT(state) <= due->max_usage;
}

/*
 * Take a page into the run, if it is to be written and nobody uses it.
 */
static bool
la_take_page(LaWriteRun *run, BlockNumber block)
{
	const RelFileLocator *locator = la_rel_locator(run->order->rel);
	Buffer		buffer = la_block_buffer(locator, MAIN_FORKNUM, block);

	if (buffer == InvalidBuffer ||
		!la_is_to_be_written(buffer, &run->order->due) ||
		!ReadRecentBuffer(*locator, MAIN_FORKNUM, block, buffer))
		return false;
	if (!la_copy_page(run, buffer, block))
	{
		ReleaseBuffer(buffer);
		return false;
	}
	if (run->npages == 0)
		run->first = block;
	run->buffers[run->npages++] = buffer;
	return true;
}

/*
 * A call has written so many pages.
 */
static void
la_learn_call_size(uint32 npages, instr_time start)
{
	instr_time	took;

	INSTR_TIME_SET_CURRENT(took);
	INSTR_TIME_SUBTRACT(took, start);
	if (INSTR_TIME_GET_MICROSEC(took) < LA_LONG_US)
		la_call_size = Max(la_call_size / 2, LA_MIN_CALL);
	else if (npages >= la_call_size)
		la_call_size = Min(la_call_size * 2, LA_MAX_WRITE_COMBINE_SIZE);
}

/*
 * Write the copies of the pages of the run: step 5.
 */
static void
la_write_copies(const LaWriteRun *run)
{
	SMgrRelation smgr = RelationGetSmgr(run->order->rel);
	const void *copies[LA_MAX_WRITE_COMBINE_SIZE];
	instr_time	start;
	instr_time	io_start;

	for (int i = 0; i < run->npages; i++)
		copies[i] = la_copies + i * BLCKSZ;

	XLogFlush(run->lsn);
	INSTR_TIME_SET_CURRENT(start);
	io_start = pgstat_prepare_io_time(track_io_timing);
	smgrwritev(smgr, MAIN_FORKNUM, run->first, copies, run->npages, false);
	la_count_write(run->order->due.context, io_start, run->npages);
	la_learn_call_size(run->npages, start);
	pgBufferUsage.shared_blks_written += run->npages;
	la_extend_count(&(LaExtendCounters)
					{.writes_total = 1,
					.pages_written_total = run->npages});
}

/*
 * A page could not be written: end I/O, and it is dirty as before.  It would be
 * marked as one whose write has failed if that were left to the resource owner,
 * and the server would warn at its own first failure of a repeated one.
 */
static void
la_end_failed_write(BufferDesc *desc)
{
	uint32		state = LockBufHdr(desc);

	UnlockBufHdr(desc, state | BM_JUST_DIRTIED);
	la_end_buffer_write(desc);
}

/*
 * Write the pages of the run: steps 5 and 6.  No interrupt is served while they
 * are not locked and their I/O is in progress.
 */
static void
la_write_run(LaWriteRun *run)
{
	BufferTag	tags[LA_MAX_WRITE_COMBINE_SIZE];
	const int	npages = run->npages;

	if (npages == 0)
		return;

	HOLD_INTERRUPTS();
	PG_TRY();
	{
		la_write_copies(run);
	}
	PG_CATCH();
	{
		for (int i = 0; i < npages; i++)
			la_end_failed_write(GetBufferDescriptor(run->buffers[i] - 1));
		PG_RE_THROW();
	}
	PG_END_TRY();
	for (int i = 0; i < npages; i++)
	{
		BufferDesc *desc = GetBufferDescriptor(run->buffers[i] - 1);

		la_end_buffer_write(desc);
		tags[i] = desc->tag;
		ReleaseBuffer(run->buffers[i]);
	}
	run->npages = 0;
	run->lsn = InvalidXLogRecPtr;
	RESUME_INTERRUPTS();

	/* This may wait for the device, and nobody shall for a page of ours. */
	for (int i = 0; i < npages; i++)
		ScheduleBufferTagForWriteback(&BackendWritebackContext,
									  run->order->due.context, &tags[i]);
}

static void
la_write_body(void *arg)
{
	LaWriteOrder *order = arg;
	LaWriteRun	run = {.order = order};

	for (BlockNumber block = order->first; block < order->end; block++)
	{
		if (la_take_page(&run, block))
			continue;
		la_write_run(&run);
		if (run.is_ahead)
			order->end = block; /* from here on later */
	}
	la_write_run(&run);
}

typedef enum LaPageState
{
	LA_PAGE_DONE,				/* written by somebody, or in use */
	LA_PAGE_DUE,
	LA_PAGE_AHEAD_OF_WAL		/* its WAL would have to be flushed first */
} LaPageState;

/*
 * Only a look at a page that was filled.
 */
static LaPageState
la_page_state(const LaWriteOrder *order, BlockNumber block)
{
	Buffer		buffer = la_block_buffer(la_rel_locator(order->rel),
										 MAIN_FORKNUM, block);

	if (buffer == InvalidBuffer || !la_is_to_be_written(buffer, &order->due))
		return LA_PAGE_DONE;
	if (PageGetLSN(BufferGetPage(buffer)) > order->due.max_lsn)
		return LA_PAGE_AHEAD_OF_WAL;
	return LA_PAGE_DUE;
}

/*
 * So many buffers of the ring are to be kept clean.  Loads of one table fill
 * pages that another one has added, which are in the other's ring: that comes
 * round sooner than we see.
 */
static uint32
la_filled_room(const LaFilledPages *filled)
{
	return filled->njumps < LA_MANY_JUMPS ? LA_CLEAN_AHEAD : filled->size / 2;
}

/*
 * Write a page that is due, and those beside it.  Returns false after an error.
 */
static bool
la_write_around(LaWriteOrder *order, BlockNumber block)
{
	/* Some platforms take few pages in one call. */
	uint32		step = Min(la_write_combine_size, PG_IOV_MAX);

	if (!la_direct_io())
		step = Min(step, la_call_size);
	LimitAdditionalPins(&step);
	if (la_copies == NULL)
		la_copies = MemoryContextAllocAligned(TopMemoryContext,
											  LA_MAX_WRITE_COMBINE_SIZE *
											  BLCKSZ, PG_IO_ALIGN_SIZE,
											  MCXT_ALLOC_NO_OOM);
	order->first = block - block % RELSEG_SIZE % step;
	order->end = order->first +
		Min(step, RELSEG_SIZE - order->first % RELSEG_SIZE);
	order->first = Max(order->first, order->least);
	if (la_copies != NULL && la_guard_run_once(la_write_body, order))
		return true;
	la_extend_count(&(LaExtendCounters) {.errors_total = 1});
	return false;
}

static inline bool
la_was_written(const LaWriteOrder *order, BlockNumber block)
{
	return block >= order->first && block < order->end;
}

/*
 * Write out the oldest of what the load has filled, until only so many pages
 * are left, or until WAL would have to be flushed for one.
 */
static void
la_filled_write_until(LaFilledPages *filled, LaWriteOrder *order, uint32 left)
{
	while (!filled->is_off && filled->npages > left)
	{
		BlockNumber block = filled->pages[filled->oldest];

		CHECK_FOR_INTERRUPTS();
		if (!la_was_written(order, block))
		{
			LaPageState state = la_page_state(order, block);

			if (state == LA_PAGE_AHEAD_OF_WAL)
				break;
			if (state == LA_PAGE_DUE)
				filled->is_off = !la_write_around(order, block);
		}
		filled->oldest = (filled->oldest + 1) % filled->size;
		filled->npages--;
	}
}

/*
 * Write out what the load has filled and will soon have to write, because its
 * ring is full.  "nempty" further pages of the ring have not been filled yet.
 *
 * Once it has come to that some more is written, as long as that does not have
 * to wait for WAL to be flushed; so that has to be waited for no more often
 * than without us.
 *
 * With a page go those beside it, whoever has filled them: loads of one table
 * share its end page by page, and their rings come round at about one time.
 *
 * The caller must have locked the table so that it is not truncated, and hold
 * no lock on a buffer.
 */
void
la_filled_write(LaFilledPages *filled, Relation rel, uint32 nempty)
{
	uint32		room = nempty + la_filled_room(filled);
	uint32		step = la_write_combine_size;
	uint32		early = filled->size / LA_EARLY_PART;
	int64		hits = pgBufferUsage.shared_blks_hit;
	LaWriteOrder order = {.rel = rel, .due = la_due_in_ring,
	.least = filled->first_new};

	if (filled->is_off || filled->npages == 0 || step == 0 ||
		!la_guard_is_possible())
		return;
	if (filled->npages + room >= filled->size + step)
	{
		filled->is_full = true;
		la_filled_write_until(filled, &order,
							  filled->size > room ? filled->size - room : 0);
		filled->next_early = 0;
	}
	if (filled->is_full && filled->npages >= filled->next_early)
	{
		order.due.max_lsn = GetFlushRecPtr(NULL);
		la_filled_write_until(filled, &order, early);
		filled->next_early = Max(filled->npages, early) + step;
	}
	pgBufferUsage.shared_blks_hit = hits;
}

/*
 * So many pages are about to be added to a table, for which the server takes
 * the next buffers that its clock sweep finds unused.  Of those that are the
 * table's own, and dirty, write as many together as follow one another.
 *
 * The sweep passes by buffers that have been used; where it has to go round
 * for that nothing is found, and nothing done.
 */
void
la_victims_write(Relation rel, uint32 npages)
{
	LaWriteOrder order = {.rel = rel, .due = la_due_in_sweep};
	const RelFileLocator *locator = la_rel_locator(rel);
	uint32		nlooks = Min(npages * LA_VICTIM_LOOKS, (uint32) NBuffers / 8);
	int64		hits = pgBufferUsage.shared_blks_hit;
	uint32		id;

	if (la_write_combine_size == 0 || RelationUsesLocalBuffers(rel) ||
		!la_guard_is_possible() ||
		(la_sweep_retry_ns != 0 && la_wall_ns() < la_sweep_retry_ns))
		return;
	id = StrategySyncStart(NULL, NULL);
	for (uint32 i = 0; i < nlooks; i++, id++)
	{
		BufferDesc *desc = GetBufferDescriptor(id % NBuffers);
		BufferTag	tag;

		if (!la_is_to_be_written(BufferDescriptorGetBuffer(desc), &order.due))
			continue;
		tag = desc->tag;		/* may be half of another: only a hint */
		if (!BufTagMatchesRelFileLocator(&tag, locator) ||
			BufTagGetForkNum(&tag) != MAIN_FORKNUM ||
			la_was_written(&order, tag.blockNum))
			continue;
		CHECK_FOR_INTERRUPTS();
		if (la_write_around(&order, tag.blockNum))
			continue;
		la_sweep_retry_ns = la_wall_ns() + LA_RETRY_NS;
		break;
	}
	pgBufferUsage.shared_blks_hit = hits;
}

/*
 * The load has ended, and well.
 */
void
la_filled_free(LaFilledPages *filled)
{
	if (filled->pages)
		pfree(filled->pages);
	filled->pages = NULL;
}

#endif							/* LA_HAVE_WRITE_RUNS */
