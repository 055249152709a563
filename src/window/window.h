/*-------------------------------------------------------------------------
 *
 * window.h
 *	  The blocks in front of one scan: deduplicated, sorted, read, released.
 *
 * Copyright (c) 2026, the pg_lookahead authors
 *
 *-------------------------------------------------------------------------
 */
#ifndef LA_WINDOW_H
#define LA_WINDOW_H

#include "compat.h"
#include "report/counters.h"
#include "source/source.h"
#include "utils/relcache.h"
#include "window/pace.h"

struct LaMethod;
struct lablocks_hash;

/*
 * A block in front of the scan, from the moment the source names it until the
 * scan has passed its last position in the queue.
 */
typedef struct LaBlock
{
	BlockNumber blkno;			/* hash key */
	char		status;			/* used by simplehash */
	bool		issued;			/* a read was started or advised */
	bool		reached;		/* the scan has come here */
	int			positions;		/* in the queue, the scan's own included */
} LaBlock;

/* Neighbouring blocks that are read in one go. */
typedef struct LaRun
{
	BlockNumber first;
	int			nblocks;
} LaRun;

typedef enum LaStep
{
	LA_STEP_MATCHED,			/* the scan is where the source said */
	LA_STEP_IGNORED,			/* a block that the source did not name */
	LA_STEP_EMPTY,				/* the queue is empty */
} LaStep;

typedef enum LaFill
{
	LA_FILL_OK,					/* go on */
	LA_FILL_IDLE,				/* the pace has no use for more */
	LA_FILL_LOST,				/* the source has lost the scan */
} LaFill;

typedef struct LaWindow
{
	/* immutable after la_window_open() */
	MemoryContext context;		/* of all that belongs to the window */
	Relation	rel;
	const struct LaMethod *method;
	LaPace	   *pace;			/* the scan's */
	LaCounters *counters;		/* the scan's */
	int			limit;			/* most blocks ahead; capacity of batch, runs */
	uint32		queue_size;		/* a power of two */

	/* the queue of positions; see window.c for a picture */
	BlockNumber *queue;
	uint32		head;			/* next position the scan will come to */
	uint32		tail;			/* where the source's next block goes */
	BlockNumber last;			/* the block enqueued last */
	BlockNumber current;		/* the block the scan is on */

	struct lablocks_hash *blocks;	/* LaBlock by number */
	int			nahead;			/* blocks not yet reached */

	/* the window being started */
	BlockNumber *batch;			/* new blocks, sorted */
	LaRun	   *runs;			/* what of them must be read */
	int			nruns;
	int			next_run;		/* runs before this one are started */

	BlockNumber probe;			/* left out of the reads; see pace.c */
	bool		at_probe;		/* the scan has just come to it */
	bool		at_issued;		/* or to one that was read for it */

	/* set by the owner */
	bool		is_sequence;	/* names each block once: where a block is the
								 * scan is */
	bool		passing_is_use; /* for the next step: the scan, or another
								 * process of it, has been at the blocks
								 * before the one it comes to */

	bool		source_ended;	/* the source has said END or LOST */
	bool		source_lost;
	bool		source_far;		/* it found nothing to read within its reach */
	bool		queue_full;		/* it has more than there was room for */
	void	   *method_state;	/* the method's */

	/* how the owner of the window hears that the context goes */
	MemoryContextCallback goes;
	void		(*forget) (void *user);
	void	   *user;
	bool		is_closed;
} LaWindow;

/*
 * Positions in the queue, and the first of them, if there is one.
 */
static inline uint32
la_window_length(const LaWindow *window)
{
	return window->tail - window->head;
}

static inline BlockNumber
la_window_first(const LaWindow *window)
{
	return window->queue[window->head & (window->queue_size - 1)];
}

/*
 * How far ahead a scan may be that would be so far, if its window has room; it
 * may have none yet.
 */
static inline int
la_window_reach(const LaWindow *window, int wanted)
{
	return window ? Min(wanted, window->limit) : wanted;
}

extern bool la_window_is_possible(LaCounters *counters);
extern bool la_windows_are_scarce(void);
extern LaWindow *la_window_open(MemoryContext parent, Relation rel,
								const struct LaMethod *method, LaPace *pace,
								LaCounters *counters,
								void (*forget) (void *user), void *user);
extern int	la_window_reads(const LaWindow *window, int64 nreads);
extern bool la_window_met(LaWindow *window, bool missed, bool waited);
extern LaFill la_window_fill(LaWindow *window, LaSource *source);
extern LaStep la_window_step(LaWindow *window, BlockNumber blkno);
extern bool la_window_wants_fill(LaWindow *window);
extern bool la_window_is_empty(const LaWindow *window);
extern void la_window_pass_all(LaWindow *window);
extern void la_window_drop(LaWindow *window, BlockNumber current);
extern void la_window_elsewhere(LaWindow *window);
extern void la_window_pause(LaWindow *window);
extern void la_window_close(LaWindow *window);
extern void la_window_fail(LaWindow *window);
extern int	la_window_in_flight(const LaWindow *window);

extern Buffer la_block_buffer(const RelFileLocator *locator, ForkNumber fork,
							  BlockNumber blkno);
extern bool la_block_is_resident(const RelFileLocator *locator,
								 ForkNumber fork, BlockNumber blkno);

/* For methods. */
extern LaBlock *la_window_lookup(LaWindow *window, BlockNumber blkno);
extern void la_window_issued(LaWindow *window, LaBlock *block);

#endif							/* LA_WINDOW_H */
