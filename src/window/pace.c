/*-------------------------------------------------------------------------
 *
 * pace.c
 *	  The control rule of look-ahead: waits decide.
 *
 * This file does no I/O and knows no PostgreSQL structure; it is arithmetic on
 * what the caller observed.
 *
 * Watching.  For each table block that a scan switches to, the caller says
 * whether the scan had to wait for storage there.  Look-ahead starts when the
 * scan has switched start_after times and has waited at least LA_START_WAITS
 * times lately.  "Lately" is the current stretch of LA_STRETCH switches and
 * half of the stretch before: a scan of cached data that meets a cold block
 * now and then never starts, one that goes from cached to cold data starts
 * within a few blocks.
 *
 *		switch	1    2    3    4    5    6    7    8    9
 *		waited	-    yes  yes  no   yes  yes  yes  yes  <- start here
 *
 * Look-ahead starts when the scan asks for the block after the eighth, so a
 * query that ends within eight blocks (LIMIT 8) has read nothing more than it
 * does without us.
 *
 * Looking ahead.  The distance begins at LA_FIRST_DISTANCE blocks.  Whenever
 * a window is filled and the scan has waited since the one before, it doubles,
 * up to max_distance.  When LA_EMPTY_WINDOWS windows in a row found every
 * block in shared buffers, look-ahead idles: the caller goes back to watching,
 * and what is watched for is the same as at the start, without start_after.
 *
 * Copyright (c) 2026, the pg_lookahead authors
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "window/pace.h"

#define LA_START_WAITS		2
#define LA_STRETCH			32
#define LA_FIRST_DISTANCE	16
#define LA_EMPTY_WINDOWS	2

/*
 * Begin to watch a new scan, or the same scan with new keys.
 */
void
la_pace_init(LaPace *pace, int start_after, int max_distance)
{
	Assert(start_after >= 0 && max_distance > 0);

	memset(pace, 0, sizeof(LaPace));
	pace->start_after = start_after;
	pace->max_distance = max_distance;
	pace->distance = Min(LA_FIRST_DISTANCE, max_distance);
}

/*
 * Should look-ahead start before anything was seen?
 */
bool
la_pace_at_once(const LaPace *pace)
{
	return pace->start_after == 0;
}

/*
 * The scan has done with a block; did it wait there?  Returns true if
 * look-ahead should start with the next block.
 */
bool
la_pace_watch(LaPace *pace, bool waited)
{
	if (pace->switches < pace->start_after)
		pace->switches++;
	if (waited)
		pace->waits++;
	if (++pace->recent >= LA_STRETCH)
	{
		pace->recent = 0;
		pace->waits /= 2;
	}

	if (pace->switches < pace->start_after)
		return false;
	return pace->waits >= Min(LA_START_WAITS, pace->start_after);
}

/*
 * While looking ahead, the scan still had to wait for a block.
 */
void
la_pace_waited(LaPace *pace)
{
	pace->waits_since_fill++;
}

/*
 * A window of nblocks was filled, nreads of them not in shared buffers.
 * Returns true if look-ahead should idle.
 */
bool
la_pace_filled(LaPace *pace, int nblocks, int nreads)
{
	Assert(nreads >= 0 && nreads <= nblocks);

	if (nblocks == 0)
		return false;

	if (nreads == 0)
	{
		if (++pace->empty_windows < LA_EMPTY_WINDOWS || pace->start_after == 0)
			return false;

		/* Idle: watch again, and begin carefully when waits come back. */
		pace->empty_windows = 0;
		pace->waits_since_fill = 0;
		pace->waits = 0;
		pace->recent = 0;
		pace->distance = Min(LA_FIRST_DISTANCE, pace->max_distance);
		return true;
	}
	pace->empty_windows = 0;

	if (pace->waits_since_fill > 0)
		pace->distance = Min(pace->distance * 2, pace->max_distance);
	pace->waits_since_fill = 0;
	return false;
}
