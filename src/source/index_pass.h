/*-------------------------------------------------------------------------
 *
 * index_pass.h
 *	  Follows VACUUM through the indexes of a table.
 *
 * Copyright (c) 2026, the pg_lookahead authors
 *
 *-------------------------------------------------------------------------
 */
#ifndef LA_INDEX_PASS_H
#define LA_INDEX_PASS_H

#include "service/service.h"

/* The passes over the indexes of one table that a VACUUM makes in one phase. */
typedef struct LaIndexPasses LaIndexPasses;

extern LaIndexPasses *la_passes_begin(int pid, const LaTarget *targets,
									  int ntargets);
extern bool la_passes_track(LaIndexPasses *passes);
extern bool la_passes_are_sought(const LaIndexPasses *passes,
								 bool one_at_a_time);
extern void la_passes_seek(LaIndexPasses *passes, int ncommands);
extern int	la_passes_look_us(const LaIndexPasses *passes);
extern void la_passes_end(LaIndexPasses *passes, bool is_over);

#endif							/* LA_INDEX_PASS_H */
