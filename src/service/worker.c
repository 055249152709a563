/*-------------------------------------------------------------------------
 *
 * worker.c
 *	  A worker of the I/O service.
 *
 * A background worker that is connected to no database.  It takes requests out
 * of its queue, in order, and reads their blocks into shared buffers:
 *
 *		queue ---take---> pending (advised) ---serve---> read, release
 *
 * A request that is taken is advised to the kernel at once, so that the device
 * works on what comes next while this process copies what came first.  Then the
 * blocks that are not in shared buffers are read, io_batch_size at a time: in
 * one call from 17, block by block before.
 *
 * What could go wrong, and why it does not:
 *
 *	- The relation is dropped, truncated or rewritten.  A block of it that were
 *	  read afterwards would be a buffer of a file that is gone; when the file
 *	  grows again the server would find "unexpected data beyond EOF".  So the
 *	  worker takes the lock that a reader takes, if it gets it without waiting,
 *	  and only then asks whether the owner is still there (owner.c has what that
 *	  promises).  It holds the lock for one request, a few milliseconds; when
 *	  the owner has ended, for the read that is under way.
 *	- The relation is an index that REINDEX CONCURRENTLY drops: that waits for
 *	  transactions, and the worker has none.  So its file may go after the
 *	  owner was asked for.  The read fails, or leaves a page of a file that is
 *	  gone, which nobody looks for as long as its number is not used again.
 *	- The database is dropped.  The same, with a lock on the database.
 *	- A block cannot be read, or its checksum is wrong.  The error ends here; it
 *	  is logged once for a relation in a minute, and counted.  The owner will
 *	  meet it itself if it needs the block.  Where damage is to be ignored
 *	  (zero_damaged_pages, ignore_checksum_failure) nothing is read, because
 *	  the owner's own read is the one that must warn.
 *	- The owner is past the block by now: it is skipped and counted.
 *	- The owner is watched (source/maintenance.c): nobody holds a lock for it,
 *	  so its file may be gone or shorter.  Then the read fails, and as the
 *	  command reports what is wrong with its table itself, nothing is logged
 *	  here.  Or the file is not the one that the command reads; the command
 *	  has the table to itself then, so the lock is not to be had, and the
 *	  kernel is advised only of a file that has the size which the command
 *	  reports (is_exact).  If the command must not be disturbed (advise_only),
 *	  the kernel is advised and that is all.  Or the file is read past shared
 *	  buffers (page_in), so that the kernel reads ahead of this process instead
 *	  of the command's, and finds the pages for it here.  That comes last, a
 *	  few blocks at a time, when there is no request that somebody waits for.
 *	- Other tables are pushed out of shared buffers.  All goes through a ring
 *	  of the worker's own; owner.c sees to it that no sequential scan asks for
 *	  more than fits.
 *
 * No pin is kept: a page that was just read is safe until the ring comes round.
 *
 * Copyright (c) 2026, the pg_lookahead authors
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "catalog/pg_database.h"
#include "compat.h"
#include "method/method.h"
#include "pgstat.h"
#include "postmaster/bgworker.h"
#include "postmaster/interrupt.h"
#include "service/service.h"
#include "settings.h"
#include "storage/ipc.h"
#include "storage/lock.h"
#include "utils/inval.h"
#include "utils/memutils.h"
#include "utils/timestamp.h"
#include "window/guard.h"
#include "window/window.h"

/* Requests taken out of the queue and advised, but not yet read. */
#define LA_MAX_PENDING		32

/* How long an error of a relation is remembered, by all workers. */
#define LA_LOG_AGAIN_US		UINT64CONST(60000000)

/*
 * Under load statistics are handed over, and files closed, this often.  To come
 * to a block the server opens all segments before its own.
 */
#define LA_TIDY_US			UINT64CONST(1000000)
#define LA_CLOSE_US			UINT64CONST(60000000)

/* A worker without work looks round this often, for what has no latch. */
#define LA_IDLE_TIMEOUT_MS	60000L

/* The rings of all workers are at most this fraction of shared buffers. */
#define LA_RINGS_DIVISOR	2

/* Requests that were taken, the oldest first. */
typedef struct LaPending
{
	LaRequest  *requests;
	int			size;
	int			first;
	int			n;
} LaPending;

/*
 * Those that are advised and read next, and those that are paged in.  As the
 * latter do not hold up what comes after them in the queue, all of one may have
 * come here.
 */
static LaRequest la_pending_places[LA_MAX_PENDING];
static LaPending la_pending = {la_pending_places, LA_MAX_PENDING};
static LaRequest la_aside_places[LA_MAX_QUEUE];
static LaPending la_aside = {la_aside_places, LA_MAX_QUEUE};

typedef enum LaPieceTask
{
	LA_PIECE_READ,				/* into shared buffers */
	LA_PIECE_ADVISE,
	LA_PIECE_PAGE_IN,			/* read to nowhere */
} LaPieceTask;

#define LA_IO_ALIGNMENT		4096

/* One piece of a request, for la_guard_run(). */
typedef struct LaPiece
{
	LaRange		range;
	LaPieceTask task;
} LaPiece;

static LaWorker *la_worker = NULL;	/* our own */
static LaRing *la_ring = NULL;
static char *la_nowhere = NULL; /* LA_SMGR_READ_MAX blocks that nobody needs */
static uint64 la_tidied_us = 0;	/* see la_worker_tidy() */
static uint64 la_closed_us = 0;

static inline void
la_count(pg_atomic_uint64 *counter, uint64 n)
{
	/* Nobody else adds to it: no locked instruction is needed. */
	pg_atomic_write_u64(counter, pg_atomic_read_u64(counter) + n);
}

static inline LaOwnerRef
la_owner_of(const LaRequest *request)
{
	LaOwnerRef	ref = {
		.owner = &la_service->owners[request->owner],
		.generation = request->generation
	};

	return ref;
}

/* -------------------------------------------------------------------------
 * Requests that were taken
 * -------------------------------------------------------------------------
 */

/*
 * Take the oldest request; false if there is none.
 */
static bool
la_pending_take(LaPending *pending, LaRequest *request)
{
	if (pending->n == 0)
		return false;
	*request = pending->requests[pending->first];
	pending->first = (pending->first + 1) % pending->size;
	pending->n--;
	return true;
}

/*
 * Add a request.  If there is no room it is dropped, as it would be by the
 * queue.
 */
static void
la_pending_add(LaPending *pending, const LaRequest *request)
{
	if (pending->n == pending->size)
	{
		pg_atomic_fetch_add_u64(&la_worker->counters.dropped, 1);
		return;
	}
	pending->requests[(pending->first + pending->n++) % pending->size] =
		*request;
}

/*
 * Put what is left of the request that was just taken where it was.
 */
static void
la_pending_give_back(LaPending *pending, const LaRequest *request, int done)
{
	LaRequest  *place;

	Assert(pending->n < pending->size && done < request->nblocks);
	pending->first = (pending->first + pending->size - 1) % pending->size;
	pending->n++;
	place = &pending->requests[pending->first];
	*place = *request;
	place->first += done;
	place->nblocks -= done;
}

/* -------------------------------------------------------------------------
 * Locks
 * -------------------------------------------------------------------------
 */

static void
la_lock_tags(const LaTarget *target, LOCKTAG *database, LOCKTAG *relation)
{
	SET_LOCKTAG_OBJECT(*database, InvalidOid, DatabaseRelationId,
					   target->dbid, 0);
	SET_LOCKTAG_RELATION(*relation, target->dbid, target->relid);
}

/*
 * Take a reader's locks if nobody is in the way, and there is room for them.
 * Session locks: there is no transaction here, nor in the watcher.
 */
bool
la_target_lock(const LaTarget *target)
{
	LOCKTAG		database,
				relation;

	la_lock_tags(target, &database, &relation);
	if (OidIsValid(target->dbid) &&
		la_session_lock(&database, AccessShareLock) == LOCKACQUIRE_NOT_AVAIL)
		return false;
	if (la_session_lock(&relation, AccessShareLock) == LOCKACQUIRE_NOT_AVAIL)
	{
		if (OidIsValid(target->dbid))
			LockRelease(&database, AccessShareLock, true);
		return false;
	}
	return true;
}

void
la_target_unlock(const LaTarget *target)
{
	LOCKTAG		database,
				relation;

	la_lock_tags(target, &database, &relation);
	LockRelease(&relation, AccessShareLock, true);
	if (OidIsValid(target->dbid))
		LockRelease(&database, AccessShareLock, true);
}

/* -------------------------------------------------------------------------
 * Reading
 * -------------------------------------------------------------------------
 */

/*
 * Read or advise one piece.  Runs under la_guard_run().
 */
static void
la_piece_body(void *arg)
{
	LaPiece    *piece = arg;
	LaRange    *range = &piece->range;

	switch (piece->task)
	{
		case LA_PIECE_READ:
			la_read_range(la_ring, range);
			break;
		case LA_PIECE_ADVISE:
			la_file_advise(la_smgropen(range->target->locator),
						   range->target->fork, range->first, range->nblocks);
			break;
		case LA_PIECE_PAGE_IN:
			la_smgr_read(la_smgropen(range->target->locator),
						 range->target->fork, range->first, range->nblocks,
						 la_nowhere);
			break;
	}
}

/*
 * Is it time to log an error of a relation?  If so, we are about to.  When many
 * fail at once, as in a tablespace that is gone, not every one is logged.
 */
static bool
la_log_is_due(const LaTarget *target)
{
	uint64		now = la_now_us();
	LaLogged   *place = NULL;
	LaLogged   *oldest = &la_service->logged[0];
	bool		due;

	SpinLockAcquire(&la_service->logged_mutex);
	for (int i = 0; i < LA_MAX_LOGGED; i++)
	{
		LaLogged   *logged = &la_service->logged[i];

		if (logged->relid == target->relid && logged->dbid == target->dbid)
			place = logged;
		if (logged->at_us < oldest->at_us)
			oldest = logged;
	}
	if (place == NULL)
		place = oldest;
	/* Another worker's time may be a little after ours. */
	due = place->at_us == 0 || place->at_us + LA_LOG_AGAIN_US <= now;
	if (due)
	{
		place->dbid = target->dbid;
		place->relid = target->relid;
		place->at_us = now;
	}
	SpinLockRelease(&la_service->logged_mutex);
	return due;
}

/*
 * Log that blocks of a relation could not be read, unless that was done lately.
 */
static void
la_log_failure(const LaPiece *piece)
{
	const LaRange *range = &piece->range;
	const LaTarget *target = range->target;

	if (!la_log_is_due(target))
		return;
	ereport(LOG,
			(errmsg("could not read ahead blocks %u to %u of relation %u in database %u: %s",
					range->first, range->first + range->nblocks - 1,
					target->relid, target->dbid, la_guard_last_error()),
			 errdetail("A query that needs these blocks reads them itself.")));
}

/*
 * Do a piece so that its errors end here.  Returns whether it went well.
 */
static bool
la_do_piece(LaPiece *piece)
{
	/* A bad page warns before it fails; la_log_failure() says it once. */
	bool		ok = la_guard_run_silent(la_piece_body, piece);

	if (!ok)
	{
		const LaTarget *target = piece->range.target;

		la_count(&la_worker->counters.errors, 1);
		/* Of an index, or without a lock, the file may be gone by now. */
		if (!target->is_watched &&
			((!target->is_index && piece->task == LA_PIECE_READ) ||
			 la_owner_is_valid(piece->range.owner)))
			la_log_failure(piece);
	}
	return ok;
}

/*
 * How many blocks of a request, from its first, has the owner passed?  The
 * target is a copy: the slot may be another owner's by now.
 */
static int
la_blocks_passed(const LaTarget *target, const LaRequest *request)
{
	LaOwner    *owner = &la_service->owners[request->owner];
	uint64		position;
	uint64		start = request->until - request->nblocks;

	if (request->until == PG_UINT64_MAX)
		return 0;
	position = pg_atomic_read_u64(&owner->position);
	if (target->live != NULL)
	{
		uint64		live = *target->live;

		position = Max(position, live + request->margin);
	}
	if (position <= start)
		return 0;
	return (int) Min(position - start, (uint64) request->nblocks);
}

/*
 * Is what an owner has asked for to be read, still?  To be asked between reads:
 * each may take its time, and somebody may be waiting for our lock.
 */
bool
la_is_wanted(const LaOwnerRef *ref)
{
	return !ShutdownRequestPending && la_owner_is_valid(ref);
}

/*
 * Lock an owner's relation.  Returns false if the lock is not free, or if
 * nothing is wanted any more, which is_valid tells.
 */
static bool
la_lock_for(const LaOwnerRef *ref, const LaTarget *target, bool *is_valid)
{
	la_serving_begin(la_worker, ref);
	*is_valid = la_owner_is_valid(ref);
	if (*is_valid && la_target_lock(target))
	{
		/* Files may have been replaced since we used them last. */
		AcceptInvalidationMessages();
		*is_valid = la_owner_is_valid(ref);
		if (*is_valid)
			return true;
		la_target_unlock(target);
	}
	la_serving_end(la_worker);
	return false;
}

static void
la_unlock(const LaTarget *target)
{
	la_target_unlock(target);
	la_serving_end(la_worker);
}

/*
 * Read what is missing of a request, while it is wanted.  The relation is
 * locked.
 */
static void
la_read_request(const LaOwnerRef *ref, const LaTarget *target,
				const LaRequest *request)
{
	LaWorkerCounters *counters = &la_worker->counters;
	int			done = 0;

	while (done < request->nblocks && la_is_wanted(ref))
	{
		int			passed = la_blocks_passed(target, request);
		LaPiece		piece = {.range = {.owner = ref, .target = target}};
		LaRange    *range = &piece.range;
		uint64		start;

		if (passed > done)
		{
			la_count(&counters->passed, passed - done);
			done = passed;
			continue;
		}

		/* The next run of blocks that are not there. */
		range->first = request->first + done;
		while (done < request->nblocks && range->nblocks < la_io_batch_size)
		{
			BlockNumber blkno = request->first + done;

			if (la_block_is_resident(&target->locator, target->fork, blkno))
			{
				la_count(&counters->hits, 1);
				done++;
				if (range->nblocks > 0)
					break;
				range->first = blkno + 1;
				continue;
			}
			range->nblocks++;
			done++;
		}
		if (range->nblocks == 0)
			continue;

		start = la_now_us();
		(void) la_do_piece(&piece);
		if (range->nreads > 0)
		{
			la_count(&counters->read_us, la_now_us() - start);
			la_count(&counters->reads, range->nreads);
			la_count(&counters->blocks, range->nread);
		}
		la_count(&counters->hits, Max(range->done - range->nread, 0));
		CHECK_FOR_INTERRUPTS();
	}
}

/*
 * Read a request's blocks to nowhere, while they are wanted, and nobody comes
 * who may wait for others.  Returns how many are done with.
 */
static int
la_page_in_request(const LaOwnerRef *ref, const LaTarget *target,
				   const LaRequest *request)
{
	int			done = 0;

	while (done < request->nblocks &&
		   (done == 0 || la_queue_is_empty(la_worker)))
	{
		int			passed = la_blocks_passed(target, request);
		LaPiece		piece = {
			.range = {.owner = ref, .target = target},
			.task = LA_PIECE_PAGE_IN
		};

		BlockNumber room;

		if (!la_is_wanted(ref))
			return request->nblocks;
		if (passed > done)
		{
			la_count(&la_worker->counters.passed, passed - done);
			done = passed;
			continue;
		}
		/* One file at a time: requests that were joined may be in two. */
		piece.range.first = request->first + done;
		room = RELSEG_SIZE - piece.range.first % RELSEG_SIZE;
		piece.range.nblocks = Min(request->nblocks - done, LA_SMGR_READ_MAX);
		piece.range.nblocks = Min(piece.range.nblocks, (int) room);
		if (!la_do_piece(&piece))
			return request->nblocks;
		done += piece.range.nblocks;
		CHECK_FOR_INTERRUPTS();
	}
	return done;
}

/*
 * Serve a request, if it is still wanted.  What is left of one that was paged
 * in is the first of those again.
 */
static void
la_serve(const LaRequest *request)
{
	LaWorkerCounters *counters = &la_worker->counters;
	LaOwnerRef	ref = la_owner_of(request);
	LaTarget	target = ref.owner->target;
	bool		is_valid;

	pg_read_barrier();
	if (!la_owner_is_valid(&ref))
		la_count(&counters->stale, 1);
	else if (la_blocks_passed(&target, request) == request->nblocks)
		la_count(&counters->passed, request->nblocks);
	else if (la_damage_is_accepted())
		 /* advised only, see the file header */ ;
	else if (target.page_in)
	{
		int			done = la_page_in_request(&ref, &target, request);

		if (done < request->nblocks)
		{
			la_pending_give_back(&la_aside, request, done);
			return;
		}
	}
	else if (target.advise_only)
		 /* so it was */ ;
	else if (la_lock_for(&ref, &target, &is_valid))
	{
		la_read_request(&ref, &target, request);
		la_unlock(&target);
	}
	else
		la_count(is_valid ? &counters->locked : &counters->stale, 1);
	la_count(&counters->request_us, la_now_us() - request->queued_us);
	la_count(&counters->done, 1);
}

/*
 * Let the kernel begin with a request that was just taken.
 */
static void
la_advise_request(const LaRequest *request)
{
	LaOwnerRef	ref = la_owner_of(request);
	LaTarget	target = ref.owner->target;
	LaPiece		piece = {
		.range = {
			.owner = &ref,
			.target = &target,
			.first = request->first,
			.nblocks = request->nblocks,
		},
		.task = LA_PIECE_ADVISE
	};
	const bool	needs_lock = target.is_watched && !target.no_lock &&
		!target.is_exact;
	bool		is_valid;

	pg_read_barrier();
	if (!la_may_advise() || !la_owner_is_valid(&ref) ||
		la_blocks_passed(&target, request) == request->nblocks)
		return;
	if (!needs_lock)
		(void) la_do_piece(&piece);
	else if (la_lock_for(&ref, &target, &is_valid))
	{
		(void) la_do_piece(&piece);
		la_unlock(&target);
	}
	/* Others are served, and counted, later. */
	else if (is_valid && target.advise_only)
		la_count(&la_worker->counters.locked, 1);
}

/*
 * Is a request one that nobody waits for, and that takes this process as long
 * as the device?
 */
static bool
la_is_paged_in(const LaRequest *request)
{
	return la_service->owners[request->owner].target.page_in;
}

/* -------------------------------------------------------------------------
 * The process
 * -------------------------------------------------------------------------
 */

static void
la_worker_exit(int code, Datum arg)
{
	la_queue_detach(la_worker);
}

/*
 * After its locks have gone, so to be registered before la_guard_process().
 */
static void
la_worker_has_gone(int code, Datum arg)
{
	la_serving_end(la_worker);
}

/*
 * Do what the present settings say.
 */
static void
la_worker_configure(void)
{
	/* Together they are a part of shared buffers at most, however many. */
	int64		most_kb = (int64) NBuffers * (BLCKSZ / 1024) / LA_RINGS_DIVISOR;
	int			kb = Min(la_ring_size, most_kb) / la_service->nworkers;

	/* From 16 on the storage manager insists on this alignment. */
	if (la_nowhere == NULL)
		la_nowhere = (char *)
			TYPEALIGN(LA_IO_ALIGNMENT,
					  MemoryContextAlloc(TopMemoryContext,
										 LA_SMGR_READ_MAX * BLCKSZ +
										 LA_IO_ALIGNMENT));
	la_ring = la_ring_resize(la_ring, TopMemoryContext, kb);
	pg_atomic_write_u32(&la_worker->ring_blocks, la_ring_blocks(la_ring));
}

/*
 * What other processes do at the end of a transaction, which never comes here.
 * Others' files were opened to write out their pages.
 */
static void
la_worker_tidy(bool is_idle)
{
	la_tidied_us = la_now_us();
	if (is_idle || la_tidied_us - la_closed_us >= LA_CLOSE_US)
	{
		la_closed_us = la_tidied_us;
		la_smgr_close_all();
	}
	/* By force: there is no transaction whose end would tell the time. */
	(void) pgstat_report_stat(true);
}

/*
 * Sleep until there is work.  If it does not come in time nothing is kept open.
 */
static void
la_worker_sleep(void)
{
	bool		is_shown = la_status_turn(la_worker);
	bool		is_woken = true;

	pg_atomic_write_u32(&la_worker->sleeping, 1);
	pg_memory_barrier();
	if (la_queue_is_empty(la_worker))
	{
		long		timeout = is_shown ? LA_IDLE_TIMEOUT_MS :
			(long) la_status_interval;
		int			events;

		events = WaitLatch(MyLatch,
						   WL_LATCH_SET | WL_TIMEOUT | WL_EXIT_ON_PM_DEATH,
						   timeout, la_wait_event_worker_main());
		if ((events & WL_TIMEOUT) != 0)
		{
			is_woken = false;
			la_worker_tidy(true);
		}
	}
	pg_atomic_write_u32(&la_worker->sleeping, 0);
	ResetLatch(MyLatch);
	if (is_shown && is_woken)
		la_status_begin(la_worker);
}

/*
 * Entry point of a worker.
 */
void
la_io_worker_main(Datum arg)
{
	LaRequest	request;
	MemoryContext context;

	pqsignal(SIGHUP, SignalHandlerForConfigReload);
	pqsignal(SIGINT, SIG_IGN);	/* there is no query to cancel */
	pqsignal(SIGTERM, SignalHandlerForShutdownRequest);
	BackgroundWorkerUnblockSignals();
	BackgroundWorkerInitializeConnection(NULL, NULL, 0);

	la_worker = &la_service->workers[DatumGetInt32(arg)];
	before_shmem_exit(la_worker_has_gone, (Datum) 0);
	la_guard_process("pg_lookahead io worker");
	/* What an error leaves goes with the next request. */
	context = AllocSetContextCreate(TopMemoryContext, "pg_lookahead request",
									ALLOCSET_SMALL_SIZES);
	MemoryContextSwitchTo(context);
	la_worker_configure();
	before_shmem_exit(la_worker_exit, (Datum) 0);
	la_queue_attach(la_worker);

	for (;;)
	{
		/* Not 0: who is terminated, and no shutdown, is started again. */
		if (ShutdownRequestPending)
			proc_exit(1);
		CHECK_FOR_INTERRUPTS();
		if (ConfigReloadPending)
		{
			ConfigReloadPending = false;
			ProcessConfigFile(PGC_SIGHUP);
			la_worker_configure();
		}
		AcceptInvalidationMessages();

		/* Advice may wait for the device, too. */
		while (!ShutdownRequestPending && la_pending.n < la_pending.size &&
			   la_queue_take(la_worker, &request))
		{
			CHECK_FOR_INTERRUPTS();
			if (la_is_paged_in(&request))
				la_pending_add(&la_aside, &request);
			else
			{
				la_advise_request(&request);
				la_pending_add(&la_pending, &request);
			}
		}
		if (!la_pending_take(&la_pending, &request) &&
			!la_pending_take(&la_aside, &request))
		{
			la_worker_sleep();
			continue;
		}
		la_serve(&request);
		MemoryContextReset(context);
		(void) la_status_turn(la_worker);
		if (la_now_us() - la_tidied_us >= LA_TIDY_US)
			la_worker_tidy(false);
	}
}
