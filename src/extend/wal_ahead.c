/*-------------------------------------------------------------------------
 *
 * wal_ahead.c
 *	  WAL is written out and flushed before somebody has to wait for it.
 *
 * Who fills a table makes more WAL than rows.  Its buffers must be written out
 * before they can be used again, and it must be flushed before a page of the
 * table is written.  The server leaves that to whoever needs it, and everybody
 * else who needs WAL then waits for him.  There is a process that does it in
 * advance, the WAL writer; but nobody wakes it for a transaction that has not
 * ended, and by itself it looks every 200 ms (wal_writer_delay), in which loads
 * go several times round the buffers.
 *
 *		flushed |......... made since then .........| end
 *				|<-- LA_WAL_STEP -->|
 *									^ wake it
 *
 * So we wake it each time that as much has come since the last flush, or since
 * it was woken, whoever made it.  What it does is what it always does, and
 * nobody waits for it.  Who looks:
 *
 *	- statements that fill a table, between rows: la_wal_ahead()
 *	- the worker that makes space for an index, once there is something in it
 *		(index_extend.c)
 *	- the watcher, while it follows VACUUM, CLUSTER or VACUUM FULL
 *		(maintenance.c)
 *
 * Copyright (c) 2026, the pg_lookahead authors
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/xlog.h"
#include "compat.h"
#include "extend/extend.h"
#include "extend/wal_ahead.h"
#include "postmaster/walwriter.h"

/*
 * A flush is for so many bytes, or for a quarter of the WAL buffers where these
 * are few, but not for less than the second, nor than the WAL writer flushes
 * (wal_writer_flush_after).  It goes by full pages, and may see some less than
 * we do.
 */
#define LA_WAL_STEP				(4 * 1024 * 1024)
#define LA_WAL_LEAST_STEP		(512 * 1024)
#define LA_WAL_BUFFERS_PART		4
#define LA_WAL_MARGIN			(2 * XLOG_BLCKSZ)

/*
 * If that is more than this part of the buffers it comes too late: those who
 * need them have written them out by then, and would wait for the flush.
 */
#define LA_WAL_MOST_PART		2

XLogRecPtr	la_wal_next_look = 0;

/* Where the WAL ended when the WAL writer was woken last; by all, or by us. */
static pg_atomic_uint64 *la_wal_woken = NULL;
static pg_atomic_uint64 la_wal_woken_by_us;

/*
 * The place in shared memory, which has been initialized.
 */
void
la_wal_shmem_attach(pg_atomic_uint64 *woken)
{
	la_wal_woken = woken;
}

/*
 * 0: the WAL writer is not to be woken.
 */
static uint64
la_wal_step(void)
{
	uint64		buffers = (uint64) XLOGbuffers * XLOG_BLCKSZ;
	uint64		least = (uint64) WalWriterFlushAfter * XLOG_BLCKSZ;
	uint64		step = Min(LA_WAL_STEP, buffers / LA_WAL_BUFFERS_PART);

	step = Max(step, Max(least, LA_WAL_LEAST_STEP) + LA_WAL_MARGIN);
	return step <= buffers / LA_WAL_MOST_PART ? step : 0;
}

/*
 * The WAL has come to "end": wake the WAL writer, if there is enough for it to
 * do.
 */
void
la_wal_look(XLogRecPtr end)
{
	const uint64 step = la_wal_step();
	uint64		woken;
	XLogRecPtr	since;

	/* Not preloaded: others are seen by what is flushed. */
	if (la_wal_woken == NULL)
	{
		pg_atomic_init_u64(&la_wal_woken_by_us, 0);
		la_wal_woken = &la_wal_woken_by_us;
	}
	if (step == 0)
	{
		/* The settings may change. */
		la_wal_next_look = end + LA_WAL_STEP;
		return;
	}
	woken = pg_atomic_read_u64(la_wal_woken);
	since = Max(GetFlushRecPtr(NULL), woken);
	if (end < since + step)
	{
		la_wal_next_look = since + step;
		return;
	}
	la_wal_next_look = end + step;

	/* If somebody else was faster there is no need any more. */
	if (!pg_atomic_compare_exchange_u64(la_wal_woken, &woken, end))
		return;
	la_wake_wal_writer();
	la_extend_count(&(LaExtendCounters) {.wal_wakeups_total = 1});
}
