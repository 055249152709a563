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
	LA_MAP_COPIED,				/* "map" is what the server had */
} LaMapState;

/* A copy of a page of the map. */
typedef struct LaMapPage
{
	BlockNumber number;			/* InvalidBlockNumber: of none */
	LaMapState	state;
	uint64		read_us;		/* when it was made */
	PGAlignedBlock map;
} LaMapPage;

typedef struct LaVmRuns
{
	/* immutable after la_vm_open() */
	LaTarget	target;			/* the map's fork */
	int			least_gap;		/* shorter ones are visited */
	BlockNumber last;			/* always visited, or InvalidBlockNumber */

	LaSkip		skip;			/* of the pass; set by who begins with it */
	LaMapPage	ahead;			/* of the blocks that are asked for next */

	/* for la_vm_check() */
	BlockNumber visited;		/* where VACUUM was last */
	int			inside;			/* times that it was seen in a gap, since it
								 * was seen at a block that is no gap's */
	LaMapPage	around;			/* of the blocks where it is, ... */
	BlockNumber around_from;	/* ... made when it was here */
} LaVmRuns;

extern void la_vm_open(LaVmRuns *runs, const LaTarget *target, int least_gap,
					   BlockNumber last);
extern BlockNumber la_vm_next(void *arg, BlockNumber from, BlockNumber end,
							  int most, int *nblocks);
extern bool la_vm_check(LaVmRuns *runs, BlockNumber visited);
extern int	la_vm_count(LaVmRuns *runs, BlockNumber from, BlockNumber end);

#endif							/* LA_VM_RUNS_H */
