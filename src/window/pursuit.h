/*-------------------------------------------------------------------------
 *
 * pursuit.h
 *	  Looks ahead of another process, whose position is seen now and then.
 *
 * Copyright (c) 2026, the pg_lookahead authors
 *
 *-------------------------------------------------------------------------
 */
#ifndef LA_PURSUIT_H
#define LA_PURSUIT_H

#include "report/counters.h"
#include "service/service.h"

/* Ranges asked for and not passed yet. */
#define LA_MAX_STRETCHES	512

/*
 * No process has more than 16 MB in front of it, and what it comes through
 * before the next look.
 */
#define LA_PURSUIT_MAX_AHEAD	(16 * 1024 * 1024 / BLCKSZ)

/* How often a pursued process should be looked at, in microseconds. */
#define LA_MIN_LOOK_US		2000
#define LA_MAX_LOOK_US		20000

/*
 * Which blocks will be visited?  Returns the first one at or after "from" and
 * sets *nblocks to how many in a row, "most" at the most; or returns a block up
 * to which there are none and sets *nblocks to 0.  Sets it to -1 if that cannot
 * be told now.  Looks at a bounded number of blocks.
 */
typedef BlockNumber (*LaWanted) (void *arg, BlockNumber from, BlockNumber end,
								 int most, int *nblocks);

/* A range of positions that was asked for. */
typedef struct LaStretch
{
	uint64		until;			/* the position after its last block */
	int			nblocks;
	bool		is_issued;		/* else it was in shared buffers */
} LaStretch;

/*
 * The pursuit of one scan.  Positions count from where it started, see
 * frontier.c.
 */
typedef struct LaPursuit
{
	/* immutable after la_pursuit_open() */
	LaTarget	target;
	int			pid;			/* of the pursued process */
	BlockNumber start;			/* the block of position 0 */
	BlockNumber nblocks;		/* of the relation */
	BlockNumber end;			/* positions from here on are not asked for */
	LaWanted	wanted;			/* NULL: all blocks; needs start = 0 */
	void	   *wanted_arg;

	LaOwnerRef	owner;
	uint64		position;		/* when we looked last */
	uint64		looked_us;		/* when that was */
	uint64		frontier;		/* all before this were asked for */
	double		speed;			/* positions per microsecond */
	double		flow;			/* blocks asked for that it passes in one */
	int			look_us;		/* we look again after this time */
	int			resident;		/* ranges in a row that were there already */

	int			ahead;			/* blocks in the stretches */
	uint32		head;			/* the oldest stretch */
	uint32		tail;			/* where the next one goes */
	LaStretch	stretches[LA_MAX_STRETCHES];

	LaCounters	counters;
} LaPursuit;

extern void la_pursuit_open(LaPursuit *pursuit, const LaTarget *target, int pid,
							BlockNumber start, BlockNumber nblocks,
							uint64 position);
extern int	la_pursuit_passed(const LaPursuit *pursuit, uint64 position,
							  BlockNumber *blocks, int most);
extern void la_pursuit_advance(LaPursuit *pursuit, uint64 position);
extern void la_pursuit_reopen(LaPursuit *pursuit, uint64 position,
							  bool page_in);
extern void la_pursuit_close(LaPursuit *pursuit);

#endif							/* LA_PURSUIT_H */
