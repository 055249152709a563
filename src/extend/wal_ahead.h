/*-------------------------------------------------------------------------
 *
 * wal_ahead.h
 *	  WAL is written out and flushed before somebody has to wait for it.
 *
 * Copyright (c) 2026, the pg_lookahead authors
 *
 *-------------------------------------------------------------------------
 */
#ifndef LA_WAL_AHEAD_H
#define LA_WAL_AHEAD_H

#include "access/xlog.h"
#include "port/atomics.h"

/* It is not time for another look before the WAL has come here. */
extern XLogRecPtr la_wal_next_look;

extern void la_wal_shmem_attach(pg_atomic_uint64 *woken);
extern void la_wal_look(XLogRecPtr end);

/*
 * A statement that fills a table has come some rows further.  Costs a
 * comparison.  Nothing that is not in the WAL counts: temporary and unlogged
 * tables, wal_level = minimal.
 */
static inline void
la_wal_ahead(void)
{
	if (unlikely(XactLastRecEnd > la_wal_next_look))
		la_wal_look(XactLastRecEnd);
}

#endif							/* LA_WAL_AHEAD_H */
