/*-------------------------------------------------------------------------
 *
 * heap_extend.c
 *	  When a table grows ahead of the rows, and by how much.
 *
 * An INSERT without an insert state of its own (INSERT, UPDATE, MERGE; not
 * COPY) fills one page, asks the free space map for another one, and adds a
 * single page to the table if there is none.  So a table that is being filled
 * is filled at its last page, and a session whose target is the last page says
 * that the next page will have to be made.  That is when we make it, and some
 * more, and put them where the server will look next:
 *
 *		pages	0 ............ 8191			target 8191: the last one
 *										->	8192 .. 8703 are added (4 MB),
 *											and in the free space map
 *		target	8191, then 8192, 8193, ... 8703: the last one again
 *
 * How much: heap_extend_size, but not more than a sixteenth of the table, so
 * small tables are the size they are without us, and what is not needed after
 * all is never more than that.  Several sessions share what one of them has
 * made.
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
 * Rows go to the page target of the table, which is another one than before.
 * If it is the last one, make more.
 *
 * size is the number of pages that the caller has seen last, or NULL.  If there
 * are more now the server has added some since: the table is being filled, even
 * if the last row went to an older page (the last piece of a large value does).
 */
void
la_heap_filled(Relation rel, BlockNumber target, BlockNumber *size)
{
	BlockNumber nblocks = RelationGetNumberOfBlocks(rel);
	bool		has_grown = false;
	LaSpace		space;

	if (size)
	{
		has_grown = *size != InvalidBlockNumber && nblocks > *size;
		*size = nblocks;
	}
	if (target + 1 != nblocks && !has_grown)
		return;
	if (la_space_add(rel, nblocks, la_extend_step(nblocks), NULL, true, false,
					 &space) && size)
		*size = RelationGetNumberOfBlocks(rel);
}
