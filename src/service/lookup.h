/*-------------------------------------------------------------------------
 *
 * lookup.h
 *	  The watcher's shared memory: who it is, and what it asks resolvers.
 *
 * Copyright (c) 2026, the pg_lookahead authors
 *
 *-------------------------------------------------------------------------
 */
#ifndef LA_LOOKUP_H
#define LA_LOOKUP_H

#include "service/service.h"
#include "settings.h"

typedef enum LaLookupResult
{
	LA_LOOKUP_PENDING,			/* not yet answered */
	LA_LOOKUP_FOUND,			/* a heap with a file that others can read */
	LA_LOOKUP_NOTHING,			/* none, or nobody could be asked */
} LaLookupResult;

/* Of so many indexes of a table the files are told, too. */
#define LA_MAX_INDEXES		32

/* The file of a relation, and of the indexes on it. */
typedef struct LaFiles
{
	LaTarget	target;
	int			nindexes;
	LaTarget	indexes[LA_MAX_INDEXES];
} LaFiles;

/*
 * Is there a watcher?  Where the server does not read ahead itself, and there
 * is an I/O service.
 */
static inline bool
la_watcher_is_wanted(void)
{
	return !LA_HAVE_SEQ_STREAM && la_io_workers != 0;
}

/* For the watcher, which alone asks. */
extern void la_watcher_attach(void);
extern bool la_watcher_is_declined(int place, int pid);
extern int	la_lookup_begin(Oid dbid, Oid relid);
extern LaLookupResult la_lookup_poll(int slot, LaFiles *files);
extern void la_lookup_cancel(int slot);

/* So long the watcher looks often after it was woken, in microseconds. */
#define LA_EAGER_US		200000

/* For who is about to run a command that may be followed. */
extern void la_watcher_wake(void);
extern void la_watcher_decline(bool declines);

extern void la_watcher_shmem_request(void);
extern void la_watcher_shmem_startup(void);

extern PGDLLEXPORT void la_resolver_main(Datum arg);

#endif							/* LA_LOOKUP_H */
