/*-------------------------------------------------------------------------
 *
 * seq_worth.h
 *	  Is it worth looking ahead of a sequential scan, and is it still?
 *
 * Copyright (c) 2026, the pg_lookahead authors
 *
 *-------------------------------------------------------------------------
 */
#ifndef LA_SEQ_WORTH_H
#define LA_SEQ_WORTH_H

#include "source/seq_scan.h"

/* A serial scan of buffered files is timed for so many blocks. */
#define LA_SEQ_MEASURE		2048

/*
 * One that looked ahead because it computes much rests for so many blocks when
 * that was no good, then for longer.
 */
#define LA_HEAVY_HOLD		(4 * LA_SEQ_MEASURE)
#define LA_HEAVY_MOST_HOLD	(16 * LA_HEAVY_HOLD)

/*
 * A scan that was timed for so many blocks that it read, and was not worth it,
 * is left alone for as many; of a small table, for this part of it.
 */
#define LA_SEQ_GIVE_UP		32768
#define LA_GIVE_UP_PART		4

/* So many blocks in a row that were there are enough to be left alone, too. */
#define LA_SEQ_QUIET		LA_SEQ_MEASURE

extern bool la_seq_is_worth_it(LaSeqScan *scan);
extern bool la_seq_is_vain(LaSeqScan *scan);
extern bool la_seq_end_rest(LaSeqScan *scan, bool waited);
extern bool la_seq_is_doubtful(LaSeqScan *scan);
extern void la_seq_look(LaSeqScan *scan);
extern void la_seq_leave_alone(LaSeqScan *scan);
extern void la_seq_watch(LaSeqScan *scan);
extern void la_seq_doubt(LaSeqScan *scan);

#endif							/* LA_SEQ_WORTH_H */
