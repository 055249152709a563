/*-------------------------------------------------------------------------
 *
 * heap_am.h
 *	  Stands between statements that insert, or vacuum, and heap.
 *
 * Copyright (c) 2026, the pg_lookahead authors
 *
 *-------------------------------------------------------------------------
 */
#ifndef LA_HEAP_AM_H
#define LA_HEAP_AM_H

#include "access/tableam.h"
#include "utils/rel.h"

extern TableAmRoutine la_heap_am;

extern bool la_is_heap(Relation rel);
extern bool la_heap_am_attach(Relation rel);
extern bool la_heap_am_attach_vacuum(Relation rel);
extern void la_heap_am_detach(Relation rel);

/*
 * Do we stand between the table and heap for a statement that inserts?
 */
static inline bool
la_heap_am_is_attached(Relation rel)
{
	return rel->rd_tableam == &la_heap_am;
}

#endif							/* LA_HEAP_AM_H */
