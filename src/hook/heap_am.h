/*-------------------------------------------------------------------------
 *
 * heap_am.h
 *	  Stands between statements that insert and heap.
 *
 * Copyright (c) 2026, the pg_lookahead authors
 *
 *-------------------------------------------------------------------------
 */
#ifndef LA_HEAP_AM_H
#define LA_HEAP_AM_H

#include "utils/relcache.h"

extern bool la_is_heap(Relation rel);
extern bool la_heap_am_attach(Relation rel);
extern void la_heap_am_detach(Relation rel);
extern bool la_heap_am_is_attached(Relation rel);

#endif							/* LA_HEAP_AM_H */
