/*-------------------------------------------------------------------------
 *
 * seq_scan.h
 *	  Follows the sequential scans of plans.
 *
 * Copyright (c) 2026, the pg_lookahead authors
 *
 *-------------------------------------------------------------------------
 */
#ifndef LA_SEQ_SCAN_H
#define LA_SEQ_SCAN_H

#include "source/followed.h"

extern bool la_seq_scan_is_wanted(SeqScanState *node);
extern LaFollowed *la_seq_scan_register(MemoryContext query_context,
										SeqScanState *node,
										LimitState *limit);

#endif							/* LA_SEQ_SCAN_H */
