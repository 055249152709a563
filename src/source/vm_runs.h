/*-------------------------------------------------------------------------
 *
 * vm_runs.h
 *	  The blocks that VACUUM will visit, by the visibility map.
 *
 * Copyright (c) 2026, the pg_lookahead authors
 *
 *-------------------------------------------------------------------------
 */
#ifndef LA_VM_RUNS_H
#define LA_VM_RUNS_H

#include "service/service.h"

/* What a pass leaves out. */
typedef enum LaSkip
{
	LA_SKIP_VISIBLE,			/* all-visible blocks; if it is seen in them: */
	LA_SKIP_FROZEN,				/* all-frozen blocks only; likewise: */
	LA_SKIP_NOTHING,
} LaSkip;

typedef enum LaMapState
{
	LA_MAP_NONE,				/* the table has no such page */
	LA_MAP_LOCKED,				/* it could not be looked at */
	LA_MAP_COPIED,				/* "map" is what the server has */
} LaMapState;

/* Gaps that were left out last, for la_vm_check(). */
#define LA_MAX_GAPS		8

typedef struct LaGap
{
	BlockNumber first;
	BlockNumber end;
} LaGap;

typedef struct LaVmRuns
{
	/* immutable after la_vm_open() */
	LaTarget	target;			/* the map's fork */
	int			least_gap;		/* shorter ones are visited */
	BlockNumber last;			/* always visited, or InvalidBlockNumber */

	LaSkip		skip;
	LaGap		gaps[LA_MAX_GAPS];
	int			next_gap;
	int			inside;			/* looks in a row that saw VACUUM in one */

	BlockNumber map_block;		/* the one in "map", or InvalidBlockNumber */
	LaMapState	state;			/* of that one */
	uint64		read_us;		/* when it was copied */
	PGAlignedBlock map;
} LaVmRuns;

extern void la_vm_open(LaVmRuns *runs, const LaTarget *target, int least_gap,
					   BlockNumber last);
extern BlockNumber la_vm_next(void *arg, BlockNumber from, BlockNumber end,
							  int most, int *nblocks);
extern bool la_vm_check(LaVmRuns *runs, BlockNumber visited);
extern int	la_vm_count(LaVmRuns *runs, BlockNumber from, BlockNumber end);

#endif							/* LA_VM_RUNS_H */
