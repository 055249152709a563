/*-------------------------------------------------------------------------
 *
 * hooks.h
 *	  Installs our functions in PostgreSQL's hook variables.
 *
 * Copyright (c) 2026, the pg_lookahead authors
 *
 *-------------------------------------------------------------------------
 */
#ifndef LA_HOOKS_H
#define LA_HOOKS_H

#include "lib/stringinfo.h"
#include "source/followed.h"

/* A query of which we follow scans. */
typedef struct LaQuery
{
	dlist_node	link;			/* in the list of running queries */
	QueryDesc  *desc;
	EState	   *estate;
	bool		is_parallel;	/* workers may have their share */
	dlist_head	nodes;			/* LaIndexNode */
	LaScans		scans;
} LaQuery;

extern void la_executor_hooks_install(void);
extern LaQuery *la_query_of(EState *estate);
extern int	la_reads_in_flight(void);

extern void la_explain_hooks_install(void);
extern void la_explain_query_ends(LaQuery *query);

extern void la_utility_hooks_install(void);

#endif							/* LA_HOOKS_H */
