/*-------------------------------------------------------------------------
 *
 * index_ahead.h
 *	  Looks ahead of one index scan, once index_scan.c has seen it wait.
 *
 * Copyright (c) 2026, the pg_lookahead authors
 *
 *-------------------------------------------------------------------------
 */
#ifndef LA_INDEX_AHEAD_H
#define LA_INDEX_AHEAD_H

#include "source/index_scan.h"

extern void la_index_ahead_enter(LaIndexScan *scan, LaScanState state);
extern bool la_index_ahead_start(LaIndexScan *scan);
extern void la_index_ahead_follow(LaIndexScan *scan, BlockNumber blkno);
extern void la_index_ahead_turn(LaIndexScan *scan, ScanDirection direction);
extern void la_index_ahead_at_end(LaIndexScan *scan);
extern void la_index_ahead_restart(LaIndexScan *scan);
extern void la_index_ahead_pause(LaIndexScan *scan);
extern void la_index_ahead_end(LaIndexScan *scan);

#endif							/* LA_INDEX_AHEAD_H */
