/*-------------------------------------------------------------------------
 *
 * give_way.c
 *	  Locks of workers that a statement must not fail for.
 *
 * A worker has a reader's lock on the relation that it reads, which it keeps
 * until the read is over, also if the scan has ended meanwhile.  Whoever waits
 * for the relation waits a little longer for that.  A statement that does not
 * wait (LOCK ... NOWAIT), or not for long (lock_timeout), would fail.  So
 * before such a statement runs
 *
 *	- LOCK has the scans of this session give up what they have asked for: its
 *	  own locks are not in its way, and without us nothing else of an open
 *	  cursor is.  (What else wants such a lock refuses a table with one.)  They
 *	  begin again, as after the end of a subtransaction;
 *	- it waits until no worker that has a lock, or is about to take one, has it
 *	  for a scan that has ended, anybody's, or for a command that this session
 *	  ran before and that the watcher still follows.  Only for those that had
 *	  one when it came: others are between two looks for a moment only.
 *
 * A worker says for whom it locks (LaWorker.serving) before it looks whether
 * the scan is still there, and then locks; whoever ends a scan and then finds
 * nothing said will find no lock either.
 *
 * The wait has a limit: storage may take any time.  For other sessions' scans
 * that run, or commands, nobody waits: these have locks themselves.
 *
 * Copyright (c) 2026, the pg_lookahead authors
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "miscadmin.h"
#include "service/lookup.h"
#include "service/service.h"

/* The longest that a statement waits, and how often it looks. */
#define LA_GIVE_WAY_US		100000
#define LA_LOOK_AGAIN_US	200

/*
 * A worker is about to lock the relation of an owner.  To be called before it
 * is looked at whether that is still there.
 */
void
la_serving_begin(LaWorker *worker, const LaOwnerRef *ref)
{
	uint64		slot = (uint64) (ref->owner - la_service->owners);

	pg_atomic_write_u64(&worker->serving, slot << 32 | ref->generation);
	pg_memory_barrier();
}

/*
 * It has no lock any more.
 */
void
la_serving_end(LaWorker *worker)
{
	pg_write_barrier();
	pg_atomic_write_u64(&worker->serving, 0);
}

/*
 * Is it of a command of this session?  The watcher has not seen yet that it is
 * over.
 */
static bool
la_is_of_former_command(LaOwner *owner)
{
	return owner->target.is_watched && owner->pid == MyProcPid;
}

/*
 * Is what a worker has said it serves over?
 */
static bool
la_is_over(uint64 serving)
{
	LaOwnerRef	ref;

	/* A generation that is served is odd. */
	if (serving == 0)
		return false;
	ref.owner = &la_service->owners[serving >> 32];
	ref.generation = (uint32) serving;
	return !la_owner_is_valid(&ref) || la_is_of_former_command(ref.owner);
}

/*
 * How many workers are still at what they served when they were met?  Forgets
 * those that are not, or that serve what is not over.
 */
static int
la_count_met(uint64 *met)
{
	int			n = 0;

	for (int i = 0; i < la_service->nworkers; i++)
	{
		LaWorker   *worker = &la_service->workers[i];

		if (pg_atomic_read_u64(&worker->serving) == met[i] &&
			la_is_over(met[i]))
			n++;
		else
			met[i] = 0;
	}
	return n;
}

/*
 * Have workers out of the way of a statement that waits for locks for most_ms
 * milliseconds, 0: not at all.  It may lock what a scan of this session reads.
 * Raises no error but that of a cancel.
 */
void
la_workers_give_way(bool locks_own, int most_ms)
{
	uint64		met[LA_MAX_IO_WORKERS];
	uint64		until;

	if (locks_own)
		la_owners_end();
	pg_memory_barrier();
	for (int i = 0; i < la_service->nworkers; i++)
		met[i] = pg_atomic_read_u64(&la_service->workers[i].serving);
	if (la_count_met(met) == 0)
		return;
	if (la_watcher_is_wanted())
		la_watcher_wake();
	until = la_now_us() + LA_GIVE_WAY_US;
	if (most_ms > 0)
		until = Min(until, la_now_us() + (uint64) most_ms * 1000);
	do
	{
		pg_usleep(LA_LOOK_AGAIN_US);
		CHECK_FOR_INTERRUPTS();
	} while (la_count_met(met) > 0 && la_now_us() < until);
}
