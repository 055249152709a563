/*-------------------------------------------------------------------------
 *
 * uncounted.h
 *	  Keeps visits of look-ahead to pages of an index out of the statistics.
 *
 * Copyright (c) 2026, the pg_lookahead authors
 *
 *-------------------------------------------------------------------------
 */
#ifndef LA_UNCOUNTED_H
#define LA_UNCOUNTED_H

#include "utils/relcache.h"

extern int	la_uncounted_depth;

extern void la_uncounted_begin(Relation rel);
extern void la_uncounted_end(void);
extern void la_uncounted_undo(int depth);

#endif							/* LA_UNCOUNTED_H */
