/*-------------------------------------------------------------------------
 *
 * leaf_walk.c
 *	  The leaf pages that a scan of a B-tree will come to, from their parents.
 *
 * A leaf page knows its neighbours only, so a scan learns the next page when
 * it has read this one.  The level above knows hundreds of them: each of its
 * pages is a list of leaf pages in the order of the index, with the least key
 * of each.  The walk copies the parent of the page that the scan is on and
 * yields what comes after it, forward or backward, from one parent page to the
 * next.
 *
 *		parent		| -> 7 | 120 -> 31 | 250 -> 8 | 390 -> 64 |   high key 500
 *							   ^ the scan is on page 31
 *		forward					 8, 64, then the parent's right neighbour
 *		backward		7, then the parent's left neighbour
 *
 * The parent is found by one descent from the root with the first key of the
 * page that the scan is on.  Further parent pages are reached by their links,
 * so a scan of the whole index descends once.
 *
 * Where does the scan end?  All keys of a leaf page are between the key beside
 * its downlink and the next one.  The scan's own keys say, by the marks that
 * B-tree has made on them, which must hold for it to go on.  When one of those
 * fails on the bound of a page that lies ahead it fails on all of that page and
 * after it, and the walk ends.  So it does at NULLs, where they are last: no
 * comparison holds for them, on whichever side it bounds the scan.
 *
 * An IN-list (and a skip scan) is searched value by value, and the scan may
 * jump over what is between; so only the pages of the present value are
 * yielded, unless the scan has been seen to go from neighbour to neighbour all
 * the same.  Then it ends with the last value.
 *
 * Where keys are wide a parent page has few downlinks, and most of a fill would
 * be reading parents, one after the other, with the leaf pages still to come.
 * So a fill reads few of them; the next one goes on.
 *
 * All of this is a hint.  The copy of the parent grows old: a page that is
 * split meanwhile has a new neighbour that the walk does not know of, and one
 * that is deleted is read in vain.  No lock is held between calls, and no pin.
 *
 * Copyright (c) 2026, the pg_lookahead authors
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "compat.h"
#include "source/leaf_walk.h"
#include "utils/memutils.h"

/* Pages of the parent level that one search may visit. */
#define LA_MAX_STEPS_ASIDE	4

/* The level of the pages that point to leaf pages. */
#define LA_PARENT_LEVEL		1

static LaSourceResult la_leaf_walk_next(LaSource *source, BlockNumber *blkno);

/*
 * Make a walk; it finds its place when it is asked for the first time.
 */
LaLeafWalk *
la_leaf_walk_create(MemoryContext context, Relation index)
{
	LaLeafWalk *walk = MemoryContextAllocZero(context, sizeof(LaLeafWalk));

	walk->source.next = la_leaf_walk_next;
	walk->index = index;
	walk->page = MemoryContextAlloc(context, BLCKSZ);
	return walk;
}

/*
 * The scan is elsewhere: find the parent of the page it is on anew.
 */
void
la_leaf_walk_restart(LaLeafWalk *walk)
{
	walk->is_open = false;
}

/*
 * Copy a page of the parent level.  Returns false if it is none.
 */
static bool
la_load_parent(LaLeafWalk *walk, BlockNumber blkno)
{
	Buffer		buffer = _bt_getbuf(walk->index, blkno, BT_READ);
	Page		page = BufferGetPage(buffer);
	BTPageOpaque opaque = BTPageGetOpaque(page);
	bool		is_parent = !P_IGNORE(opaque) &&
		opaque->btpo_level == LA_PARENT_LEVEL;

	if (is_parent)
		memcpy(walk->page, page, BLCKSZ);
	_bt_relbuf(walk->index, buffer);
	return is_parent;
}

static inline IndexTuple
la_parent_tuple(const LaLeafWalk *walk, OffsetNumber offset)
{
	return (IndexTuple) PageGetItem(walk->page,
									PageGetItemId(walk->page, offset));
}

/*
 * Where in the copied page is the downlink to a leaf page?
 */
static OffsetNumber
la_find_downlink(const LaLeafWalk *walk, BlockNumber leaf)
{
	BTPageOpaque opaque = BTPageGetOpaque(walk->page);
	OffsetNumber last = PageGetMaxOffsetNumber(walk->page);

	for (OffsetNumber i = P_FIRSTDATAKEY(opaque); i <= last; i++)
		if (BTreeTupleGetDownLink(la_parent_tuple(walk, i)) == leaf)
			return i;
	return InvalidOffsetNumber;
}

/*
 * A key that leads from the root to a leaf page: its first, or its high key if
 * it is empty.  NULL if there is none.
 */
static IndexTuple
la_key_of_leaf(LaLeafWalk *walk, BlockNumber leaf)
{
	Buffer		buffer = _bt_getbuf(walk->index, leaf, BT_READ);
	Page		page = BufferGetPage(buffer);
	BTPageOpaque opaque = BTPageGetOpaque(page);
	OffsetNumber offset = P_FIRSTDATAKEY(opaque);
	IndexTuple	key = NULL;

	if (P_ISLEAF(opaque) && !P_IGNORE(opaque))
	{
		if (offset > PageGetMaxOffsetNumber(page) && !P_RIGHTMOST(opaque))
			offset = P_HIKEY;
		if (offset <= PageGetMaxOffsetNumber(page))
			key = CopyIndexTuple((IndexTuple)
								 PageGetItem(page,
											 PageGetItemId(page, offset)));
	}
	_bt_relbuf(walk->index, buffer);
	return key;
}

/*
 * Find the parent of the leaf page that the scan is on, and its downlink in it.
 * Returns false if it has none: it is the root, or was deleted meanwhile.
 */
static bool
la_leaf_walk_seek(LaLeafWalk *walk)
{
	IndexTuple	tuple = la_key_of_leaf(walk, walk->from);
	BTScanInsert key;
	BTStack		stack;
	Buffer		leaf = InvalidBuffer;
	BlockNumber parent = InvalidBlockNumber;
	OffsetNumber here = InvalidOffsetNumber;

	if (tuple == NULL)
		return false;
	key = _bt_mkscankey(walk->index, tuple);
	stack = la_bt_search(walk->index, key, &leaf);
	if (BufferIsValid(leaf))
		_bt_relbuf(walk->index, leaf);
	if (stack != NULL)
	{
		parent = stack->bts_blkno;
		_bt_freestack(stack);
	}
	pfree(key);
	pfree(tuple);

	/* It may have been split, and the downlink moved to the right. */
	for (int i = 0; i < LA_MAX_STEPS_ASIDE; i++)
	{
		BTPageOpaque opaque;

		if (parent == InvalidBlockNumber || !la_load_parent(walk, parent))
			return false;
		here = la_find_downlink(walk, walk->from);
		if (here != InvalidOffsetNumber)
			break;
		opaque = BTPageGetOpaque(walk->page);
		parent = P_RIGHTMOST(opaque) ? InvalidBlockNumber : opaque->btpo_next;
	}
	if (here == InvalidOffsetNumber)
		return false;
	walk->next = ScanDirectionIsForward(walk->direction) ? here + 1 : here - 1;
	walk->is_open = true;
	return true;
}

/*
 * Go to the next page of the parent level.  Returns false at its end, or if it
 * cannot be found for all that changes there.
 */
static bool
la_next_parent(LaLeafWalk *walk)
{
	BTPageOpaque opaque = BTPageGetOpaque(walk->page);
	bool		is_forward = ScanDirectionIsForward(walk->direction);
	BlockNumber beyond = is_forward ? opaque->btpo_next : opaque->btpo_prev;

	if (beyond == P_NONE || !la_load_parent(walk, beyond))
		return false;

	/* The one after it will be wanted, too, in a few hundred leaf pages. */
	opaque = BTPageGetOpaque(walk->page);
	beyond = is_forward ? opaque->btpo_next : opaque->btpo_prev;
	if (beyond != P_NONE)
		(void) PrefetchBuffer(walk->index, MAIN_FORKNUM, beyond);
	walk->next = is_forward ? P_FIRSTDATAKEY(opaque) :
		PageGetMaxOffsetNumber(walk->page);
	return true;
}

/*
 * Are there only NULLs where the scan is going, as soon as it meets one?
 */
static inline bool
la_nulls_are_ahead(const LaLeafWalk *walk, ScanKey key)
{
	return ScanDirectionIsForward(walk->direction) ==
		((key->sk_flags & SK_BT_NULLS_FIRST) == 0);
}

/*
 * Is a key of the parent level past all values of an array of the scan?  "key"
 * is the array's.
 *
 * The elements are sorted as the index is, and searched in the direction of the
 * scan.
 */
static bool
la_is_past_array(const LaLeafWalk *walk, ScanKey key, Datum value,
				 bool is_null)
{
	BTScanOpaque scan = walk->scan;
	bool		is_forward = ScanDirectionIsForward(walk->direction);
	Oid			type = walk->index->rd_opcintype[key->sk_attno - 1];

	for (int i = 0; i < scan->numArrayKeys; i++)
	{
		BTArrayKeyInfo *array = &scan->arrayKeys[i];
		ScanKey		bound;
		Datum		last;
		int			order;

		if (la_bt_array_attno(scan, array) != key->sk_attno)
			continue;
		if (is_null)
			return !la_bt_array_has_null(array) &&
				la_nulls_are_ahead(walk, key);
		if (la_bt_array_is_skip(array))
		{
			bound = la_bt_skip_bound(array, is_forward);
			return bound != NULL &&
				!DatumGetBool(FunctionCall2Coll(&bound->sk_func,
												bound->sk_collation, value,
												bound->sk_argument));
		}
		if (OidIsValid(key->sk_subtype) && key->sk_subtype != type)
			return false;
		last = array->elem_values[is_forward ? array->num_elems - 1 : 0];
		order = DatumGetInt32(FunctionCall2Coll(index_getprocinfo(walk->index,
																  key->sk_attno,
																  BTORDER_PROC),
												key->sk_collation,
												value, last));
		if (key->sk_flags & SK_BT_DESC)
			INVERT_COMPARE_RESULT(order);
		return is_forward ? order > 0 : order < 0;
	}
	return false;
}

/*
 * Is a key of the parent level past the bound of a row comparison?  The columns
 * decide one after the other, until they differ.
 */
static bool
la_row_is_past(const LaLeafWalk *walk, IndexTuple bound, int natts, ScanKey row)
{
	ScanKey		key = (ScanKey) DatumGetPointer(row->sk_argument);

	for (;; key++)
	{
		bool		is_null;
		Datum		value;
		int			order;

		if (key->sk_attno > natts || (key->sk_flags & SK_ISNULL))
			return false;
		value = index_getattr(bound, key->sk_attno,
							  RelationGetDescr(walk->index), &is_null);
		if (is_null)
			return false;
		order = DatumGetInt32(FunctionCall2Coll(&key->sk_func,
												key->sk_collation,
												value, key->sk_argument));
		if (key->sk_flags & SK_BT_DESC)
			INVERT_COMPARE_RESULT(order);
		if (order != 0)
			return ScanDirectionIsForward(walk->direction) ?
				order > 0 : order < 0;
		if (key->sk_flags & SK_ROW_END)
			return false;
	}
}

/*
 * Does the scan end before it comes to a key of the parent level, which bounds
 * the page in question on the side that the scan comes from?
 *
 * B-tree has sorted the scan's keys by column.  A key that must hold for the
 * scan to go on is an equality with nothing but equalities before it, or the
 * one inequality after those, so the first that fails decides.
 */
static bool
la_is_past_end(const LaLeafWalk *walk, IndexTuple bound)
{
	TupleDesc	desc = RelationGetDescr(walk->index);
	int			natts = BTreeTupleGetNAtts(bound, walk->index);
	int			required = ScanDirectionIsForward(walk->direction) ?
		SK_BT_REQFWD : SK_BT_REQBKWD;
	int			either = SK_BT_REQFWD | SK_BT_REQBKWD;

	for (int i = 0; i < walk->scan->numberOfKeys; i++)
	{
		ScanKey		key = &walk->scan->keyData[i];
		bool		is_equality = key->sk_strategy == BTEqualStrategyNumber;
		bool		is_null;
		bool		holds;
		Datum		value;

		if (!(key->sk_flags & either))
			continue;
		/* The rest of the bound was cut off: it may be anything. */
		if (key->sk_attno > natts)
			return false;
		value = index_getattr(bound, key->sk_attno, desc, &is_null);
		if (is_equality && (key->sk_flags & SK_SEARCHARRAY) &&
			(walk->ignores_arrays || (key->sk_flags & LA_BT_NO_VALUE)))
			return la_is_past_array(walk, key, value, is_null);

		/* Bounded on the other side, it ends here at NULLs only. */
		if (is_null && !(key->sk_flags & SK_SEARCHNULL) &&
			la_nulls_are_ahead(walk, key))
			return true;
		if (!(key->sk_flags & required))
			continue;
		if (key->sk_flags & SK_ROW_HEADER)
			return la_row_is_past(walk, bound, natts, key);
		if (key->sk_flags & SK_SEARCHNULL)
			holds = is_null;
		else if (key->sk_flags & SK_SEARCHNOTNULL)
			holds = !is_null;
		else if (is_null || (key->sk_flags & SK_ISNULL))
			holds = false;
		else
			holds = DatumGetBool(FunctionCall2Coll(&key->sk_func,
												   key->sk_collation,
												   value, key->sk_argument));
		if (!holds)
			return true;
	}
	return false;
}

/*
 * The key between the page whose downlink is the next to be yielded and the
 * one before it, as seen by the scan; NULL if nothing is between.
 */
static IndexTuple
la_bound_of_next(const LaLeafWalk *walk)
{
	BTPageOpaque opaque = BTPageGetOpaque(walk->page);
	OffsetNumber first = P_FIRSTDATAKEY(opaque);
	OffsetNumber last = PageGetMaxOffsetNumber(walk->page);

	if (ScanDirectionIsForward(walk->direction))
	{
		/* The first downlink has no key; the parent before had a high key. */
		return walk->next > first ? la_parent_tuple(walk, walk->next) : NULL;
	}
	if (walk->next < last)
		return la_parent_tuple(walk, walk->next + 1);
	return P_RIGHTMOST(opaque) ? NULL : la_parent_tuple(walk, P_HIKEY);
}

/*
 * Are all downlinks of this parent page yielded?
 */
static bool
la_parent_is_done(const LaLeafWalk *walk)
{
	BTPageOpaque opaque = BTPageGetOpaque(walk->page);

	return ScanDirectionIsForward(walk->direction) ?
		walk->next > PageGetMaxOffsetNumber(walk->page) :
		walk->next < P_FIRSTDATAKEY(opaque);
}

/*
 * LaSource: the next leaf page that the scan will come to.
 */
static LaSourceResult
la_leaf_walk_next(LaSource *source, BlockNumber *blkno)
{
	LaLeafWalk *walk = (LaLeafWalk *) source;
	IndexTuple	bound;

	if (!walk->is_open && !la_leaf_walk_seek(walk))
		return LA_SOURCE_END;
	if (walk->ahead >= walk->pages_left)
		return LA_SOURCE_PAUSE;

	while (la_parent_is_done(walk))
	{
		BTPageOpaque opaque = BTPageGetOpaque(walk->page);

		if (ScanDirectionIsForward(walk->direction) && !P_RIGHTMOST(opaque) &&
			la_is_past_end(walk, la_parent_tuple(walk, P_HIKEY)))
			return LA_SOURCE_END;
		if (walk->parents_left-- <= 0)
			return LA_SOURCE_PAUSE;
		if (!la_next_parent(walk))
			return LA_SOURCE_END;
	}

	bound = la_bound_of_next(walk);
	if (bound != NULL && la_is_past_end(walk, bound))
		return LA_SOURCE_END;
	*blkno = BTreeTupleGetDownLink(la_parent_tuple(walk, walk->next));
	if (ScanDirectionIsForward(walk->direction))
		walk->next++;
	else
		walk->next--;
	walk->ahead++;
	return LA_SOURCE_BLOCK;
}
