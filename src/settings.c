/*-------------------------------------------------------------------------
 *
 * settings.c
 *	  Every setting of pg_lookahead, in alphabetical order.
 *
 * Those of scans are USERSET: look-ahead reads only what the session's own
 * query is about to read, so the caller pays for a bad choice.  (Space that is
 * made in advance and methods with workers reach further, if not far; see
 * docs/reference.md.)  They are read when a scan starts, starts again, or fills
 * a window.  Which access methods may be scanned twice is SUSET: that is a
 * question of right answers.  Those of the I/O service are SIGHUP, because its
 * workers serve everybody; how many there are is fixed when the server starts.
 *
 * Each has a row in docs/reference.md; a test compares the two lists.
 *
 * Copyright (c) 2026, the pg_lookahead authors
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "compat.h"
#include "service/lookup.h"
#include "service/service.h"
#include "settings.h"
#include "utils/builtins.h"
#include "utils/guc.h"
#include "utils/varlena.h"

bool		la_bitmapscan = true;
bool		la_enabled = true;
int			la_heap_extend_size = LA_DEFAULT_HEAP_EXTEND_SIZE;
char	   *la_index_access_methods = NULL;
int			la_index_extend_size = LA_DEFAULT_INDEX_EXTEND_SIZE;
bool		la_leafscan = true;
bool		la_seqscan = true;
bool		la_maintenance = true;
int			la_io_workers = LA_DEFAULT_IO_WORKERS;
int			la_io_batch_size = LA_DEFAULT_IO_BATCH_SIZE;
int			la_max_requests_per_worker = LA_DEFAULT_REQUESTS;
int			la_ring_size = LA_DEFAULT_RING_SIZE;
int			la_protect_time = LA_DEFAULT_PROTECT_TIME;
int			la_status_interval = LA_DEFAULT_STATUS_INTERVAL;
int			la_min_table_size = LA_DEFAULT_MIN_TABLE_SIZE;
int			la_parallel_chunk_size = 0;
int			la_method = LA_METHOD_AUTO;
int			la_max_distance = LA_DEFAULT_MAX_DISTANCE;
int			la_io_concurrency = LA_DEFAULT_IO_CONCURRENCY;
int			la_start_after = LA_DEFAULT_START_AFTER;
int			la_vacuum_buffer_usage_limit = LA_DEFAULT_VACUUM_LIMIT;
int			la_write_combine_size = LA_DEFAULT_WRITE_COMBINE_SIZE;

/*
 * Where the library is not preloaded a setting that needs a restart cannot be
 * defined any more, and has no effect; but it may be in the configuration file.
 */
#define LA_PGC_RESTART \
	(process_shared_preload_libraries_in_progress ? PGC_POSTMASTER : PGC_SIGHUP)

static const struct config_enum_entry la_method_options[] =
{
	{"auto", LA_METHOD_AUTO, false},
	{"advice", LA_METHOD_ADVICE, false},
	{"aio", LA_METHOD_AIO, false},
	{"worker", LA_METHOD_WORKER, false},
	{"none", LA_METHOD_NONE, false},
	{NULL, 0, false}
};

/*
 * Refuse a method that this server cannot have.
 *
 * Where the method exists but cannot serve (advice under direct I/O), the
 * setting is accepted and method.c falls back: the storage mode is not known
 * for certain at the time a configuration file is read.
 */
static bool
la_check_method(int *newval, void **extra, GucSource source)
{
	if (*newval == LA_METHOD_AIO && !LA_HAVE_AIO)
	{
		GUC_check_errdetail("Method \"aio\" needs the asynchronous I/O of PostgreSQL 18 or later.");
		GUC_check_errhint("Use \"auto\" or \"advice\".");
		return false;
	}
	return true;
}

/*
 * Is this name in a list of names?  Returns false, too, if it is not a list.
 */
static bool
la_is_in_list(const char *list, const char *wanted, bool *is_list)
{
	char	   *copy = pstrdup(list);
	List	   *names;
	ListCell   *cell;
	bool		found = false;

	*is_list = SplitIdentifierString(copy, ',', &names);
	if (*is_list)
		foreach(cell, names)
			found = found || strcmp(lfirst(cell), wanted) == 0;
	list_free(names);
	pfree(copy);
	return found;
}

/*
 * Refuse what is no list of names.  Whether there are such access methods is
 * not asked: a list may be good for several databases.
 */
static bool
la_check_index_access_methods(char **newval, void **extra, GucSource source)
{
	bool		is_list;

	(void) la_is_in_list(*newval, "", &is_list);
	if (!is_list)
		GUC_check_errdetail("List syntax is invalid.");
	return is_list;
}

/*
 * May scans of this index access method of another extension be run twice?
 */
bool
la_index_access_method_is_listed(const char *name)
{
	bool		is_list;

	return la_is_in_list(la_index_access_methods, name, &is_list);
}

/*
 * The session's commands are followed from outside, or not.
 */
static void
la_assign_enabled(bool newval, void *extra)
{
	la_watcher_decline(!newval);
}

/*
 * Define the settings and reserve their prefix.  Called once per process.
 */
void
la_settings_define(void)
{
	DefineCustomBoolVariable("pg_lookahead.bitmapscan",
							 "Enables look-ahead for bitmap heap scans.",
							 "An effective_io_concurrency of 0 switches it off, too.",
							 &la_bitmapscan,
							 true,
							 PGC_USERSET,
							 0,
							 NULL, NULL, NULL);

	DefineCustomBoolVariable("pg_lookahead.enabled",
							 "Enables look-ahead in this session.",
							 "If off, no scan or command is followed, nothing is read ahead, no "
							 "space is made in advance and VACUUM has the server's ring. "
							 "Queries that are already running keep what they have.",
							 &la_enabled,
							 true,
							 PGC_USERSET,
							 0,
							 NULL, la_assign_enabled, NULL);

	DefineCustomIntVariable("pg_lookahead.heap_extend_size",
							"Sets the space by which a table that is being filled grows at once.",
							"A table grows by a sixteenth of its size at most, under COPY by "
							"a little more, and under 2 MB only by what it needs. 0 leaves "
							"it to the server.",
							&la_heap_extend_size,
							LA_DEFAULT_HEAP_EXTEND_SIZE,
							0,
							LA_MAX_HEAP_EXTEND_SIZE,
							PGC_USERSET,
							GUC_UNIT_BLOCKS,
							NULL, NULL, NULL);

	DefineCustomStringVariable("pg_lookahead.index_access_methods",
							   "Sets the index access methods of other extensions whose scans are looked ahead of.",
							   "Their indexes are scanned a second time beside the query's scan, "
							   "which must not change what the query finds. The server's own "
							   "access methods need not be listed.",
							   &la_index_access_methods,
							   LA_DEFAULT_INDEX_ACCESS_METHODS,
							   PGC_SUSET,
							   GUC_LIST_INPUT,
							   la_check_index_access_methods, NULL, NULL);

	DefineCustomIntVariable("pg_lookahead.index_extend_size",
							"Sets the space that is allocated at once for an index that is being built.",
							"The index gets no larger. Where allocating space costs "
							"next to nothing it is not done. 0 switches it off.",
							&la_index_extend_size,
							LA_DEFAULT_INDEX_EXTEND_SIZE,
							0,
							LA_MAX_INDEX_EXTEND_SIZE,
							PGC_USERSET,
							GUC_UNIT_BLOCKS,
							NULL, NULL, NULL);

	DefineCustomIntVariable("pg_lookahead.io_batch_size",
							"Sets the largest number of blocks that a worker of the I/O service reads at once.",
							"Before 17 blocks are read one by one, and the kernel is advised "
							"of the whole request first.",
							&la_io_batch_size,
							LA_DEFAULT_IO_BATCH_SIZE,
							LA_MIN_IO_BATCH_SIZE,
							LA_MAX_IO_BATCH_SIZE,
							PGC_SIGHUP,
							GUC_UNIT_BLOCKS,
							NULL, NULL, NULL);

	DefineCustomIntVariable("pg_lookahead.io_concurrency",
							"Sets the number of reads that one scan keeps in flight.",
							"Used by method \"aio\". The server's io_max_concurrency "
							"limits it further.",
							&la_io_concurrency,
							LA_DEFAULT_IO_CONCURRENCY,
							LA_MIN_IO_CONCURRENCY,
							LA_MAX_IO_CONCURRENCY,
							PGC_USERSET,
							0,
							NULL, NULL, NULL);

	DefineCustomIntVariable("pg_lookahead.io_workers",
							"Sets the number of workers of the I/O service.",
							"If zero there is no I/O service; -1 means 2, or none on 18. "
							"Takes as many of max_worker_processes, and one more before 18; works only if "
							"the library is in shared_preload_libraries.",
							&la_io_workers,
							LA_DEFAULT_IO_WORKERS,
							LA_MIN_IO_WORKERS,
							LA_MAX_IO_WORKERS,
							LA_PGC_RESTART,
							0,
							NULL, NULL, NULL);

	DefineCustomBoolVariable("pg_lookahead.leafscan",
							 "Enables look-ahead for the leaf pages of B-tree indexes.",
							 "Used by index scans, index-only scans and bitmap index scans.",
							 &la_leafscan,
							 true,
							 PGC_USERSET,
							 0,
							 NULL, NULL, NULL);

	DefineCustomBoolVariable("pg_lookahead.maintenance",
							 "Enables look-ahead for VACUUM, ANALYZE, index builds, CLUSTER and COPY TO.",
							 "Works on 15 to 17 and needs the I/O service; later servers "
							 "read ahead themselves.",
							 &la_maintenance,
							 true,
							 PGC_SIGHUP,
							 0,
							 NULL, NULL, NULL);

	DefineCustomIntVariable("pg_lookahead.max_distance",
							"Sets the largest number of blocks that one index scan looks ahead.",
							"A scan starts with a few blocks and doubles while it still "
							"waits for storage. Raise it for storage with a high latency "
							"and a high throughput.",
							&la_max_distance,
							LA_DEFAULT_MAX_DISTANCE,
							LA_MIN_MAX_DISTANCE,
							LA_MAX_MAX_DISTANCE,
							PGC_USERSET,
							GUC_UNIT_BLOCKS,
							NULL, NULL, NULL);

	DefineCustomIntVariable("pg_lookahead.max_requests_per_worker",
							"Sets the largest number of requests that wait for one worker of the I/O service.",
							"Further ones are dropped and counted; the kernel is advised of "
							"those blocks, or the scan reads them itself.",
							&la_max_requests_per_worker,
							LA_DEFAULT_REQUESTS,
							LA_MIN_REQUESTS,
							LA_MAX_REQUESTS,
							PGC_SIGHUP,
							0,
							NULL, NULL, NULL);

	DefineCustomEnumVariable("pg_lookahead.method",
							 "Sets how blocks are read ahead.",
							 "\"auto\" picks by server, storage mode and table. \"advice\" "
							 "asks the kernel to read into its page cache, \"aio\" uses the "
							 "server's asynchronous I/O (18 and later), \"worker\" has the "
							 "workers of the I/O service read into shared buffers, \"none\" "
							 "decides what to read but reads nothing.",
							 &la_method,
							 LA_METHOD_AUTO,
							 la_method_options,
							 PGC_USERSET,
							 0,
							 la_check_method, NULL, NULL);

	DefineCustomIntVariable("pg_lookahead.min_table_size",
							"Sets the size from which on a table's sequential scans are looked ahead for.",
							"Smaller tables are read before look-ahead would be of use; lower it for "
							"storage with a high latency.",
							&la_min_table_size,
							LA_DEFAULT_MIN_TABLE_SIZE,
							LA_MIN_MIN_TABLE_SIZE,
							LA_MAX_MIN_TABLE_SIZE,
							PGC_USERSET,
							GUC_UNIT_BLOCKS,
							NULL, NULL, NULL);

	DefineCustomIntVariable("pg_lookahead.parallel_chunk_size",
							"Sets the number of blocks that a process of a parallel sequential scan takes at a time.",
							"If zero, what the server takes, but no more than 128 blocks.",
							&la_parallel_chunk_size,
							0,
							0,
							LA_MAX_PARALLEL_CHUNK_SIZE,
							PGC_USERSET,
							GUC_UNIT_BLOCKS,
							NULL, NULL, NULL);

	DefineCustomIntVariable("pg_lookahead.protect_time",
							"Sets the time for which blocks that were read for a scan are kept for it.",
							"A scan that does not move for longer than this gives its share "
							"of the buffer ring to others.",
							&la_protect_time,
							LA_DEFAULT_PROTECT_TIME,
							LA_MIN_PROTECT_TIME,
							LA_MAX_PROTECT_TIME,
							PGC_SIGHUP,
							GUC_UNIT_MS,
							NULL, NULL, NULL);

	DefineCustomIntVariable("pg_lookahead.ring_size",
							"Sets the size of the buffer ring that the workers of the I/O service share.",
							"It bounds what is read ahead of sequential scans and commands "
							"together. No worker's share is more than an eighth of "
							"shared_buffers.",
							&la_ring_size,
							LA_DEFAULT_RING_SIZE,
							LA_MIN_RING_SIZE,
							LA_MAX_RING_SIZE,
							PGC_SIGHUP,
							GUC_UNIT_KB,
							NULL, NULL, NULL);

	DefineCustomBoolVariable("pg_lookahead.seqscan",
							 "Enables look-ahead for sequential scans.",
							 "Works on 15 to 17; later servers read sequential scans ahead "
							 "themselves.",
							 &la_seqscan,
							 true,
							 PGC_USERSET,
							 0,
							 NULL, NULL, NULL);

	DefineCustomIntVariable("pg_lookahead.start_after",
							"Sets the number of table blocks a scan visits before look-ahead may start.",
							"Look-ahead starts only if the scan was also seen waiting for "
							"storage. If zero, it starts at the first row of every scan "
							"and without any wait, which is meant for tests.",
							&la_start_after,
							LA_DEFAULT_START_AFTER,
							LA_MIN_START_AFTER,
							LA_MAX_START_AFTER,
							PGC_USERSET,
							0,
							NULL, NULL, NULL);

	DefineCustomIntVariable("pg_lookahead.status_interval",
							"Sets the interval that the recent figures of ios_status() are of.",
							"Those are the columns whose names end in \"_ps\".",
							&la_status_interval,
							LA_DEFAULT_STATUS_INTERVAL,
							LA_MIN_STATUS_INTERVAL,
							LA_MAX_STATUS_INTERVAL,
							PGC_SIGHUP,
							GUC_UNIT_MS,
							NULL, NULL, NULL);

	DefineCustomIntVariable("pg_lookahead.vacuum_buffer_usage_limit",
							"Sets the size of the buffer ring of VACUUM for tables that are larger.",
							"Used where vacuum_buffer_usage_limit has its default and the "
							"statement does not say BUFFER_USAGE_LIMIT; not by autovacuum. On "
							"15 it is 16 MB, or what the server takes if this is less.",
							&la_vacuum_buffer_usage_limit,
							LA_DEFAULT_VACUUM_LIMIT,
							0,
							LA_MAX_VACUUM_LIMIT,
							PGC_USERSET,
							GUC_UNIT_KB,
							NULL, NULL, NULL);

	DefineCustomIntVariable("pg_lookahead.write_combine_size",
							"Sets how much of what a statement has filled is written out with one call.",
							"Where rows fill a table faster than it is written out by others. "
							"PostgreSQL 17 and later. 0 leaves it to the server, page by page.",
							&la_write_combine_size,
							LA_DEFAULT_WRITE_COMBINE_SIZE,
							0,
							LA_MAX_WRITE_COMBINE_SIZE,
							PGC_USERSET,
							GUC_UNIT_BLOCKS,
							NULL, NULL, NULL);

	MarkGUCPrefixReserved("pg_lookahead");
}
