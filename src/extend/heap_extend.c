/*-------------------------------------------------------------------------
 *
 * heap_extend.c
 *	  When a table grows ahead of the rows, and by how much.
 *
 * An INSERT without an insert state of its own (INSERT, UPDATE, MERGE; not
 * COPY) fills one page, asks the free space map for another one, and adds a
 * single page to the table if there is none with room for the row.  That the
 * server has added a page is the sign that more will be needed.  So we follow
 * it by some more, and put them where the server will look next:
 *
 *		pages	0 .. 8191	all full
 *		page	8192		added by the server, for the next row
 *						->	8193 .. 8704 are added (4 MB), and are in the free
 *							space map
 *		target	8193, 8194, ... 8449: half of them are used
 *						->	8705 .. 8961 are added, so that 4 MB are ahead again
 *		target	8450, 8451, ...
 *
 * The second step keeps sessions that fill one table from meeting where it
 * ends, which they would do every 4 MB: whoever comes first makes the others
 * wait.  On 15 they would stay there, as the server then adds many pages, but
 * one by one.
 *
 * A table whose rows come and go must not grow by that.  It is filled at its
 * last page, too, and then again from the front, where VACUUM has made room;
 * but as long as there are empty pages near by the server does not turn.  Some
 * pages of the rest are looked up in the free space map, therefore, and if one
 * has room what is ahead is used up first.
 *
 * How much: heap_extend_size, but not more than a sixteenth of the table, so
 * small tables are the size they are without us, and what is not needed after
 * all is never more than that.  Several sessions share what one of them has
 * made.  Where many wait for the end of one table the server itself adds more
 * than it needs; these are used as if they were ours.
 *
 * Temporary tables, catalogs and tables of other access methods are left to
 * themselves.
 *
 * Copyright (c) 2026, the pg_lookahead authors
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/transam.h"
#include "catalog/pg_class.h"
#include "compat.h"
#include "extend/extend.h"
#include "hook/heap_am.h"
#include "settings.h"
#include "window/guard.h"

/*
 * Who has made space so often without anybody else's between is alone: what it
 * makes it will fill itself.
 */
#define LA_ALONE_AFTER			4

/* The pages ahead are few when less than this part of a step is left. */
#define LA_EXTEND_LEAD			2

/*
 * Pages that a statement which has brought few rows adds at a time.  For each
 * another may have to be written out, while locks are held and a client waits.
 * The server adds as many for one row, when others wait to add some.
 */
#define LA_ROW_BLOCKS			64

/* The ends of tables that were looked at last, see la_keep_ahead(). */
#define LA_SEEN_ENDINGS			8

static struct
{
	Oid			file;			/* its relfilenode */
	BlockNumber last;
}			la_seen_endings[LA_SEEN_ENDINGS];

/*
 * May pages that are not in the WAL be in the free space map?  Before 15.7 and
 * 16.3 the server does not see that the map, which reaches a standby, names
 * pages that the table does not have there: after a promotion inserts fail.
 */
static bool
la_map_is_checked(void)
{
	int			version = atoi(GetConfigOption("server_version_num", false,
											   false));

	return version >= 160003 || (version >= 150007 && version < 160000);
}

/*
 * Are tables to grow ahead in this session?
 */
bool
la_extend_enabled(void)
{
	static int	is_checked = -1;

	if (!la_enabled || la_heap_extend_size == 0)
		return false;
	if (is_checked < 0)
		is_checked = la_map_is_checked();
	return is_checked > 0;
}

/*
 * Is it a table that may grow ahead?
 */
bool
la_extend_wanted(Relation rel)
{
	char		kind = rel->rd_rel->relkind;

	return (kind == RELKIND_RELATION || kind == RELKIND_MATVIEW ||
			kind == RELKIND_TOASTVALUE) &&
		RelationGetRelid(rel) >= FirstNormalObjectId &&
		!RelationUsesLocalBuffers(rel) &&
		la_is_heap(rel);
}

/*
 * Has this transaction stored a large value in a TOAST table?  That shows in
 * its lock, which storing takes and the transaction keeps.  Who stores none
 * should not lock it, so it is opened only then.
 */
bool
la_toast_is_used(Oid toast)
{
	LOCKTAG		tag;

	SET_LOCKTAG_RELATION(tag, MyDatabaseId, toast);
	return la_lock_is_held(&tag, RowExclusiveLock);
}

/*
 * By how many pages a table of this size grows.  0: not by us.
 */
uint32
la_extend_step(BlockNumber nblocks)
{
	uint32		step = Min(nblocks / LA_EXTEND_FRACTION,
						   (uint32) la_heap_extend_size);

	if (step < LA_EXTEND_MIN_BLOCKS || nblocks >= MaxBlockNumber - step)
		return 0;
	return step;
}

/*
 * The pages of a table, or InvalidBlockNumber if none could be added to it now:
 * because they cannot be counted, say, which is no error of the statement's.
 */
BlockNumber
la_heap_size(Relation rel)
{
	BlockNumber nblocks;

	if (!la_space_is_possible())
		return InvalidBlockNumber;
	nblocks = la_guard_size(rel);
	if (nblocks == InvalidBlockNumber)
		la_space_failed();
	return nblocks;
}

void
la_growth_init(LaGrowth *growth)
{
	growth->size = growth->target = growth->made = InvalidBlockNumber;
	growth->refused = InvalidBlockNumber;
	growth->ring = NULL;
	growth->is_row = false;
	growth->alone = 0;
}

/*
 * Will pages that are made now be filled by who makes them?  It matters if they
 * are kept in its ring of buffers.
 */
static bool
la_fills_alone(const LaGrowth *growth)
{
	return growth->ring == NULL || growth->alone >= LA_ALONE_AFTER;
}

static uint32
la_growth_step(BlockNumber nblocks, const LaGrowth *growth)
{
	uint32		step = la_extend_step(nblocks);

	/* A ring has no room for more. */
	return growth->ring && la_fills_alone(growth) ?
		Min(step, LA_LOAD_MAX_BLOCKS) : step;
}

/*
 * Add pages to a table of nblocks.  Those that others fill should not be in the
 * ring of a load, which would then write out pages to have room for its own.
 */
static bool
la_grow(Relation rel, BlockNumber nblocks, uint32 npages, LaSpaceWhen when,
		BlockNumber left, LaGrowth *growth, LaSpace *space)
{
	LaSpaceRequest request = {
		.npages = growth->is_row ? Min(npages, LA_ROW_BLOCKS) : npages,
		.ring = growth->ring,
		.when = when,
		.left = left,
		.unbuffered = !la_fills_alone(growth),
	};

	if (!la_space_add(rel, nblocks, &request, space))
		return false;
	if (growth->made != InvalidBlockNumber && growth->made + 1 == nblocks)
		growth->alone++;
	else
		growth->alone = 0;
	growth->made = space->first + space->npages - 1;
	growth->size = la_heap_size(rel);
	if (growth->size == InvalidBlockNumber)
		growth->size = growth->made + 1;
	return true;
}

/*
 * Rows go to this page.  If few pages are left behind it, add some more.  Each
 * session looks once at each end of a table, but again if another one was just
 * extending it.  Before that rows went to page "before".
 */
static bool
la_keep_ahead(Relation rel, BlockNumber target, BlockNumber before,
			  LaGrowth *growth)
{
	BlockNumber last = la_spare_end(rel);
	Oid			file = rel->rd_rel->relfilenode;
	BlockNumber left;
	BlockNumber wanted;
	uint32		step;
	LaSpace		space = {0};
	bool		is_done = false;
	const int	slot = file % LA_SEEN_ENDINGS;

	if (last == InvalidBlockNumber || target > last ||
		(la_seen_endings[slot].file == file &&
		 la_seen_endings[slot].last == last))
		return false;
	left = last - target;
	step = la_growth_step(last + 1, growth);
	if (left >= step / LA_EXTEND_LEAD)
		return false;

	/* VACUUM is not to find enough at the end to cut it off. */
	wanted = step - left;
	if (step < (last + 1 + wanted) / LA_EXTEND_FRACTION)
	{
		BlockNumber nblocks = la_heap_size(rel);

		if (nblocks == InvalidBlockNumber)
			return false;
		if (nblocks == last + 1)
			is_done = la_grow(rel, nblocks, wanted, LA_IF_NO_ROOM, before,
							  growth, &space);
	}
	if (!space.busy)
	{
		la_seen_endings[slot].file = file;
		la_seen_endings[slot].last = last;
	}
	return is_done;
}

/*
 * Rows go to another page of the table than before.  If the server has added
 * pages, or those that we have added are nearly used up, add some more.
 *
 * A page below the size that was seen last is no news, and the size is not
 * asked for: on some file systems that is a request, and waits for others.
 */
void
la_heap_filled(Relation rel, BlockNumber target, LaGrowth *growth)
{
	BlockNumber before = growth->target;
	BlockNumber nblocks;
	uint32		step;
	bool		has_grown;
	LaSpace		space;

	/* The last piece of a large value may go to an older page. */
	if (rel->rd_rel->relkind == RELKIND_TOASTVALUE)
		target = InvalidBlockNumber;
	growth->target = target;
	if (la_keep_ahead(rel, target, before, growth))
		return;
	if (growth->size != InvalidBlockNumber && target < growth->size)
		return;
	nblocks = la_heap_size(rel);
	if (nblocks == InvalidBlockNumber)
		return;
	has_grown = growth->size != InvalidBlockNumber && nblocks > growth->size;

	growth->size = nblocks;
	if (!has_grown)
		return;

	/* The map may say that there is room where the server finds none. */
	step = la_growth_step(nblocks, growth);
	if (step > 0 && (growth->refused == InvalidBlockNumber ||
					 nblocks >= growth->refused + LA_EXTEND_MIN_BLOCKS))
	{
		if (la_grow(rel, nblocks, step, LA_IF_FULL, before, growth, &space))
		{
			growth->refused = InvalidBlockNumber;
			return;
		}
		if (!space.busy)
			growth->refused = nblocks;
	}
	if (nblocks >= LA_EXTEND_MIN_TABLE)
		la_spare_note_end(rel, nblocks - 1);	/* the server has added many */
}
