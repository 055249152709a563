/*-------------------------------------------------------------------------
 *
 * query.h
 *	  The scans of a query that are followed.
 *
 * Copyright (c) 2026, the pg_lookahead authors
 *
 *-------------------------------------------------------------------------
 */
#ifndef LA_QUERY_H
#define LA_QUERY_H

#include "executor/execdesc.h"
#include "source/followed.h"
#include "source/plain.h"

/* A query of which we follow scans. */
typedef struct LaQuery
{
	dlist_node	link;			/* in the list of running queries */
	EState	   *estate;
	uint32		parallel_plan;	/* see la_parallel_begin(); 0: no workers */
	TimestampTz statement_start;	/* of the client's, when it ran last */
	dlist_head	nodes;			/* LaIndexNode */
	LaScans		scans;
	LaFollowed **by_node;		/* the same for EXPLAIN, sorted by their node's
								 * address, or NULL */
	int			nby_node;
} LaQuery;

/* Running queries that we follow, the one first that was found last. */
extern dlist_head la_queries;

/*
 * Is there a query that we follow?
 */
static inline bool
la_follows_queries(void)
{
	return !dlist_is_empty(&la_queries);
}

/* query.c */
extern void la_query_begin(QueryDesc *desc);
extern void la_query_resume(const QueryDesc *desc);
extern void la_query_pause(const QueryDesc *desc);
extern void la_query_finish(const QueryDesc *desc);
extern void la_query_report(const QueryDesc *desc);
extern LaQuery *la_query_create(EState *estate);
extern LaQuery *la_query_of(EState *estate);
extern int	la_reads_in_flight(void);

/*
 * What a node scans its index for.
 */
static inline LaIndexKeys
la_index_scan_keys(const IndexScanState *node)
{
	LaIndexKeys all = {node->iss_RelationDesc,
					   node->iss_ScanKeys, node->iss_NumScanKeys,
					   node->iss_OrderByKeys, node->iss_NumOrderByKeys};

	return all;
}

static inline LaIndexKeys
la_index_only_scan_keys(const IndexOnlyScanState *node)
{
	LaIndexKeys all = {node->ioss_RelationDesc,
					   node->ioss_ScanKeys, node->ioss_NumScanKeys,
					   node->ioss_OrderByKeys, node->ioss_NumOrderByKeys};

	return all;
}

/* plan_walk.c */
extern LaQuery *la_plan_walk(const QueryDesc *desc);
extern PlanState *la_limited_scan(const LimitState *limit);
extern bool la_finds_one_row(const LaIndexKeys *all);

#endif							/* LA_QUERY_H */
