/*-------------------------------------------------------------------------
 *
 * uncounted.h
 *	  Keeps visits of look-ahead to pages of an index out of the statistics.
 *
 * Look-ahead reads pages of the index that the query's own scan reads, too.
 * Scans and buffer hits that are ours must not show, neither in the statistics
 * of the relation nor in EXPLAIN.  What was not a hit was read on our account
 * once and will be a hit of the query's: the read stays counted.
 *
 * Copyright (c) 2026, the pg_lookahead authors
 *
 *-------------------------------------------------------------------------
 */
#ifndef LA_UNCOUNTED_H
#define LA_UNCOUNTED_H

#include "compat.h"
#include "executor/instrument.h"

typedef struct LaUncounted
{
	int64		numscans;
	int64		fetched;
	int64		hit;
	int64		shared_hit;
	int64		local_hit;
} LaUncounted;

static inline LaUncounted
la_uncounted_begin(Relation rel)
{
	LaUncounted save = {0};

	save.shared_hit = pgBufferUsage.shared_blks_hit;
	save.local_hit = pgBufferUsage.local_blks_hit;
	if (pgstat_should_count_relation(rel))
	{
		save.numscans = la_stat_numscans(rel);
		save.fetched = la_stat_fetched(rel);
		save.hit = la_stat_hit(rel);
	}
	return save;
}

static inline void
la_uncounted_end(Relation rel, LaUncounted save)
{
	pgBufferUsage.shared_blks_hit = save.shared_hit;
	pgBufferUsage.local_blks_hit = save.local_hit;
	if (rel->pgstat_info != NULL)
	{
		int64		read = (la_stat_fetched(rel) - save.fetched) -
			(la_stat_hit(rel) - save.hit);

		la_stat_numscans(rel) = save.numscans;
		la_stat_fetched(rel) = save.fetched + read;
		la_stat_hit(rel) = save.hit;
	}
}

#endif							/* LA_UNCOUNTED_H */
