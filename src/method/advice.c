/*-------------------------------------------------------------------------
 *
 * advice.c
 *	  Method "advice": the kernel reads into its page cache.
 *
 * One call of posix_fadvise(WILLNEED) per run of blocks, through the storage
 * manager.  The scan's own read then finds the page in the kernel's cache and
 * only copies it.  Nothing is pinned and nothing is waited for, so there is
 * nothing to release.
 *
 * Useless with direct I/O, where there is no page cache; method.c knows.
 *
 * Copyright (c) 2026, the pg_lookahead authors
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "compat.h"
#include "method/method.h"

/*
 * Advise one run.  Local buffers have a table of their own that only
 * PrefetchBuffer() looks into, so temporary tables go through that.
 */
static void
la_advice_start(LaWindow *window, const LaRun *run)
{
	Relation	rel = window->rel;
	bool		local = RelationUsesLocalBuffers(rel);

	if (!local)
		la_file_advise(RelationGetSmgr(rel), MAIN_FORKNUM,
					   run->first, run->nblocks);

	for (int i = 0; i < run->nblocks; i++)
	{
		if (local &&
			!PrefetchBuffer(rel, MAIN_FORKNUM, run->first + i).initiated_io)
		{
			window->counters->blocks_hit_total++;
			continue;
		}
		la_window_issued(window, la_window_lookup(window, run->first + i));
	}
}

const LaMethod la_method_advice = {
	.id = LA_METHOD_ADVICE,
	.name = "advice",
	.start = la_advice_start,
};
