/*-------------------------------------------------------------------------
 *
 * progress.h
 *	  Where a maintenance command is, by what it reports of itself.
 *
 * Copyright (c) 2026, the pg_lookahead authors
 *
 *-------------------------------------------------------------------------
 */
#ifndef LA_PROGRESS_H
#define LA_PROGRESS_H

#include "compat.h"

typedef enum LaScanKind
{
	LA_SCAN_NONE,				/* nothing that we follow, or not now */
	LA_SCAN_VACUUM,				/* first pass */
	LA_SCAN_VACUUM_DEAD,		/* second pass */
	LA_SCAN_VACUUM_INDEXES,		/* between them, and afterwards */
	LA_SCAN_BUILD,				/* for a new index */
	LA_SCAN_VALIDATE_INDEX,		/* of the new index itself */
	LA_SCAN_VALIDATE,			/* for a new index, the second time */
	LA_SCAN_REWRITE,			/* CLUSTER, VACUUM FULL */
	LA_SCAN_COPY,
	LA_SCAN_SAMPLE,				/* ANALYZE */
} LaScanKind;

/* What the status array says of a command. */
typedef struct LaSight
{
	int			pid;			/* by these and relid it is known */
	Oid			dbid;
	ProgressCommandType type;
	TimestampTz started;

	LaScanKind	kind;
	Oid			relid;
	uint64		pass;			/* another one: another scan */
	int64		total;			/* blocks of the table, or 0 if not reported */
	int64		done;			/* see the file header; COPY: 0 */
	int64		end;			/* the scan does not go further, or 0 */
	int64		ndead;			/* second pass: dead items */
	bool		is_torn;		/* all but pid is unknown at this moment */
} LaSight;

extern bool la_sight(LaSight *sight, int i);
extern const volatile int64 *la_progress_counter(int pid, int param);
extern bool la_sight_is_large(const LaSight *sight);

#endif							/* LA_PROGRESS_H */
