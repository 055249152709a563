/*-------------------------------------------------------------------------
 *
 * explained.h
 *	  Which query EXPLAIN (ANALYZE) is running, before 18.
 *
 * Copyright (c) 2026, the pg_lookahead authors
 *
 *-------------------------------------------------------------------------
 */
#ifndef LA_EXPLAINED_H
#define LA_EXPLAINED_H

#include "compat.h"
#include "executor/execdesc.h"

#if !LA_HAVE_NODE_HOOK
extern ExplainState *la_explained_by(const QueryDesc *desc);
extern void la_explained_hook_install(void);
#endif

#endif							/* LA_EXPLAINED_H */
