/*-------------------------------------------------------------------------
 *
 * waits.h
 *	  What a process read and waited for, told from outside.
 *
 * Copyright (c) 2026, the pg_lookahead authors
 *
 *-------------------------------------------------------------------------
 */
#ifndef LA_WAITS_H
#define LA_WAITS_H

#include "executor/instrument.h"

/*
 * Blocks that this process has read, from storage or from the kernel's page
 * cache, so far.
 */
static inline int64
la_blocks_read(void)
{
	return pgBufferUsage.shared_blks_read + pgBufferUsage.local_blks_read;
}

/* What the kernel has counted of this process. */
typedef struct LaUsage
{
	long		sleeps;			/* times that it went to sleep by itself */
	long		reads;			/* what was read from storage, in sectors */
} LaUsage;

/* A visit that took less than this was no wait for storage. */
#define LA_WAIT_MIN_NS		10000

extern long la_last_sleeps;
extern bool la_sleeps_are_stale;

/* What a process has done so far, or in a stretch of time. */
typedef struct LaTimes
{
	int64		wall_ns;
	int64		cpu_ns;			/* it computed */
	int64		ready_ns;		/* it would have, but others did; -1: unknown */
	int64		reads;			/* la_blocks_read() */
	int64		blocks;			/* that the scan came over */
	int64		looks;			/* la_time_look_around() in that time */
	int64		running;		/* processes of the machine that ran or wanted
								 * to, added up over these */
} LaTimes;

/*
 * Measures what a scan does with its time.  Zero it to begin; clear is_begun
 * to begin again, or call la_time_pause() when time begins that is not the
 * scan's.
 */
typedef struct LaTimeMeter
{
	bool		is_begun;
	bool		is_paused;
	uint64		from;			/* position of the scan then */
	LaTimes		start;			/* of the process then, or after the pause */
	LaTimes		before;			/* spent before the last pause */
} LaTimeMeter;

typedef enum LaSleep
{
	LA_SLEEP_UNKNOWN,			/* the kernel does not say */
	LA_SLEEP_NOT,				/* it runs, or is ready to */
	LA_SLEEP_YES,
} LaSleep;

/* What a process has read since it began, in bytes. */
typedef struct LaProcessReads
{
	int64		asked;			/* by system calls */
	int64		from_storage;	/* and for that, and ahead of it */
} LaProcessReads;

extern bool la_time_measure(LaTimeMeter *meter, uint64 position,
							uint64 length, LaTimes *spent);
extern void la_time_look_around(LaTimeMeter *meter);
extern void la_time_pause(LaTimeMeter *meter);
extern void la_time_resume(LaTimeMeter *meter);
extern double la_idle_processors(const LaTimes *spent);
extern bool la_waited_much(const LaTimes *spent);
extern void la_usage(LaUsage *usage);
extern long la_sleeps(void);
extern bool la_has_slept(void);
extern LaSleep la_process_sleeps(int pid);
extern bool la_process_reads(int pid, LaProcessReads *reads);
extern int64 la_kernel_ahead_kb(const char *file);
extern int64 la_cpu_ns(void);
extern int64 la_busy_ns(void);
extern int64 la_wall_ns(void);

#endif							/* LA_WAITS_H */
