/*-------------------------------------------------------------------------
 *
 * seq_scan.h
 *	  Follows the sequential scans of plans.
 *
 * Copyright (c) 2026, the pg_lookahead authors
 *
 *-------------------------------------------------------------------------
 */
#ifndef LA_SEQ_SCAN_H
#define LA_SEQ_SCAN_H

#include "source/followed.h"
#include "window/frontier.h"
#include "window/waits.h"

typedef enum LaSeqState
{
	LA_SEQ_WATCHING,			/* counts waits; no look-ahead yet */
	LA_SEQ_LOOKING,				/* keeps the frontier in front of the scan */
	LA_SEQ_RESTING,				/* blocks were there; until the next wait, or
								 * SPARSE if all of them are */
	LA_SEQ_SPARSE,				/* serial, and no reason to begin; as WATCHING,
								 * or RESTING if it did, after next_check, when
								 * something is read */
	LA_SEQ_OUT,					/* left alone until the query ends */
} LaSeqState;

typedef struct LaSeqScan
{
	LaFollowed	base;			/* must be first */

	/* immutable */
	SeqScanState *node;
	LimitState *limit;			/* stops the scan after its rows, or NULL */
	ExecProcNodeMtd server_exec;	/* the node's execution function before */

	LaSeqState	state;
	bool		is_parallel;	/* shared; see la_seq_note_sharing() */
	BlockNumber current;		/* the block of the last row */
	bool		has_begun;		/* "frontier" is open */
	uint64		position;		/* of the scan, when we looked last */
	uint64		first;			/* position of its first row */
	int64		rows_at_first;	/* that the LIMIT had before it */
	uint64		next_check;
	int			waits;
	LaTimeMeter meter;			/* see la_seq_is_worth_it() */
	uint64		give_up;		/* LA_SEQ_GIVE_UP, or less */
	uint64		in_vain;		/* blocks read that were timed for nothing */
	uint64		read_at;		/* position where something was read last */
	int			unseen_rows;	/* that are not looked at in a row */
	bool		is_heavy;		/* began because it computes much */
	uint64		next_look;		/* position */
	int64		alone_ns;		/* per block, when it read itself */
	long		from_storage;	/* LaUsage's reads, when that was measured */
	bool		is_counted;		/* and these have grown meanwhile */
	bool		has_looked;		/* ahead */
	bool		has_rested;		/* it was RESTING before it became SPARSE */
	int			doubts;			/* times that it was left to itself again */
	uint64		judge_at;		/* position; of what is not heavy */
	bool		is_judged_from; /* what was read until then is known: */
	LaProcessReads judge_from;	/* of this process and the workers */
	uint64		hold;			/* blocks that it rested for the last time */
	uint64		hold_until;		/* position up to which it rests */
	uint64		run_from;		/* position when the executor was away last */
	int64		away_reads;		/* la_blocks_read() then */
	bool		is_chunk_cut;	/* of a parallel scan, by la_limit_chunk() */
	bool		is_paused;		/* it was, and the scan has not gone on yet */
	bool		has_waited;		/* before that, and it was not looked at yet */
	bool		has_read;		/* since it was looked at */
	int64		reads;			/* la_blocks_read(), when we looked last */
	long		sleeps;			/* la_sleeps(), likewise */
	LaFrontier	frontier;
} LaSeqScan;

extern bool la_seq_scan_is_wanted(SeqScanState *node);
extern LaFollowed *la_seq_scan_register(MemoryContext query_context,
										SeqScanState *node,
										LimitState *limit);

#endif							/* LA_SEQ_SCAN_H */
