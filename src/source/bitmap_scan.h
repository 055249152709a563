/*-------------------------------------------------------------------------
 *
 * bitmap_scan.h
 *	  Follows the bitmap heap scans of plans.
 *
 * Copyright (c) 2026, the pg_lookahead authors
 *
 *-------------------------------------------------------------------------
 */
#ifndef LA_BITMAP_SCAN_H
#define LA_BITMAP_SCAN_H

#include "source/followed.h"

extern bool la_bitmap_scan_is_wanted(BitmapHeapScanState *node);
extern LaFollowed *la_bitmap_scan_register(MemoryContext query_context,
										   BitmapHeapScanState *node);

#endif							/* LA_BITMAP_SCAN_H */
