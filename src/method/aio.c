/*-------------------------------------------------------------------------
 *
 * aio.c
 *	  Method "aio": the server's own asynchronous I/O into shared buffers (18).
 *
 * A run becomes one call of StartReadBuffers(), or several where the server
 * splits it: at a block somebody else has read meanwhile, or at a segment
 * boundary.  Each call that began an I/O is one LaAioRead:
 *
 *		free -> started -> free
 *				in the FIFO, until its I/O is known to be complete
 *
 * The ReadBuffersOperation must stay in memory until then, because the server
 * writes the outcome into it.
 *
 * We drop our pins as soon as the I/O has begun.  It has a pin of its own that
 * goes when its completion is noticed: at once by an I/O worker, with io_uring
 * when we or anybody who wants the buffer look.  A page that was just read is
 * not evicted before the clock hand has gone all the way round, as long as the
 * window is small against shared buffers.  Pins would be many (a backend's
 * share of the default 128 MB is 94, fewer than a window), would have to be
 * given back whenever the executor returns to its caller, and could make VACUUM
 * wait.
 *
 * We never call WaitReadBuffers().  It raises an error if a block is bad, and
 * the block may be one that the query never needs.  The scan's own ReadBuffer()
 * finds the buffer valid, or waits for the I/O in progress, or finds the read
 * failed and tries it again, with exactly the errors it would have raised
 * without us.
 *
 * Limits: io_concurrency reads in flight, further limited by the server's
 * io_max_concurrency, so that one scan does not use up the handles; and blocks
 * in flight, which are pinned, by a backend's share of buffers, or with I/O
 * workers by LA_AIO_WORKER_SHARES of these.  A window that has reached one puts
 * off the rest.  Several together can, too.  Then the next start waits for an
 * old read: StartReadBuffers() for a handle, we for what may be pinned, and so
 * there is a list of the windows that have reads in flight.
 *
 * Reads for I/O workers are submitted together.  With io_uring each is at once:
 * a process that comes upon one that was not submitted yet sleeps until
 * somebody looks whether it is complete, which may be long after; see method.c.
 *
 * With io_method=worker and buffered I/O the few I/O workers would starve a
 * deep window; the kernel is given advice for the window first, so the workers
 * only copy.  Long runs are not advised: a worker reads one with a single call
 * anyway, and advice would move the work of the page cache from it to us.
 *
 * Copyright (c) 2026, the pg_lookahead authors
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "compat.h"
#include "lib/ilist.h"
#include "method/method.h"
#include "window/guard.h"

#if LA_HAVE_AIO

/* Handles that we leave to the scan itself and to other nodes of the plan. */
#define LA_AIO_SPARE_HANDLES	4

/* Reads that may be in flight whatever a backend's share of pins is. */
#define LA_AIO_MIN_READS		2

/* I/O workers give pins back by themselves: so many shares may be pinned. */
#define LA_AIO_WORKER_SHARES	4

/* A window is at most this fraction of shared buffers. */
#define LA_AIO_BUFFERS_DIVISOR	16

/* Runs of this many blocks are not advised to the kernel. */
#define LA_AIO_LONG_RUN		8

typedef struct LaAio
{
	dlist_node	node;			/* in la_aio_busy while reads are started */
	int			nreads;			/* capacity of what follows */
	ReadBuffersOperation *reads;	/* the server's while in the FIFO */
	int		   *sizes;			/* blocks of each */
	int		   *free;			/* stack of free reads */
	int			nfree;
	int		   *fifo;			/* ring of started reads, oldest first */
	int			fifo_head;
	int			nstarted;
	int			nblocks;		/* of the started reads */
	bool		in_burst;		/* between start() and submit() */
} LaAio;

/* The windows that have started reads, and what these are together. */
static dlist_head la_aio_busy = DLIST_STATIC_INIT(la_aio_busy);
static int	la_aio_nstarted = 0;
static int	la_aio_nblocks = 0;

/*
 * Are reads submitted together?  See the header.
 */
static inline bool
la_aio_has_batches(void)
{
	return io_method == IOMETHOD_WORKER;
}

/*
 * How many reads may a window have in flight at once?
 */
static int
la_aio_most_reads(void)
{
	return Max(1, Min(la_io_concurrency,
					  io_max_concurrency - LA_AIO_SPARE_HANDLES));
}

/*
 * A window is read in sorted order but consumed in the scan's.  If only part
 * of it could be started, the scan would come to blocks at its sorted end
 * that are not, and read them itself, one by one.  So a window is no larger
 * than what can be in flight.  Two windows are in front of a scan.
 */
static int
la_aio_most_blocks(void)
{
	return Min(2 * la_aio_most_reads(), NBuffers / LA_AIO_BUFFERS_DIVISOR);
}

static void
la_aio_open(LaWindow *window)
{
	LaAio	   *aio = palloc0(sizeof(LaAio));

	/* The last run before the limit may be split into single blocks. */
	aio->nreads = la_aio_most_reads() + MAX_IO_COMBINE_LIMIT;
	aio->reads = palloc0(sizeof(ReadBuffersOperation) * aio->nreads);
	aio->sizes = palloc0(sizeof(int) * aio->nreads);
	aio->free = palloc(sizeof(int) * aio->nreads);
	aio->fifo = palloc(sizeof(int) * aio->nreads);
	for (int i = 0; i < aio->nreads; i++)
		aio->free[aio->nfree++] = i;
	window->method_state = aio;
}

static PgAioWaitRef *
la_aio_oldest(LaAio *aio)
{
	Assert(aio->nstarted > 0);
	return &aio->reads[aio->fifo[aio->fifo_head]].io_wref;
}

/*
 * A read of the window has begun: the last in its FIFO.
 */
static void
la_aio_begun(LaAio *aio, int read, int nblocks)
{
	if (aio->nstarted == 0)
		dlist_push_tail(&la_aio_busy, &aio->node);
	aio->fifo[(aio->fifo_head + aio->nstarted++) % aio->nreads] = read;
	aio->sizes[read] = nblocks;
	aio->nblocks += nblocks;
	la_aio_nstarted++;
	la_aio_nblocks += nblocks;
	Assert(aio->nfree + aio->nstarted <= aio->nreads);
}

/*
 * Take the oldest read off the FIFO.  Its I/O is complete.
 */
static void
la_aio_retire_oldest(LaAio *aio)
{
	int			read = aio->fifo[aio->fifo_head];

	Assert(aio->nstarted > 0);
	aio->free[aio->nfree++] = read;
	aio->fifo_head = (aio->fifo_head + 1) % aio->nreads;
	aio->nblocks -= aio->sizes[read];
	la_aio_nstarted--;
	la_aio_nblocks -= aio->sizes[read];
	if (--aio->nstarted == 0)
		dlist_delete(&aio->node);
	Assert(la_aio_nstarted > 0 ? la_aio_nblocks > 0 :
		   la_aio_nblocks == 0 && dlist_is_empty(&la_aio_busy));
}

static void
la_aio_retire_complete(LaAio *aio)
{
	while (aio->nstarted > 0 &&
		   pgaio_wref_check_done(la_aio_oldest(aio)))
		la_aio_retire_oldest(aio);
}

/*
 * May another read pin its blocks, beside so many that are in flight?  With
 * very few buffers a backend's share is nothing, and a window a few blocks.
 */
static bool
la_aio_may_pin(int nreads, int nblocks, uint32 share)
{
	int			pinned = io_method == IOMETHOD_WORKER ?
		Max(nreads, nblocks / LA_AIO_WORKER_SHARES) : nblocks;

	return nreads < LA_AIO_MIN_READS || pinned < (int) share;
}

/*
 * The windows together, whatever the plan itself has pinned: a merge of many
 * partitions has a page of each, and more than a share at times.
 */
static bool
la_aio_all_may_pin(void)
{
	return la_aio_may_pin(la_aio_nstarted, la_aio_nblocks, GetPinLimit());
}

/*
 * See that the windows together may pin the blocks of another read: wait for
 * old ones if need be.  Not to start it would leave a scan to itself because
 * its neighbours have their windows full.
 */
static void
la_aio_make_room(void)
{
	while (!la_aio_all_may_pin())
	{
		dlist_mutable_iter iter;

		dlist_foreach_modify(iter, &la_aio_busy)
			la_aio_retire_complete(dlist_container(LaAio, node, iter.cur));
		if (la_aio_all_may_pin())
			break;

		/* What was not submitted yet cannot be waited for. */
		pgaio_submit_staged();
		pgaio_wref_wait(la_aio_oldest(dlist_head_element(LaAio, node,
														 &la_aio_busy)));
	}
}

/*
 * May we start another read?  Looks whether old ones are done, without
 * waiting.
 */
static bool
la_aio_ready(LaWindow *window)
{
	LaAio	   *aio = window->method_state;
	int			most = la_aio_most_reads();

	la_aio_retire_complete(aio);

	/* Start in bursts: submitting many reads costs little more than one. */
	if (aio->nstarted >= (aio->in_burst ? most : (most + 1) / 2))
		return false;
	return aio->nfree >= MAX_IO_COMBINE_LIMIT &&
		la_aio_may_pin(aio->nstarted, aio->nblocks, GetAdditionalPinLimit());
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
		if (window->runs[i].nblocks < LA_AIO_LONG_RUN)
			la_smgr_prefetch(RelationGetSmgr(window->rel), MAIN_FORKNUM,
							 window->runs[i].first, window->runs[i].nblocks);
}

/*
 * A part of a run got its buffers, and a read was begun or they were there
 * already.  Count the blocks and drop our pins.
 */
static void
la_aio_note(LaWindow *window, BlockNumber first, const Buffer *buffers,
			int nblocks, bool begun)
{
	for (int i = 0; i < nblocks; i++)
	{
		/* The scan may be past a block whose start was put off. */
		LaBlock    *block = la_window_lookup(window, first + i);

		ReleaseBuffer(buffers[i]);
		if (!begun)
			window->counters->blocks_hit_total++;
		else
			la_window_issued(window, block);
	}
}

static void
la_aio_start(LaWindow *window, const LaRun *run)
{
	LaAio	   *aio = window->method_state;
	Buffer		buffers[MAX_IO_COMBINE_LIMIT];
	int			done = 0;

	Assert(run->nblocks <= MAX_IO_COMBINE_LIMIT);

	/* The session may have said so since the window was opened. */
	if (la_damage_is_accepted())
	{
		window->counters->blocks_dropped_total += run->nblocks;
		return;
	}

	/* Not for each part: what is split off is pinned already. */
	la_aio_make_room();

	if (!aio->in_burst)
	{
		if (la_aio_has_batches())
			pgaio_enter_batchmode();
		aio->in_burst = true;
	}

	/*
	 * In and out: buffers that the server pinned for a part it has split off
	 * come back here, for the next call.
	 */
	memset(buffers, 0, sizeof(buffers));
	while (done < run->nblocks)
	{
		int			n = run->nblocks - done;
		int			i = aio->free[--aio->nfree];
		ReadBuffersOperation *read = &aio->reads[i];
		bool		begun;

		Assert(aio->nfree >= 0);

		read->rel = window->rel;
		read->smgr = RelationGetSmgr(window->rel);
		read->persistence = window->rel->rd_rel->relpersistence;
		read->forknum = MAIN_FORKNUM;
		read->strategy = NULL;
		begun = StartReadBuffers(read, &buffers[done], run->first + done,
								 &n, 0);
		if (begun)
			la_aio_begun(aio, i, n);
		else
			aio->free[aio->nfree++] = i;
		la_aio_note(window, run->first + done, &buffers[done], n, begun);
		done += n;
	}
}

static void
la_aio_submit(LaWindow *window)
{
	LaAio	   *aio = window->method_state;

	if (aio->in_burst)
	{
		aio->in_burst = false;
		if (la_aio_has_batches())
			pgaio_exit_batchmode();
	}
}

/*
 * Wait for what is in flight.  No error of a read is raised; interrupts are
 * served.
 */
static void
la_aio_pause(LaWindow *window)
{
	LaAio	   *aio = window->method_state;

	while (aio->nstarted > 0)
	{
		pgaio_wref_wait(la_aio_oldest(aio));
		la_aio_retire_oldest(aio);
	}
	Assert(aio->nfree == aio->nreads && aio->nblocks == 0);
}

/*
 * An I/O in flight may still write its outcome into our memory, so see it end.
 * Runs while a transaction aborts: must not raise an error, so no interrupt
 * may be served.
 */
static void
la_aio_abandon(LaWindow *window)
{
	LaAio	   *aio = window->method_state;

	/* What was not submitted yet would not end. */
	if (aio->in_burst && la_aio_has_batches())
		la_aio_error_cleanup();
	aio->in_burst = false;
	HOLD_INTERRUPTS();
	while (aio->nstarted > 0)
	{
		pgaio_wref_wait(la_aio_oldest(aio));
		la_aio_retire_oldest(aio);
	}
	RESUME_INTERRUPTS();

	/* A read that was being started when the error came is in no list. */
	aio->nfree = 0;
	for (int i = 0; i < aio->nreads; i++)
		aio->free[aio->nfree++] = i;
}

/*
 * Reads whose I/O is not known to be complete.
 */
static int
la_aio_in_flight(const LaWindow *window)
{
	LaAio	   *aio = window->method_state;
	int			n = 0;

	for (int i = 0; i < aio->nstarted; i++)
	{
		int			read = aio->fifo[(aio->fifo_head + i) % aio->nreads];

		if (!pgaio_wref_check_done(&aio->reads[read].io_wref))
			n++;
	}
	return n;
}

const LaMethod la_method_aio = {
	.id = LA_METHOD_AIO,
	.name = "aio",
	.most_blocks = la_aio_most_blocks,
	.open = la_aio_open,
	.announce = la_aio_announce,
	.ready = la_aio_ready,
	.start = la_aio_start,
	.submit = la_aio_submit,
	.pause = la_aio_pause,
	.abandon = la_aio_abandon,
	.in_flight = la_aio_in_flight,
};

#else

/* Before 18 nothing chooses this; the name is there for the setting. */
const LaMethod la_method_aio = {
	.id = LA_METHOD_AIO,
	.name = "aio",
};

#endif							/* LA_HAVE_AIO */
