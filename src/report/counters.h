/*-------------------------------------------------------------------------
 *
 * counters.h
 *	  What look-ahead did: of one scan, of this backend, of each relation.
 *
 * A scan counts into its own LaCounters.  When it ends they are added to the
 * backend's (always) and to the relation's in shared memory (if the library
 * was preloaded and the scan looked ahead at all, so a point look-up never
 * takes the lock).
 *
 * Copyright (c) 2026, the pg_lookahead authors
 *
 *-------------------------------------------------------------------------
 */
#ifndef LA_COUNTERS_H
#define LA_COUNTERS_H

#include "datatype/timestamp.h"

/*
 * Every block looked ahead is counted once in exactly one of hit, issued or
 * dropped; every issued block ends as used or wasted when the scan ends.  After
 * an error the blocks that it met in the middle of a window are not counted.
 */
typedef struct LaCounters
{
	int64		scans_total;	/* scans that looked ahead */
	int64		windows_total;	/* windows filled */
	int64		blocks_issued_total;	/* a read was started or advised */
	int64		blocks_used_total;	/* issued, and the scan came there */
	int64		blocks_wasted_total;	/* issued, and the scan never came */
	int64		blocks_hit_total;	/* were in shared buffers already */
	int64		blocks_dropped_total;	/* found, but no read was started */
	int64		waits_total;	/* the scan still blocked on storage */
	int64		errors_total;	/* errors met and swallowed */
	int			depth_max;		/* most blocks ahead of a scan; of a
								 * sequential one, meant to be */
} LaCounters;

/* One relation in shared memory; the hash key comes first. */
typedef struct LaRelationKey
{
	Oid			dbid;			/* InvalidOid for shared relations */
	Oid			relid;
} LaRelationKey;

typedef struct LaRelationEntry
{
	LaRelationKey key;			/* immutable */
	LaCounters	counters;		/* protected by the counters lock */
	int64		weight;			/* likewise; blocks, see la_counters_evict() */
	TimestampTz stats_reset;	/* protected by the counters lock */
} LaRelationEntry;

/* Relations that shared memory has room for; the least is lost, and counted. */
#define LA_MAX_RELATIONS 2048

/* Most scan nodes of one parallel plan whose workers' counters are shown. */
#define LA_MAX_PARALLEL_NODES 16

/* Counters of this backend since it started. */
extern LaCounters la_session_counters;

extern void la_counters_add(LaCounters *sum, const LaCounters *part);

extern void la_counters_shmem_request(void);
extern void la_counters_shmem_startup(void);
extern bool la_counters_are_shared(void);

extern void la_counters_report(Oid dbid, Oid relid, const LaCounters *part);
extern void la_counters_reset(Oid dbid, Oid relid);
extern LaRelationEntry *la_counters_snapshot(Oid dbid, int *nentries);
extern int64 la_counters_unrecorded(void);

/* The workers' share of a parallel plan, on its way to the leader's EXPLAIN. */
extern uint32 la_parallel_begin(void);
extern uint32 la_parallel_plan(void);
extern void la_parallel_report(uint32 plan, int key, const LaCounters *part);
extern bool la_parallel_collect(uint32 plan, int key, LaCounters *sum);

#endif							/* LA_COUNTERS_H */
