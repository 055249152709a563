/*-------------------------------------------------------------------------
 *
 * waits.c
 *	  What this process waited for, told from outside.
 *
 * The kernel counts how often a process went to sleep by itself, which is what
 * waiting for storage is.  A block that is in the page cache is copied without
 * sleeping.  The clock cannot tell the two apart as well: a process that loses
 * its processor looks like one that waits.
 *
 * Copyright (c) 2026, the pg_lookahead authors
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include <sys/resource.h>
#include <time.h>

#include "window/waits.h"

/* So much waiting, of the time it took, is worth an effort: 35 %. */
#define LA_WORTH_NS(took)	((took) / 20 * 7)

/* One thread is all there is; where it can be named the kernel is faster. */
#ifdef RUSAGE_THREAD
#define LA_RUSAGE_WHO		RUSAGE_THREAD
#else
#define LA_RUSAGE_WHO		RUSAGE_SELF
#endif

/*
 * What has the kernel counted so far?  Nothing if it does not say.  Costs a
 * system call.
 */
void
la_usage(LaUsage *usage)
{
	struct rusage r;

	memset(&r, 0, sizeof(r));
	(void) getrusage(LA_RUSAGE_WHO, &r);
	usage->sleeps = r.ru_nvcsw;
	usage->reads = r.ru_inblock;
}

/*
 * How often has this process slept so far?  Costs a system call.
 */
long
la_sleeps(void)
{
	LaUsage		usage;

	la_usage(&usage);
	return usage.sleeps;
}

/*
 * How often this process had slept when la_has_slept() looked last, and whether
 * some of what came since may have been our own.
 */
static long la_last_sleeps = 0;
bool		la_sleeps_are_stale = true;

/*
 * Has this process slept since we last asked?  Costs a system call.
 */
bool
la_has_slept(void)
{
	long		sleeps = la_sleeps();
	bool		slept = sleeps != la_last_sleeps;

	la_sleeps_are_stale = false;
	la_last_sleeps = sleeps;
	return slept;
}

/*
 * How long has this process computed so far, in nanoseconds?
 */
int64
la_cpu_ns(void)
{
	struct timespec ts;

	if (clock_gettime(CLOCK_THREAD_CPUTIME_ID, &ts) != 0)
		return 0;
	return (int64) ts.tv_sec * 1000000000 + ts.tv_nsec;
}

/*
 * Nanoseconds since some point in the past.
 */
int64
la_wall_ns(void)
{
	instr_time	now;

	INSTR_TIME_SET_CURRENT(now);
	return (int64) (INSTR_TIME_GET_DOUBLE(now) * 1e9);
}

/*
 * Has the scan waited for a good part of the time that its last "length" blocks
 * took?  Measures again and again; says no until there is a result.
 *
 * Where the server or the kernel reads ahead well a scan waits now and then,
 * but little.  Looking ahead costs more there than it can win.
 */
bool
la_wait_share_is_high(LaWaitShare *share, uint64 position, uint64 length)
{
	int64		wall_ns;
	int64		cpu_ns;
	bool		is_high = false;

	if (share->wall_ns != 0 && position - share->from < length)
		return false;

	wall_ns = la_wall_ns();
	cpu_ns = la_cpu_ns();
	if (share->wall_ns != 0)
	{
		int64		took = wall_ns - share->wall_ns;

		is_high = took - (cpu_ns - share->cpu_ns) > LA_WORTH_NS(took);
	}
	share->wall_ns = wall_ns;
	share->cpu_ns = cpu_ns;
	share->from = position;
	return is_high;
}
