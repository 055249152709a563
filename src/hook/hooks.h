/*-------------------------------------------------------------------------
 *
 * hooks.h
 *	  Installs our functions in PostgreSQL's hook variables.
 *
 * One file for each part of the server, and one function for each hook; what
 * they call says in which order our parts come.
 *
 * Copyright (c) 2026, the pg_lookahead authors
 *
 *-------------------------------------------------------------------------
 */
#ifndef LA_HOOKS_H
#define LA_HOOKS_H

#include "executor/execdesc.h"

/* executor.c */
extern void la_executor_hooks_install(void);

/* utility.c */
extern void la_utility_hooks_install(void);

/* relation.c */
extern void la_relation_hooks_install(void);

/* explain.c */
extern void la_explain_hooks_install(void);
extern void la_explain_query_ends(const QueryDesc *desc);

#endif							/* LA_HOOKS_H */
