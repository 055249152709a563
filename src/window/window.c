/*-------------------------------------------------------------------------
 *
 * window.c
 *	  The blocks in front of one scan: deduplicated, sorted, read, released.
 *
 * Called by the file that follows a scan (index_scan.c), which says when the
 * scan moves to another block and when there is time to fill.  Asks a source
 * what comes next, a pace how far to go, a method to read.
 *
 * The queue holds positions: the blocks in the order in which the scan will
 * come to them, neighbouring repeats collapsed.  The table holds blocks, each
 * once.  A scan of a randomly ordered table, standing on block 40:
 *
 *		source says	40 40 91 12 92 12 90 ...
 *
 *		queue		 91  12  92  12  90
 *					 ^head               ^tail
 *		blocks		 40 (1 position: the scan's own)
 *					 91 (1)  12 (2)  92 (1)  90 (1)
 *		batch		 12 90 91 92			sorted
 *		runs		 12, 90-92				what is not in shared buffers,
 *											coalesced
 *
 * The order of the queue is the scan's; the order of reading is ours.  That is
 * the point of the whole design: a sorted window of a table that is only
 * roughly in index order becomes a few large reads.
 *
 * When the scan comes to block 91, head moves on, block 40 loses its position,
 * and with it its entry.  Block 12 keeps its entry, so is not read again, until
 * the scan has passed its second position.
 *
 * The scan is not obliged to follow.  A block that is not at the head is
 * looked for a few positions further on (index entries may die between the
 * source's visit and the scan's); if it is not there it is ignored, and the
 * queue waits.  index_ahead.c gives up when too many are ignored in a row.
 * A window that names each block once (leaf pages) is searched as a whole.
 *
 * Two windows are in flight: la_window_wants_fill() says yes when half of the
 * distance has been consumed, and the fill tops it up, so the scan works on
 * one half while the other is being read.  A method that cannot start all
 * reads of a window at once leaves runs behind; they are started as the scan
 * moves on, and no further window is filled before they are.
 *
 * Memory: a window has a memory context, a child of the query's, in which its
 * owner keeps what is needed to fill it.  The context goes in one of three
 * ways, and each calls the owner's forget(): in order, la_window_close(); after
 * an error in a fill, la_window_fail(); with the query's memory after any other
 * error.  A window pins nothing but in a fill: a method gives back a buffer as
 * soon as its read has begun, and a read in flight holds its own pin.
 *
 * Limits: the distance is at most "limit" blocks, the queue at most queue_size
 * positions.  It is full where a scan comes to the same blocks again and again,
 * as in an index on what several sessions have inserted at once; then nothing
 * is filled before the scan has used half of it, or each entry would have a
 * window of its own.  A session has LA_MAX_WINDOWS; a scan that finds none left
 * reads by itself.
 *
 * Copyright (c) 2026, the pg_lookahead authors
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "common/hashfn.h"
#include "compat.h"
#include "method/method.h"
#include "port/pg_bitutils.h"
#include "utils/memutils.h"
#include "window/window.h"

/* Positions in the queue for each block of distance. */
#define LA_POSITIONS_PER_BLOCK	16

/*
 * Windows that a session has at a time: a merge of a thousand partitions, say,
 * runs as many scans at once.
 */
#define LA_MAX_WINDOWS			256

/* How far from the head a block is looked for. */
#define LA_SEARCH_POSITIONS		16

#define SH_PREFIX lablocks
#define SH_ELEMENT_TYPE LaBlock
#define SH_KEY_TYPE BlockNumber
#define SH_KEY blkno
#define SH_HASH_KEY(tb, key) murmurhash32(key)
#define SH_EQUAL(tb, a, b) ((a) == (b))
#define SH_SCOPE static inline
#define SH_DECLARE
#define SH_DEFINE
#include "lib/simplehash.h"

#define ST_SORT la_sort_blocks
#define ST_ELEMENT_TYPE BlockNumber
#define ST_COMPARE(a, b) ((*(a) > *(b)) - (*(a) < *(b)))
#define ST_SCOPE static
#define ST_DEFINE
#include "lib/sort_template.h"

/* Those that are open. */
static int	la_nwindows = 0;

/*
 * The context of a window goes.  If that was not in order, nothing in flight
 * may refer to it afterwards.
 */
static void
la_window_goes(void *arg)
{
	LaWindow   *window = arg;

	if (!window->is_closed && window->method->abandon)
		window->method->abandon(window);
	window->forget(window->user);
	la_nwindows--;
}

/*
 * May another window be opened?  If not, a block is counted that the scan would
 * have asked for.
 */
bool
la_window_is_possible(LaCounters *counters)
{
	if (likely(la_nwindows < LA_MAX_WINDOWS))
		return true;
	counters->blocks_dropped_total++;
	return false;
}

/*
 * Should a scan that begins again soon give its window back meanwhile?  Not
 * all that a plan starts by turns can keep theirs.
 */
bool
la_windows_are_scarce(void)
{
	return la_nwindows >= LA_MAX_WINDOWS / 2;
}

/*
 * Make a window on the blocks of rel, in a context below "parent".  Call
 * la_window_drop() to say where the scan is.
 *
 * forget(user) is called when the context goes, and must not raise an error:
 * no pointer to the window, or to what the caller has put into its context,
 * may be left.
 */
LaWindow *
la_window_open(MemoryContext parent, Relation rel,
			   const LaMethod *method, LaPace *pace, LaCounters *counters,
			   void (*forget) (void *user), void *user)
{
	MemoryContext context = AllocSetContextCreate(parent,
												  "pg_lookahead window",
												  ALLOCSET_DEFAULT_SIZES);
	MemoryContext save = MemoryContextSwitchTo(context);
	LaWindow   *window = palloc0(sizeof(LaWindow));

	MemoryContextCopyAndSetIdentifier(context, RelationGetRelationName(rel));
	window->context = context;
	window->rel = rel;
	window->method = method;
	window->pace = pace;
	window->counters = counters;
	if (method->most_blocks)
		pace->max_distance = Max(1, Min(pace->max_distance,
										method->most_blocks()));
	pace->distance = Min(pace->distance, pace->max_distance);
	window->limit = pace->max_distance;
	window->queue_size =
		pg_nextpower2_32(Max(1024, window->limit * LA_POSITIONS_PER_BLOCK));
	window->queue = palloc(sizeof(BlockNumber) * window->queue_size);
	window->batch = palloc(sizeof(BlockNumber) * window->limit);
	window->runs = palloc(sizeof(LaRun) * window->limit);
	window->blocks = lablocks_create(context, 256, NULL);
	window->last = window->current = InvalidBlockNumber;
	window->probe = InvalidBlockNumber;
	if (method->open)
		method->open(window);

	window->forget = forget;
	window->user = user;
	window->goes.func = la_window_goes;
	window->goes.arg = window;
	MemoryContextRegisterResetCallback(context, &window->goes);
	la_nwindows++;
	MemoryContextSwitchTo(save);
	return window;
}

/*
 * Find a block in front of the scan, or NULL.
 */
LaBlock *
la_window_lookup(LaWindow *window, BlockNumber blkno)
{
	return lablocks_lookup(window->blocks, blkno);
}

/*
 * A read was begun, or advised, for a block; NULL if the scan is past it.  For
 * methods.
 */
void
la_window_issued(LaWindow *window, LaBlock *block)
{
	window->counters->blocks_issued_total++;
	if (block == NULL || block->reached)
		window->counters->blocks_wasted_total++;
	else
		block->issued = true;
}

/*
 * Has the scan come to the end of the queue?
 */
bool
la_window_is_empty(const LaWindow *window)
{
	return window->head == window->tail;
}

/*
 * Is there room for another window, or a rest of the last one to start?
 */
bool
la_window_wants_fill(LaWindow *window)
{
	if (window->next_run < window->nruns)
		return window->method->ready == NULL || window->method->ready(window);
	if (window->source_ended)
		return false;
	if (window->queue_full &&
		la_window_length(window) > window->queue_size / 2)
		return false;
	return window->nahead <= la_pace_distance(window->pace) / 2;
}

/*
 * Is the block in shared buffers, or on its way there?
 *
 * Only a look: the answer may be stale when it is used.
 */
bool
la_block_is_resident(const RelFileLocator *locator, ForkNumber fork,
					 BlockNumber blkno)
{
	return la_block_buffer(locator, fork, blkno) != InvalidBuffer;
}

/*
 * The shared buffer that the block is in, or InvalidBuffer.  Likewise.
 */
Buffer
la_block_buffer(const RelFileLocator *locator, ForkNumber fork,
				BlockNumber blkno)
{
	BufferTag	tag;
	uint32		hash;
	LWLock	   *lock;
	int			buf_id;

	InitBufferTag(&tag, locator, fork, blkno);
	hash = BufTableHashCode(&tag);
	lock = BufMappingPartitionLock(hash);
	LWLockAcquire(lock, LW_SHARED);
	buf_id = BufTableLookup(&tag, hash);
	LWLockRelease(lock);
	return buf_id + 1;
}

/*
 * The same for a block of the window.  Those of temporary tables are in local
 * buffers, where there is nothing to look into from here; the methods cope.
 */
static bool
la_window_has_resident(const LaWindow *window, BlockNumber blkno)
{
	return !RelationUsesLocalBuffers(window->rel) &&
		la_block_is_resident(la_rel_locator(window->rel), MAIN_FORKNUM, blkno);
}

/*
 * Ask the source for blocks until "want" new ones are in the batch, the queue
 * is full, or the source has no more for now.  Returns the number of new
 * blocks.
 */
static int
la_window_collect(LaWindow *window, LaSource *source, int want)
{
	int			nbatch = 0;

	window->source_far = false;
	Assert(want <= window->limit);

	while (nbatch < want &&
		   la_window_length(window) < window->queue_size)
	{
		BlockNumber blkno;
		LaBlock    *block;
		bool		found;
		LaSourceResult result = source->next(source, &blkno);

		if (result != LA_SOURCE_BLOCK)
		{
			window->source_ended = (result == LA_SOURCE_END ||
									result == LA_SOURCE_LOST);
			window->source_far = (result == LA_SOURCE_FAR);
			window->source_lost = (result == LA_SOURCE_LOST);
			break;
		}
		if (blkno == window->last && !source->passed)
			continue;
		source->passed = false;

		/* This may fail for lack of memory, so it comes first. */
		block = lablocks_insert(window->blocks, blkno, &found);
		if (found)
			block->positions++;
		else
		{
			block->issued = false;
			block->reached = false;
			block->positions = 1;
			window->nahead++;
			window->batch[nbatch++] = blkno;
		}
		window->queue[window->tail++ & (window->queue_size - 1)] = blkno;
		window->last = blkno;
	}
	window->queue_full = la_window_length(window) >= window->queue_size;
	return nbatch;
}

/*
 * Sort the batch and make runs of the blocks that must be read.  Returns the
 * number of those blocks.
 */
static int
la_window_plan(LaWindow *window, int nbatch)
{
	int			nreads = 0;
	int			combine = la_io_combine_limit();

	la_sort_blocks(window->batch, nbatch);
	window->nruns = window->next_run = 0;
	for (int i = 0; i < nbatch; i++)
	{
		BlockNumber blkno = window->batch[i];
		LaRun	   *run;

		if (la_window_has_resident(window, blkno))
		{
			window->counters->blocks_hit_total++;
			continue;
		}
		nreads++;
		run = (window->nruns > 0) ? &window->runs[window->nruns - 1] : NULL;
		if (run && run->first + run->nblocks == blkno &&
			run->nblocks < combine)
			run->nblocks++;
		else
		{
			run = &window->runs[window->nruns++];
			run->first = blkno;
			run->nblocks = 1;
		}
	}
	return nreads;
}

/*
 * Leave one block out, for the scan to read by itself; see pace.c.  It is the
 * last of a run in the middle, so that no run is torn.
 */
static void
la_window_leave_probe(LaWindow *window)
{
	LaRun	   *run = &window->runs[window->nruns / 2];

	run->nblocks--;
	window->probe = run->first + run->nblocks;
	window->counters->blocks_dropped_total++;
}

/*
 * Is any block of a run still in front of the scan?  The start of a run may
 * have been put off; and a run that was only the probe is empty.
 */
static bool
la_run_is_wanted(LaWindow *window, const LaRun *run)
{
	for (int i = 0; i < run->nblocks; i++)
	{
		LaBlock    *block = lablocks_lookup(window->blocks, run->first + i);

		if (block != NULL && !block->reached)
			return true;
	}
	return false;
}

/*
 * Start what the method is ready to start of the current window.
 */
static void
la_window_start_runs(LaWindow *window)
{
	const LaMethod *method = window->method;
	bool		started = false;

	while (window->next_run < window->nruns &&
		   (method->ready == NULL || method->ready(window)))
	{
		LaRun	   *run = &window->runs[window->next_run++];

		if (!la_run_is_wanted(window, run))
		{
			window->counters->blocks_dropped_total += run->nblocks;
			continue;
		}
		method->start(window, run);
		started = true;
	}
	if (started && method->submit)
		method->submit(window);
}

/*
 * Top up what is in front of the scan.  Call when la_window_wants_fill().
 *
 * Raises errors; run it under la_guard_run().
 */
LaFill
la_window_fill(LaWindow *window, LaSource *source)
{
	int			want;
	int			nbatch;
	int			nreads;

	la_window_start_runs(window);
	if (window->next_run < window->nruns || window->source_ended)
		return LA_FILL_OK;

	want = la_pace_distance(window->pace) - window->nahead;
	if (want <= 0)
		return LA_FILL_OK;
	nbatch = la_window_collect(window, source, Min(want, window->limit));
	if (window->source_lost)
	{
		window->counters->blocks_dropped_total += nbatch;
		return LA_FILL_LOST;
	}
	if (nbatch == 0)
	{
		/*
		 * An index-only scan may have all its blocks all-visible, and a scan
		 * may come to the same few blocks again and again.
		 */
		if ((window->source_far || window->queue_full) &&
			window->nahead == 0 && la_pace_filled_none(window->pace))
			return LA_FILL_IDLE;
		return LA_FILL_OK;
	}

	nreads = la_window_plan(window, nbatch);
	window->counters->windows_total++;
	window->counters->depth_max = Max(window->counters->depth_max,
									  window->nahead);
	if (nreads > 0)
	{
		if (window->probe == InvalidBlockNumber &&
			la_pace_wants_probe(window->pace))
			la_window_leave_probe(window);
		if (window->method->announce)
			window->method->announce(window);
		la_window_start_runs(window);
	}
	return la_pace_filled(window->pace, nbatch, nreads) ?
		LA_FILL_IDLE : LA_FILL_OK;
}

/*
 * A block has lost a position; if it was the last, forget the block.
 */
static void
la_window_leave(LaWindow *window, LaBlock *block)
{
	Assert(block->positions > 0);

	if (--block->positions > 0)
		return;
	/* The scan did not come to the probe; another one may be left. */
	if (block->blkno == window->probe)
		window->probe = InvalidBlockNumber;
	if (!block->reached)
	{
		window->nahead--;
		if (block->issued)
			window->counters->blocks_wasted_total++;
	}
	lablocks_delete_item(window->blocks, block);
}

/*
 * Take the position at the head off the queue.
 */
static inline BlockNumber
la_window_pop(LaWindow *window)
{
	Assert(window->head != window->tail);
	return window->queue[window->head++ & (window->queue_size - 1)];
}

/*
 * Pass over the position at the head; it is not the scan's.
 */
static void
la_window_skip_head(LaWindow *window)
{
	BlockNumber blkno = la_window_pop(window);
	LaBlock    *block = lablocks_lookup(window->blocks, blkno);

	Assert(block != NULL);
	la_window_leave(window, block);
}

/*
 * The scan has come to the head of the queue: leave the block it was on, and
 * note that this one was reached.
 */
static void
la_window_arrive(LaWindow *window)
{
	BlockNumber blkno = la_window_pop(window);
	LaBlock    *block;

	/* The block it was on has an entry only if it came from the queue. */
	block = lablocks_lookup(window->blocks, window->current);
	if (block != NULL && block->reached)
		la_window_leave(window, block);

	window->current = blkno;
	window->at_probe = (blkno == window->probe);
	if (window->at_probe)
		window->probe = InvalidBlockNumber;
	block = lablocks_lookup(window->blocks, blkno);
	Assert(block != NULL);
	window->at_issued = block->issued && !block->reached;
	if (!block->reached)
	{
		block->reached = true;
		window->nahead--;
		if (block->issued)
			window->counters->blocks_used_total++;
	}
}

/*
 * How many positions behind the head is a block?  0 if it is not found.
 */
static uint32
la_window_search(LaWindow *window, BlockNumber blkno)
{
	uint32		mask = window->queue_size - 1;
	uint32		npositions = la_window_length(window);

	if (window->is_sequence)
	{
		LaBlock    *block = lablocks_lookup(window->blocks, blkno);

		if (block == NULL || block->reached)
			return 0;
	}
	else
		npositions = Min(npositions, LA_SEARCH_POSITIONS);
	for (uint32 i = 1; i < npositions; i++)
		if (window->queue[(window->head + i) & mask] == blkno)
			return i;
	return 0;
}

/*
 * The scan has moved to another block.
 */
LaStep
la_window_step(LaWindow *window, BlockNumber blkno)
{
	uint32		npassed;

	if (la_window_is_empty(window))
		return LA_STEP_EMPTY;

	if (likely(la_window_first(window) == blkno))
	{
		la_window_arrive(window);
		return LA_STEP_MATCHED;
	}

	/* Still on a block that has an entry, or one the source did not name? */
	npassed = la_window_search(window, blkno);
	if (npassed == 0)
		return LA_STEP_IGNORED;

	while (npassed-- > 0)
	{
		if (window->passing_is_use)
			la_window_arrive(window);
		else
			la_window_skip_head(window);
	}
	la_window_arrive(window);
	return LA_STEP_MATCHED;
}

/*
 * How many reads does the block take that the scan has just come to, where this
 * process has made nreads since the one before?  As many as without look-ahead,
 * or the times that a trial compares would be those of unlike things: what
 * "aio" and "worker" have read counts, what was there before does not.  To be
 * asked before la_window_met().
 */
int
la_window_reads(const LaWindow *window, int64 nreads)
{
	return (int) Max(nreads, window->at_issued);
}

/*
 * What the scan met at the block it is on: was it read, and waited for?  A wait
 * without a read is one for a read of ours.  Returns true if look-ahead is of
 * no use any more.
 */
bool
la_window_met(LaWindow *window, bool missed, bool waited)
{
	bool		at_probe = window->at_probe;

	window->at_probe = window->at_issued = false;
	if (waited)
	{
		window->counters->waits_total++;
		if (!at_probe)
			la_pace_waited(window->pace);
	}
	return at_probe && missed && la_pace_probed(window->pace, waited);
}

/*
 * The scan, or another process of it, has been at all blocks of the window.
 */
void
la_window_pass_all(LaWindow *window)
{
	while (!la_window_is_empty(window))
		la_window_arrive(window);
}

/*
 * Forget all that is in front of the scan, which is on block "current" now:
 * it goes elsewhere, or we do not know where it goes.  Blocks issued and not
 * reached are wasted.
 */
void
la_window_drop(LaWindow *window, BlockNumber current)
{
	LaBlock    *block;

	/* The inner side of a nested loop comes here for every outer row. */
	while (window->head != window->tail)
		la_window_skip_head(window);
	block = lablocks_lookup(window->blocks, window->current);
	if (block != NULL)
		la_window_leave(window, block);
	Assert(window->blocks->members == 0);
	Assert(window->nahead == 0);

	for (int i = window->next_run; i < window->nruns; i++)
		window->counters->blocks_dropped_total += window->runs[i].nblocks;
	window->nruns = window->next_run = 0;
	window->probe = InvalidBlockNumber;
	window->at_probe = window->at_issued = false;
	window->last = window->current = current;
	window->source_ended = window->source_lost = false;
}

/*
 * The scan goes elsewhere, and will not come to what was in front of it: what
 * has not been read yet need not be.  It may have no window.
 */
void
la_window_elsewhere(LaWindow *window)
{
	if (window != NULL && window->method->drop)
		window->method->drop(window);
}

/*
 * The executor goes back to its caller: keep what we know, pin nothing.
 */
void
la_window_pause(LaWindow *window)
{
	if (window->method->pause)
		window->method->pause(window);
	Assert(la_window_in_flight(window) == 0);
}

/*
 * End look-ahead in order, and free the window.  Drops what is left; nothing is
 * pinned or in flight afterwards.
 */
void
la_window_close(LaWindow *window)
{
	la_window_drop(window, InvalidBlockNumber);
	la_window_pause(window);
	if (window->method->close)
		window->method->close(window);
	window->is_closed = true;
	MemoryContextDelete(window->context);
}

/*
 * Free the window after an error in a fill, which the guard has caught.
 */
void
la_window_fail(LaWindow *window)
{
	window->counters->errors_total++;
	la_window_drop(window, InvalidBlockNumber);
	MemoryContextDelete(window->context);
}

/*
 * How many reads of this window are in flight?  Each pins its blocks.
 */
int
la_window_in_flight(const LaWindow *window)
{
	return window->method->in_flight ? window->method->in_flight(window) : 0;
}
