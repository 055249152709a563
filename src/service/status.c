/*-------------------------------------------------------------------------
 *
 * status.c
 *	  What the I/O service does, as SQL functions.
 *
 * Each worker adds to counters that run from the start of the server.  For
 * "lately" it closes an interval every status_interval: what the counters have
 * gained is kept until the next is closed.
 *
 *		counters	---------------------------------------------->
 *		intervals	|  last  |  running ...
 *					at_start ^		now
 *
 * A worker that sleeps closes one more interval, an empty one, and then none;
 * the next begins when it is woken.  One that hangs in a read, or is stopped,
 * closes none either: so the reader does it, when the interval that runs is
 * two long.  It adds up the last intervals of all workers that run.
 *
 * Copyright (c) 2026, the pg_lookahead authors
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "compat.h"
#include "report/views.h"
#include "service/service.h"
#include "settings.h"
#include "utils/builtins.h"

/* Columns of pg_lookahead_io() and pg_lookahead_owners(). */
#define LA_IO_COLUMNS		17
#define LA_OWNER_COLUMNS	5

PG_FUNCTION_INFO_V1(pg_lookahead_ios_status);
PG_FUNCTION_INFO_V1(pg_lookahead_io);
PG_FUNCTION_INFO_V1(pg_lookahead_owners);

static void
la_read_window_counters(LaWorker *worker, LaWindowCounters *now)
{
	LaWorkerCounters *counters = &worker->counters;

	now->done = pg_atomic_read_u64(&counters->done);
	now->blocks = pg_atomic_read_u64(&counters->blocks);
	now->reads = pg_atomic_read_u64(&counters->reads);
	now->request_us = pg_atomic_read_u64(&counters->request_us);
	now->read_us = pg_atomic_read_u64(&counters->read_us);
}

static void
la_window_subtract(LaWindowCounters *result, const LaWindowCounters *late,
				   const LaWindowCounters *early)
{
	result->done = late->done - early->done;
	result->blocks = late->blocks - early->blocks;
	result->reads = late->reads - early->reads;
	result->request_us = late->request_us - early->request_us;
	result->read_us = late->read_us - early->read_us;
}

/*
 * Close the interval if it began so many status_intervals ago.  Returns true if
 * nothing has happened in it.
 *
 * The worker and readers may come at the same moment: who took the time before
 * the other closed it finds that the new one has only begun.
 */
static bool
la_interval_close(LaWorker *worker, int nintervals)
{
	uint64		now_us = la_now_us();
	uint64		least_us = (uint64) la_status_interval * 1000 * nintervals;
	LaWindowCounters now;
	bool		is_quiet = false;

	la_read_window_counters(worker, &now);
	SpinLockAcquire(&worker->window_mutex);
	if (now_us >= worker->window_start_us + least_us)
	{
		la_window_subtract(&worker->last, &now, &worker->at_start);
		worker->last_us = now_us - worker->window_start_us;
		worker->at_start = now;
		worker->window_start_us = now_us;
		is_quiet = worker->last.done == 0 && worker->last.reads == 0;
	}
	SpinLockRelease(&worker->window_mutex);
	return is_quiet;
}

/*
 * Close the interval if it is over.  Called by the worker itself.  Returns true
 * if nothing has happened since the last one that is shown, so that a worker
 * without work may sleep for long.
 */
bool
la_status_turn(LaWorker *worker)
{
	return la_interval_close(worker, 1);
}

/*
 * What a worker did lately, and in how many microseconds: nothing if it does
 * not run.
 */
static void
la_interval_read(LaWorker *worker, LaWindowCounters *last, uint64 *us)
{
	memset(last, 0, sizeof(*last));
	*us = 1;
	if (worker->pid == 0)
		return;
	/* Twice as long: a worker that is well closes it itself before that. */
	(void) la_interval_close(worker, 2);
	SpinLockAcquire(&worker->window_mutex);
	*last = worker->last;
	*us = Max(worker->last_us, 1);
	SpinLockRelease(&worker->window_mutex);
}

/*
 * A worker that has slept for long begins its interval only now: one with the
 * sleep in it would make the work to come look slow.  The counters are still
 * those of its start.
 */
void
la_status_begin(LaWorker *worker)
{
	uint64		now_us = la_now_us();

	SpinLockAcquire(&worker->window_mutex);
	worker->window_start_us = now_us;
	SpinLockRelease(&worker->window_mutex);
}

static void
la_require_service(void)
{
	if (la_service == NULL)
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("the I/O service is not running"),
				 errhint("Add \"pg_lookahead\" to shared_preload_libraries, set "
						 "pg_lookahead.io_workers above 0 and restart the server.")));
}

static uint64
la_average(uint64 sum, uint64 n)
{
	return n == 0 ? 0 : (sum + n / 2) / n;
}

static Datum
la_int4(uint64 n)
{
	return Int32GetDatum((int32) Min(n, (uint64) PG_INT32_MAX));
}

static Datum
la_milliseconds(pg_atomic_uint64 *us)
{
	return Float8GetDatum(pg_atomic_read_u64(us) / 1000.0);
}

/*
 * ios_status() -> one row
 */
Datum
pg_lookahead_ios_status(PG_FUNCTION_ARGS)
{
	Datum		values[12];
	bool		nulls[12] = {false};
	TupleDesc	desc;
	LaWindowCounters all = {0};
	LaWindowCounters last = {0};
	uint64		requests = 0;
	uint64		dropped = 0;
	uint64		merged = 0;
	uint64		asked = 0;
	uint64		depth = 0;
	uint64		ring = 0;
	uint64		blocks_ps = 0;
	uint64		reads_ps = 0;
	int			running = 0;

	la_require_service();
	desc = la_row_desc(fcinfo, lengthof(values));

	for (int i = 0; i < la_service->nworkers; i++)
	{
		LaWorker   *worker = &la_service->workers[i];
		LaWindowCounters now;
		LaWindowCounters window;
		uint64		us;

		la_read_window_counters(worker, &now);
		la_interval_read(worker, &window, &us);
		if (worker->pid != 0)
			running++;
		all.done += now.done;
		all.reads += now.reads;
		all.request_us += now.request_us;
		all.read_us += now.read_us;
		last.done += window.done;
		last.reads += window.reads;
		last.request_us += window.request_us;
		last.read_us += window.read_us;
		blocks_ps += window.blocks * 1000000 / us;
		reads_ps += window.reads * 1000000 / us;
		/* In this order, or more may be dropped than asked for. */
		dropped += pg_atomic_read_u64(&worker->counters.dropped);
		merged += pg_atomic_read_u64(&worker->counters.merged);
		requests += pg_atomic_read_u64(&worker->counters.requests);
		asked += pg_atomic_read_u64(&worker->counters.asked);
		depth += la_queue_depth(worker);
		ring += pg_atomic_read_u32(&worker->ring_blocks) * sizeof(Buffer);
	}

	values[0] = Int32GetDatum(running);
	values[1] = Int64GetDatum((int64) requests);
	values[2] = Int64GetDatum((int64) (requests - dropped));
	values[3] = la_int4(la_average(asked, requests - dropped - merged));
	values[4] = la_int4(la_average(all.request_us, all.done));
	values[5] = la_int4(la_average(all.read_us, all.reads));
	values[6] = la_int4(la_average(last.request_us, last.done));
	values[7] = la_int4(la_average(last.read_us, last.reads));
	values[8] = la_int4(blocks_ps);
	values[9] = la_int4(reads_ps);
	values[10] = la_int4(depth);
	values[11] = la_int4(ring);
	PG_RETURN_DATUM(HeapTupleGetDatum(heap_form_tuple(desc, values, nulls)));
}

/*
 * pg_lookahead_io() -> a row for each worker, for pg_stat_lookahead_io
 */
Datum
pg_lookahead_io(PG_FUNCTION_ARGS)
{
	ReturnSetInfo *rsinfo;

	la_require_service();
	rsinfo = la_rows_begin(fcinfo, LA_IO_COLUMNS);
	for (int i = 0; i < la_service->nworkers; i++)
	{
		LaWorker   *worker = &la_service->workers[i];
		LaWorkerCounters *c = &worker->counters;
		pg_atomic_uint64 *bigints[] = {
			&c->requests, &c->merged, &c->dropped, &c->done, &c->stale,
			&c->locked, &c->passed, &c->hits, &c->blocks, &c->reads,
			&c->errors
		};
		Datum		values[LA_IO_COLUMNS];
		bool		nulls[LA_IO_COLUMNS] = {false};
		int			n = 0;
		int			pid = worker->pid;

		values[n++] = Int32GetDatum(i);
		nulls[n] = pid == 0;
		values[n++] = Int32GetDatum(pid);
		for (int j = 0; j < (int) lengthof(bigints); j++)
			values[n++] = Int64GetDatum((int64) pg_atomic_read_u64(bigints[j]));
		values[n++] = la_milliseconds(&c->request_us);
		values[n++] = la_milliseconds(&c->read_us);
		values[n++] = Int32GetDatum(la_queue_depth(worker));
		values[n++] = la_int4(pg_atomic_read_u32(&worker->ring_blocks));
		Assert(n == lengthof(values));
		tuplestore_putvalues(rsinfo->setResult, rsinfo->setDesc, values, nulls);
	}
	return (Datum) 0;
}

/*
 * pg_lookahead_owners() -> a row for each scan that has a slot of the service,
 * for pg_stat_lookahead_owners
 */
Datum
pg_lookahead_owners(PG_FUNCTION_ARGS)
{
	ReturnSetInfo *rsinfo;

	la_require_service();
	rsinfo = la_rows_begin(fcinfo, LA_OWNER_COLUMNS);
	for (int i = 0; i < LA_MAX_OWNERS; i++)
	{
		LaOwner    *owner = &la_service->owners[i];
		uint32		generation = pg_atomic_read_u32(&owner->generation);
		LaTarget	target;
		int			pid;
		Datum		values[LA_OWNER_COLUMNS];
		bool		nulls[LA_OWNER_COLUMNS] = {false};

		pg_read_barrier();
		target = owner->target;
		pid = owner->pid;
		pg_read_barrier();
		if ((generation & 1) == 0 ||
			pg_atomic_read_u32(&owner->generation) != generation)
			continue;
		values[0] = Int32GetDatum(pid);
		values[1] = ObjectIdGetDatum(target.dbid);
		values[2] = ObjectIdGetDatum(target.relid);
		values[3] = Int64GetDatum((int64) pg_atomic_read_u64(&owner->position));
		values[4] = Int64GetDatum((int64) pg_atomic_read_u64(&owner->frontier));
		tuplestore_putvalues(rsinfo->setResult, rsinfo->setDesc, values, nulls);
	}
	return (Datum) 0;
}
