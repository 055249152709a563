/*-------------------------------------------------------------------------
 *
 * pace.h
 *	  When look-ahead starts, how far it goes, when it idles.
 *
 * Copyright (c) 2026, the pg_lookahead authors
 *
 *-------------------------------------------------------------------------
 */
#ifndef LA_PACE_H
#define LA_PACE_H

#include "storage/block.h"

/*
 * A trial of looking ahead against not doing so; see pace.c.  In the order in
 * which they follow each other; an end of the pattern leads back to NONE.
 */
typedef enum LaTrial
{
	LA_TRIAL_NONE,				/* no trial wanted */
	LA_TRIAL_WATCH_RAMP,		/* without look-ahead: let the kernel settle */
	LA_TRIAL_WATCH,				/* without look-ahead: measure */
	LA_TRIAL_LOOK_RAMP,			/* with look-ahead: let it settle */
	LA_TRIAL_LOOK,				/* with look-ahead: measure */
	LA_TRIAL_WON,				/* look ahead; measure again after a while */
	LA_TRIAL_LOST,				/* do not, for a while; then NONE */
} LaTrial;

/*
 * Looking ahead without a trial, where the kernel is of no help; see pace.c.
 */
typedef enum LaGrant
{
	LA_GRANT_UNSEEN,			/* too few reads were seen, or it helps */
	LA_GRANT_GRANTED,			/* look ahead for LA_GRANT_LENGTH blocks */
	LA_GRANT_SPENT,				/* only a trial decides from now on */
} LaGrant;

/*
 * State of one scan's pace.  All fields are pace.c's; read them through the
 * functions below.
 */
typedef struct LaPace
{
	int			start_after;	/* setting, copied at the scan's start */
	int			max_distance;	/* setting, copied at the scan's start */
	bool		has_page_cache; /* the kernel caches, and may read ahead */

	/* how the scan moves; decaying averages */
	int			moves;			/* saturating */
	int			unseen;			/* moves since the last that was seen */
	BlockNumber last;
	BlockNumber origin;			/* where the last far move went */
	BlockNumber highest;		/* since then */
	BlockNumber lowest;			/* since then */
	int			near_share;		/* moves of less than LA_NEAR_BLOCKS, of
								 * LA_SHARE */
	int			step;			/* how far those go, in 1 / LA_STEP blocks */

	/* the grant */
	LaGrant		grant;
	int			doubt;			/* reads to be seen before it is helped */
	int			reads;			/* seen while watching, saturating */
	int			wait_share;		/* of these, waited for; of LA_SHARE */
	int			granted;		/* blocks left of LA_GRANT_LENGTH */

	/* the trial */
	LaTrial		trial;
	int			trial_reads;	/* blocks read since it was entered */
	int			trial_waits;	/* of these, waited for */
	int			hold;			/* how long the next LOST lasts, in reads */
	bool		is_behind;		/* LOOK does not win, as far as was seen */
	bool		is_inherited;	/* LOST in an earlier round of the scan */
	bool		would_lose;		/* a trial that was cut short */
	int64		trial_start_ns; /* 0: not yet known */
	int64		trial_start_busy_ns;
	int			trial_run;		/* trial_reads when this run began */
	bool		is_paused;		/* time passes that is not the scan's, since: */
	int64		paused_ns;
	int64		paused_busy_ns;
	int64		watch_ns;		/* what WATCH measured */
	bool		watch_is_old;	/* that was before look-ahead has WON */
	int64		waited_ns;		/* for so much of it the scan waited */

	/* while watching */
	int			switches;		/* block switches seen, saturating */
	int			recent;			/* switches in the current stretch */
	int			waits;			/* waits in this stretch and half the last */

	/* while looking ahead */
	int			distance;		/* blocks to be ahead of the scan */
	int			bound;			/* of those, what there is room for */
	int			waits_since_fill;
	int			empty_windows;	/* windows in a row that needed no read, ... */
	int			empty_blocks;	/* ... and their blocks, saturating */
	int			unprobed;		/* windows filled since the last probe */
	int			vain_probes;	/* probes in a row that did not wait */
} LaPace;

extern void la_pace_init(LaPace *pace, int start_after, int max_distance,
						 bool has_page_cache);
extern void la_pace_restart(LaPace *pace, int start_after, int max_distance,
							bool has_page_cache);
extern bool la_pace_has_lost(const LaPace *pace);
extern bool la_pace_is_tried(const LaPace *pace);
extern void la_pace_moved(LaPace *pace, BlockNumber blkno);
extern void la_pace_saw_read(LaPace *pace, bool waited);
extern bool la_pace_read(LaPace *pace, int nreads, bool waited);
extern void la_pace_skipped(LaPace *pace, int64 nreads);
extern bool la_pace_clock(LaPace *pace, int64 now_ns, int64 busy_ns);
extern void la_pace_interrupted(LaPace *pace);
extern bool la_pace_run_ends(LaPace *pace);
extern void la_pace_pause(LaPace *pace, int64 now_ns, int64 busy_ns);
extern void la_pace_resume(LaPace *pace, int64 now_ns, int64 busy_ns);
extern void la_pace_stopped(LaPace *pace);
extern void la_pace_turned(LaPace *pace);
extern bool la_pace_watch(LaPace *pace, bool waited);
extern bool la_pace_at_once(const LaPace *pace);
extern void la_pace_waited(LaPace *pace);
extern void la_pace_deepen(LaPace *pace);
extern bool la_pace_is_helped(const LaPace *pace);
extern void la_pace_doubt(LaPace *pace);
extern bool la_pace_wants_probe(LaPace *pace);
extern bool la_pace_probed(LaPace *pace, bool waited);
extern bool la_pace_filled(LaPace *pace, int nblocks, int nreads);
extern bool la_pace_filled_none(LaPace *pace);

/*
 * Asking for the time, twice, costs as much as a block or two: where a run of
 * the executor comes over fewer blocks, what passes until the next one is not
 * left out of what is measured.
 */
#define LA_LEAST_RUN		8

/* Two windows of one block. */
#define LA_LEAST_BOUND		2

/* After so many switches, waits count half. */
#define LA_STRETCH			32

/*
 * The scan has moved so often.
 */
static inline void
la_pace_stretch(LaPace *pace, int moves)
{
	pace->recent += moves;
	if (pace->recent >= LA_STRETCH)
	{
		pace->recent = 0;
		pace->waits /= 2;
	}
}

/*
 * The scan has done with a block that was in shared buffers.
 */
static inline void
la_pace_passed(LaPace *pace)
{
	if (pace->switches < pace->start_after)
		pace->switches++;
	la_pace_stretch(pace, 1);
}

/*
 * The scan has moved so often, about, without being looked at, and has waited
 * once, or it has not, or that is not known.
 */
static inline void
la_pace_went_by(LaPace *pace, int moves, bool waited)
{
	la_pace_stretch(pace, moves);
	if (waited)
		pace->waits++;
}

/*
 * The scan has done with so many blocks before it was watched.
 */
static inline void
la_pace_credit(LaPace *pace, int64 nblocks)
{
	pace->switches = (int) Min(nblocks, pace->start_after);
}

/*
 * The next move that is seen may be so many in one.
 */
static inline void
la_pace_skips(LaPace *pace, int moves)
{
	pace->unseen = moves;
}

/*
 * There is room for so many blocks only, until we are told otherwise.
 */
static inline void
la_pace_bound(LaPace *pace, int nblocks)
{
	pace->bound = Max(nblocks, LA_LEAST_BOUND);
}

/*
 * The number of blocks that look-ahead should be in front of the scan.
 */
static inline int
la_pace_distance(const LaPace *pace)
{
	return Min(pace->distance, pace->bound);
}

#endif							/* LA_PACE_H */
