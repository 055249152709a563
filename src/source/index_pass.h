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

/*
 * Blocks before a place that are looked at.  The ring that VACUUM reads through
 * has 16 buffers, of 8 kB, at the least, and that of other scans 32.
 */
#define LA_TRAIL			12

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
extern bool la_has_trail(const LaTarget *target, BlockNumber blkno);

#endif							/* LA_INDEX_PASS_H */
