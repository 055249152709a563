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

#include "window/waits.h"

/* One thread is all there is; where it can be named the kernel is faster. */
#ifdef RUSAGE_THREAD
#define LA_RUSAGE_WHO		RUSAGE_THREAD
#else
#define LA_RUSAGE_WHO		RUSAGE_SELF
#endif

/*
 * How often has this process slept so far?  Costs a system call.
 */
long
la_sleeps(void)
{
	struct rusage usage;

	if (getrusage(LA_RUSAGE_WHO, &usage) != 0)
		return 0;
	return usage.ru_nvcsw;
}
