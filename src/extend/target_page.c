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
 * What an insert state changes otherwise: where others wait for the extension
 * lock the server adds more pages (16 on), which it notes in the state and in
 * the free space map.  There they are found.
 *
 * A page stays in shared buffers for longer the more often it was looked up.
 * So the first rows of a page have it looked up as ever, and some of the rest,
 * for they may be long in coming.
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
#include "utils/memutils.h"

/* A page is looked up for so many rows at first, and then for each 16th. */
#define LA_ROWS_LOOKED_UP	BM_MAX_USAGE_COUNT
#define LA_ROWS_BETWEEN		16

/* The page that the last row went to. */
static struct
{
	BlockNumber block;			/* invalid: not known */
	Buffer		buffer;
	int			rows;			/* since it was looked up; below 1 the next
								 * row looks it up */
}			la_target = {InvalidBlockNumber, InvalidBuffer, 0};

/* How often another page than before was, or may have been, begun. */
uint32		la_target_moves = 0;

/* The insert state of the row that is on its way; made when first needed. */
static BulkInsertState la_state = NULL;

/*
 * A statement begins: how long ago the last one was nobody knows.
 */
void
la_target_forget(void)
{
	la_target.block = InvalidBlockNumber;
}

/*
 * Pin the buffer of a table's target page, if it is the one that is remembered.
 */
static Buffer
la_target_pin(Relation rel)
{
	if (la_target.rows <= 0 ||
		la_target.block == InvalidBlockNumber ||
		la_target.block != RelationGetTargetBlock(rel) ||
		!ReadRecentBuffer(*la_rel_locator(rel), MAIN_FORKNUM, la_target.block,
						  la_target.buffer))
		return InvalidBuffer;
	return la_target.buffer;
}

/*
 * A row has gone to a page that was looked up: remember that.
 */
static pg_noinline void
la_target_remember(Buffer buffer)
{
	BlockNumber block = BufferGetBlockNumber(buffer);

	if (buffer != la_target.buffer || block != la_target.block)
	{
		la_target.block = block;
		la_target.buffer = buffer;
		la_target.rows = -LA_ROWS_LOOKED_UP;
		la_target_moves++;
	}
	la_target.rows++;
}

/*
 * Make the insert state.  Only the server knows how large it is.
 */
static BulkInsertState
la_state_make(void)
{
	MemoryContext save = MemoryContextSwitchTo(TopMemoryContext);
	BulkInsertState state = GetBulkInsertState();

	MemoryContextSwitchTo(save);
	FreeAccessStrategy(state->strategy);
	state->strategy = NULL;
	return state;
}

/*
 * tuple_insert without an insert state.
 */
void
la_insert_at_target(Relation rel, TupleTableSlot *slot, CommandId cid,
					int options)
{
	Buffer		pinned;

	/* Whoever does not use the free space map would not find pages there. */
	if (options & HEAP_INSERT_SKIP_FSM)
	{
		GetHeapamTableAmRoutine()->tuple_insert(rel, slot, cid, options, NULL);
		return;
	}

	if (la_state == NULL)
		la_state = la_state_make();
	pinned = la_target_pin(rel);
	la_state->current_buf = pinned;
#if LA_HAVE_EXTEND_BY
	la_state->next_free = la_state->last_free = InvalidBlockNumber;
	la_state->already_extended_by = 0;
#endif
	GetHeapamTableAmRoutine()->tuple_insert(rel, slot, cid, options, la_state);
	if (la_state->current_buf == InvalidBuffer)
		return;
	if (la_state->current_buf != pinned)
		la_target_remember(la_state->current_buf);
	else if (++la_target.rows >= LA_ROWS_BETWEEN)
		la_target.rows = 0;
	ReleaseBuffer(la_state->current_buf);
}
