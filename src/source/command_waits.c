/*-------------------------------------------------------------------------
 *
 * command_waits.c
 *	  Does another process wait for its reads, or have storage read?
 *
 * A command that is watched is found with the wait event of a read again and
 * again.  That covers copying what the kernel has read ahead, where there is
 * nothing to gain by reading further ahead.  Whether the process waits or
 * copies, its state tells (/proc, Linux):
 *
 *		wait event		state		look
 *		other, none		any			it does not wait for a read
 *		DataFileRead	running		it copies
 *		DataFileRead	sleeping	it waits
 *		DataFileRead	unknown		counts as waiting, but then it takes more
 *
 * With direct I/O there is nothing to copy: it waits, whatever its state.  (In
 * a virtual machine a read may keep the processor busy half of its time.)
 *
 * The verdict, by looks some milliseconds apart: it waits if a quarter of
 * LA_LEAST_LOOKS found it so, or half of LA_FEW_LOOKS; half of them in any case
 * if its state was unknown.  It is given now and then, not at each look: in the
 * end chance would have its way.
 *
 * One that hardly waits may have the kernel's read-ahead to thank for that, or
 * the page cache.  Linux counts what a process has read, and what storage was
 * made to read for it (/proc/<pid>/io): where the second is half of the first,
 * it is the read-ahead.  Not every file system counts, nor every kernel; then
 * all seems to come from the page cache.
 *
 * Copyright (c) 2026, the pg_lookahead authors
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "compat.h"
#include "postmaster/bgworker_internals.h"
#include "settings.h"
#include "source/command_waits.h"
#include "storage/lock.h"
#include "storage/lwlock.h"
#include "storage/procarray.h"
#include "window/waits.h"

/*
 * Looks by which a command is judged.  With so few of them one that waits for a
 * sixth of its time may pass for one that waits for a quarter of it.
 */
#define LA_FEW_LOOKS		32
#define LA_LEAST_LOOKS		64

/* It is looked at twice as seldom after each verdict that it does not wait. */
#define LA_SELDOM_LOOK_MS	200L

/*
 * Bytes read by which it is judged where they come from: a few pieces of
 * read-ahead at the least, and not all that was ever read.
 */
#define LA_JUDGED_FROM		(2 * 1024 * 1024)
#define LA_JUDGED_UNTIL		(16 * 1024 * 1024)

/*
 * Does a process wait for a read at this moment?  One that copies what the
 * kernel has read for it does not, and the kernel does so for buffered reads.
 */
static bool
la_proc_waits(const PGPROC *proc, bool *unknown)
{
	const int	pid = proc->pid;
	LaSleep		sleep;

	if (proc->wait_event_info != WAIT_EVENT_DATA_FILE_READ || pid == 0)
		return false;
	if (la_direct_io())
		return true;
	sleep = la_process_sleeps(pid);
	*unknown |= sleep == LA_SLEEP_UNKNOWN;
	return sleep != LA_SLEEP_NOT;
}

/*
 * How many parallel workers has a process, and how many of these wait for a
 * read at this moment?
 */
static int
la_group(PGPROC *leader, int *nwaiting, bool *unknown)
{
	const PGPROC *workers[MAX_PARALLEL_WORKER_LIMIT];
	int			nworkers = 0;
	LWLock	   *lock;
	dlist_iter	iter;

	*nwaiting = 0;

	/* One that never had workers is in no group. */
	if (leader->lockGroupLeader != leader)
		return 0;

	/* It may have become another's meanwhile. */
	lock = LockHashPartitionLockByProc(leader);
	LWLockAcquire(lock, LW_SHARED);
	if (leader->lockGroupLeader == leader)
		dlist_foreach(iter, &leader->lockGroupMembers)
		{
			const PGPROC *proc = dlist_container(PGPROC, lockGroupLink,
												 iter.cur);

			if (proc != leader && nworkers < lengthof(workers))
				workers[nworkers++] = proc;
		}
	LWLockRelease(lock);
	for (int i = 0; i < nworkers; i++)
		*nwaiting += la_proc_waits(workers[i], unknown);
	return nworkers;
}

/*
 * Does a command wait for reads at this moment?  At least half of its processes
 * have to, where several read by themselves.
 */
static bool
la_is_waiting(PGPROC *proc, bool whole_group, bool *unknown)
{
	bool		leader_waits = la_proc_waits(proc, unknown);
	int			nwaiting;
	int			nworkers;

	if (!whole_group)
		return leader_waits;
	nworkers = la_group(proc, &nwaiting, unknown);
	return 2 * (nwaiting + leader_waits) >= 1 + nworkers;
}

/*
 * The place of a process, or NULL.  To find it takes a lock that all who commit
 * need, so it is remembered.
 */
static PGPROC *
la_proc_of(LaCommandWaits *waits, int pid)
{
	if (waits->proc == NULL || waits->proc->pid != pid)
		waits->proc = BackendPidGetProc(pid);
	return waits->proc;
}

/*
 * Has a process parallel workers?
 */
bool
la_has_parallel_workers(LaCommandWaits *waits, int pid)
{
	PGPROC	   *proc = la_proc_of(waits, pid);
	int			nwaiting;
	bool		unknown = false;

	return proc != NULL && la_group(proc, &nwaiting, &unknown) > 0;
}

/*
 * Judge anew from now on.
 */
void
la_waits_begin(LaCommandWaits *waits)
{
	memset(waits, 0, sizeof(*waits));
	waits->look_ms = LA_EAGER_LOOK_MS;
}

/*
 * Look at a process, or at it and its parallel workers.  Returns the verdict:
 * is it found waiting for a good part of its time?
 */
bool
la_waits_look(LaCommandWaits *waits, int pid, bool whole_group)
{
	PGPROC	   *proc;
	bool		half;

	if (la_start_after == 0)
		return true;			/* for tests */
	proc = la_proc_of(waits, pid);
	if (proc == NULL)
		return false;
	waits->looks++;
	waits->reads += la_is_waiting(proc, whole_group, &waits->unknown);

	half = waits->reads >= waits->looks / 2;
	if (waits->looks == LA_FEW_LOOKS)
		waits->verdict = half;
	else if (waits->looks % LA_LEAST_LOOKS == 0)
		waits->verdict = half ||
			(!waits->unknown && waits->reads >= waits->looks / 4);
	if (waits->verdict)
		waits->look_ms = LA_EAGER_LOOK_MS;
	if (waits->looks >= 2 * LA_LEAST_LOOKS)
	{
		waits->looks /= 2;
		waits->reads /= 2;
		if (!waits->verdict)
			waits->look_ms = Min(waits->look_ms * 2, LA_SELDOM_LOOK_MS);
	}
	return waits->verdict;
}

/*
 * Does half of what a process reads, or more, come from storage?
 */
bool
la_reads_storage(LaCommandWaits *waits, int pid)
{
	LaProcessReads now;
	int64		asked;
	bool		half;

	if (!la_process_reads(pid, &now))
		return false;
	asked = now.asked - waits->from.asked;
	if (waits->is_counted && asked < LA_JUDGED_FROM)
		return false;
	half = waits->is_counted &&
		now.from_storage - waits->from.from_storage >= asked / 2;
	if (!waits->is_counted || asked >= LA_JUDGED_UNTIL)
	{
		waits->from = now;
		waits->is_counted = true;
	}
	return half;
}
