/*-------------------------------------------------------------------------
 *
 * waits.h
 *	  What this process read and waited for, told from outside.
 *
 * Copyright (c) 2026, the pg_lookahead authors
 *
 *-------------------------------------------------------------------------
 */
#ifndef LA_WAITS_H
#define LA_WAITS_H

#include "executor/instrument.h"

/*
 * Blocks that this process has read, from storage or from the kernel's page
 * cache, so far.
 */
static inline int64
la_blocks_read(void)
{
	return pgBufferUsage.shared_blks_read + pgBufferUsage.local_blks_read;
}

extern long la_sleeps(void);

#endif							/* LA_WAITS_H */
