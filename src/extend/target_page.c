/*-------------------------------------------------------------------------
 *
 * target_page.c
 *	  The buffer of the page that rows go to.
 *
 * INSERT has no insert state.  So for each row the server looks up in the
 * shared table of buffers where the table's target page is, which is nearly
 * always where it was for the row before, and takes a good part of the time of
 * narrow rows.  Here that buffer is remembered.  If it still holds the page,
 * which ReadRecentBuffer() finds out as it pins it, heap is given it in an
 * insert state that is made for the row.
 *
 * COPY keeps such a state, with the pin, for as long as it runs.  Here no pin
 * is kept between two rows.  A trigger, or what brings the rows, may take any
 * time and any lock, and who cleans the page up (VACUUM) would have to wait.
 *
 * What an insert state changes otherwise is nothing: where others wait for the
 * extension lock the server adds more pages (16 on), which it notes in the
 * state and in the free space map.  There they are found.
 *
 * A page stays in shared buffers for longer the more often it was looked up.
 * So the first rows of a page have it looked up as ever.
 *
 * Copyright (c) 2026, the pg_lookahead authors
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/heapam.h"
#include "access/hio.h"
#include "access/tableam.h"
#include "compat.h"
#include "extend/extend.h"
#include "storage/buf_internals.h"
#include "storage/bufmgr.h"

/* The page that the last row went to. */
static struct
{
	BlockNumber block;
	Buffer		buffer;
	int			uses;			/* that the buffer manager has counted */
}			la_target = {InvalidBlockNumber, InvalidBuffer, 0};

/*
 * Pin the buffer of a table's target page, if it is the one that is remembered.
 */
static Buffer
la_target_pin(Relation rel)
{
	if (la_target.uses < BM_MAX_USAGE_COUNT ||
		la_target.block != RelationGetTargetBlock(rel) ||
		!ReadRecentBuffer(*la_rel_locator(rel), MAIN_FORKNUM, la_target.block,
						  la_target.buffer))
		return InvalidBuffer;
	return la_target.buffer;
}

/*
 * Remember the page that a row has gone to.
 */
static void
la_target_remember(Buffer buffer)
{
	BlockNumber block = BufferGetBlockNumber(buffer);

	if (buffer != la_target.buffer || block != la_target.block)
	{
		la_target.block = block;
		la_target.buffer = buffer;
		la_target.uses = 0;
	}
	if (la_target.uses < BM_MAX_USAGE_COUNT)
		la_target.uses++;
}

/*
 * tuple_insert without an insert state.
 */
void
la_insert_at_target(Relation rel, TupleTableSlot *slot, CommandId cid,
					int options)
{
	BulkInsertStateData state = {.strategy = NULL};

	if (options & HEAP_INSERT_SKIP_FSM)
	{
		GetHeapamTableAmRoutine()->tuple_insert(rel, slot, cid, options, NULL);
		return;
	}
#if LA_HAVE_EXTEND_BY
	state.next_free = state.last_free = InvalidBlockNumber;
#endif
	state.current_buf = la_target_pin(rel);
	GetHeapamTableAmRoutine()->tuple_insert(rel, slot, cid, options, &state);
	if (state.current_buf != InvalidBuffer)
	{
		la_target_remember(state.current_buf);
		ReleaseBuffer(state.current_buf);
	}
}
