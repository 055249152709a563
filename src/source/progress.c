/*-------------------------------------------------------------------------
 *
 * progress.c
 *	  Where a maintenance command is, by what it reports of itself.
 *
 * The counters behind the views pg_stat_progress_*, as far as they tell which
 * block is read next.  What they mean differs from command to command:
 *
 *		VACUUM, both passes			the number of the block
 *		VACUUM in the indexes		no position; see index_pass.c
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

/* An entry that is being changed is read so often. */
#define LA_MAX_TRIES		10

/*
 * COPY must have written this part of pg_lookahead.min_table_size before
 * anybody is asked for its file: how large that is it does not say.
 */
#define LA_COPY_DIVISOR		16

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
	else if (phase == PROGRESS_VACUUM_PHASE_VACUUM_INDEX ||
			 phase == PROGRESS_VACUUM_PHASE_INDEX_CLEANUP)
		sight->kind = LA_SCAN_VACUUM_INDEXES;
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
		param[PROGRESS_COPY_BYTES_PROCESSED] >=
		(int64) la_min_table_size / LA_COPY_DIVISOR * BLCKSZ)
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
 * Copy what we need of a place in the status array.  Returns false if nobody is
 * there who reports progress, or if it is being changed all the time: then
 * is_torn is set.
 */
static bool
la_read_status(LaSight *sight, int64 *param, int i)
{
	const volatile PgBackendStatus *status = &la_status_array()[i];

	for (int tries = 0; tries < LA_MAX_TRIES; tries++)
	{
		int			before,
					after;

		if (status->st_procpid == 0 ||
			status->st_progress_command == PROGRESS_COMMAND_INVALID)
			return false;
		pgstat_begin_read_activity(status, before);
		sight->pid = status->st_procpid;
		sight->dbid = status->st_databaseid;
		sight->started = status->st_activity_start_timestamp;
		sight->type = status->st_progress_command;
		sight->relid = status->st_progress_command_target;
		for (int n = 0; n < PGSTAT_NUM_PROGRESS_PARAM; n++)
			param[n] = status->st_progress_param[n];
		pgstat_end_read_activity(status, after);
		if (pgstat_read_activity_complete(before, after))
			return sight->pid != 0 && sight->type != PROGRESS_COMMAND_INVALID;
	}
	sight->is_torn = true;
	return false;
}

/*
 * A progress counter of another process, as it runs; NULL if there is no such
 * process.
 */
const volatile int64 *
la_progress_counter(int pid, int param)
{
	const volatile PgBackendStatus *entries = la_status_array();

	for (int i = 0; i < MaxBackends; i++)
		if (entries[i].st_procpid == pid)
			return &entries[i].st_progress_param[param];
	return NULL;
}

/*
 * What does process i, from 0 to MaxBackends - 1, do?  Returns false if it is
 * no command of ours.
 */
bool
la_sight(LaSight *sight, int i)
{
	int64		param[PGSTAT_NUM_PROGRESS_PARAM];

	memset(sight, 0, sizeof(*sight));
	if (!la_read_status(sight, param, i))
		return false;
	switch (sight->type)
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
	return OidIsValid(sight->dbid) && OidIsValid(sight->relid);
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
