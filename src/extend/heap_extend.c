/*-------------------------------------------------------------------------
 *
 * heap_extend.c
 *	  When a table grows ahead of the rows, and by how much.
 *
 * An INSERT without an insert state of its own (INSERT, UPDATE, MERGE; not
 * COPY) fills one page, asks the free space map for another one, and adds a
 * single page to the table if there is none with room for the row.  That the
 * server has added a page is the sign that more will be needed, and the only
 * one: a table whose rows come and go is filled at its last page, too, and
 * then again from the front, where VACUUM has made room.  So we follow each
 * page that the server adds by some more, and put them where it will look
 * next:
 *
 *		pages	0 .. 8191	all full
 *		page	8192		added by the server, for the next row
 *						->	8193 .. 8704 are added (4 MB), and are in the free
 *							space map
 *		target	8193, 8194, ... 8704, then older pages with room, if there
 *				are any by now; then 8705, added by the server
 *
 * How much: heap_extend_size, but not more than a sixteenth of the table, so
 * small tables are the size they are without us, and what is not needed after
 * all is never more than that.  Several sessions share what one of them has
 * made.  Where many wait for the end of one table the server itself adds more
 * than it needs; while there are empty pages we add none.
 *
 * Temporary tables, catalogs and tables of other access methods are left to
 * themselves.
 *
 * Copyright (c) 2026, the pg_lookahead authors
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/tableam.h"
#include "access/transam.h"
#include "catalog/pg_class.h"
#include "compat.h"
#include "extend/extend.h"
#include "settings.h"

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
		rel->rd_tableam == GetHeapamTableAmRoutine();
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
 * Rows go to another page of the table than before.  If the server has added
 * pages, add some more.
 *
 * size is the number of pages that the caller has seen last; invalid if it has
 * not looked yet.  A page below that is no news, and the size is not asked for:
 * on some file systems that is a request, and waits for others.
 */
void
la_heap_filled(Relation rel, BlockNumber target, BlockNumber *size)
{
	BlockNumber nblocks;
	bool		has_grown;
	LaSpace		space;

	if (*size != InvalidBlockNumber && target < *size)
		return;
	nblocks = RelationGetNumberOfBlocks(rel);
	has_grown = *size != InvalidBlockNumber && nblocks > *size;

	*size = nblocks;
	if (has_grown &&
		la_space_add(rel, nblocks, la_extend_step(nblocks), NULL, true, false,
					 &space))
		*size = RelationGetNumberOfBlocks(rel);
}
