/*-------------------------------------------------------------------------
 *
 * command_waits.h
 *	  Does another process wait for its reads?
 *
 * Copyright (c) 2026, the pg_lookahead authors
 *
 *-------------------------------------------------------------------------
 */
#ifndef LA_COMMAND_WAITS_H
#define LA_COMMAND_WAITS_H

#include "storage/proc.h"
#include "window/waits.h"

/* A command that might be followed is looked at this often at first. */
#define LA_EAGER_LOOK_MS	5L

/* What was seen of a command so far. */
typedef struct LaCommandWaits
{
	int			looks;
	int			reads;			/* looks that found it waiting for a read */
	bool		unknown;		/* or reading, as nobody says who waits */
	bool		verdict;
	long		look_ms;		/* until the next look */
	PGPROC	   *proc;			/* the process, when looked up last, or NULL */
	bool		is_counted;		/* what it had read is known ... */
	LaProcessReads from;		/* ... as of then */
} LaCommandWaits;

extern void la_waits_begin(LaCommandWaits *waits);
extern bool la_waits_look(LaCommandWaits *waits, int pid, bool whole_group);
extern bool la_reads_storage(LaCommandWaits *waits, int pid);
extern bool la_has_parallel_workers(LaCommandWaits *waits, int pid);

#endif							/* LA_COMMAND_WAITS_H */
