/*-------------------------------------------------------------------------
 *
 * queue.c
 *	  The queues between those who want blocks and the workers that read them.
 *
 * One bounded ring per worker, under a spinlock that is held for a few
 * instructions.  A range of blocks is cut at stripe boundaries, and the stripe
 * decides which worker gets the piece:
 *
 *		blocks	 100 ... 127 | 128 ... 255 | 256 ... 299
 *		stripe		 0		 |	   1	   |	 2
 *		worker		 0		 |	   1	   |	 0		(of two)
 *
 * What is paged in (LaTarget) goes to one worker, whatever the stripe: it is
 * about the kernel's read-ahead of a process that reads a file in order.
 *
 * A piece that continues the last one in the queue, if that is its owner's, is
 * joined to it, so that a scan which asks little by little is still read in
 * large pieces when the worker comes to it.  When a queue is full the piece is
 * dropped and counted.
 *
 * A worker that has nothing to do says so in "sleeping" before it sleeps, and
 * looks at its queue once more; who asks looks at it after the piece is in the
 * queue.  So either the worker finds the piece or the other wakes it.
 *
 * Copyright (c) 2026, the pg_lookahead authors
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "service/service.h"
#include "settings.h"

static inline uint32
la_queue_slot(uint32 number)
{
	return number % LA_MAX_QUEUE;
}

/*
 * Put one piece, which is within a stripe, into a worker's queue.
 */
static bool
la_queue_put(LaWorker *worker, const LaRequest *request)
{
	bool		accepted = false;
	bool		merged = false;
	Latch	   *latch;

	SpinLockAcquire(&worker->mutex);
	latch = worker->latch;
	if (worker->pid != 0)
	{
		LaRequest  *last = &worker->requests[la_queue_slot(worker->tail - 1)];

		if (worker->head != worker->tail &&
			last->owner == request->owner &&
			last->generation == request->generation &&
			last->first + last->nblocks == request->first &&
			last->nblocks + request->nblocks <= LA_STRIPE_BLOCKS)
		{
			last->nblocks += request->nblocks;
			last->until = request->until;
			accepted = merged = true;
		}
		else if (worker->tail - worker->head <
				 (uint32) Min(la_max_requests_per_worker, LA_MAX_QUEUE))
		{
			worker->requests[la_queue_slot(worker->tail++)] = *request;
			accepted = true;
		}
	}
	if (accepted)
		worker->queued_blocks += request->nblocks;
	SpinLockRelease(&worker->mutex);

	/* A full barrier, too: the request must be there when we look. */
	pg_atomic_fetch_add_u64(&worker->counters.requests, 1);
	if (merged)
		pg_atomic_fetch_add_u64(&worker->counters.merged, 1);
	if (!accepted)
	{
		pg_atomic_fetch_add_u64(&worker->counters.dropped, 1);
		return false;
	}
	pg_atomic_fetch_add_u64(&worker->counters.asked, request->nblocks);
	if (pg_atomic_read_u32(&worker->sleeping) != 0 && latch != NULL)
		SetLatch(latch);
	return true;
}

/*
 * The worker of this turn; if it does not run, because the server had no
 * process for it or it is being started again, the next one that does.
 */
static LaWorker *
la_worker_of(uint32 turn)
{
	int			nworkers = la_service->nworkers;

	for (int i = 0; i < nworkers; i++)
	{
		LaWorker   *worker = &la_service->workers[(turn + i) % nworkers];

		if (worker->pid != 0)
			return worker;
	}
	return &la_service->workers[turn % nworkers];
}

/*
 * Ask for a range of blocks.  They are of no use any more once the owner's
 * position is "until", nor is one that is nearer than "margin" in front of
 * where the target's "live" says that a process is.  Returns how many of them,
 * from the first on, got into a queue; the rest is dropped.
 */
int
la_owner_ask(const LaOwnerRef *ref, BlockNumber first, int nblocks,
			 uint64 until, BlockNumber margin)
{
	LaRequest	request;
	int			asked = 0;

	Assert(ref->owner != NULL && nblocks > 0);

	request.owner = (int) (ref->owner - la_service->owners);
	request.generation = ref->generation;
	request.margin = margin;
	request.queued_us = la_now_us();
	while (asked < nblocks)
	{
		BlockNumber next = first + asked;
		uint32		turn = next / LA_STRIPE_BLOCKS;
		int			room = LA_STRIPE_BLOCKS - next % LA_STRIPE_BLOCKS;

		request.first = next;
		request.nblocks = Min(nblocks - asked, room);
		request.until = until == PG_UINT64_MAX ? until :
			until - (nblocks - asked - request.nblocks);
		/* The kernel reads ahead of a process that reads all. */
		if (ref->owner->target.page_in)
			turn = (uint32) request.owner;
		if (!la_queue_put(la_worker_of(turn), &request))
			break;
		asked += request.nblocks;
	}
	return asked;
}

/*
 * Take the oldest request out of a worker's queue; false if there is none.
 */
bool
la_queue_take(LaWorker *worker, LaRequest *request)
{
	bool		found = false;

	SpinLockAcquire(&worker->mutex);
	if (worker->head != worker->tail)
	{
		*request = worker->requests[la_queue_slot(worker->head++)];
		worker->queued_blocks -= request->nblocks;
		found = true;
	}
	SpinLockRelease(&worker->mutex);
	return found;
}

/*
 * The number of requests in a queue.
 */
int
la_queue_depth(LaWorker *worker)
{
	uint32		depth;

	SpinLockAcquire(&worker->mutex);
	depth = worker->tail - worker->head;
	SpinLockRelease(&worker->mutex);
	return (int) depth;
}

/*
 * Does a worker have more than so many blocks to read?  Read without a lock: it
 * is of interest only roughly.
 */
bool
la_queues_are_long(uint32 nblocks)
{
	for (int i = 0; i < la_service->nworkers; i++)
	{
		volatile LaWorker *worker = &la_service->workers[i];

		if (worker->queued_blocks > nblocks)
			return true;
	}
	return false;
}

bool
la_queue_is_empty(LaWorker *worker)
{
	return la_queue_depth(worker) == 0;
}

/*
 * This process serves the queue from now on.  What a worker that died has left
 * in it is forgotten: those scans have gone on.
 */
void
la_queue_attach(LaWorker *worker)
{
	SpinLockAcquire(&worker->mutex);
	worker->pid = MyProcPid;
	worker->latch = MyLatch;
	worker->head = worker->tail;
	worker->queued_blocks = 0;
	SpinLockRelease(&worker->mutex);
}

/*
 * Nobody serves the queue from now on.
 */
void
la_queue_detach(LaWorker *worker)
{
	SpinLockAcquire(&worker->mutex);
	worker->pid = 0;
	worker->latch = NULL;
	worker->head = worker->tail;
	worker->queued_blocks = 0;
	SpinLockRelease(&worker->mutex);
	pg_atomic_write_u32(&worker->ring_blocks, 0);
}
