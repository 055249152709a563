/*-------------------------------------------------------------------------
 *
 * deferred.h
 *	  A plan of one index scan, which is dealt with when it reads something.
 *
 * Copyright (c) 2026, the pg_lookahead authors
 *
 *-------------------------------------------------------------------------
 */
#ifndef LA_DEFERRED_H
#define LA_DEFERRED_H

#include "executor/execdesc.h"
#include "source/index_node.h"
#include "utils/palloc.h"

/* The query that is deferred: one at a time in each process. */
typedef struct LaDeferred
{
	EState	   *estate;			/* NULL: none */
	LaScans		scans;			/* none, but the executor's runs are counted */
	MemoryContextCallback callback; /* when the query's memory goes */
} LaDeferred;

extern LaDeferred la_deferred;

extern bool la_query_defer(QueryDesc *desc);
extern LaIndexNode *la_deferred_register(void);

/*
 * The executor comes back from running a plan.
 */
static inline void
la_deferred_pause(const QueryDesc *desc)
{
	if (la_deferred.estate == desc->estate)
		la_deferred.scans.runs++;
}

/*
 * A scan that has no node is (re)started.  If it is that of the query that is
 * deferred, and in its first stage, its node is returned.
 */
static inline LaIndexNode *
la_deferred_bind(IndexScanDesc desc)
{
	LaIndexNode *node = &la_deferred_node;

	if (node->desc_ref == NULL || *node->desc_ref != desc)
		return NULL;
	node->desc = desc;
	return node;
}

/*
 * Nothing is to be done any more for the scan of the query that is deferred, or
 * by another node.
 */
static inline void
la_deferred_forget(void)
{
	la_deferred_node.desc = NULL;
	la_deferred_node.desc_ref = NULL;
}

#endif							/* LA_DEFERRED_H */
