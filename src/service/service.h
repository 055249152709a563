/*-------------------------------------------------------------------------
 *
 * service.h
 *	  The I/O service: background workers that read blocks into shared buffers.
 *
 * What the rest of the extension sees of it.  A scan that wants blocks read
 * makes itself an owner, asks for ranges of blocks, says from time to time how
 * far it has come, and ends.
 *
 *		la_owner_begin()	a slot in shared memory: the relation, the position
 *		la_owner_ask()		a range of blocks: into the queue of a worker
 *		owner->position		the scan is here now
 *		la_owner_restart()	forget what is still queued: it goes elsewhere
 *		la_owner_end()		forget that, too, and give the slot back
 *
 * Nothing waits for the service: a range that no queue has room for is dropped
 * and counted, and the scan reads those blocks by itself or advises the kernel.
 *
 * owner.c has the slots, queue.c the queues, worker.c the workers, status.c
 * what is shown of them.
 *
 * Copyright (c) 2026, the pg_lookahead authors
 *
 *-------------------------------------------------------------------------
 */
#ifndef LA_SERVICE_H
#define LA_SERVICE_H

#include "compat.h"
#include "port/atomics.h"
#include "portability/instr_time.h"
#include "storage/latch.h"
#include "storage/lwlock.h"
#include "storage/spin.h"

/* Slots for scans, and for commands that are followed. */
#define LA_MAX_OWNERS			128

/* Scans with a window leave so many of them to others: they can do without. */
#define LA_SPARE_OWNERS			32

/*
 * Parallel scans have theirs before they begin, which many of a plan may never
 * do, and those of a portal that is fetched from never will.  So many of them
 * have not begun, and so many there are, at most.
 */
#define LA_RESERVED_OWNERS		64
#define LA_PARALLEL_OWNERS		96

/*
 * So many parallel ones of one session at most.  It gets as many of those with
 * a window and of the others in any case, and more while more than half of all
 * are free: a scan has its slot to its end, and that may be an idle cursor's.
 */
#define LA_SESSION_OWNERS		32

/* Room in a worker's queue; pg_lookahead.max_requests_per_worker uses less. */
#define LA_MAX_QUEUE			1024

/*
 * Neighbouring blocks go to one worker up to this many, so that it can read
 * them in large pieces; the next ones go to the next worker.  What is paged in
 * goes to one.
 */
#define LA_STRIPE_BLOCKS		128

/* The relation fork that an owner reads. */
typedef struct LaTarget
{
	Oid			dbid;			/* InvalidOid for a shared relation */
	Oid			relid;
	RelFileLocator locator;
	ForkNumber	fork;
	char		persistence;	/* RELPERSISTENCE_PERMANENT or _UNLOGGED */
	bool		advise_only;	/* never read into shared buffers */
	bool		page_in;		/* advise_only, and no advice either: the file
								 * is read, past shared buffers */
	bool		is_watched;		/* for another process: see maintenance.c */
	bool		no_lock;		/* watched: nor is it locked, if advise_only */
	bool		is_exact;		/* watched: as large as the process says */
	bool		is_index;		/* may be dropped under a worker's lock */
	const volatile int64 *live; /* where that process is by now, or NULL */
	int			margin;			/* blocks that it visits after that are left
								 * alone */
	int			most_ahead;		/* a window: blocks it may have ahead at most;
								 * 0: as much as there is room for */
} LaTarget;

/*
 * A scan or command that asks for blocks.
 *
 * A slot is in use while its generation is odd.  The backend that began it
 * holds a lock on the relation for as long as it is in use; that is what allows
 * a worker that has a lock too, and then finds the generation unchanged, to
 * believe in the target.  See worker.c; for targets that are watched, see
 * maintenance.c.
 */
typedef struct LaOwner
{
	pg_atomic_uint32 generation;	/* +1 at begin and end, +2 at restart */

	/* written before the generation becomes odd, then immutable */
	LaTarget	target;
	int			pid;			/* of the backend that began it; of a command
								 * the watcher puts it in afterwards */
	uint64		key;			/* finds it from a parallel worker, or 0 */
	bool		is_ambiguous;	/* another has the key, too: it finds neither;
								 * protected by the lock */

	/*
	 * Blocks in the order of the scan, counted from its start: see frontier.c.
	 * Owners that read in another order leave them 0.
	 */
	pg_atomic_uint64 position;	/* the scan has passed all before this */
	pg_atomic_uint64 frontier;	/* all before this were asked for */
	pg_atomic_uint64 unused;	/* of these, counted as not come to */
	pg_atomic_uint32 started;	/* of this generation asking may begin */
	pg_atomic_uint64 moved_us;	/* when it moved last; la_now_us() */
} LaOwner;

/* A process' handle on a slot; zeroed before it is used first. */
typedef struct LaOwnerRef
{
	LaOwner    *owner;			/* NULL: none */
	uint32		generation;
	uint64		retry_us;		/* got none: not again before la_now_us() is
								 * this */
} LaOwnerRef;

/* A range of blocks in a worker's queue. */
typedef struct LaRequest
{
	int			owner;			/* index of the slot */
	uint32		generation;
	BlockNumber first;
	int			nblocks;
	uint64		until;			/* useless once the owner's position is this;
								 * PG_UINT64_MAX: never */
	BlockNumber margin;			/* so far in front of the target's "live", all
								 * blocks counted, a block is left alone */
	uint64		queued_us;		/* la_now_us() */
} LaRequest;

/*
 * What a worker did.  Written by the worker alone, unless said otherwise; read
 * by anybody without a lock, each number for itself.
 */
typedef struct LaWorkerCounters
{
	pg_atomic_uint64 requests;	/* asked for; by those who ask */
	pg_atomic_uint64 dropped;	/* no room in the queue; by those who ask, and
								 * what was to be paged in by the worker */
	pg_atomic_uint64 merged;	/* joined to one before; by those who ask */
	pg_atomic_uint64 asked;		/* blocks of those accepted; by those who ask */
	pg_atomic_uint64 done;		/* served, or found useless */
	pg_atomic_uint64 passed;	/* blocks not read: the owner was past them */
	pg_atomic_uint64 stale;		/* requests that the owner had given up */
	pg_atomic_uint64 locked;	/* requests given up for another's lock */
	pg_atomic_uint64 hits;		/* blocks that were in shared buffers */
	pg_atomic_uint64 blocks;	/* blocks read */
	pg_atomic_uint64 reads;		/* reads they took */
	pg_atomic_uint64 errors;	/* pieces of requests that ended by an error */
	pg_atomic_uint64 request_us;	/* from the queue's end to the last block */
	pg_atomic_uint64 read_us;	/* in reads alone */
} LaWorkerCounters;

/* The counters that are also kept for the last status_interval. */
typedef struct LaWindowCounters
{
	uint64		done;
	uint64		blocks;
	uint64		reads;
	uint64		request_us;
	uint64		read_us;
} LaWindowCounters;

typedef struct LaWorker
{
	slock_t		mutex;			/* protects what follows, up to requests */
	int			pid;			/* 0: not running */
	Latch	   *latch;
	uint32		head;			/* the next to serve */
	uint32		tail;			/* where the next request goes */
	uint32		queued_blocks;	/* of the requests in the queue, not of those
								 * that the worker has taken */
	LaRequest	requests[LA_MAX_QUEUE];

	pg_atomic_uint64 serving;	/* the owner for which a relation is locked:
								 * its slot << 32 | generation; 0: none */
	pg_atomic_uint32 sleeping;	/* set the latch after asking */
	pg_atomic_uint32 ring_blocks;	/* of its buffer ring */
	LaWorkerCounters counters;

	slock_t		window_mutex;	/* protects what follows */
	uint64		window_start_us;	/* of the interval that runs */
	uint64		last_us;		/* how long the one before was */
	LaWindowCounters at_start;	/* the counters then */
	LaWindowCounters last;		/* what happened in the one before */
} LaWorker;

/* Relations whose last error is remembered: more are not logged meanwhile. */
#define LA_MAX_LOGGED			16

/* That a relation could not be read ahead was logged. */
typedef struct LaLogged
{
	Oid			dbid;
	Oid			relid;
	uint64		at_us;			/* la_now_us(); 0: place is free */
} LaLogged;

typedef struct LaService
{
	int			nworkers;		/* immutable */
	pg_atomic_uint64 owners_refused;	/* all slots were taken */

	slock_t		logged_mutex;	/* protects logged */
	LaLogged	logged[LA_MAX_LOGGED];

	LWLock	   *lock;			/* protects the assignment of slots */
	LaOwner		owners[LA_MAX_OWNERS];
	LaWorker	workers[FLEXIBLE_ARRAY_MEMBER];
} LaService;

/* NULL unless preloaded with workers: pg_lookahead.io_workers. */
extern LaService *la_service;

/* Microseconds since some point in the past, the same in all processes. */
static inline uint64
la_now_us(void)
{
	instr_time	now;

	INSTR_TIME_SET_CURRENT(now);
	return INSTR_TIME_GET_MICROSEC(now);
}

/* service.c */
extern void la_service_shmem_request(void);
extern void la_service_shmem_startup(void);
extern void la_service_register(void);
extern bool la_service_is_running(void);

/* owner.c */
extern bool la_owner_begin(LaOwnerRef *ref, const LaTarget *target,
						   uint64 key, bool is_reserved);
extern bool la_owner_find(LaOwnerRef *ref, const LaTarget *target,
						  uint64 key);
extern bool la_owner_is_valid(const LaOwnerRef *ref);
extern void la_owner_restart(LaOwnerRef *ref);
extern void la_owner_end(LaOwnerRef *ref);
extern void la_owners_end(void);
extern void la_owners_deepen(void);
extern int	la_owner_share(void);
extern int64 la_owners_refused(void);
extern void la_owner_target_of(LaTarget *target, Relation rel, ForkNumber fork);

/* queue.c */
extern int	la_owner_ask(const LaOwnerRef *ref, BlockNumber first, int nblocks,
						 uint64 until, BlockNumber margin);
extern bool la_queue_take(LaWorker *worker, LaRequest *request);
extern bool la_queue_is_empty(LaWorker *worker);
extern bool la_queues_are_long(uint32 nblocks);
extern int	la_queue_depth(LaWorker *worker);
extern void la_queue_attach(LaWorker *worker);
extern void la_queue_detach(LaWorker *worker);

/* ring.c */
typedef struct LaRing LaRing;

/* A range of blocks to read, and what was read of it. */
typedef struct LaRange
{
	const LaOwnerRef *owner;	/* who wants them */
	const LaTarget *target;
	BlockNumber first;
	int			nblocks;
	int			done;			/* blocks seen to, from the first on */
	int			nread;			/* of these, read here; another may be first */
	int			nreads;			/* reads that these took */
} LaRange;

extern LaRing *la_ring_resize(LaRing *ring, MemoryContext parent, int kb);
extern int	la_ring_blocks(const LaRing *ring);
extern void la_read_range(LaRing *ring, LaRange *range);

/* give_way.c */
extern void la_serving_begin(LaWorker *worker, const LaOwnerRef *ref);
extern void la_serving_end(LaWorker *worker);
extern void la_workers_give_way(bool locks_own, int most_ms);

/* status.c */
extern bool la_status_turn(LaWorker *worker);
extern void la_status_begin(LaWorker *worker);

/* worker.c */
extern bool la_target_lock(const LaTarget *target);
extern void la_target_unlock(const LaTarget *target);
extern bool la_is_wanted(const LaOwnerRef *ref);
extern PGDLLEXPORT void la_io_worker_main(Datum arg);

#endif							/* LA_SERVICE_H */
