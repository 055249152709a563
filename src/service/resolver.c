/*-------------------------------------------------------------------------
 *
 * resolver.c
 *	  Finds the file of a relation in any database.
 *
 * The watcher (source/maintenance.c) is connected to no database and learns of
 * a command no more than database and relation.  What file that is stands in
 * pg_class, which only a process of that database can read.  So a resolver is
 * started: a background worker that connects, looks at the row, and at those of
 * the relation's indexes, and exits.
 *
 *		watcher					slot					resolver
 *		ask (ticket 7) ------>	7, which relation?
 *		start ---------------------------------------->	connect
 *								7, this file	<-----	answer (ticket 7)
 *		poll <----------------	exit wakes the watcher
 *
 * The ticket keeps the answer of a resolver that comes late from being taken
 * for that to a later question.
 *
 * The watcher's latch is here, too, for those who are about to run a command
 * that may be followed (hook/utility.c), and what processes say that are not to
 * be followed (settings.c).
 *
 * A resolver takes the locks on catalogs that any reader takes, none on the
 * relation itself, waits at most LA_LOCK_TIMEOUT for them, and is gone after
 * some milliseconds.  Only connecting may take longer: while the database is
 * dropped or moved, and then the server itself ends it; or while one of its
 * catalogs is locked, and then its slot is taken for as long; with all of them
 * taken no command of any database is looked up.  It may read the row of before
 * a change that is not committed yet; who uses the answer must stand that: see
 * maintenance.c.
 *
 * Copyright (c) 2026, the pg_lookahead authors
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/genam.h"
#include "access/htup_details.h"
#include "access/table.h"
#include "access/xact.h"
#include "catalog/pg_am.h"
#include "catalog/pg_class.h"
#include "catalog/pg_index.h"
#include "service/background.h"
#include "service/lookup.h"
#include "settings.h"
#include "storage/ipc.h"
#include "storage/latch.h"
#include "storage/shmem.h"
#include "storage/spin.h"
#include "utils/fmgroids.h"
#include "utils/memutils.h"
#include "utils/rel.h"
#include "utils/syscache.h"

/* Questions that are open at a time; more have to be asked again later. */
#define LA_MAX_LOOKUPS		4

#define LA_LOCK_TIMEOUT		"1s"

typedef struct LaLookup
{
	uint32		ticket;			/* of the question that is open */
	bool		is_answered;
	bool		is_found;		/* "files" is valid */
	Oid			relid;
	LaFiles		files;
} LaLookup;

/* Shared memory. */
typedef struct LaWatch
{
	slock_t		mutex;			/* protects what follows, up to lookups */
	Latch	   *watcher;		/* NULL: not running */
	uint64		woken_us;		/* when it was woken last; la_now_us() */
	LaLookup	lookups[LA_MAX_LOOKUPS];

	/*
	 * By place in the status array: the process there that is not to be
	 * followed, by its number; or 0, or one that is gone.  Written by the
	 * process itself.
	 */
	pg_atomic_uint32 declined[FLEXIBLE_ARRAY_MEMBER];
} LaWatch;

/* What a resolver is told when it is started. */
typedef struct LaResolverOrder
{
	Oid			dbid;
	uint32		ticket;
} LaResolverOrder;

static LaWatch *la_watch_area = NULL;

/* In the watcher: the processes that answer, or NULL. */
static BackgroundWorkerHandle *la_resolvers[LA_MAX_LOOKUPS];
static bool la_is_cancelled[LA_MAX_LOOKUPS];	/* nobody waits for it */

StaticAssertDecl(sizeof(LaResolverOrder) <= BGW_EXTRALEN,
				 "the order must fit into bgw_extra");

static Size
la_watcher_size(void)
{
	return add_size(offsetof(LaWatch, declined),
					mul_size(MaxBackends, sizeof(pg_atomic_uint32)));
}

/*
 * Ask for shared memory.  Called from shmem_request_hook.
 */
void
la_watcher_shmem_request(void)
{
	if (la_watcher_is_wanted())
		RequestAddinShmemSpace(la_watcher_size());
}

/*
 * Create or attach to shared memory.  Called from shmem_startup_hook.
 */
void
la_watcher_shmem_startup(void)
{
	bool		found;

	if (!la_watcher_is_wanted())
		return;

	LWLockAcquire(AddinShmemInitLock, LW_EXCLUSIVE);
	la_watch_area = ShmemInitStruct("pg_lookahead watcher", la_watcher_size(),
									&found);
	if (!found)
	{
		MemSet(la_watch_area, 0, la_watcher_size());
		SpinLockInit(&la_watch_area->mutex);
		for (int i = 0; i < MaxBackends; i++)
			pg_atomic_init_u32(&la_watch_area->declined[i], 0);
	}
	LWLockRelease(AddinShmemInitLock);
}

/*
 * Have the watcher look round at once, if there is one, and it does not look
 * often at this time.
 */
void
la_watcher_wake(void)
{
	const uint64 now = la_now_us();
	Latch	   *latch = NULL;

	if (la_watch_area == NULL)
		return;
	SpinLockAcquire(&la_watch_area->mutex);
	/* Somebody else's time may be a little after ours. */
	if (la_watch_area->watcher != NULL &&
		la_watch_area->woken_us + LA_EAGER_US / 2 < now)
	{
		latch = la_watch_area->watcher;
		la_watch_area->woken_us = now;
	}
	SpinLockRelease(&la_watch_area->mutex);
	if (latch != NULL)
		SetLatch(latch);
}

/*
 * From now on the watcher is not to follow what this process does, or it may.
 * Raises no errors.
 */
void
la_watcher_decline(bool declines)
{
	int			place;

	if (la_watch_area == NULL || MyBEEntry == NULL)
		return;
	place = (int) (MyBEEntry - la_status_array());
	/* Auxiliary processes have places elsewhere, and run no command. */
	if (place >= 0 && place < MaxBackends)
		pg_atomic_write_u32(&la_watch_area->declined[place],
							declines ? (uint32) MyProcPid : 0);
}

/* -------------------------------------------------------------------------
 * The watcher's side
 * -------------------------------------------------------------------------
 */

static void
la_watcher_detach(int code, Datum arg)
{
	SpinLockAcquire(&la_watch_area->mutex);
	la_watch_area->watcher = NULL;
	SpinLockRelease(&la_watch_area->mutex);
}

/*
 * This process is the watcher from now on.  Questions that an earlier one may
 * have left open are void.
 */
void
la_watcher_attach(void)
{
	before_shmem_exit(la_watcher_detach, (Datum) 0);
	SpinLockAcquire(&la_watch_area->mutex);
	la_watch_area->watcher = MyLatch;
	for (int i = 0; i < LA_MAX_LOOKUPS; i++)
		la_watch_area->lookups[i].ticket++;
	SpinLockRelease(&la_watch_area->mutex);
}

/*
 * Does the process at a place of the status array want not to be followed?
 */
bool
la_watcher_is_declined(int place, int pid)
{
	return pg_atomic_read_u32(&la_watch_area->declined[place]) == (uint32) pid;
}

/*
 * Is no resolver there for a slot, be it one whose answer nobody waits for?
 */
static bool
la_slot_is_free(int slot)
{
	pid_t		pid;

	if (la_resolvers[slot] == NULL)
		return true;
	if (!la_is_cancelled[slot] ||
		GetBackgroundWorkerPid(la_resolvers[slot], &pid) != BGWH_STOPPED)
		return false;
	pfree(la_resolvers[slot]);
	la_resolvers[slot] = NULL;
	return true;
}

/*
 * Ask for the file of a relation.  Returns the slot to be polled, or -1 if
 * nobody can be asked now.
 */
int
la_lookup_begin(Oid dbid, Oid relid)
{
	BackgroundWorker worker;
	LaResolverOrder order;
	LaLookup   *lookup;
	MemoryContext save;
	bool		is_started;
	int			slot = 0;

	while (slot < LA_MAX_LOOKUPS && !la_slot_is_free(slot))
		slot++;
	if (slot == LA_MAX_LOOKUPS)
		return -1;

	lookup = &la_watch_area->lookups[slot];
	SpinLockAcquire(&la_watch_area->mutex);
	order.ticket = ++lookup->ticket;
	lookup->is_answered = false;
	lookup->is_found = false;
	lookup->relid = relid;
	SpinLockRelease(&la_watch_area->mutex);
	order.dbid = dbid;

	la_background_describe(&worker, "la_resolver_main",
						   "pg_lookahead resolver");
	worker.bgw_flags |= BGWORKER_BACKEND_DATABASE_CONNECTION;
	worker.bgw_notify_pid = MyProcPid;
	worker.bgw_main_arg = Int32GetDatum(slot);
	memcpy(worker.bgw_extra, &order, sizeof(order));

	/* The handle must outlive the watcher's turn. */
	save = MemoryContextSwitchTo(TopMemoryContext);
	is_started = RegisterDynamicBackgroundWorker(&worker, &la_resolvers[slot]);
	MemoryContextSwitchTo(save);
	if (!is_started)
		la_resolvers[slot] = NULL;
	la_is_cancelled[slot] = false;
	return is_started ? slot : -1;
}

/*
 * Is the answer there?  If it is, nobody waits for it any more.
 */
LaLookupResult
la_lookup_poll(int slot, LaFiles *files)
{
	LaLookup   *lookup = &la_watch_area->lookups[slot];
	LaLookupResult result = LA_LOOKUP_PENDING;
	bool		is_gone;
	pid_t		pid;

	/* First this: who exits has answered before, if it answers at all. */
	is_gone = GetBackgroundWorkerPid(la_resolvers[slot], &pid) == BGWH_STOPPED;

	SpinLockAcquire(&la_watch_area->mutex);
	if (lookup->is_answered && lookup->is_found)
	{
		*files = lookup->files;
		result = LA_LOOKUP_FOUND;
	}
	else if (lookup->is_answered || is_gone)
		result = LA_LOOKUP_NOTHING;
	SpinLockRelease(&la_watch_area->mutex);

	if (result != LA_LOOKUP_PENDING)
		la_lookup_cancel(slot);
	return result;
}

/*
 * The answer is not wanted any more.  The slot is free as soon as the resolver
 * has gone.
 */
void
la_lookup_cancel(int slot)
{
	LaLookup   *lookup = &la_watch_area->lookups[slot];

	SpinLockAcquire(&la_watch_area->mutex);
	lookup->ticket++;
	SpinLockRelease(&la_watch_area->mutex);
	la_is_cancelled[slot] = true;
}

/* -------------------------------------------------------------------------
 * The resolver
 * -------------------------------------------------------------------------
 */

/*
 * Find the file of a relation of this database, and its access method.  Returns
 * false if there is none that a worker of the I/O service could read: of a
 * temporary table, of a mapped catalog, whose file is not in pg_class.
 */
static bool
la_find_target(Oid relid, LaTarget *target, Oid *am)
{
	HeapTuple	tuple = SearchSysCache1(RELOID, ObjectIdGetDatum(relid));
	Form_pg_class form;
	bool		found;

	if (!HeapTupleIsValid(tuple))
		return false;
	form = (Form_pg_class) GETSTRUCT(tuple);
	found = form->relpersistence != RELPERSISTENCE_TEMP &&
		OidIsValid(form->relfilenode) && !form->relisshared;
	*am = form->relam;
	if (found)
	{
		memset(target, 0, sizeof(*target));
		target->dbid = MyDatabaseId;
		target->relid = relid;
		la_locator_set(&target->locator,
					   OidIsValid(form->reltablespace) ?
					   form->reltablespace : MyDatabaseTableSpace,
					   MyDatabaseId, form->relfilenode);
		target->fork = MAIN_FORKNUM;
		target->persistence = form->relpersistence;
	}
	ReleaseSysCache(tuple);
	return found;
}

/*
 * Find the files of a relation's indexes.
 */
static void
la_find_indexes(Oid relid, LaFiles *files)
{
	Relation	catalog = table_open(IndexRelationId, AccessShareLock);
	SysScanDesc scan;
	ScanKeyData key;
	HeapTuple	tuple;
	Oid			am;

	ScanKeyInit(&key, Anum_pg_index_indrelid, BTEqualStrategyNumber, F_OIDEQ,
				ObjectIdGetDatum(relid));
	scan = systable_beginscan(catalog, IndexIndrelidIndexId, true, NULL, 1,
							  &key);
	while (HeapTupleIsValid(tuple = systable_getnext(scan)))
	{
		Form_pg_index form = (Form_pg_index) GETSTRUCT(tuple);

		/* One that is being built is left out by VACUUM, too. */
		if (form->indisready &&
			la_find_target(form->indexrelid,
						   &files->indexes[files->nindexes], &am) &&
			++files->nindexes == LA_MAX_INDEXES)
			break;
	}
	systable_endscan(scan);
	table_close(catalog, AccessShareLock);
}

/*
 * Find the files of a heap and its indexes, or of a B-tree.  Returns false if
 * there are none, or the relation is something else.
 */
static bool
la_find_files(Oid relid, LaFiles *files)
{
	Oid			am;

	memset(files, 0, sizeof(*files));
	if (!la_find_target(relid, &files->target, &am))
		return false;
	if (am == HEAP_TABLE_AM_OID)
		la_find_indexes(relid, files);
	return am == HEAP_TABLE_AM_OID || am == BTREE_AM_OID;
}

/*
 * Entry point of a resolver.
 */
void
la_resolver_main(Datum arg)
{
	LaLookup   *lookup = &la_watch_area->lookups[DatumGetInt32(arg)];
	LaResolverOrder order;
	LaFiles		files;
	Oid			relid;
	bool		is_open;
	bool		is_found;

	memcpy(&order, MyBgworkerEntry->bgw_extra, sizeof(order));
	SpinLockAcquire(&la_watch_area->mutex);
	is_open = lookup->ticket == order.ticket;
	relid = lookup->relid;
	SpinLockRelease(&la_watch_area->mutex);
	if (!is_open)
		return;

	/* The default handler ends the process wherever it is. */
	pqsignal(SIGTERM, die);
	BackgroundWorkerUnblockSignals();
	BackgroundWorkerInitializeConnectionByOid(order.dbid, InvalidOid,
											  BGWORKER_BYPASS_ALLOWCONN);
	SetConfigOption("lock_timeout", LA_LOCK_TIMEOUT, PGC_SUSET,
					PGC_S_OVERRIDE);
	StartTransactionCommand();
	is_found = la_find_files(relid, &files);
	CommitTransactionCommand();

	SpinLockAcquire(&la_watch_area->mutex);
	if (lookup->ticket == order.ticket)
	{
		lookup->files = files;
		lookup->is_found = is_found;
		lookup->is_answered = true;
	}
	SpinLockRelease(&la_watch_area->mutex);
}
