/*-------------------------------------------------------------------------
 *
 * index_am.h
 *	  Stands between the executor and the index access methods.
 *
 * Copyright (c) 2026, the pg_lookahead authors
 *
 *-------------------------------------------------------------------------
 */
#ifndef LA_INDEX_AM_H
#define LA_INDEX_AM_H

#include "access/amapi.h"
#include "utils/rel.h"

/*
 * Our stand-in for one routine.  The first member is what relations point to;
 * the original is a copy of what they pointed to before.
 */
typedef struct LaIndexAm
{
	IndexAmRoutine routine;		/* must be first: rd_indam points here */
	IndexAmRoutine trusted;		/* or here: see index_am.c */
	IndexAmRoutine strange;		/* or here: its functions are not plain */
	IndexAmRoutine orig;
	Oid			amoid;
	bool		keeps_pins;		/* may pin index pages between two tuples */
	bool		is_dear;		/* a tuple may cost more than a heap page */
} LaIndexAm;

struct LaIndexNode;

/*
 * Are the functions plain that are called for the columns of an index that is
 * stood in for, whatever it is scanned for?  See plain.c.
 */
static inline bool
la_index_am_is_plain(const LaIndexAm *am, Relation index)
{
	return index->rd_indam != &am->strange;
}

extern LaIndexAm *la_index_am_wrap(Relation index);
extern LaIndexAm *la_index_am_if_ready(Relation index);
extern LaIndexAm *la_index_am_of(Relation index);
extern void la_index_am_trust_no_more(struct LaIndexNode *node);

#endif							/* LA_INDEX_AM_H */
