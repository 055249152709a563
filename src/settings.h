/*-------------------------------------------------------------------------
 *
 * settings.h
 *	  The settings pg_lookahead.*, as variables.
 *
 * settings.c defines and documents them.  Everybody may read them; only the
 * server's GUC machinery writes them.
 *
 * Copyright (c) 2026, the pg_lookahead authors
 *
 *-------------------------------------------------------------------------
 */
#ifndef LA_SETTINGS_H
#define LA_SETTINGS_H

/* Values of pg_lookahead.method; LA_METHOD_AUTO is resolved in method.c. */
typedef enum LaMethodId
{
	LA_METHOD_AUTO,
	LA_METHOD_ADVICE,
	LA_METHOD_AIO,
	LA_METHOD_WORKER,
	LA_METHOD_NONE,
} LaMethodId;

#define LA_DEFAULT_MAX_DISTANCE		256
#define LA_MIN_MAX_DISTANCE			8
#define LA_MAX_MAX_DISTANCE			4096

#define LA_DEFAULT_IO_CONCURRENCY	64
#define LA_MIN_IO_CONCURRENCY		1
#define LA_MAX_IO_CONCURRENCY		1000

#define LA_DEFAULT_START_AFTER		8
#define LA_MIN_START_AFTER			0
#define LA_MAX_START_AFTER			1000000

/* -1: the usual number before 18, none from 18 on, which reads ahead itself. */
#define LA_DEFAULT_IO_WORKERS		-1
#define LA_MIN_IO_WORKERS			-1
#define LA_MAX_IO_WORKERS			32
#define LA_USUAL_IO_WORKERS			2

#define LA_DEFAULT_IO_BATCH_SIZE	16
#define LA_MIN_IO_BATCH_SIZE		1
#define LA_MAX_IO_BATCH_SIZE		32

#define LA_DEFAULT_REQUESTS			256
#define LA_MIN_REQUESTS				16
#define LA_MAX_REQUESTS				1024

#define LA_DEFAULT_RING_SIZE		65536
#define LA_MIN_RING_SIZE			1024
#define LA_MAX_RING_SIZE			16777216

#define LA_DEFAULT_MIN_TABLE_SIZE	131072
#define LA_MIN_MIN_TABLE_SIZE		1024
#define LA_MAX_MIN_TABLE_SIZE		2147483647

#define LA_MAX_PARALLEL_CHUNK_SIZE	8192

#define LA_DEFAULT_PROTECT_TIME		1000
#define LA_MIN_PROTECT_TIME			1
#define LA_MAX_PROTECT_TIME			3600000

#define LA_DEFAULT_STATUS_INTERVAL	1000
#define LA_MIN_STATUS_INTERVAL		100
#define LA_MAX_STATUS_INTERVAL		60000

#define LA_DEFAULT_HEAP_EXTEND_SIZE	512
#define LA_MAX_HEAP_EXTEND_SIZE		8192
#define LA_DEFAULT_INDEX_ACCESS_METHODS	"hnsw, ivfflat"
#define LA_DEFAULT_INDEX_EXTEND_SIZE	512
#define LA_MAX_INDEX_EXTEND_SIZE	8192

#define LA_DEFAULT_VACUUM_LIMIT		16384
#define LA_MAX_VACUUM_LIMIT			16777216

/* Not above what the storage manager takes in one call: PG_IOV_MAX of 17. */
#define LA_MAX_WRITE_COMBINE_SIZE	32
#define LA_DEFAULT_WRITE_COMBINE_SIZE	32

extern bool la_bitmapscan;
extern bool la_enabled;
extern int	la_heap_extend_size;	/* blocks, 0: off */
extern char *la_index_access_methods;	/* names, separated by commas */
extern int	la_index_extend_size;	/* blocks, 0: off */
extern bool la_leafscan;
extern bool la_seqscan;
extern bool la_maintenance;
extern int	la_io_workers;		/* processes, -1: see above */
extern int	la_io_batch_size;	/* blocks */
extern int	la_max_requests_per_worker;
extern int	la_ring_size;		/* kB */
extern int	la_protect_time;	/* ms */
extern int	la_status_interval; /* ms */
extern int	la_min_table_size;	/* blocks */
extern int	la_parallel_chunk_size; /* blocks, 0: the server's, or 128 */
extern int	la_method;			/* a LaMethodId */
extern int	la_max_distance;	/* blocks */
extern int	la_io_concurrency;	/* reads */
extern int	la_start_after;		/* heap block switches */
extern int	la_vacuum_buffer_usage_limit;	/* kB, 0: the server's */
extern int	la_write_combine_size;	/* blocks, 0: off */

extern bool la_index_access_method_is_listed(const char *name);
extern void la_settings_define(void);

#endif							/* LA_SETTINGS_H */
