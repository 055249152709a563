/*-------------------------------------------------------------------------
 *
 * owner.c
 *	  Scans that ask the I/O service for blocks, as the service sees them.
 *
 * A slot in shared memory stands for one scan.  Its generation is odd while it
 * is in use; a request carries the generation, so ending the slot makes all its
 * requests void at once, wherever they are.
 *
 *		generation	4		5				6			7
 *					free	in use			free		in use, by another
 *							begin	end		begin
 *		request with generation 5: valid	void ever after
 *
 * A scan that goes elsewhere restarts its slot: the generation goes from 7 to 9
 * in one step, so that nobody can have it in between.
 *
 * What the generation promises.  The backend that began the slot holds a lock
 * on the relation, and ends the slot before that lock can be given up: at the
 * end of the scan, and when a transaction aborts, whose callbacks run before
 * locks are released, or the subtransaction in which the slot was begun, or one
 * around it.  (A lock that was there when the slot was begun in an outer one
 * stays; so a loop whose body fails, row after row, keeps its slot, unless a
 * query has gone on in it: which slots are that query's is not known.)  So
 * whoever has locked the relation too and then finds the generation unchanged
 * knows that the file is still the relation's and has not been truncated.
 *
 * Processes of one parallel scan share a slot.  The leader begins and ends it,
 * the others find it by its key.
 *
 * Copyright (c) 2026, the pg_lookahead authors
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/xact.h"
#include "service/service.h"
#include "settings.h"
#include "storage/ipc.h"

/*
 * Who got no slot asks again after this time, and who found none that another
 * should have begun after the second.  All slots are looked at, with a lock:
 * others are not to be kept from theirs.
 */
#define LA_BEGIN_AGAIN_US	1000000
#define LA_FIND_AGAIN_US	10000

/* Slots that this process has begun: few, in no order. */
typedef struct LaBegun
{
	LaOwnerRef	ref;
	int			nest_level;		/* the (sub)transaction's, or of one in it in
								 * which a query went on */
} LaBegun;

static LaBegun la_begun[LA_MAX_OWNERS];
static int	la_nbegun = 0;

static void la_owners_have_end(void);

static inline bool
la_is_in_use(uint32 generation)
{
	return (generation & 1) != 0;
}

/*
 * Does the slot still stand for what it stood for?
 */
bool
la_owner_is_valid(const LaOwnerRef *ref)
{
	return ref->owner != NULL &&
		pg_atomic_read_u32(&ref->owner->generation) == ref->generation;
}

/*
 * Is this the slot, or one of the slots, of a parallel scan?
 */
static inline bool
la_has_key(const LaOwner *owner, const LaTarget *target, uint64 key)
{
	return owner->key == key &&
		owner->target.relid == target->relid &&
		RelFileLocatorEquals(owner->target.locator, target->locator);
}

/*
 * Describe the fork of a relation that is to be read.
 */
void
la_owner_target_of(LaTarget *target, Relation rel, ForkNumber fork)
{
	memset(target, 0, sizeof(*target));
	target->dbid = rel->rd_lockInfo.lockRelId.dbId;
	target->relid = RelationGetRelid(rel);
	target->locator = *la_rel_locator(rel);
	target->fork = fork;
	target->persistence = rel->rd_rel->relpersistence;
	target->is_index = rel->rd_rel->relkind == RELKIND_INDEX;
}

/*
 * Has this process its share of the slots for such scans: with a window,
 * parallel ones, others?  Not the watcher: its scans are those of many.
 */
static bool
la_has_share(const LaTarget *target, uint64 key)
{
	int			n = 0;

	if (target->is_watched)
		return false;
	for (int i = 0; i < la_nbegun; i++)
	{
		const LaOwner *owner = la_begun[i].ref.owner;

		n += (owner->key != 0) == (key != 0) &&
			(owner->target.most_ahead > 0) == (target->most_ahead > 0);
	}
	return n >= LA_SESSION_OWNERS;
}

/*
 * Does a slot stand for a parallel scan that has not begun?
 */
static inline bool
la_is_reserved(LaOwner *owner)
{
	return owner->key != 0 && pg_atomic_read_u64(&owner->moved_us) == 0;
}

/*
 * A slot that may be begun, or NULL.  Says, too, whether another scan of the
 * relation has the same key.  A session that has its share gets more as long as
 * more than half of all are free, but for parallel scans.  The caller holds the
 * lock.
 */
static LaOwner *
la_owner_choose(const LaTarget *target, uint64 key, bool is_reserved,
				bool has_share, bool *is_ambiguous)
{
	LaOwner    *owner = NULL;
	int			nslots = LA_MAX_OWNERS;
	int			nfree = 0;
	int			nparallel = 0;
	int			nreserved = 0;

	if (target->most_ahead > 0)
		nslots -= LA_SPARE_OWNERS;
	*is_ambiguous = false;
	for (int i = 0; i < LA_MAX_OWNERS; i++)
	{
		LaOwner    *candidate = &la_service->owners[i];

		if (!la_is_in_use(pg_atomic_read_u32(&candidate->generation)))
		{
			nfree++;
			/* Those who may have all begin at the end. */
			if (i < nslots && (owner == NULL || target->most_ahead == 0))
				owner = candidate;
			continue;
		}
		nparallel += candidate->key != 0;
		nreserved += la_is_reserved(candidate);
		if (key != 0 && la_has_key(candidate, target, key))
			candidate->is_ambiguous = *is_ambiguous = true;
	}
	if (has_share && (key != 0 || nfree <= LA_MAX_OWNERS / 2))
		return NULL;
	if (is_reserved && nreserved >= LA_RESERVED_OWNERS)
		return NULL;
	if (key != 0 && nparallel >= LA_PARALLEL_OWNERS)
		return NULL;
	return owner;
}

/*
 * Forget the slot, if there was one, and say whether another may be asked for.
 */
static bool
la_owner_may_ask(LaOwnerRef *ref)
{
	ref->owner = NULL;
	return la_service != NULL &&
		(ref->retry_us == 0 || la_now_us() >= ref->retry_us);
}

/*
 * There is no slot.  Count the scan, unless that costs it little: the kernel is
 * advised for those with a window (index scans, leaf pages, bitmaps).  So it is
 * for sequential scans that wait, which have to copy themselves, though.  Nor
 * are those counted that ask again when they begin.
 */
static void
la_owner_refused(LaOwnerRef *ref, const LaTarget *target, bool is_reserved)
{
	if (!is_reserved)
		ref->retry_us = la_now_us() + LA_BEGIN_AGAIN_US;
	if (target->most_ahead == 0 && !is_reserved)
		pg_atomic_fetch_add_u64(&la_service->owners_refused, 1);
}

/*
 * Begin to use a slot.  The caller holds a lock on the relation, and calls
 * la_owner_end() before it gives that up; an abort does it for it.
 *
 * Returns false if all slots are taken that it may have, or were a moment ago,
 * and if they are scarce and this session has its share of them.
 * It may be reserved for a scan that has not begun.
 *
 * If another scan of the relation has the same key, a process that looks for a
 * slot could belong to either, and would move the position of the wrong one.
 * So it finds neither, for as long as both are there and after.
 */
bool
la_owner_begin(LaOwnerRef *ref, const LaTarget *target, uint64 key,
			   bool is_reserved)
{
	LaOwner    *owner;
	bool		has_share;
	bool		is_ambiguous;

	Assert(!target->page_in || (target->is_watched && target->advise_only));
	if (!la_owner_may_ask(ref))
		return false;
	if (la_nbegun >= LA_MAX_OWNERS)
	{
		la_owner_refused(ref, target, is_reserved);
		return false;
	}
	la_owners_have_end();
	has_share = la_has_share(target, key);

	LWLockAcquire(la_service->lock, LW_EXCLUSIVE);
	owner = la_owner_choose(target, key, is_reserved, has_share,
							&is_ambiguous);
	if (owner != NULL)
	{
		owner->target = *target;
		owner->pid = MyProcPid;
		owner->key = key;
		owner->is_ambiguous = is_ambiguous;
		pg_atomic_write_u64(&owner->position, 0);
		pg_atomic_write_u64(&owner->frontier, 0);
		pg_atomic_write_u64(&owner->unused, 0);
		pg_atomic_write_u32(&owner->started, 0);
		pg_atomic_write_u64(&owner->moved_us, is_reserved ? 0 : la_now_us());
		ref->owner = owner;
		ref->generation = pg_atomic_add_fetch_u32(&owner->generation, 1);
		Assert(la_is_in_use(ref->generation));
	}
	LWLockRelease(la_service->lock);

	if (owner == NULL)
	{
		la_owner_refused(ref, target, is_reserved);
		return false;
	}
	la_begun[la_nbegun].ref = *ref;
	la_begun[la_nbegun++].nest_level = GetCurrentTransactionNestLevel();
	return true;
}

/*
 * Find the slot that the leader of a parallel query has begun for a relation.
 *
 * The leader may have two parallel plans at once, one below a cursor, whose
 * nodes have the same number: the target tells them apart.  Where that is the
 * same, too, nobody can.  Returns false then, and if there is none, or was none
 * a moment ago.
 */
bool
la_owner_find(LaOwnerRef *ref, const LaTarget *target, uint64 key)
{
	if (!la_owner_may_ask(ref) || key == 0)
		return false;

	LWLockAcquire(la_service->lock, LW_SHARED);
	for (int i = 0; i < LA_MAX_OWNERS; i++)
	{
		LaOwner    *owner = &la_service->owners[i];
		uint32		generation = pg_atomic_read_u32(&owner->generation);

		if (la_is_in_use(generation) && !owner->is_ambiguous &&
			la_has_key(owner, target, key))
		{
			ref->owner = owner;
			ref->generation = generation;
			break;
		}
	}
	LWLockRelease(la_service->lock);
	if (ref->owner == NULL)
		ref->retry_us = la_now_us() + LA_FIND_AGAIN_US;
	return ref->owner != NULL;
}

/*
 * Our entry for a slot; NULL if it was given back already, or if another
 * process has begun it.
 */
static LaBegun *
la_owner_begun(const LaOwnerRef *ref)
{
	for (int i = 0; i < la_nbegun; i++)
	{
		LaBegun    *begun = &la_begun[i];

		if (begun->ref.owner == ref->owner &&
			begun->ref.generation == ref->generation)
		{
			Assert(la_owner_is_valid(ref));
			return begun;
		}
	}
	return NULL;
}

/*
 * Make void what was asked for, and keep the slot.  Does nothing if it is not
 * ours, or not any more.
 */
void
la_owner_restart(LaOwnerRef *ref)
{
	LaBegun    *begun = la_owner_begun(ref);

	if (begun != NULL)
		ref->generation = begun->ref.generation =
			pg_atomic_add_fetch_u32(&ref->owner->generation, 2);
}

/*
 * Give a slot back.  Does nothing if it is not ours, or not any more.
 */
void
la_owner_end(LaOwnerRef *ref)
{
	LaBegun    *begun = la_owner_begun(ref);

	if (begun != NULL)
	{
		pg_atomic_fetch_add_u32(&ref->owner->generation, 1);
		*begun = la_begun[--la_nbegun];
	}
	ref->owner = NULL;
}

/*
 * Give back all slots that were begun at this nesting level of transactions, or
 * further in.  The scans that go on begin again.
 */
static void
la_owners_end_from(int nest_level)
{
	/* Another takes the place of one that goes: it is the last. */
	for (int i = la_nbegun - 1; i >= 0; i--)
	{
		LaOwnerRef	ref = la_begun[i].ref;

		if (la_begun[i].nest_level >= nest_level)
			la_owner_end(&ref);
	}
}

/*
 * A query goes on, maybe in a subtransaction of the one in which it began.  If
 * it fails there its locks go with that.  Which slots are its is not known.
 */
void
la_owners_deepen(void)
{
	int			nest_level = GetCurrentTransactionNestLevel();

	for (int i = 0; i < la_nbegun; i++)
		la_begun[i].nest_level = Max(la_begun[i].nest_level, nest_level);
}

/*
 * Give back all slots that this process has.
 */
void
la_owners_end(void)
{
	la_owners_end_from(0);
}

/*
 * The blocks that one owner may have ahead of it, so that none is pushed out of
 * the workers' rings before its owner comes to it.  Who has not moved for
 * protect_time is not counted: its blocks are protected no longer.  Nor is who
 * never has any read.  Index scans need little, and may not take all from those
 * who gain by being far ahead.
 */
int
la_owner_share(void)
{
	uint64		now = la_now_us();
	uint64		protect_us = (uint64) la_protect_time * 1000;
	int64		room = 0;
	int64		bounded = 0;
	int			nactive = 0;

	for (int i = 0; i < la_service->nworkers; i++)
		room += pg_atomic_read_u32(&la_service->workers[i].ring_blocks);
	room /= 2;
	for (int i = 0; i < LA_MAX_OWNERS; i++)
	{
		LaOwner    *owner = &la_service->owners[i];

		if (!la_is_in_use(pg_atomic_read_u32(&owner->generation)) ||
			owner->target.advise_only ||
			pg_atomic_read_u64(&owner->moved_us) + protect_us < now)
			continue;
		if (owner->target.most_ahead > 0)
			bounded += owner->target.most_ahead;
		else
			nactive++;
	}
	return (int) ((room - Min(bounded, room / 2)) / Max(nactive, 1));
}

/*
 * How often were all slots taken?  Needs the service.
 */
int64
la_owners_refused(void)
{
	return (int64) pg_atomic_read_u64(&la_service->owners_refused);
}

/*
 * Locks are about to be released.
 */
static void
la_owner_xact_callback(XactEvent event, void *arg)
{
	if (la_nbegun == 0)
		return;
	switch (event)
	{
		case XACT_EVENT_ABORT:
		case XACT_EVENT_PARALLEL_ABORT:
		case XACT_EVENT_COMMIT:
		case XACT_EVENT_PARALLEL_COMMIT:
		case XACT_EVENT_PREPARE:
			la_owners_end();
			break;
		case XACT_EVENT_PRE_COMMIT:
		case XACT_EVENT_PARALLEL_PRE_COMMIT:
		case XACT_EVENT_PRE_PREPARE:
			break;
	}
}

/*
 * The locks that the subtransaction took are about to be released.
 */
static void
la_owner_subxact_callback(SubXactEvent event, SubTransactionId mySubid,
						  SubTransactionId parentSubid, void *arg)
{
	if (event == SUBXACT_EVENT_ABORT_SUB)
		la_owners_end_from(GetCurrentTransactionNestLevel());
}

static void
la_owner_before_exit(int code, Datum arg)
{
	la_owners_end();
}

/*
 * Have owners ended in time, however a transaction or the process ends.  Not
 * before it is needed: short transactions would have to pay for it.
 */
static void
la_owners_have_end(void)
{
	static bool is_seen_to = false;

	if (is_seen_to)
		return;
	RegisterXactCallback(la_owner_xact_callback, NULL);
	RegisterSubXactCallback(la_owner_subxact_callback, NULL);
	before_shmem_exit(la_owner_before_exit, (Datum) 0);
	is_seen_to = true;
}
