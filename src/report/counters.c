/*-------------------------------------------------------------------------
 *
 * counters.c
 *	  Counters of look-ahead in this backend and in shared memory.
 *
 * Shared memory holds two things, both sized when the server starts:
 *
 *	relations	a hash table (database, relation) -> LaRelationEntry with room
 *				for LA_MAX_RELATIONS.  When it is full those with the fewest
 *				blocks make room for new ones; "unrecorded" counts them.
 *
 *	slots		one LaParallelSlot for every process that may lead a parallel
 *				query.  EXPLAIN of a parallel plan wants the workers' share
 *				per plan node, and an extension cannot add a chunk to the
 *				executor's own parallel context.  The leader empties its slot
 *				when it starts a plan, and gives the plan a number; workers,
 *				which know their leader's slot, take the number when they
 *				start and add to the slot when they finish; the leader reads
 *				it for EXPLAIN.  Entries carry la_followed_key(): the plan
 *				node, and whether it is its leaf pages.
 *
 * Both are protected by one LWLock.  It is taken when a scan that looked ahead
 * ends, never while it runs, so contention is no concern.
 *
 * Known limit: a nested parallel query cannot exist in PostgreSQL, but a
 * leader that runs another parallel plan (a function, a second cursor) while
 * the explained one is still open empties the slot under it.  The numbers
 * differ then, and EXPLAIN shows the leader's share only.  A worker of the
 * first plan that starts as late as that takes the number of the other.
 *
 * Copyright (c) 2026, the pg_lookahead authors
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/parallel.h"
#include "compat.h"
#include "report/counters.h"
#include "storage/ipc.h"
#include "storage/lwlock.h"
#include "storage/shmem.h"
#include "utils/hsearch.h"
#include "utils/timestamp.h"

#define LA_TRANCHE_NAME "pg_lookahead"

/* Relations that are forgotten when there is no room for another one. */
#define LA_EVICTED		(LA_MAX_RELATIONS / 16)

/* The workers' sum for one node of the leader's current plan. */
typedef struct LaParallelNode
{
	int			key;			/* la_followed_key() */
	LaCounters	counters;
} LaParallelNode;

typedef struct LaParallelSlot
{
	uint32		plan;			/* the leader's last, 0: it had none */
	int			nnodes;			/* 0 to LA_MAX_PARALLEL_NODES */
	LaParallelNode nodes[LA_MAX_PARALLEL_NODES];
} LaParallelSlot;

typedef struct LaShared
{
	LWLock	   *lock;			/* immutable; protects all that follows */
	int64		unrecorded;		/* entries lost because the table was full */
	int			nslots;			/* immutable */
	LaParallelSlot slots[FLEXIBLE_ARRAY_MEMBER];
} LaShared;

LaCounters	la_session_counters;

static LaShared *la_shared = NULL;
static HTAB *la_relations = NULL;

/*
 * Number of process slots a leader may sit in: every backend, numbered from 0
 * (17 on) or from 1 (before).
 */
static int
la_nslots(void)
{
	return MaxBackends + 1;
}

static Size
la_shared_size(void)
{
	return add_size(offsetof(LaShared, slots),
					mul_size(la_nslots(), sizeof(LaParallelSlot)));
}

/*
 * Add one set of counters to another.  Depth is a maximum, the rest are sums.
 */
void
la_counters_add(LaCounters *sum, const LaCounters *part)
{
	sum->scans_total += part->scans_total;
	sum->windows_total += part->windows_total;
	sum->blocks_issued_total += part->blocks_issued_total;
	sum->blocks_used_total += part->blocks_used_total;
	sum->blocks_wasted_total += part->blocks_wasted_total;
	sum->blocks_hit_total += part->blocks_hit_total;
	sum->blocks_dropped_total += part->blocks_dropped_total;
	sum->waits_total += part->waits_total;
	sum->errors_total += part->errors_total;
	sum->depth_max = Max(sum->depth_max, part->depth_max);
}

/*
 * Ask for shared memory.  Called from the server's shmem_request_hook.
 */
void
la_counters_shmem_request(void)
{
	Size		relations = hash_estimate_size(LA_MAX_RELATIONS,
											   sizeof(LaRelationEntry));

	RequestAddinShmemSpace(add_size(la_shared_size(), relations));
	RequestNamedLWLockTranche(LA_TRANCHE_NAME, 1);
}

/*
 * Create or attach to shared memory.  Called from shmem_startup_hook.
 */
void
la_counters_shmem_startup(void)
{
	bool		found;
	HASHCTL		info;

	LWLockAcquire(AddinShmemInitLock, LW_EXCLUSIVE);

	la_shared = ShmemInitStruct("pg_lookahead", la_shared_size(), &found);
	if (!found)
	{
		MemSet(la_shared, 0, la_shared_size());
		la_shared->lock = &(GetNamedLWLockTranche(LA_TRANCHE_NAME))->lock;
		la_shared->nslots = la_nslots();
	}

	memset(&info, 0, sizeof(info));
	info.keysize = sizeof(LaRelationKey);
	info.entrysize = sizeof(LaRelationEntry);
	la_relations = ShmemInitHash("pg_lookahead relations",
								 LA_MAX_RELATIONS, LA_MAX_RELATIONS,
								 &info,
								 HASH_ELEM | HASH_BLOBS | HASH_FIXED_SIZE);

	LWLockRelease(AddinShmemInitLock);
}

/*
 * Was the library preloaded, so that the cumulative counters exist?
 */
bool
la_counters_are_shared(void)
{
	return la_shared != NULL;
}

static int
la_compare_weights(const void *a, const void *b)
{
	const int64 x = *(const int64 *) a;
	const int64 y = *(const int64 *) b;

	return x < y ? -1 : x > y;
}

/*
 * The table is full, maybe of relations and databases that are gone: forget
 * the LA_EVICTED entries with the fewest blocks, so that this is not done for
 * each new one, and count them.  Blocks count half as much after each time: who
 * is gone makes room in the end, however much it had.  The caller holds the
 * lock.
 */
static void
la_counters_evict(void)
{
	HASH_SEQ_STATUS status;
	LaRelationEntry *entry;
	int64		weights[LA_MAX_RELATIONS];
	int			nweights = 0;
	int			nevicted = 0;

	hash_seq_init(&status, la_relations);
	while ((entry = hash_seq_search(&status)) != NULL)
	{
		if (nweights < LA_MAX_RELATIONS)
			weights[nweights++] = entry->weight;
	}
	qsort(weights, nweights, sizeof(weights[0]), la_compare_weights);

	/* Removing the entry that was just returned is allowed. */
	hash_seq_init(&status, la_relations);
	while ((entry = hash_seq_search(&status)) != NULL)
	{
		LaRelationKey key = entry->key;

		if (entry->weight > weights[LA_EVICTED - 1] || nevicted == LA_EVICTED)
		{
			entry->weight /= 2;
			continue;
		}
		hash_search(la_relations, &key, HASH_REMOVE, NULL);
		nevicted++;
	}
	la_shared->unrecorded += nevicted;
}

/*
 * Add the counters of an ended scan to its relation's.  Without shared memory
 * this does nothing.
 */
void
la_counters_report(Oid dbid, Oid relid, const LaCounters *part)
{
	LaRelationKey key = {dbid, relid};
	LaRelationEntry *entry;
	bool		found;

	if (la_shared == NULL)
		return;

	LWLockAcquire(la_shared->lock, LW_EXCLUSIVE);
	entry = hash_search(la_relations, &key, HASH_FIND, &found);
	if (entry == NULL)
	{
		if (hash_get_num_entries(la_relations) >= LA_MAX_RELATIONS)
			la_counters_evict();
		entry = hash_search(la_relations, &key, HASH_ENTER_NULL, &found);
	}
	if (entry != NULL)
	{
		if (!found)
		{
			memset(&entry->counters, 0, sizeof(entry->counters));
			entry->weight = 0;
			entry->stats_reset = GetCurrentTimestamp();
		}
		la_counters_add(&entry->counters, part);
		entry->weight += part->blocks_issued_total + part->blocks_hit_total;
	}
	else
		la_shared->unrecorded++;
	LWLockRelease(la_shared->lock);
}

/*
 * Forget one relation's counters, which may be a shared one, or those of all
 * relations of the database if relid is InvalidOid.  The entry goes away and
 * comes back with the next report, so that dropped relations do not fill the
 * table for ever.
 */
void
la_counters_reset(Oid dbid, Oid relid)
{
	HASH_SEQ_STATUS status;
	LaRelationEntry *entry;

	if (la_shared == NULL)
		return;

	LWLockAcquire(la_shared->lock, LW_EXCLUSIVE);
	hash_seq_init(&status, la_relations);
	while ((entry = hash_seq_search(&status)) != NULL)
	{
		if (entry->key.dbid != dbid &&
			(OidIsValid(entry->key.dbid) || !OidIsValid(relid)))
			continue;
		if (OidIsValid(relid) && entry->key.relid != relid)
			continue;
		hash_search(la_relations, &entry->key, HASH_REMOVE, NULL);
	}
	LWLockRelease(la_shared->lock);
}

/*
 * Copy the entries of one database, and the shared relations', into memory of
 * the caller's context.
 */
LaRelationEntry *
la_counters_snapshot(Oid dbid, int *nentries)
{
	HASH_SEQ_STATUS status;
	LaRelationEntry *entry;
	LaRelationEntry *copy;
	int			n = 0;

	Assert(la_shared != NULL);

	/* Allocate before the lock is taken: the table cannot outgrow this. */
	copy = palloc(sizeof(LaRelationEntry) * LA_MAX_RELATIONS);

	LWLockAcquire(la_shared->lock, LW_SHARED);
	hash_seq_init(&status, la_relations);
	while ((entry = hash_seq_search(&status)) != NULL)
	{
		if (entry->key.dbid == dbid || !OidIsValid(entry->key.dbid))
		{
			Assert(n < LA_MAX_RELATIONS);
			copy[n++] = *entry;
		}
	}
	LWLockRelease(la_shared->lock);

	*nentries = n;
	return copy;
}

/*
 * How many entries were lost because the table was full?  Needs shared memory.
 */
int64
la_counters_unrecorded(void)
{
	int64		result;

	LWLockAcquire(la_shared->lock, LW_SHARED);
	result = la_shared->unrecorded;
	LWLockRelease(la_shared->lock);
	return result;
}

/*
 * The slot in which the workers of our plan, or we for our leader, count.
 */
static LaParallelSlot *
la_parallel_slot(void)
{
	int			slot = la_leader_slot();

	if (la_shared == NULL || slot < 0 || slot >= la_shared->nslots)
		return NULL;
	return &la_shared->slots[slot];
}

/*
 * The leader starts a plan that may use workers: forget the last plan's.
 * Returns the number of the plan, or 0 if nothing can be counted.
 */
uint32
la_parallel_begin(void)
{
	LaParallelSlot *slot = la_parallel_slot();
	uint32		plan;

	if (slot == NULL)
		return 0;
	LWLockAcquire(la_shared->lock, LW_EXCLUSIVE);
	plan = slot->plan = Max(slot->plan + 1, 1);
	slot->nnodes = 0;
	LWLockRelease(la_shared->lock);
	return plan;
}

/*
 * The number of the plan that our leader has started last.
 */
uint32
la_parallel_plan(void)
{
	LaParallelSlot *slot = la_parallel_slot();
	uint32		plan;

	if (slot == NULL)
		return 0;
	LWLockAcquire(la_shared->lock, LW_SHARED);
	plan = slot->plan;
	LWLockRelease(la_shared->lock);
	return plan;
}

/*
 * A worker hands its counters for one plan node to its leader, unless that has
 * started another plan.
 */
void
la_parallel_report(uint32 plan, int key, const LaCounters *part)
{
	LaParallelSlot *slot = la_parallel_slot();
	int			i;

	if (slot == NULL)
		return;
	LWLockAcquire(la_shared->lock, LW_EXCLUSIVE);
	if (slot->plan != plan)
	{
		LWLockRelease(la_shared->lock);
		return;
	}
	for (i = 0; i < slot->nnodes; i++)
		if (slot->nodes[i].key == key)
			break;
	if (i == slot->nnodes && slot->nnodes < LA_MAX_PARALLEL_NODES)
	{
		memset(&slot->nodes[i], 0, sizeof(LaParallelNode));
		slot->nodes[i].key = key;
		slot->nnodes++;
	}
	if (i < slot->nnodes)
		la_counters_add(&slot->nodes[i].counters, part);
	LWLockRelease(la_shared->lock);
}

/*
 * Add what the workers counted for one node of a plan.  Returns false if there
 * is nothing.
 */
bool
la_parallel_collect(uint32 plan, int key, LaCounters *sum)
{
	LaParallelSlot *slot = la_parallel_slot();
	bool		found = false;

	if (slot == NULL)
		return false;
	LWLockAcquire(la_shared->lock, LW_SHARED);
	for (int i = 0; i < slot->nnodes; i++)
	{
		if (slot->plan == plan && slot->nodes[i].key == key)
		{
			la_counters_add(sum, &slot->nodes[i].counters);
			found = true;
		}
	}
	LWLockRelease(la_shared->lock);
	return found;
}
