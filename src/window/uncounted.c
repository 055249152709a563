/*-------------------------------------------------------------------------
 *
 * uncounted.c
 *	  Keeps visits of look-ahead to pages of an index out of the statistics.
 *
 * Look-ahead reads pages of the index that the query's own scan reads, too.
 * Scans and buffer hits that are ours must not show, neither in the statistics
 * of the relation nor in EXPLAIN.  What was not a hit was read on our account
 * once and will be a hit of the query's: the read stays counted.
 *
 * What the counters were is kept on a stack.  When an error ends a guarded body
 * between begin and end, the guard puts back what that body has left there,
 * also if the error is passed on: no abort would.
 *
 * Copyright (c) 2026, the pg_lookahead authors
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "compat.h"
#include "executor/instrument.h"
#include "window/uncounted.h"

/* A scout's index and visibility map, a leaf scan within it, and to spare. */
#define LA_MAX_UNCOUNTED	8

typedef struct LaUncounted
{
	Relation	rel;
	int64		numscans;
	int64		fetched;
	int64		hit;
	int64		shared_hit;
	int64		local_hit;
} LaUncounted;

static LaUncounted la_uncounted[LA_MAX_UNCOUNTED];
int			la_uncounted_depth = 0;

/*
 * What is counted of this relation from here on is not to be.  Only in a body
 * that la_guard_run() runs.
 */
void
la_uncounted_begin(Relation rel)
{
	LaUncounted *save;

	Assert(la_uncounted_depth < LA_MAX_UNCOUNTED);
	if (la_uncounted_depth++ >= LA_MAX_UNCOUNTED)
		return;
	save = &la_uncounted[la_uncounted_depth - 1];
	memset(save, 0, sizeof(*save));
	save->rel = rel;
	save->shared_hit = pgBufferUsage.shared_blks_hit;
	save->local_hit = pgBufferUsage.local_blks_hit;
	if (pgstat_should_count_relation(rel))
	{
		save->numscans = la_stat_numscans(rel);
		save->fetched = la_stat_fetched(rel);
		save->hit = la_stat_hit(rel);
	}
}

/*
 * The end of what the last la_uncounted_begin() has begun.
 */
void
la_uncounted_end(void)
{
	const LaUncounted *save;
	Relation	rel;

	Assert(la_uncounted_depth > 0);
	if (--la_uncounted_depth >= LA_MAX_UNCOUNTED)
		return;
	save = &la_uncounted[la_uncounted_depth];
	rel = save->rel;
	pgBufferUsage.shared_blks_hit = save->shared_hit;
	pgBufferUsage.local_blks_hit = save->local_hit;
	if (rel->pgstat_info != NULL)
	{
		int64		read = (la_stat_fetched(rel) - save->fetched) -
			(la_stat_hit(rel) - save->hit);

		la_stat_numscans(rel) = save->numscans;
		la_stat_fetched(rel) = save->fetched + read;
		la_stat_hit(rel) = save->hit;
	}
}

/*
 * End all but the first so many: what has begun them was left by an error.
 */
void
la_uncounted_undo(int depth)
{
	while (la_uncounted_depth > depth)
		la_uncounted_end();
}
