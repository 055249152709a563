/*-------------------------------------------------------------------------
 *
 * method.h
 *	  The contract of a method: how a run of blocks is read ahead.
 *
 *	advice.c	asks the kernel to read into its page cache
 *	aio.c		starts the server's asynchronous I/O into shared buffers (18)
 *	worker.c	has the I/O service read into shared buffers
 *	none.c		does nothing: the reference for tests
 *
 * Copyright (c) 2026, the pg_lookahead authors
 *
 *-------------------------------------------------------------------------
 */
#ifndef LA_METHOD_H
#define LA_METHOD_H

#include "compat.h"
#include "settings.h"
#include "utils/relcache.h"
#include "window/window.h"

/*
 * Can the kernel be advised?  LA_NO_ADVICE is for tests: it stands for
 * platforms on which it cannot.
 */
#if defined(USE_PREFETCH) && !defined(LA_NO_ADVICE)
#define LA_HAVE_ADVICE 1
#else
#define LA_HAVE_ADVICE 0
#endif

/* Is that of use?  Direct I/O goes past the kernel's cache. */
#define la_may_advise() (LA_HAVE_ADVICE && !la_direct_io())

/*
 * Those that read run with the scan's own resource owner as the current one.
 * "optional" ones may be NULL.
 */
typedef struct LaMethod
{
	LaMethodId	id;
	const char *name;			/* as in pg_lookahead.method */

	/*
	 * Optional.  The most blocks that one window can usefully hold, however
	 * high pg_lookahead.max_distance is.
	 */
	int			(*most_blocks) (void);

	/*
	 * Optional.  Allocate what is needed for one window in its memory context
	 * and store it in window->method_state.
	 */
	void		(*open) (LaWindow *window);

	/*
	 * Optional.  A whole window of sorted runs was decided on: called once,
	 * before any of them is started.  May raise errors.
	 */
	void		(*announce) (LaWindow *window);

	/*
	 * Optional.  May another read be started now?  If this says no, the rest
	 * of the window is started later, when the scan has moved on.  NULL means
	 * always.  Must not raise errors.
	 */
	bool		(*ready) (LaWindow *window);

	/*
	 * Start to read one run, without waiting for it.  (The server may wait, if
	 * another process is reading its first block; and for an old read if
	 * several scans have all handles, or pin all that they may.)  Calls
	 * la_window_issued() for every block for which a read was begun.  May
	 * raise errors.
	 */
	void		(*start) (LaWindow *window, const LaRun *run);

	/* Optional.  Called after the last start() in a row.  May raise errors. */
	void		(*submit) (LaWindow *window);

	/*
	 * Optional.  The scan goes elsewhere: what has not been read yet is not
	 * wanted any more.  Must not raise errors.
	 */
	void		(*drop) (LaWindow *window);

	/*
	 * Optional.  The executor goes back to its caller, who may never come
	 * back: finish what is in flight, so that nothing is pinned.
	 */
	void		(*pause) (LaWindow *window);

	/*
	 * Optional.  An error has ended the query or the fill: see that nothing
	 * in flight refers to the window's memory any more.  Must not raise
	 * errors.
	 */
	void		(*abandon) (LaWindow *window);

	/* Optional.  The window will not be used any more. */
	void		(*close) (LaWindow *window);

	/* Optional.  How many reads are in flight, as far as we know? */
	int			(*in_flight) (const LaWindow *window);
} LaMethod;

extern const LaMethod la_method_advice;
extern const LaMethod la_method_aio;
extern const LaMethod la_method_worker;
extern const LaMethod la_method_none;

extern const LaMethod *la_method_for(Relation rel, const EState *estate,
									 const char **reason);
extern const LaMethod *la_dense_method_for(Relation rel,
										   const EState *estate);
extern const LaMethod *la_leaf_method_for(Relation rel,
										  const EState *estate);
extern const LaMethod *la_range_method_for(Relation rel, bool is_shared);

/* file_advice.c */
extern void la_file_advise(SMgrRelation smgr, ForkNumber fork,
						   BlockNumber first, int nblocks);

#endif							/* LA_METHOD_H */
