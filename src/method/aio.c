/*-------------------------------------------------------------------------
 *
 * aio.c
 *	  Method "aio": the server's own asynchronous I/O into shared buffers (18).
 *
 * A run becomes one call of StartReadBuffers(), or several where the server
 * splits it: at a block somebody else has read meanwhile, or at a segment
 * boundary.  Each call that began an I/O is one LaAioRead:
 *
 *		free -> started -> done -> free
 *						   ^ pins may be dropped before or after
 *
 * A read stays "started" in a FIFO until its I/O is known to be complete.  The
 * ReadBuffersOperation must stay in memory until then, because the server
 * writes the outcome into it; so a read whose blocks are all released is not
 * free before it is done.
 *
 * We never call WaitReadBuffers().  It raises an error if a block is bad, and
 * the block may be one that the query never needs.  The scan's own ReadBuffer()
 * finds the buffer valid, or waits for the I/O in progress, or finds the read
 * failed and tries it again, with exactly the errors it would have raised
 * without us.
 *
 * Limits: io_concurrency reads in flight, further limited by the server's
 * io_max_concurrency, so that StartReadBuffers() never waits for a handle; as
 * many pins as the buffer manager grants one backend.
 *
 * With io_method=worker and buffered I/O the few I/O workers would starve a
 * deep window; the kernel is given advice for the whole window first, so the
 * workers only copy.
 *
 * Copyright (c) 2026, the pg_lookahead authors
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "compat.h"
#include "method/method.h"

#if LA_HAVE_AIO

/* Handles that we leave to the scan itself and to other nodes of the plan. */
#define LA_AIO_SPARE_HANDLES	4

typedef struct LaAioRead
{
	ReadBuffersOperation op;	/* the server's until the read is done */
	bool		started;		/* in the FIFO: the I/O may be under way */
	int			nheld;			/* blocks that still refer to this read */
} LaAioRead;

typedef struct LaAio
{
	LaAioRead  *reads;
	int			nreads;			/* capacity */
	int		   *free;			/* stack of free reads */
	int			nfree;
	int		   *fifo;			/* ring of started reads, oldest first */
	int			fifo_head;
	int			nstarted;
	int			npins;
	bool		in_batch;
} LaAio;

static void
la_aio_open(LaWindow *window)
{
	LaAio	   *aio = palloc0(sizeof(LaAio));

	/* Never more reads than blocks; one more run may be half split. */
	aio->nreads = window->limit + MAX_IO_COMBINE_LIMIT;
	aio->reads = palloc0(sizeof(LaAioRead) * aio->nreads);
	aio->free = palloc(sizeof(int) * aio->nreads);
	aio->fifo = palloc(sizeof(int) * aio->nreads);
	for (int i = 0; i < aio->nreads; i++)
		aio->free[aio->nfree++] = i;
	window->method_state = aio;
}

static void
la_aio_free_if_done(LaAio *aio, int i)
{
	LaAioRead  *read = &aio->reads[i];

	if (!read->started && read->nheld == 0)
	{
		Assert(aio->nfree < aio->nreads);
		aio->free[aio->nfree++] = i;
	}
}

/*
 * Take the oldest read off the FIFO.  Its I/O is complete.
 */
static void
la_aio_retire_oldest(LaAio *aio)
{
	int			i = aio->fifo[aio->fifo_head];

	aio->fifo_head = (aio->fifo_head + 1) % aio->nreads;
	aio->nstarted--;
	aio->reads[i].started = false;
	la_aio_free_if_done(aio, i);
}

/*
 * May we start another read?  Looks whether old ones are done, without
 * waiting.
 */
static bool
la_aio_ready(LaWindow *window)
{
	LaAio	   *aio = window->method_state;
	int			most = Min(la_io_concurrency,
						   io_max_concurrency - LA_AIO_SPARE_HANDLES);

	while (aio->nstarted > 0 &&
		   pgaio_wref_check_done(&aio->reads[aio->fifo[aio->fifo_head]].op.io_wref))
		la_aio_retire_oldest(aio);

	if (aio->nstarted >= Max(most, 1) || aio->nfree < MAX_IO_COMBINE_LIMIT)
		return false;
	return GetAdditionalPinLimit() >= (uint32) io_combine_limit;
}

/*
 * A window was decided on.  See the header about I/O workers.
 */
static void
la_aio_announce(LaWindow *window)
{
	if (io_method != IOMETHOD_WORKER || la_direct_io())
		return;
	for (int i = 0; i < window->nruns; i++)
		la_smgr_prefetch(RelationGetSmgr(window->rel), MAIN_FORKNUM,
						 window->runs[i].first, window->runs[i].nblocks);
}

/*
 * Note which buffers a part of a run got, and the read it belongs to (-1 if
 * the blocks were there already).
 */
static void
la_aio_note(LaWindow *window, BlockNumber first, const Buffer *buffers,
			int nblocks, int read)
{
	LaAio	   *aio = window->method_state;

	for (int i = 0; i < nblocks; i++)
	{
		LaBlock    *block = la_window_lookup(window, first + i);

		/*
		 * The scan may have come to, and gone from, a block whose start was
		 * put off.
		 */
		if (block == NULL || block->buffer != InvalidBuffer)
		{
			ReleaseBuffer(buffers[i]);
			continue;
		}
		block->buffer = buffers[i];
		block->read = read;
		aio->npins++;
		if (read >= 0)
		{
			aio->reads[read].nheld++;
			block->issued = !block->reached;
		}
		if (block->issued)
			window->counters->blocks_issued_total++;
		else
			window->counters->blocks_hit_total++;
	}
}

static void
la_aio_start(LaWindow *window, const LaRun *run)
{
	LaAio	   *aio = window->method_state;
	Buffer		buffers[MAX_IO_COMBINE_LIMIT];
	int			done = 0;

	Assert(run->nblocks <= MAX_IO_COMBINE_LIMIT);

	if (!aio->in_batch)
	{
		pgaio_enter_batchmode();
		aio->in_batch = true;
	}

	/* In and out: forwarded buffers come back here, see the header. */
	memset(buffers, 0, sizeof(buffers));
	while (done < run->nblocks)
	{
		int			n = run->nblocks - done;
		int			i = aio->free[--aio->nfree];
		LaAioRead  *read = &aio->reads[i];

		Assert(aio->nfree >= 0);
		Assert(!read->started && read->nheld == 0);

		read->op.rel = window->rel;
		read->op.smgr = RelationGetSmgr(window->rel);
		read->op.persistence = window->rel->rd_rel->relpersistence;
		read->op.forknum = MAIN_FORKNUM;
		read->op.strategy = NULL;
		if (StartReadBuffers(&read->op, &buffers[done], run->first + done,
							 &n, 0))
		{
			read->started = true;
			aio->fifo[(aio->fifo_head + aio->nstarted++) % aio->nreads] = i;
			la_aio_note(window, run->first + done, &buffers[done], n, i);
		}
		else
		{
			aio->free[aio->nfree++] = i;
			la_aio_note(window, run->first + done, &buffers[done], n, -1);
		}
		done += n;
	}
}

static void
la_aio_submit(LaWindow *window)
{
	LaAio	   *aio = window->method_state;

	if (aio->in_batch)
	{
		aio->in_batch = false;
		pgaio_exit_batchmode();
	}
}

static void
la_aio_release(LaWindow *window, LaBlock *block)
{
	LaAio	   *aio = window->method_state;

	if (block->buffer != InvalidBuffer)
	{
		ReleaseBuffer(block->buffer);
		block->buffer = InvalidBuffer;
		aio->npins--;
	}
	if (block->read >= 0)
	{
		aio->reads[block->read].nheld--;
		la_aio_free_if_done(aio, block->read);
		block->read = -1;
	}
}

/*
 * Drop all pins and wait for what is in flight: the I/O has pins of its own.
 */
static void
la_aio_pause(LaWindow *window)
{
	LaAio	   *aio = window->method_state;

	if (aio->npins > 0)
		la_window_release_all(window);
	while (aio->nstarted > 0)
	{
		pgaio_wref_wait(&aio->reads[aio->fifo[aio->fifo_head]].op.io_wref);
		la_aio_retire_oldest(aio);
	}
	Assert(aio->npins == 0);
	Assert(aio->nfree == aio->nreads);
}

/*
 * The pins are gone with the resource owner.  An I/O in flight may still
 * write its outcome into our memory, so see it end.  Runs while a transaction
 * aborts: must not raise an error, so no interrupt may be served.
 */
static void
la_aio_abandon(LaWindow *window)
{
	LaAio	   *aio = window->method_state;

	aio->npins = 0;
	aio->in_batch = false;
	HOLD_INTERRUPTS();
	while (aio->nstarted > 0)
	{
		pgaio_wref_wait(&aio->reads[aio->fifo[aio->fifo_head]].op.io_wref);
		la_aio_retire_oldest(aio);
	}
	RESUME_INTERRUPTS();

	/* A read that was being started when the error came is in no list. */
	aio->nfree = 0;
	for (int i = 0; i < aio->nreads; i++)
	{
		aio->reads[i].started = false;
		aio->reads[i].nheld = 0;
		aio->free[aio->nfree++] = i;
	}
}

static int
la_aio_pins(const LaWindow *window)
{
	return ((const LaAio *) window->method_state)->npins;
}

const LaMethod la_method_aio = {
	.id = LA_METHOD_AIO,
	.name = "aio",
	.open = la_aio_open,
	.announce = la_aio_announce,
	.ready = la_aio_ready,
	.start = la_aio_start,
	.submit = la_aio_submit,
	.release = la_aio_release,
	.pause = la_aio_pause,
	.abandon = la_aio_abandon,
	.pins = la_aio_pins,
};

#else

/* Before 18 nothing chooses this; the name is there for the setting. */
const LaMethod la_method_aio = {
	.id = LA_METHOD_AIO,
	.name = "aio",
};

#endif							/* LA_HAVE_AIO */
