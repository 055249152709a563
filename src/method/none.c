/*-------------------------------------------------------------------------
 *
 * none.c
 *	  Method "none": reads nothing.
 *
 * Everything up to the method runs as with the others: the scout, the window,
 * the pace.  So a test can tell a fault of following a scan from one of
 * reading, and a benchmark the price of the one from the gain of the other.
 * No block is ever issued; all that would have been read count as dropped.
 *
 * Copyright (c) 2026, the pg_lookahead authors
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "method/method.h"

static void
la_none_start(LaWindow *window, const LaRun *run)
{
	window->counters->blocks_dropped_total += run->nblocks;
}

const LaMethod la_method_none = {
	.id = LA_METHOD_NONE,
	.name = "none",
	.start = la_none_start,
};
