/*-------------------------------------------------------------------------
 *
 * index_am.c
 *	  Stands between the executor and the index access methods.
 *
 * The executor calls an access method through index->rd_indam.  For the indexes
 * of plans that we follow, plan_walk.c has la_index_am_wrap() point that at a
 * copy of the same routine in which the functions that move a scan are ours.
 * Each of ours calls the original and returns what it returned; what else it
 * does is the business of index_node.c and index_scan.c.  Only the next entry
 * of a leaf page that B-tree has copied is taken from there, as B-tree would;
 * see la_bt_next_on_page().
 *
 *		executor -> rd_indam->amgettuple = la_amgettuple
 *										   |-> original btgettuple	(the row)
 *										   |-> la_index_node_next	(at first)
 *										   `-> la_index_scan_next	(the hint)
 *
 * A relation keeps the pointer as long as its relcache entry lives.  The copy
 * is made once per access method and lives as long as the process: if it hung
 * on the relation, an invalidation could free it under a query that is being
 * aborted.  For a scan that we do not follow, of an index of which others are
 * followed, a call costs a look-up that finds nothing, which is remembered, and
 * each start a look at the nodes that wait for the start of theirs, or are
 * deferred.
 *
 * Another extension may do the same.  If it stood in for an index before us,
 * it is the original that we call.  If it has copied our routine it calls us,
 * and the access method tells which original is meant; standing in for it
 * again would make a circle, so such an index is not followed any more.
 *
 * Only access methods are stood in for whose scans may be run a second time
 * beside the query's.  The server's own keep all that a scan has in its memory
 * and with its resource owner.  One of another extension may keep a list of the
 * scans that are open, and have a function add up what all of them have found;
 * or read the table through what only index_beginscan() gives a scan.  So such
 * a one has to be named by a setting, and was tried before.
 *
 * There are two such copies, alike: one is for indexes whose functions are not
 * plain, which so are asked once for each relcache entry (plain.c).  Scans of
 * those are never trusted; a third copy is for scans that are, see below.
 *
 * Nothing else of the routine changes, so vacuuming and building never meet us.
 * Others that scan such an index do: the planner, who looks for the least and
 * the greatest key, exclusion constraints, CLUSTER, logical replication.  Their
 * scans are no node's, and are passed on.
 *
 * Trust.  The inner side of a nested loop is started again for each outer row,
 * and mostly finds an entry or two that are cached.  What the first stage notes
 * of those costs as much as 4 % of a round.  So the scan of a B-tree that was
 * started LA_TRUSTED_STARTS times while this backend read nothing is trusted:
 * its index points to another stand-in, whose functions only compare how many
 * blocks the backend has read.  With the first read, of whatever, all that are
 * trusted are looked at again; the round that is under way goes on as if it had
 * begun there, and the scout has to find out how far it is.
 *
 *		rd_indam -> routine ---- started often, nothing was read ----> trusted
 *					   ^------------ something was read -----------------'
 *
 * As the index is shared by all scans of it in this process, trust is only for
 * a scan that is alone: the index is open once for its node, and once for the
 * scan.  Who wants to follow another one of it ends the trust.  So does an
 * abort, before it closes indexes: the memory of a cursor that has failed may
 * stay.  Where the query's memory went first, nobody is trusted any more, but
 * the index may point to that stand-in until it is used next.  A scan that was
 * marked (merge join) is not trusted: marks have to be seen.
 *
 * Copyright (c) 2026, the pg_lookahead authors
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/relscan.h"
#include "access/xact.h"
#include "catalog/pg_am.h"
#include "commands/defrem.h"
#include "compat.h"
#include "hook/index_am.h"
#include "settings.h"
#include "source/deferred.h"
#include "source/index_node.h"
#include "source/leaf_scan.h"
#include "source/plain.h"
#include "utils/fmgroids.h"
#include "utils/memutils.h"

/* More than any installation has; further ones are left alone. */
#define LA_MAX_INDEX_AMS 32

static LaIndexAm *la_index_ams[LA_MAX_INDEX_AMS];
static int	la_nindex_ams = 0;

/* Starts without a read of this backend, after which a scan is trusted. */
#define LA_TRUSTED_STARTS	8

/* How often an index is open if nobody but one node and its scan has it. */
#define LA_OPEN_BY_ONE		2

/* Nodes whose scans are trusted: few, in no order. */
#define LA_MAX_TRUSTED		8
static LaIndexNode *la_trusted[LA_MAX_TRUSTED];
static int	la_ntrusted = 0;

/* Blocks that this backend had read, and has, while they are. */
static int64 la_trusted_reads = 0;

/* -------------------------------------------------------------------------
 * Trust
 * -------------------------------------------------------------------------
 */

/*
 * Forget that the scan of a node is trusted.  Its index may be gone.
 */
void
la_index_am_trust_no_more(LaIndexNode *node)
{
	if (!node->is_trusted)
		return;
	node->is_trusted = false;
	for (int i = 0; i < la_ntrusted; i++)
	{
		if (la_trusted[i] != node)
			continue;
		la_trusted[i] = la_trusted[--la_ntrusted];
		break;
	}
}

/*
 * Look at the scan of a node again.
 */
static void
la_distrust(LaIndexNode *node)
{
	Assert(node->index->rd_refcnt > 0);
	if (node->index->rd_indam == &node->am->trusted)
		node->index->rd_indam = &node->am->routine;
	node->cached_starts = 0;
	la_index_am_trust_no_more(node);
}

static void
la_distrust_all(void)
{
	while (la_ntrusted > 0)
		la_distrust(la_trusted[la_ntrusted - 1]);
}

/*
 * Something was read, or there is more to be seen than entries.
 */
static pg_noinline void
la_end_trust(Relation index)
{
	LaIndexAm  *am = la_index_am_of(index);

	la_distrust_all();
	/* A query that failed may have left it so. */
	if (index->rd_indam == &am->trusted)
		index->rd_indam = &am->routine;
}

static void
la_trust_xact_callback(XactEvent event, void *arg)
{
	if (event == XACT_EVENT_ABORT || event == XACT_EVENT_PARALLEL_ABORT)
		la_distrust_all();
}

static void
la_trust_subxact_callback(SubXactEvent event, SubTransactionId mySubid,
						  SubTransactionId parentSubid, void *arg)
{
	if (event == SUBXACT_EVENT_ABORT_SUB)
		la_distrust_all();
}

/*
 * See to it that trust ends in time.  Not before it is needed: short
 * transactions would have to pay for it.
 */
static void
la_have_trust_end(void)
{
	static bool is_seen_to = false;

	if (is_seen_to)
		return;
	RegisterXactCallback(la_trust_xact_callback, NULL);
	RegisterSubXactCallback(la_trust_subxact_callback, NULL);
	is_seen_to = true;
}

/*
 * Trust the scan of a node, if that may be.
 */
static pg_noinline void
la_trust(LaIndexNode *node)
{
	node->cached_starts = 0;
	if (node->is_marked || la_is_deferred(node) ||
		node->am->orig.amgettuple != btgettuple ||
		node->am->orig.amrescan != btrescan ||
		node->index->rd_indam != &node->am->routine ||
		node->index->rd_refcnt != LA_OPEN_BY_ONE)
		return;
	if (la_trusted_reads != la_blocks_read())
		la_distrust_all();
	if (la_ntrusted == LA_MAX_TRUSTED)
		return;
	la_have_trust_end();
	la_trusted_reads = la_blocks_read();
	la_trusted[la_ntrusted++] = node;
	node->is_trusted = node->was_trusted = true;
	node->index->rd_indam = &node->am->trusted;
}

static inline bool
la_is_trustworthy(void)
{
	return likely(la_blocks_read() == la_trusted_reads);
}

/* -------------------------------------------------------------------------
 * The functions that stand in
 * -------------------------------------------------------------------------
 */

/*
 * A call that may have to be looked at.
 */
static pg_noinline bool
la_amgettuple_seen(IndexScanDesc desc, ScanDirection direction)
{
	LaIndexNode *node = la_index_node_find(desc);
	LaIndexScan *scan;

	if (node == NULL)
		return la_index_am_of(desc->indexRelation)->orig.amgettuple(desc,
																	direction);
	scan = node->scan;
	if (scan == NULL)
		return la_index_node_next(node, direction);
	if (scan->skip > 0)
	{
		scan->skip--;
		return scan->amgettuple(desc, direction);
	}
	return la_index_scan_next(scan, direction);
}

/*
 * Most calls for cached data are for B-tree's next entry on the same page, or
 * go straight to the access method.  Those need no stack frame here, if
 * whatever else there is to do is done elsewhere.
 */
static bool
la_amgettuple(IndexScanDesc desc, ScanDirection direction)
{
	LaIndexNode *node = la_index_node_peek(desc);
	LaIndexScan *scan;

	if (likely(node != NULL))
	{
		scan = node->scan;
		if (scan == NULL)
		{
			if (unlikely(!la_index_node_is_cached(node, direction)))
				return la_index_node_next(node, direction);
			if (unlikely(!la_bt_next_on_page(desc, direction)))
				return la_index_node_turn_page(node);
			node->start.calls++;
			return true;
		}
		if (likely(scan->skip > 0))
		{
			scan->skip--;
			if (scan->amgettuple == btgettuple &&
				likely(la_bt_next_on_page(desc, direction)))
				return true;
			return scan->amgettuple(desc, direction);
		}
	}
	return la_amgettuple_seen(desc, direction);
}

/*
 * The access method would go through the whole index in this one call.  That
 * of a B-tree is asked for one leaf page after the other instead, which is what
 * its own function does, so that they can be followed; unless somebody stood in
 * for that before us.
 */
static int64
la_amgetbitmap(IndexScanDesc desc, TIDBitmap *tbm)
{
	LaIndexAm  *am = la_index_am_of(desc->indexRelation);
	LaLeafScan *leaf = la_leaf_scan_of_bitmap(desc);

	if (leaf == NULL || am->orig.amgetbitmap != btgetbitmap)
		return am->orig.amgetbitmap(desc, tbm);
	return la_leaf_scan_bitmap(leaf, desc, tbm);
}

/*
 * The stand-in that was called, for a node, or NULL if the scan is no one's.
 */
static inline LaIndexAm *
la_am_for(const LaIndexNode *node, IndexScanDesc desc)
{
	return node ? node->am : la_index_am_of(desc->indexRelation);
}

static pg_noinline void
la_amrescan_seen(IndexScanDesc desc, ScanKey keys, int nkeys,
				 ScanKey orderbys, int norderbys)
{
	LaIndexNode *node = la_index_node_restart(desc);
	LaIndexAm  *am = la_am_for(node, desc);

	if (node != NULL && node->scan == NULL &&
		node->cached_starts >= LA_TRUSTED_STARTS)
		la_trust(node);
	am->orig.amrescan(desc, keys, nkeys, orderbys, norderbys);
}

/*
 * The inner side of a nested loop comes here once per outer row.
 */
static void
la_amrescan(IndexScanDesc desc, ScanKey keys, int nkeys,
			ScanKey orderbys, int norderbys)
{
	LaIndexNode *node = la_index_node_peek(desc);

	if (node == NULL)
		node = la_deferred_bind(desc);
	if (likely(node != NULL && node->scan == NULL))
	{
		la_index_node_restart_first(node);
		if (unlikely(node->cached_starts >= LA_TRUSTED_STARTS))
			la_trust(node);
		node->am->orig.amrescan(desc, keys, nkeys, orderbys, norderbys);
	}
	else
		la_amrescan_seen(desc, keys, nkeys, orderbys, norderbys);
}

static void
la_amendscan(IndexScanDesc desc)
{
	LaIndexNode *node = la_index_node_find(desc);
	LaIndexAm  *am = la_am_for(node, desc);

	if (la_is_deferred(node))
		la_deferred_forget();
	else if (node != NULL)
	{
		if (node->is_trusted)
			la_distrust(node);
		la_index_node_end(node);
	}
	am->orig.amendscan(desc);
}

static void
la_ammarkpos(IndexScanDesc desc)
{
	LaIndexNode *node = la_index_node_find(desc);
	LaIndexAm  *am;

	if (node != NULL)
		la_index_node_mark(node);
	am = la_am_for(node, desc);
	am->orig.ammarkpos(desc);
}

static void
la_amrestrpos(IndexScanDesc desc)
{
	LaIndexNode *node = la_index_node_find(desc);
	LaIndexAm  *am;

	if (node != NULL)
		la_index_node_restore(node);
	am = la_am_for(node, desc);
	am->orig.amrestrpos(desc);
}

/* -------------------------------------------------------------------------
 * The same for scans that are trusted
 * -------------------------------------------------------------------------
 */

static bool
la_amgettuple_trusted(IndexScanDesc desc, ScanDirection direction)
{
	if (la_is_trustworthy())
		return btgettuple(desc, direction);
	la_end_trust(desc->indexRelation);
	return la_amgettuple(desc, direction);
}

static void
la_amrescan_trusted(IndexScanDesc desc, ScanKey keys, int nkeys,
					ScanKey orderbys, int norderbys)
{
	if (la_is_trustworthy())
		btrescan(desc, keys, nkeys, orderbys, norderbys);
	else
	{
		la_end_trust(desc->indexRelation);
		la_amrescan(desc, keys, nkeys, orderbys, norderbys);
	}
}

static void
la_ammarkpos_trusted(IndexScanDesc desc)
{
	la_end_trust(desc->indexRelation);
	la_ammarkpos(desc);
}

static void
la_amrestrpos_trusted(IndexScanDesc desc)
{
	la_end_trust(desc->indexRelation);
	la_amrestrpos(desc);
}

/* -------------------------------------------------------------------------
 * Standing in
 * -------------------------------------------------------------------------
 */

/*
 * The stand-in for an access method, or NULL if there is none.
 */
static LaIndexAm *
la_index_am_lookup(Oid amoid)
{
	for (int i = 0; i < la_nindex_ams; i++)
		if (la_index_ams[i]->amoid == amoid)
			return la_index_ams[i];
	return NULL;
}

/*
 * The stand-in for the access method of an index through which we were called.
 */
LaIndexAm *
la_index_am_of(Relation index)
{
	LaIndexAm  *am = la_index_am_lookup(index->rd_rel->relam);

	if (unlikely(am == NULL))
		elog(ERROR, "index access method %u is not one that is stood in for",
			 index->rd_rel->relam);
	return am;
}

/*
 * The stand-in that an index points to, if there is nothing to be asked or done
 * for a scan of it that begins, or NULL.
 */
pg_attribute_hot LaIndexAm *
la_index_am_if_ready(Relation index)
{
	LaIndexAm  *am = la_index_am_lookup(index->rd_rel->relam);

	return am != NULL && index->rd_indam == &am->routine && !am->is_dear ?
		am : NULL;
}

/*
 * May scans of an index be run a second time beside the query's?
 */
static bool
la_may_run_twice(Relation index)
{
	char	   *name;
	bool		is_listed;

	switch (index->rd_amhandler)
	{
		case F_BTHANDLER:
		case F_HASHHANDLER:
		case F_GISTHANDLER:
		case F_SPGHANDLER:
			return true;
	}
	name = get_am_name(index->rd_rel->relam);
	if (name == NULL)
		return false;
	is_listed = la_index_access_method_is_listed(name);
	/* The caller's memory may last for many plans. */
	pfree(name);
	return is_listed;
}

/*
 * Have an index point to our stand-in.  Returns NULL if its access method
 * returns no tuples one by one, if its scans may not be run twice, if somebody
 * else stands before us, or if there are too many access methods.
 */
LaIndexAm *
la_index_am_wrap(Relation index)
{
	IndexAmRoutine *routine = index->rd_indam;
	Oid			amoid = index->rd_rel->relam;
	LaIndexAm  *am = la_index_am_lookup(amoid);

	if (routine->amgettuple == NULL || !la_may_run_twice(index))
		return NULL;
	if (am != NULL && routine == &am->trusted)
	{
		la_end_trust(index);
		return am;
	}
	if (am != NULL && (routine == &am->routine || routine == &am->strange))
		return am;
	if (am != NULL &&
		memcmp(&am->orig, routine, sizeof(IndexAmRoutine)) != 0)
		return NULL;

	if (am == NULL)
	{
		if (la_nindex_ams >= LA_MAX_INDEX_AMS)
			return NULL;
		am = MemoryContextAllocZero(TopMemoryContext, sizeof(LaIndexAm));
		am->amoid = amoid;
		am->orig = *routine;
		am->routine = *routine;
		am->routine.amgettuple = la_amgettuple;
		if (routine->amgetbitmap)
			am->routine.amgetbitmap = la_amgetbitmap;
		am->routine.amrescan = la_amrescan;
		am->routine.amendscan = la_amendscan;
		if (routine->ammarkpos)
			am->routine.ammarkpos = la_ammarkpos;
		if (routine->amrestrpos)
			am->routine.amrestrpos = la_amrestrpos;
		am->strange = am->routine;
		am->trusted = am->routine;
		am->trusted.amgettuple = la_amgettuple_trusted;
		am->trusted.amrescan = la_amrescan_trusted;
		if (routine->ammarkpos)
			am->trusted.ammarkpos = la_ammarkpos_trusted;
		if (routine->amrestrpos)
			am->trusted.amrestrpos = la_amrestrpos_trusted;

		/*
		 * B-tree is asked in scout.c; GiST and SP-GiST copy what they need
		 * and unpin.  Hash keeps its bucket pinned.  Of others we do not know.
		 */
		am->keeps_pins = (amoid != GIST_AM_OID && amoid != SPGIST_AM_OID &&
						  amoid != BTREE_AM_OID);
		am->is_dear = (amoid != BTREE_AM_OID && amoid != HASH_AM_OID);
		la_index_ams[la_nindex_ams++] = am;
	}
	index->rd_indam = la_columns_are_plain(index) ?
		&am->routine : &am->strange;
	return am;
}
