/*-------------------------------------------------------------------------
 *
 * scout.h
 *	  A second scan of the same index that runs ahead of the first.
 *
 * Copyright (c) 2026, the pg_lookahead authors
 *
 *-------------------------------------------------------------------------
 */
#ifndef LA_SCOUT_H
#define LA_SCOUT_H

#include "access/relscan.h"
#include "access/sdir.h"
#include "hook/index_am.h"
#include "source/source.h"
#include "storage/buf.h"

/* So many entries a scout may pass on its way for nothing. */
#define LA_FREE_ENTRIES		100000

typedef enum LaScoutState
{
	LA_SCOUT_CLOSED,			/* no scan is open; la_scout_next() opens one,
								 * and goes on as BEHIND */
	LA_SCOUT_BEHIND,			/* open, but not where the real scan is; the
								 * next call seeks it, and goes on as AHEAD */
	LA_SCOUT_AHEAD,				/* open, at or in front of the real scan */
	LA_SCOUT_ENDED,				/* open, and there is no further entry in this
								 * direction */
} LaScoutState;

/* What the scout must know of the scan it runs ahead of. */
typedef struct LaScoutTarget
{
	IndexScanDesc real;
	LaIndexAm  *am;
	Relation	heap;
	struct LaLeafScan *leaf;	/* follows the leaf pages, or NULL */
	ScanKey		keys;			/* as given to the real scan */
	ScanKey		orderbys;
	bool		index_only;		/* blocks that are all-visible are not read */
	bool		is_plain;		/* see plain.c; if not, there is no scout */
	ScanDirection base;			/* in which it went when it was (re)started */
	ScanDirection direction;	/* in which it goes now */
	int64		position;		/* entries between it and its start */
	bool		is_further;		/* the scan may be far beyond "position" */
	uint64		entries_left;	/* so many it will ask for, as we foresee */
	uint64		entries_ahead_max;	/* the source may be so far in front */
} LaScoutTarget;

typedef struct LaScout
{
	LaSource	source;			/* must be first */
	LaScoutState state;
	const LaScoutTarget *target;	/* the scan's, kept up to date by it */
	MemoryContext context;		/* of desc and all that hangs on it */
	IndexScanDesc desc;			/* NULL if CLOSED */
	int64		position;		/* entries between the scout and its start */
	bool		is_seeking;		/* BEHIND, and on the way */
	bool		seek_upward;	/* in the direction that positions count */
	bool		is_level;		/* has found the scan since it was opened: both
								 * positions count the same entries */
	int64		accesses_left;	/* buffers that steps may visit; see scout.c */
	Buffer		vmbuffer;		/* index-only: pinned visibility map page */
} LaScout;

extern LaScout *la_scout_create(MemoryContext parent,
								const LaScoutTarget *target);
extern void la_scout_lost_sync(LaScout *scout);
extern void la_scout_pause(LaScout *scout);
extern void la_scout_close(LaScout *scout);

#endif							/* LA_SCOUT_H */
