/*-------------------------------------------------------------------------
 *
 * progress.c
 *	  Where a maintenance command is, by what it reports of itself.
 *
 * The counters behind the views pg_stat_progress_*, as far as they tell which
 * block is read next.  What they mean differs from command to command:
 *
 *		VACUUM, both passes			the number of the block
 *		index build, CLUSTER		blocks since the scan's first one
 *		validation of an index		the number of the block
 *		ANALYZE						blocks of the sample
 *		COPY						bytes and rows, no blocks
 *
 * maintenance.c makes positions of them.
 *
 * Copyright (c) 2026, the pg_lookahead authors
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "compat.h"
#include "settings.h"
#include "source/progress.h"

/* COPY must have done so much before anybody is asked for its file. */
#define LA_LEAST_COPY_BYTES	(8 * 1024 * 1024)

static void
la_sight_vacuum(LaSight *sight, const int64 *param)
{
	int64		phase = param[PROGRESS_VACUUM_PHASE];

	sight->total = param[PROGRESS_VACUUM_TOTAL_HEAP_BLKS];
	sight->pass = (uint64) param[PROGRESS_VACUUM_NUM_INDEX_VACUUMS] << 8 |
		(uint64) phase;
	if (phase == PROGRESS_VACUUM_PHASE_SCAN_HEAP)
	{
		sight->kind = LA_SCAN_VACUUM;
		sight->done = param[PROGRESS_VACUUM_HEAP_BLKS_SCANNED];
	}
	else if (phase == PROGRESS_VACUUM_PHASE_VACUUM_HEAP)
	{
		sight->kind = LA_SCAN_VACUUM_DEAD;
		sight->done = param[PROGRESS_VACUUM_HEAP_BLKS_VACUUMED];
		sight->end = param[PROGRESS_VACUUM_HEAP_BLKS_SCANNED] + 1;
		sight->ndead = param[LA_PROGRESS_DEAD_ITEMS];
	}
}

static void
la_sight_index(LaSight *sight, const int64 *param)
{
	int64		phase = param[PROGRESS_CREATEIDX_PHASE];

	sight->total = param[PROGRESS_SCAN_BLOCKS_TOTAL];
	sight->done = param[PROGRESS_SCAN_BLOCKS_DONE];
	sight->pass = (uint64) param[PROGRESS_CREATEIDX_INDEX_OID] << 8 |
		(uint64) phase;

	/* The first block of a scan is reported as all of them. */
	if (sight->done >= sight->total)
		return;
	if (phase == PROGRESS_CREATEIDX_PHASE_BUILD)
		sight->kind = LA_SCAN_BUILD;
	else if (phase == PROGRESS_CREATEIDX_PHASE_VALIDATE_IDXSCAN)
	{
		sight->kind = LA_SCAN_VALIDATE_INDEX;
		sight->relid = (Oid) param[PROGRESS_CREATEIDX_INDEX_OID];
	}
	else if (phase == PROGRESS_CREATEIDX_PHASE_VALIDATE_TABLESCAN)
		sight->kind = LA_SCAN_VALIDATE;
}

static void
la_sight_cluster(LaSight *sight, const int64 *param)
{
	sight->total = param[PROGRESS_CLUSTER_TOTAL_HEAP_BLKS];
	sight->done = param[PROGRESS_CLUSTER_HEAP_BLKS_SCANNED];
	if (param[PROGRESS_CLUSTER_PHASE] == PROGRESS_CLUSTER_PHASE_SEQ_SCAN_HEAP)
		sight->kind = LA_SCAN_REWRITE;
}

static void
la_sight_copy(LaSight *sight, const int64 *param)
{
	if (param[PROGRESS_COPY_COMMAND] == PROGRESS_COPY_COMMAND_TO &&
		param[PROGRESS_COPY_BYTES_PROCESSED] >= LA_LEAST_COPY_BYTES)
		sight->kind = LA_SCAN_COPY;
}

static void
la_sight_analyze(LaSight *sight, const int64 *param)
{
	int64		phase = param[PROGRESS_ANALYZE_PHASE];

	if (phase == PROGRESS_ANALYZE_PHASE_ACQUIRE_SAMPLE_ROWS_INH)
		sight->relid = (Oid) param[PROGRESS_ANALYZE_CURRENT_CHILD_TABLE_RELID];
	else if (phase != PROGRESS_ANALYZE_PHASE_ACQUIRE_SAMPLE_ROWS)
		return;
	sight->kind = LA_SCAN_SAMPLE;
	sight->total = param[PROGRESS_ANALYZE_BLOCKS_TOTAL];
	sight->done = param[PROGRESS_ANALYZE_BLOCKS_DONE];
}

/*
 * What does a process do?  Returns false if it is no command of ours.
 */
bool
la_sight(LaSight *sight, const PgBackendStatus *status)
{
	const int64 *param = status->st_progress_param;

	memset(sight, 0, sizeof(*sight));
	sight->relid = status->st_progress_command_target;
	switch (status->st_progress_command)
	{
		case PROGRESS_COMMAND_VACUUM:
			la_sight_vacuum(sight, param);
			break;
		case PROGRESS_COMMAND_CREATE_INDEX:
			la_sight_index(sight, param);
			break;
		case PROGRESS_COMMAND_CLUSTER:
			la_sight_cluster(sight, param);
			break;
		case PROGRESS_COMMAND_COPY:
			la_sight_copy(sight, param);
			break;
		case PROGRESS_COMMAND_ANALYZE:
			la_sight_analyze(sight, param);
			break;
		default:
			return false;
	}
	return OidIsValid(status->st_databaseid) && OidIsValid(sight->relid);
}

/*
 * Is it worth while to look at the table?  COPY does not say how large that is.
 */
bool
la_sight_is_large(const LaSight *sight)
{
	return sight->kind == LA_SCAN_COPY ||
		(sight->kind != LA_SCAN_NONE && sight->total >= la_min_table_size);
}
