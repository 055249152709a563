/*-------------------------------------------------------------------------
 *
 * write_combine.h
 *	  Pages that a load has filled are written out many at a time.
 *
 * Copyright (c) 2026, the pg_lookahead authors
 *
 *-------------------------------------------------------------------------
 */
#ifndef LA_WRITE_COMBINE_H
#define LA_WRITE_COMBINE_H

#include "compat.h"

/*
 * What a load has filled and not yet had written out, in that order.  If there
 * is no room the oldest is forgotten, and left to the server.
 */
typedef struct LaFilledPages
{
	bool		is_off;			/* an error was met, or there is no ring */
	MemoryContext context;		/* of the (sub)transaction that loads */
	BlockNumber first_new;		/* what the table had before is not noted */
	uint32		size;			/* room: as many as the ring; 0: none yet */
	uint32		oldest;			/* its place */
	uint32		npages;
	BlockNumber last;			/* of them; valid while there are any */
	bool		is_full;		/* the ring has come round */
	uint32		next_early;		/* pages, with which more may be written */
	int			njumps;			/* to another page than the next few */
	BlockNumber *pages;			/* go with the context, or before */
} LaFilledPages;

#if LA_HAVE_WRITE_RUNS
extern void la_filled_note(LaFilledPages *filled, BlockNumber target,
						   BufferAccessStrategy ring);
extern void la_filled_write(LaFilledPages *filled, Relation rel,
							uint32 nempty);
extern void la_filled_free(LaFilledPages *filled);
extern void la_victims_write(Relation rel, uint32 npages);
#else
static inline void
la_filled_note(LaFilledPages *filled, BlockNumber target,
			   BufferAccessStrategy ring)
{
}

static inline void
la_filled_write(LaFilledPages *filled, Relation rel, uint32 nempty)
{
}

static inline void
la_filled_free(LaFilledPages *filled)
{
}

static inline void
la_victims_write(Relation rel, uint32 npages)
{
}
#endif

#endif							/* LA_WRITE_COMBINE_H */
