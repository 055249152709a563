/*-------------------------------------------------------------------------
 *
 * index_node.c
 *	  The index scan nodes of running plans, and the first stage of their scans.
 *
 * One LaIndexNode stands for one IndexScan or IndexOnlyScan node of a running
 * plan.  plan_walk.c registers it when the plan starts, or deferred.c when its
 * first stage ends; it is bound to the node's scan descriptor when that is
 * first (re)started; index_am.c tells it of everything that happens to the
 * descriptor.
 *
 * Most index scans of a busy server find one row, or a few that are cached.
 * There is nothing ahead of them, and what we do for them is all they get.  So
 * what follows a scan (index_scan.c, leaf_scan.c) is made when something was
 * read between two of its entries; until then, in its first stage, only what
 * that will want to know is noted:
 *
 *		(re)start			blocks read so far
 *		first call			passed on; blocks read so far, once more
 *		further calls		passed on; if there is an entry, and blocks were
 *							read since, the scan is followed from here on
 *
 * So a B-tree scan of cached data stays there, however long it is, and costs
 * one comparison per entry.  Of other access methods each call is dearer here
 * than index_scan.c's, which passes over most; they are followed after
 * LA_FIRST_STAGE_MAX entries.
 *
 * A scan that is started again and again comes back to it after some rounds in
 * which nothing was read; what has followed it is kept for the next read.
 *
 * A scan that a LIMIT ends before it could be looked ahead of stays there,
 * unless it is started again and again, and can learn from the first times.
 *
 * It goes on as if it had been followed from its beginning: blocks that it has
 * passed count, those at least that the entries of its last leaf page are on,
 * and so do leaf pages, about.  What is read first after the executor came back
 * to its caller (a cursor, say) is taken for somebody else's.
 *
 * Some are followed from their start: if the first block is to be looked ahead
 * of (start_after = 0), if the access method is dear (its first call is the
 * dearest of all), and if parallel workers have their share of it.  A change of
 * direction and a call after the end make an end of the first stage, too.
 *
 * Copyright (c) 2026, the pg_lookahead authors
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "catalog/catalog.h"
#include "catalog/pg_am.h"
#include "common/hashfn.h"
#include "hook/heap_am.h"
#include "settings.h"
#include "source/deferred.h"
#include "source/index_node.h"
#include "utils/memutils.h"
#include "window/waits.h"

/* Entries without a read, after which other than B-trees are followed. */
#define LA_FIRST_STAGE_MAX	64

LaByAddress la_bound_nodes;

/* Lists of nodes that are not bound yet. */
#define LA_UNBOUND_LISTS	256

/*
 * Starts of a scan that is followed, between which nothing was read, after
 * which it is in the first stage again.
 */
#define LA_ASIDE_STARTS		8

/*
 * Nodes that are not bound yet, of some indexes: those of the query that began
 * last first, and each query's in the order of its plan, which is about that in
 * which they start.
 */
struct LaUnbound
{
	dlist_head	nodes;
	LaIndexNode *newest;
};

/*
 * A scan that we do not follow is looked for here each time that it is started,
 * and a plan may have a node for each of a thousand partitions.
 */
static LaUnbound la_unbound[LA_UNBOUND_LISTS];

/* -------------------------------------------------------------------------
 * Binding
 * -------------------------------------------------------------------------
 */

static inline LaUnbound *
la_unbound_of(Relation index)
{
	/* Partitions made by one command have OIDs at even distances. */
	return &la_unbound[murmurhash32(RelationGetRelid(index)) %
					   LA_UNBOUND_LISTS];
}

/*
 * Register an index scan node of a plan.  Everything is allocated in the
 * query's context; what follows the scan joins the query's scans.
 */
LaIndexNode *
la_index_node_register(MemoryContext query_context, LaScans *scans,
					   PlanState *plan, LimitState *limit, bool is_plain)
{
	LaIndexNode *node = MemoryContextAllocZero(query_context,
											   sizeof(LaIndexNode));
	LaIndexNode *newest;

	node->query_context = query_context;
	node->scans = scans;
	node->place = scans->places++;
	node->plan = plan;
	node->limit = limit;
	node->is_plain = is_plain;
	if (IsA(plan, IndexOnlyScanState))
	{
		IndexOnlyScanState *state = (IndexOnlyScanState *) plan;

		node->index = state->ioss_RelationDesc;
		node->desc_ref = &state->ioss_ScanDesc;
	}
	else
	{
		IndexScanState *state = castNode(IndexScanState, plan);

		node->index = state->iss_RelationDesc;
		node->desc_ref = &state->iss_ScanDesc;
	}
	node->unbound = la_unbound_of(node->index);
	newest = node->unbound->newest;
	if (newest != NULL && newest->query_context == query_context)
		dlist_insert_after(&newest->unbound_link, &node->unbound_link);
	else
		dlist_push_head(&node->unbound->nodes, &node->unbound_link);
	node->unbound->newest = node;
	return node;
}

static void
la_leave_unbound(LaIndexNode *node)
{
	if (node->unbound == NULL)
		return;
	dlist_delete(&node->unbound_link);
	if (node->unbound->newest == node)
		node->unbound->newest = NULL;
	node->unbound = NULL;
}

/*
 * The query's memory goes, in order or not, or the node's scan: nothing may
 * point to the node.
 */
void
la_index_node_forget(LaIndexNode *node)
{
	la_leave_unbound(node);
	la_index_am_trust_no_more(node);
	if (node->desc != NULL)
	{
		la_by_address_remove(&la_bound_nodes, node->desc, node);
		node->desc = NULL;
	}
}

/*
 * A node that was just registered goes on with the first stage of the scan of
 * the query that was deferred.
 */
void
la_index_node_take_over(LaIndexNode *node, const LaIndexNode *first)
{
	Assert(first->scan == NULL && first->aside == NULL && !first->is_trusted);
	la_leave_unbound(node);
	la_by_address_put(&la_bound_nodes, first->desc, node);
	node->desc = first->desc;
	node->am = first->am;
	node->cached_reads = first->cached_reads;
	node->start = first->start;
	node->starts = first->starts;
	node->start_reads = first->start_reads;
	node->cached_starts = first->cached_starts;
	node->is_marked = first->is_marked;
	node->runs = first->runs;
}

/*
 * The node whose first stage ends, or NULL if it cannot be followed.
 */
static inline LaIndexNode *
la_registered(LaIndexNode *node)
{
	return la_is_deferred(node) ? la_deferred_register() : node;
}

/*
 * Make what follows the node's scan, unless there is one.
 */
void
la_index_node_follow(LaIndexNode *node)
{
	LaIndexScan *scan;

	if (node->aside != NULL)
	{
		node->scan = node->aside;
		node->aside = NULL;
		return;
	}
	scan = la_index_scan_create(node->query_context, node->plan, node->index,
								node->limit);
	scan->target.is_plain = node->is_plain;
	la_followed_add(node->scans, &scan->base, node->place);
	if (la_leaf_scan_is_wanted(node->index))
	{
		LaLeafScan *leaf = la_leaf_scan_register(node->query_context,
												 node->plan, node->index,
												 node->desc_ref, node->limit,
												 node->is_plain);

		la_followed_add(node->scans, &leaf->base, node->place);
		la_followed_runs(&leaf->base);
		scan->target.leaf = leaf;
	}
	/* In front of its leaf scan: EXPLAIN shows the table first. */
	la_followed_runs(&scan->base);
	node->scan = scan;
	if (node->desc != NULL)
		la_index_scan_bind(scan, node->desc);
}

/*
 * The node that waits for the start of this scan, or NULL.
 */
static LaIndexNode *
la_unbound_node_of(IndexScanDesc desc)
{
	dlist_iter	iter;

	dlist_foreach(iter, &la_unbound_of(desc->indexRelation)->nodes)
	{
		LaIndexNode *node = dlist_container(LaIndexNode, unbound_link,
											iter.cur);

		if (node->index == desc->indexRelation && *node->desc_ref == desc)
			return node;
	}
	return NULL;
}

/*
 * Does a scan find rows by the snapshot of a query?  A bitmap index scan does
 * not, say, or a check of a constraint.
 */
static inline bool
la_is_of_query(IndexScanDesc desc)
{
	return desc->heapRelation != NULL && desc->xs_snapshot != NULL &&
		desc->xs_snapshot->snapshot_type == SNAPSHOT_MVCC;
}

/*
 * Can a node's scan be followed?
 */
bool
la_index_scan_may_be_followed(IndexScanDesc desc)
{
	return la_is_of_query(desc) && !IsCatalogRelation(desc->heapRelation) &&
		la_is_heap(desc->heapRelation) &&
		(desc->parallel_scan == NULL ||
		 desc->indexRelation->rd_rel->relam == BTREE_AM_OID);
}

/*
 * A descriptor that we do not know is (re)started: is it one of the nodes'
 * that we wait for?  If so, and if it can be followed, bind it.
 */
static LaIndexNode *
la_bind(IndexScanDesc desc)
{
	LaIndexNode *node;

	if (!la_is_of_query(desc))
		return NULL;

	node = la_unbound_node_of(desc);
	if (node == NULL)
		return NULL;

	la_leave_unbound(node);

	if (!la_index_scan_may_be_followed(desc))
		return NULL;

	Assert(la_index_node_find(desc) == NULL);
	la_by_address_put(&la_bound_nodes, desc, node);
	node->desc = desc;
	node->am = la_index_am_of(desc->indexRelation);
	if (node->scan != NULL)
		la_index_scan_bind(node->scan, desc);
	else if (la_start_after == 0 || node->am->is_dear)
		la_index_node_follow(node);
	return node;
}

/* -------------------------------------------------------------------------
 * The first stage, and its end
 * -------------------------------------------------------------------------
 */

/*
 * From here on the scan is followed.  Its last entry is on a block, if it has
 * returned one.
 */
static LaIndexScan *
la_end_first_stage(LaIndexNode *node, BlockNumber blkno)
{
	LaIndexStart start = node->start;

	if (start.calls == 0)
		start = (LaIndexStart) {.reads = la_blocks_read()};
	la_index_node_follow(node);
	node->scan->is_repeated = node->starts > 1;
	la_index_scan_catch_up(node->scan, &start, blkno);
	node->scan->target.is_further = node->was_trusted;

	/* What was read while the executor was away is no entry's. */
	if (node->runs != node->scans->runs)
		node->scan->gap_open = false;
	return node->scan;
}

/*
 * In the first stage: has the scan returned an entry in its last call?
 */
static inline bool
la_has_entry(const LaIndexNode *node)
{
	return node->start.calls > 0 && node->start.found;
}

/*
 * The end of the first stage while nothing is under way.
 */
static LaIndexScan *
la_scan_of(LaIndexNode *node)
{
	BlockNumber blkno = InvalidBlockNumber;

	if (node->scan != NULL)
		return node->scan;
	if (la_has_entry(node))
		blkno = ItemPointerGetBlockNumber(&node->desc->xs_heaptid);
	return la_end_first_stage(node, blkno);
}

/*
 * Will a LIMIT end the scan before enough was seen of it?
 */
static bool
la_is_short(const LaIndexNode *node)
{
	uint64		left = la_entries_left(node->limit);

	return node->starts == 1 && left <= (uint64) la_start_after &&
		node->start.calls + left <= (uint64) la_start_after;
}

/*
 * What the scan has passed before it was followed counts.  B-tree has just
 * found another entry.
 */
static void
la_credit_passed(LaIndexScan *scan, const LaIndexStart *start)
{
	BTScanPos	pos = &((BTScanOpaque) scan->desc->opaque)->currPos;
	bool		forward = ScanDirectionIsForward(start->direction);
	int			first = forward ? pos->firstItem : pos->lastItem;
	int			back = forward ? -1 : 1;
	int			nblocks = 0;

	/* From the entry before this one back to the first of the page. */
	if (!scan->target.index_only && pos->itemIndex != first)
		for (int i = pos->itemIndex + back;
			 i != first && nblocks < la_start_after;
			 i += back)
			if (ItemPointerGetBlockNumber(&pos->items[i].heapTid) !=
				ItemPointerGetBlockNumber(&pos->items[i + back].heapTid))
				nblocks++;
	la_pace_credit(&scan->pace, nblocks);

	if (scan->target.leaf != NULL)
		la_pace_credit(&scan->target.leaf->pace,
					   start->calls / (pos->lastItem - pos->firstItem + 1));
}

/*
 * In the first stage another entry was found, and something was read.  Before
 * that call so many blocks had been read, and the scan's entry was on a block.
 */
static pg_noinline bool
la_index_node_has_read(LaIndexNode *node, BlockNumber blkno, int64 reads)
{
	LaIndexStart *start;
	int64		nleaves;

	if (la_is_short(node))
	{
		node->start.calls++;
		return true;
	}
	node = la_registered(node);
	if (node == NULL)
		return true;
	start = &node->start;

	/* What the access method has read now is a leaf page, and no gap's. */
	nleaves = la_blocks_read() - reads;
	start->reads_first += nleaves;
	la_end_first_stage(node, blkno);
	if (node->am->orig.amgettuple == btgettuple)
		la_credit_passed(node->scan, start);
	if (nleaves > 0)
		la_leaf_wake(node->scan->target.leaf);
	la_index_scan_go_on(node->scan, start->direction);
	return true;
}

/*
 * The access method was asked in the first stage, not for the first time.
 */
static inline bool
la_index_node_asked(LaIndexNode *node, bool found, bool btree,
					BlockNumber blkno, int64 reads)
{
	LaIndexStart *start = &node->start;

	if (!found)
	{
		start->found = false;
		node->cached_reads = -1;
	}
	else if (la_blocks_read() != start->reads_first ||
			 (!btree && start->calls >= LA_FIRST_STAGE_MAX))
		return la_index_node_has_read(node, blkno, reads);
	start->calls++;
	return found;
}

/*
 * amgettuple of a scan that is cached so far, at the end of B-tree's page.
 */
bool
la_index_node_turn_page(LaIndexNode *node)
{
	IndexScanDesc desc = node->desc;
	BlockNumber blkno = ItemPointerGetBlockNumber(&desc->xs_heaptid);
	bool		found;

	Assert(la_has_entry(node));
	found = btgettuple(desc, node->start.direction);
	return la_index_node_asked(node, found, true, blkno, node->cached_reads);
}

/*
 * A further call of amgettuple in the first stage, of any kind.
 */
static pg_noinline bool
la_index_node_further(LaIndexNode *node, ScanDirection direction)
{
	amgettuple_function amgettuple = node->am->orig.amgettuple;
	IndexScanDesc desc = node->desc;
	BlockNumber blkno;
	int64		reads;
	bool		found;

	if (!node->start.found || direction != node->start.direction)
	{
		node = la_registered(node);
		if (node == NULL)
			return amgettuple(desc, direction);
		return la_index_scan_next(la_scan_of(node), direction);
	}

	blkno = ItemPointerGetBlockNumber(&desc->xs_heaptid);
	reads = la_blocks_read();
	found = amgettuple(desc, direction);
	return la_index_node_asked(node, found, amgettuple == btgettuple, blkno,
							   reads);
}

/*
 * amgettuple of a scan in its first stage: returns exactly what the access
 * method returns.
 */
bool
la_index_node_next(LaIndexNode *node, ScanDirection direction)
{
	LaIndexStart *start = &node->start;
	LaIndexAm  *am = node->am;

	Assert(node->scan == NULL);
	if (start->calls > 0)
		return la_index_node_further(node, direction);

	start->calls = 1;
	start->found = false;
	start->direction = direction;
	start->mark_calls = 0;
	start->replay_until = 0;
	start->reads = la_blocks_read();
	node->runs = node->scans->runs;
	start->found = am->orig.amgettuple(node->desc, direction);
	start->reads_first = la_blocks_read();
	if (start->found && am->orig.amgettuple == btgettuple)
		node->cached_reads = start->reads_first;
	return start->found;
}

/*
 * A scan that is followed starts again.  If it has read nothing for some
 * rounds it is back in the first stage.
 */
static void
la_index_node_restart_followed(LaIndexNode *node)
{
	LaIndexScan *scan = node->scan;

	scan->is_repeated = node->starts > 0;
	la_index_scan_restart(scan);
	la_index_node_restart_first(node);
	if (node->cached_starts < LA_ASIDE_STARTS ||
		!la_index_scan_set_aside(scan))
		return;
	node->aside = scan;
	node->scan = NULL;
}

/*
 * amrescan: the scan starts from the beginning, maybe with other keys.  Returns
 * its node, or NULL if we do not follow it.
 */
LaIndexNode *
la_index_node_restart(IndexScanDesc desc)
{
	LaIndexNode *node = la_index_node_find(desc);

	if (node == NULL && (node = la_bind(desc)) == NULL)
		return NULL;
	if (node->scan != NULL)
		la_index_node_restart_followed(node);
	else
		la_index_node_restart_first(node);
	return node;
}

/*
 * ammarkpos.
 */
void
la_index_node_mark(LaIndexNode *node)
{
	node = la_registered(node);
	if (node == NULL)
		return;
	node->is_marked = true;
	if (node->scan != NULL || !la_has_entry(node))
		la_index_scan_mark(la_scan_of(node));
	else
		node->start.mark_calls = node->start.calls;
}

/*
 * amrestrpos: the entries between the mark and here will be returned again.
 */
void
la_index_node_restore(LaIndexNode *node)
{
	LaIndexStart *start;

	node = la_registered(node);
	if (node == NULL)
		return;
	start = &node->start;
	if (node->scan != NULL || start->calls == 0 || start->mark_calls == 0)
		la_index_scan_restore(la_scan_of(node));
	else
	{
		start->replay_until = Max(start->replay_until, start->calls);
		start->calls = start->mark_calls;
		start->found = true;
		if (node->am->orig.amgettuple == btgettuple)
			node->cached_reads = start->reads_first;
	}
}

/*
 * amendscan: the node is done with its descriptor.
 */
void
la_index_node_end(LaIndexNode *node)
{
	LaIndexScan *scan = node->scan ? node->scan : node->aside;

	if (scan != NULL)
	{
		la_index_scan_end(scan);
		scan->desc = NULL;
	}
	la_index_node_forget(node);
}
