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

/*
 * State of one scan's pace.  All fields are pace.c's; read them through the
 * functions below.
 */
typedef struct LaPace
{
	int			start_after;	/* setting, copied at the scan's start */
	int			max_distance;	/* setting, copied at the scan's start */

	/* while watching */
	int			switches;		/* block switches seen, saturating */
	int			recent;			/* switches in the current stretch */
	int			waits;			/* waits in this stretch and half the last */

	/* while looking ahead */
	int			distance;		/* blocks to be ahead of the scan */
	int			waits_since_fill;
	int			empty_windows;	/* windows in a row that needed no read */
} LaPace;

extern void la_pace_init(LaPace *pace, int start_after, int max_distance);
extern bool la_pace_watch(LaPace *pace, bool waited);
extern bool la_pace_at_once(const LaPace *pace);
extern void la_pace_waited(LaPace *pace);
extern bool la_pace_filled(LaPace *pace, int nblocks, int nreads);

/* The number of blocks that look-ahead should be in front of the scan. */
static inline int
la_pace_distance(const LaPace *pace)
{
	return pace->distance;
}

#endif							/* LA_PACE_H */
