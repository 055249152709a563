/*-------------------------------------------------------------------------
 *
 * guard.c
 *	  Runs code on look-ahead's account, so that its errors end there.
 *
 * Look-ahead reads index pages and starts reads that the query may never get
 * to: a LIMIT may end it first.  An I/O error or a bad checksum there must not
 * fail the query.  If the query does get there it meets the same error itself,
 * from the same code as without us.
 *
 * So everything that can fail runs in la_guard_run(), under a resource owner
 * of its own.  When it fails we put back what an aborting subtransaction would
 * put back and forget the error:
 *
 *	- LWLocks and buffer content locks.  The executor holds none when it asks
 *	  an index for a tuple, so all that are held were taken inside the body.
 *	- waits: for a lock, condition variables, the reported wait event, a wait
 *	  for the only pin of a buffer
 *	- staged asynchronous I/O (18), a buffer that was being read (15)
 *	- pins and references, which belong to the resource owner
 *	- the interrupt hold-off count, which ereport() has reset
 *	- statistics that are not to be counted (uncounted.c), also if the error is
 *	  passed on
 *
 * The client hears nothing of it but a DEBUG1 message, if it wants those; nor
 * of a warning that came first (a page that fails its checksum warns before it
 * fails).  The server's log has the warning, and what failed at DEBUG1, unless
 * the body runs in silence (la_guard_run_silent()); where it is counted, the
 * counters tell.
 *
 * Why not a subtransaction?  It is not allowed in parallel mode before 17, it
 * uses up subtransaction ids, and it runs other extensions' transaction
 * callbacks, once per window.  What makes the smaller thing safe is what the
 * body may call: index access methods whose support functions are plain
 * (plain.c), the buffer manager, the storage manager.  None of them opens a
 * subtransaction, pushes a snapshot, becomes another user or runs a function of
 * another language, which could be left behind; if one did, the error is passed
 * on.  Such code is known by the error context that it pushes.  So does the
 * buffer manager, when it writes out a page of somebody's to make room: that
 * failure is known by the function that reports it, and is ours.
 *
 * Guarded bodies may nest: the scout, which runs in one, has another fill the
 * window of leaf pages that it is about to need.  An error of the inner one
 * ends there.  Not in a leader of parallel workers, see the next paragraph: for
 * the inner one it looks as if somebody else had interrupts held.
 *
 * A leader of parallel workers serves no interrupt inside: the messages of its
 * workers would come up there, be silenced, and be gone.  Everybody else does,
 * so a cancel or a timeout is obeyed.  But there is no lock_timeout inside: it
 * is for what the query waits for, and the server raises one error for all
 * requests to stop that have come by then, which would all be forgotten.  One
 * of a wait before is passed on.
 *
 * Copyright (c) 2026, the pg_lookahead authors
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/parallel.h"
#include "access/xact.h"
#include "access/xloginsert.h"
#include "compat.h"
#include "miscadmin.h"
#include "pgstat.h"
#include "storage/bufmgr.h"
#include "storage/condition_variable.h"
#include "storage/ipc.h"
#include "storage/lock.h"
#include "storage/lwlock.h"
#include "storage/proc.h"
#include "utils/guc.h"
#include "utils/memutils.h"
#include "utils/snapmgr.h"
#include "window/guard.h"
#include "window/uncounted.h"

/* The resource owner that was current outside of all guarded bodies. */
static ResourceOwner la_outer_owner = NULL;

/* The last error that ended here. */
static char la_last_error[256];

/* This process runs nothing but what we wrote. */
static bool la_runs_no_query = false;

/*
 * The message of the last error that la_guard_run() has swallowed.
 */
const char *
la_guard_last_error(void)
{
	return la_last_error;
}

/*
 * Are damaged pages accepted, or repaired, by whoever reads them?  Then nobody
 * should read a page ahead into shared buffers that the query may not come to:
 * it is the query's own read that must warn of it, and others would find the
 * page valid.
 */
bool
la_damage_is_accepted(void)
{
	return zero_damaged_pages || ignore_checksum_failure;
}

/*
 * The resource owner that is current outside of guarded bodies.
 */
ResourceOwner
la_guard_outer_owner(void)
{
	return la_outer_owner ? la_outer_owner : CurrentResourceOwner;
}

/*
 * Make a resource owner below the current one, or, in a guarded body, beside
 * that of the body.
 *
 * If the current one is released first, by an error that ends the query, ours
 * goes with it; the caller must then not touch it any more.
 */
ResourceOwner
la_guard_owner_create(void)
{
	Assert(CurrentResourceOwner != NULL);
	return ResourceOwnerCreate(la_guard_outer_owner(), "pg_lookahead");
}

static void
la_guard_owner_release(ResourceOwner owner, bool is_good, bool is_top)
{
	ResourceOwnerRelease(owner, RESOURCE_RELEASE_BEFORE_LOCKS, is_good, is_top);
	ResourceOwnerRelease(owner, RESOURCE_RELEASE_LOCKS, is_good, is_top);
	ResourceOwnerRelease(owner, RESOURCE_RELEASE_AFTER_LOCKS, is_good, is_top);
}

/*
 * Release what the owner may still hold, and the owner.  In the good case
 * everything has been given back by now; PostgreSQL warns of what was not.
 */
void
la_guard_owner_free(ResourceOwner owner, bool is_good)
{
	la_guard_owner_release(owner, is_good, false);
	ResourceOwnerDelete(owner);
}

/*
 * Release what an error has left, short of resources.  In the order of
 * AbortSubTransaction().
 */
static void
la_guard_clean_up(void)
{
	LWLockReleaseAll();
	pgstat_report_wait_end();
	la_aio_error_cleanup();
	la_buffer_io_error_cleanup();
	UnlockBuffers();
	XLogResetInsertion();
	ConditionVariableCancelSleep();
	LockErrorCleanup();
}

/*
 * A background worker of ours ends, maybe by an error.  No transaction aborts
 * there, so nobody else gives back its pins and the locks of its session.
 */
static void
la_guard_process_ends(int code, Datum arg)
{
	ResourceOwner owner = (ResourceOwner) DatumGetPointer(arg);

	la_guard_clean_up();
	CurrentResourceOwner = NULL;
	la_guard_owner_release(owner, false, true);
	LockReleaseAll(DEFAULT_LOCKMETHOD, true);
}

/*
 * Prepare a background worker that runs nothing but what we wrote, and has no
 * transactions.
 */
void
la_guard_process(const char *name)
{
	la_runs_no_query = true;
	CurrentResourceOwner = ResourceOwnerCreate(NULL, name);
	before_shmem_exit(la_guard_process_ends,
					  PointerGetDatum(CurrentResourceOwner));
}

/*
 * Our entry in the stack of error contexts: sees where messages are raised.
 * The last one before we catch is that of the error.
 */
typedef struct LaWatchPost
{
	ErrorContextCallback callback;
	int			sqlerrcode;		/* of the last one, 0 if there was none */
	int			nbelow;			/* contexts that others had pushed above ours */
} LaWatchPost;

static void
la_see_error(void *arg)
{
	LaWatchPost *post = arg;

	post->sqlerrcode = geterrcode();
	post->nbelow = 0;
	for (ErrorContextCallback *other = error_context_stack;
		 other != &post->callback && other != NULL;
		 other = other->previous)
		post->nbelow++;
}

/*
 * Was this error met when a page was written out?  Whatever the kernel says, it
 * comes from one of these.
 */
static bool
la_is_of_writing(const ErrorData *edata)
{
	static const char *const writers[] = {
		"mdwrite", "mdwritev", "_mdfd_getseg", "mdopenfork",
		"register_dirty_segment", "XLogFlush",
	};

	if (edata->funcname == NULL)
		return false;
	for (int i = 0; i < lengthof(writers); i++)
		if (strcmp(edata->funcname, writers[i]) == 0)
			return true;
	return false;
}

/* What only the abort of a transaction puts back, but resources. */
typedef struct LaAbortState
{
	int			nest_level;
	Snapshot	snapshot;
	Oid			user;
	int			security;
} LaAbortState;

static LaAbortState
la_abort_state(void)
{
	LaAbortState now = {
		.nest_level = GetCurrentTransactionNestLevel(),
		.snapshot = ActiveSnapshotSet() ? GetActiveSnapshot() : NULL,
	};

	GetUserIdAndSecContext(&now.user, &now.security);
	return now;
}

/*
 * May this error be swallowed, given that it was raised in a guarded body?
 */
static bool
la_error_is_ours(const ErrorData *edata, const LaWatchPost *post,
				 const LaAbortState *before)
{
	int			category = ERRCODE_TO_CATEGORY(edata->sqlerrcode);
	LaAbortState now = la_abort_state();

	/* A request to stop is not a failure of what we did. */
	if (category == ERRCODE_OPERATOR_INTERVENTION ||
		category == ERRCODE_TRANSACTION_ROLLBACK ||
		edata->sqlerrcode == ERRCODE_LOCK_NOT_AVAILABLE)
		return false;

	/*
	 * Procedural languages, SQL functions and SPI push a context when they
	 * run, and have state of their own to clean up.  The buffer manager pushes
	 * one when it writes, and has none.  Who raises another's error, as of a
	 * process that has failed, may put all contexts aside; what was seen last
	 * is another message then.
	 */
	if (!la_runs_no_query)
	{
		if (post->sqlerrcode != edata->sqlerrcode || post->nbelow > 1)
			return false;
		if (post->nbelow == 1 && !la_is_of_writing(edata))
			return false;
	}

	return now.nest_level == before->nest_level &&
		now.snapshot == before->snapshot &&
		now.user == before->user && now.security == before->security;
}

/*
 * Give back all that a body that failed has held.  What is raised meanwhile is
 * not for the client, and may be an error.
 */
static void
la_guard_give_back(ResourceOwner owner)
{
	int			save_min_messages = client_min_messages;

	client_min_messages = Max(client_min_messages, ERROR);
	PG_TRY();
	{
		la_guard_clean_up();
		la_guard_owner_free(owner, false);
	}
	PG_FINALLY();
	{
		client_min_messages = save_min_messages;
	}
	PG_END_TRY();
}

/*
 * Call body(arg) with the given resource owner.
 *
 * Returns true if it came back, false if it failed.  After a failure the owner
 * is gone, and all that was held under it.
 */
bool
la_guard_run(ResourceOwner owner, void (*body) (void *), void *arg)
{
	MemoryContext save_context = CurrentMemoryContext;
	ResourceOwner save_owner = CurrentResourceOwner;
	ResourceOwner save_outer_owner = la_outer_owner;
	uint32		save_holdoff = InterruptHoldoffCount;
	uint32		save_cancel_holdoff = QueryCancelHoldoffCount;
	const LaAbortState before = la_abort_state();
	const int	uncounted = la_uncounted_depth;
	int			save_min_messages = client_min_messages;
	int			save_lock_timeout = LockTimeout;
	const bool	hold = ParallelContextActive();
	volatile bool ok = true;
	LaWatchPost post;

	memset(&post, 0, sizeof(post));
	post.callback.callback = la_see_error;
	post.callback.arg = &post;
	post.callback.previous = error_context_stack;

	if (la_outer_owner == NULL)
		la_outer_owner = CurrentResourceOwner;
	CurrentResourceOwner = owner;
	client_min_messages = Max(client_min_messages, ERROR);
	LockTimeout = 0;
	if (hold)
		HOLD_INTERRUPTS();
	PG_TRY();
	{
		error_context_stack = &post.callback;
		body(arg);
		error_context_stack = post.callback.previous;
	}
	PG_CATCH();
	{
		ErrorData  *edata;

		MemoryContextSwitchTo(save_context);
		CurrentResourceOwner = save_owner;
		la_outer_owner = save_outer_owner;
		/* First of all: no abort would, and the copy may want memory. */
		client_min_messages = save_min_messages;
		LockTimeout = save_lock_timeout;
		la_uncounted_undo(uncounted);

		edata = CopyErrorData();
		if (!la_error_is_ours(edata, &post, &before))
			PG_RE_THROW();

		/*
		 * Up to the end: a resource is forgotten before it is released, and
		 * releasing may warn, which serves interrupts.
		 */
		HOLD_INTERRUPTS();
		la_guard_give_back(owner);

		FlushErrorState();
		/* An error need not have a message. */
		strlcpy(la_last_error, edata->message ? edata->message :
				"missing error text", sizeof(la_last_error));
		elog(DEBUG1, "look-ahead gave up: %s", la_last_error);
		FreeErrorData(edata);
		ok = false;

		InterruptHoldoffCount = save_holdoff;
		QueryCancelHoldoffCount = save_cancel_holdoff;
	}
	PG_END_TRY();
	if (hold && ok)
		RESUME_INTERRUPTS();
	CurrentResourceOwner = save_owner;
	la_outer_owner = save_outer_owner;
	client_min_messages = save_min_messages;
	LockTimeout = save_lock_timeout;

	return ok;
}

/*
 * la_guard_run_once() in a process that has no database.  A bad page warns
 * before it fails, which is left to who needs the page; and before 18 it would
 * be counted for the shared relations.
 */
bool
la_guard_run_silent(void (*body) (void *), void *arg)
{
	int			save_log = log_min_messages;
	bool		save_track = pgstat_track_counts;
	bool		ok;

	log_min_messages = Max(log_min_messages, ERROR);
	pgstat_track_counts = false;
	ok = la_guard_run_once(body, arg);
	pgstat_track_counts = save_track;
	log_min_messages = save_log;
	return ok;
}

/*
 * la_guard_run() with a resource owner for this one call: nothing that the body
 * has pinned or opened outlives it.
 */
bool
la_guard_run_once(void (*body) (void *), void *arg)
{
	ResourceOwner owner = la_guard_owner_create();

	if (!la_guard_run(owner, body, arg))
		return false;
	la_guard_owner_free(owner, true);
	return true;
}

typedef struct LaSizeCall
{
	Relation	rel;
	BlockNumber nblocks;
} LaSizeCall;

static void
la_size_body(void *arg)
{
	LaSizeCall *call = arg;

	call->nblocks = RelationGetNumberOfBlocks(call->rel);
}

/*
 * The blocks of a relation, or InvalidBlockNumber if they cannot be counted:
 * its file may have to be opened, for which the query itself has no need.
 */
BlockNumber
la_guard_size(Relation rel)
{
	LaSizeCall	call = {.rel = rel, .nblocks = InvalidBlockNumber};

	if (la_guard_is_possible())
		(void) la_guard_run_once(la_size_body, &call);
	return call.nblocks;
}
