/*-------------------------------------------------------------------------
 *
 * explain.h
 *	  What EXPLAIN (ANALYZE) shows of us.
 *
 * hook/explain.c calls these: for each plan node on 18, and once for a query
 * that ends before.
 *
 * Copyright (c) 2026, the pg_lookahead authors
 *
 *-------------------------------------------------------------------------
 */
#ifndef LA_EXPLAIN_H
#define LA_EXPLAIN_H

#include "compat.h"
#include "executor/execdesc.h"

#if LA_HAVE_NODE_HOOK
extern void la_explain_scans_of(const PlanState *node, ExplainState *es);
extern void la_explain_space_of(const PlanState *node, ExplainState *es);
#else
extern void la_explain_scans(const QueryDesc *desc, ExplainState *es);
extern void la_explain_space(const QueryDesc *desc, ExplainState *es);
#endif

#endif							/* LA_EXPLAIN_H */
