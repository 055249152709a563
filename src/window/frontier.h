/*-------------------------------------------------------------------------
 *
 * frontier.h
 *	  The window of a scan in physical order: all blocks up to a frontier.
 *
 * Copyright (c) 2026, the pg_lookahead authors
 *
 *-------------------------------------------------------------------------
 */
#ifndef LA_FRONTIER_H
#define LA_FRONTIER_H

#include "report/counters.h"
#include "service/service.h"

struct LaMethod;

/*
 * A scan of all blocks of a relation, once round from some start.  Positions
 * count from that start; see frontier.c.
 */
typedef struct LaFrontier
{
	/* immutable after la_frontier_open() */
	Relation	rel;
	const struct LaMethod *method;	/* advice or worker */
	LaCounters *counters;		/* the scan's */
	BlockNumber start;			/* the block of position 0 */
	BlockNumber nblocks;		/* of the relation */
	pg_atomic_uint64 *handed_out;	/* of a parallel scan: the blocks that its
									 * processes were given; else NULL */

	LaOwnerRef	owner;			/* shared by the processes of a parallel scan */
	uint64		key;			/* for finding the owner, or 0 */
	bool		may_begin;		/* this process begins the owner */

	uint64		asked_until;	/* position behind the last block asked for */
	uint64		told_until;		/* behind the last one the kernel was told of */
	uint64		again_until;	/* before this, some was asked for in vain */
	uint64		again_wasted;	/* of that, counted as wasted */
	uint32		asked_generation;	/* of the owner that was asked last, while
									 * that may be outstanding; or 0 */
	uint64		local_frontier; /* of a serial scan, or without an owner */

	uint64		end;			/* position that the scan is not expected to
								 * come to; the caller may bring it nearer */
	int			distance;		/* blocks to be ahead */
	int			resident;		/* ranges in a row that were there already */
} LaFrontier;

extern void la_frontier_open(LaFrontier *frontier, Relation rel,
							 const struct LaMethod *method,
							 LaCounters *counters, BlockNumber start,
							 BlockNumber nblocks,
							 pg_atomic_uint64 *handed_out);
extern bool la_frontier_has_owner(LaFrontier *frontier);
extern void la_frontier_reserve(LaFrontier *frontier, Relation rel,
								const struct LaMethod *method);
extern void la_frontier_release(LaFrontier *frontier);
extern bool la_frontier_advance(LaFrontier *frontier, uint64 position);
extern void la_frontier_waited(LaFrontier *frontier);
extern void la_frontier_close(LaFrontier *frontier, uint64 position);

/* The position of a block, counted from where the scan began. */
static inline uint64
la_frontier_position(const LaFrontier *frontier, BlockNumber blkno)
{
	return blkno >= frontier->start ? blkno - frontier->start :
		(uint64) blkno + frontier->nblocks - frontier->start;
}

#endif							/* LA_FRONTIER_H */
