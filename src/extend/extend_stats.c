/*-------------------------------------------------------------------------
 *
 * extend_stats.c
 *	  Counters of what was added to tables.
 *
 * One set for this backend, and one in shared memory for all of them, if the
 * library was preloaded.  The latter is changed once for each run of pages, so
 * atomic additions will do.
 *
 * Copyright (c) 2026, the pg_lookahead authors
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "compat.h"
#include "extend/extend.h"
#include "extend/wal_ahead.h"
#include "port/atomics.h"
#include "report/views.h"
#include "storage/ipc.h"
#include "storage/lwlock.h"
#include "storage/shmem.h"
#include "utils/builtins.h"

PG_FUNCTION_INFO_V1(pg_lookahead_extend);

#define LA_EXTEND_NCOUNTERS (sizeof(LaExtendCounters) / sizeof(int64))
#define LA_EXTEND_COLUMNS	12

typedef struct LaExtendShared
{
	pg_atomic_uint64 counters[LA_EXTEND_NCOUNTERS]; /* of all backends */
	pg_atomic_uint64 wal_woken; /* see wal_ahead.c */
} LaExtendShared;

LaExtendCounters la_extend_counters;

static LaExtendShared *la_extend_shared = NULL;

/*
 * Ask for shared memory.  Called from the server's shmem_request_hook.
 */
void
la_extend_shmem_request(void)
{
	RequestAddinShmemSpace(MAXALIGN(sizeof(LaExtendShared)));
	RequestAddinShmemSpace(MAXALIGN(la_spare_shmem_size()));
}

/*
 * Find or make the shared counters.  Called from shmem_startup_hook.
 */
void
la_extend_shmem_startup(void)
{
	void	   *notes;
	bool		found;

	LWLockAcquire(AddinShmemInitLock, LW_EXCLUSIVE);
	la_extend_shared = ShmemInitStruct("pg_lookahead extend",
									   sizeof(LaExtendShared), &found);
	if (!found)
	{
		for (int i = 0; i < LA_EXTEND_NCOUNTERS; i++)
			pg_atomic_init_u64(&la_extend_shared->counters[i], 0);
		pg_atomic_init_u64(&la_extend_shared->wal_woken, 0);
	}
	la_wal_shmem_attach(&la_extend_shared->wal_woken);
	notes = ShmemInitStruct("pg_lookahead spare pages", la_spare_shmem_size(),
							&found);
	la_spare_shmem_attach(notes, !found);
	LWLockRelease(AddinShmemInitLock);
}

/*
 * Add to the counters of this backend and to those of all.
 */
void
la_extend_count(const LaExtendCounters *change)
{
	const int64 *from = (const int64 *) change;
	int64	   *to = (int64 *) &la_extend_counters;

	for (int i = 0; i < LA_EXTEND_NCOUNTERS; i++)
	{
		if (from[i] == 0)
			continue;
		to[i] += from[i];
		if (la_extend_shared)
			pg_atomic_fetch_add_u64(&la_extend_shared->counters[i], from[i]);
	}
}

static void
la_put_row(ReturnSetInfo *result, const char *scope,
		   const LaExtendCounters *counters)
{
	Datum		values[LA_EXTEND_COLUMNS];
	bool		nulls[LA_EXTEND_COLUMNS] = {0};
	int			i = 0;

	values[i++] = CStringGetTextDatum(scope);
	values[i++] = Int64GetDatum(counters->extensions_total);
	values[i++] = Int64GetDatum(counters->pages_added_total);
	values[i++] = Int64GetDatum(counters->pages_returned_total);
	values[i++] = Int64GetDatum(counters->busy_total);
	values[i++] = Int64GetDatum(counters->errors_total);
	values[i++] = Float8GetDatum(counters->time_us_total / 1000.0);
	values[i++] = Int64GetDatum(counters->index_builds_total);
	values[i++] = Int64GetDatum(counters->index_pages_total);
	values[i++] = Int64GetDatum(counters->writes_total);
	values[i++] = Int64GetDatum(counters->pages_written_total);
	values[i++] = Int64GetDatum(counters->wal_wakeups_total);
	Assert(i == LA_EXTEND_COLUMNS);
	tuplestore_putvalues(result->setResult, result->setDesc, values, nulls);
}

/*
 * SQL: pg_lookahead_extend().  A row for this session, and one for the server
 * if there is shared memory.
 */
Datum
pg_lookahead_extend(PG_FUNCTION_ARGS)
{
	ReturnSetInfo *result = la_rows_begin(fcinfo, LA_EXTEND_COLUMNS);

	la_put_row(result, "session", &la_extend_counters);
	if (la_extend_shared)
	{
		LaExtendCounters all;
		int64	   *to = (int64 *) &all;

		for (int i = 0; i < LA_EXTEND_NCOUNTERS; i++)
			to[i] = pg_atomic_read_u64(&la_extend_shared->counters[i]);
		la_put_row(result, "server", &all);
	}
	return (Datum) 0;
}
