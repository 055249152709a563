/*-------------------------------------------------------------------------
 *
 * compat.h
 *	  The differences between the supported servers, PostgreSQL 15 to 18.
 *
 * This is the only file that looks at PG_VERSION_NUM.  The rest of the code is
 * written against the newest server; what older ones lack is back-filled here
 * under the new name, and what behaves differently gets a wrapper la_*_compat.
 *
 * Capabilities are macros that are always defined, as 0 or 1:
 *
 *	LA_HAVE_AIO			StartReadBuffers() starts I/O that runs on its own (18)
 *	LA_HAVE_BITMAP_STREAM	bitmap heap scans have a stream (18); before
 *						that, the node itself advises the kernel
 *	LA_HAVE_NODE_HOOK	EXPLAIN calls us for each plan node (18)
 *	LA_HAVE_DIRECT_IO	debug_io_direct exists (16)
 *	LA_HAVE_SIZED_RING	buffer rings can be of any size (16)
 *	LA_HAVE_READ_BUFFERS	StartReadBuffers() reads several blocks at once (17)
 *	LA_HAVE_RANGE_ADVICE	the storage manager advises several at once (17)
 *	LA_HAVE_SEQ_STREAM	sequential scans are read ahead by the server (18)
 *	LA_HAVE_EXTEND_BY	a table can grow by several pages at once, and insert
 *						states know of further pages (16)
 *	LA_HAVE_WRITE_RUNS	the storage manager writes several pages at once (17)
 *	LA_HAVE_SKIP_SCANS	B-tree makes keys for columns that have none (18)
 *
 * Copyright (c) 2026, the pg_lookahead authors
 *
 *-------------------------------------------------------------------------
 */
#ifndef LA_COMPAT_H
#define LA_COMPAT_H

#include "access/relscan.h"
#include "commands/explain.h"
#include "executor/executor.h"
#include "funcapi.h"
#include "miscadmin.h"
#include "nodes/execnodes.h"
#include "nodes/tidbitmap.h"
#include "pgstat.h"
#include "storage/buf_internals.h"
#include "storage/bufmgr.h"
#include "storage/condition_variable.h"
#include "storage/fd.h"
#include "storage/proc.h"
#include "storage/smgr.h"
#include "tcop/tcopprot.h"
#include "utils/guc.h"
#include "utils/rel.h"

#if PG_VERSION_NUM < 150000 || PG_VERSION_NUM >= 190000
#error "pg_lookahead supports PostgreSQL 15, 16, 17 and 18"
#endif

/*
 * 18: the server's own asynchronous I/O.
 */
#if PG_VERSION_NUM >= 180000
#define LA_HAVE_AIO 1
#include "storage/aio.h"
#include "storage/aio_subsys.h"
#else
#define LA_HAVE_AIO 0
#endif

/*
 * 17 reads sequential scans in pieces of up to 16 blocks, but waits for each;
 * 18 reads them ahead.
 */
#define LA_HAVE_SEQ_STREAM LA_HAVE_AIO

/*
 * 18: EXPLAIN's hooks and its split headers.
 */
#if PG_VERSION_NUM >= 180000
#define LA_HAVE_NODE_HOOK 1
#include "commands/explain_format.h"
#include "commands/explain_state.h"
#else
#define LA_HAVE_NODE_HOOK 0
#endif

/*
 * 18 made the executor's "once" argument go away.
 */
#if PG_VERSION_NUM >= 180000
#define LA_RUN_PARAMS QueryDesc *queryDesc, ScanDirection direction, \
	uint64 count
#define LA_RUN_ARGS queryDesc, direction, count
#else
#define LA_RUN_PARAMS QueryDesc *queryDesc, ScanDirection direction, \
	uint64 count, bool execute_once
#define LA_RUN_ARGS queryDesc, direction, count, execute_once
#endif

/*
 * 17 replaced backend ids by process numbers.  The leader of a parallel query
 * is what we need: the slot of the process that asked for the plan.
 */
#if PG_VERSION_NUM >= 170000
#include "storage/procnumber.h"
#define la_leader_slot() ((int) ProcNumberForTempRelations())
#else
#include "storage/backendid.h"
#define la_leader_slot() ((int) BackendIdForTempRelations())
#endif

/*
 * 16 renamed the physical identity of a relation.
 */
#if PG_VERSION_NUM < 160000
#define InitBufferTag(tag, locator, fork, block) \
	INIT_BUFFERTAG(*(tag), *(locator), fork, block)
#define BufferTagsEqual(a, b) BUFFERTAGS_EQUAL(*(a), *(b))
#define RelFileLocator RelFileNode
#define RelFileLocatorEquals(a, b) RelFileNodeEquals(a, b)
#define la_rel_locator(rel) (&(rel)->rd_node)
#else
#define la_rel_locator(rel) (&(rel)->rd_locator)
#endif

/*
 * The name of the first file of a relation that is not temporary, in the
 * current memory context.  18 returns it in a structure.
 */
#if PG_VERSION_NUM >= 180000
#define la_locator_path(locator) pstrdup(relpathperm(locator, MAIN_FORKNUM).str)
#else
#define la_locator_path(locator) relpathperm(locator, MAIN_FORKNUM)
#endif
#define la_rel_path(rel) la_locator_path(*la_rel_locator(rel))

/*
 * 16 brought direct I/O for data files.  Kernel advice is useless with it.
 */
#if PG_VERSION_NUM >= 160000
#define LA_HAVE_DIRECT_IO 1
#define la_direct_io() ((io_direct_flags & IO_DIRECT_DATA) != 0)
#else
#define LA_HAVE_DIRECT_IO 0
#define la_direct_io() (false)
#endif

/*
 * Advise the kernel of a run of blocks of one relation.
 *
 * From 17 the storage manager takes the whole run in one call; before, it
 * takes one block, and the kernel sees as many calls as there are blocks.
 */
static inline void
la_smgr_prefetch(SMgrRelation smgr, ForkNumber fork, BlockNumber first,
				 int nblocks)
{
#if PG_VERSION_NUM >= 170000
	(void) smgrprefetch(smgr, fork, first, nblocks);
#else
	for (int i = 0; i < nblocks; i++)
		(void) smgrprefetch(smgr, fork, first + i);
#endif
}

/* Blocks that la_smgr_read() reads at the most. */
#define LA_SMGR_READ_MAX	16

/*
 * Read blocks past shared buffers.
 */
static inline void
la_smgr_read(SMgrRelation smgr, ForkNumber fork, BlockNumber first,
			 int nblocks, char *buffer)
{
#if PG_VERSION_NUM >= 170000
	void	   *places[LA_SMGR_READ_MAX];

	Assert(nblocks <= LA_SMGR_READ_MAX);
	for (int i = 0; i < nblocks; i++)
		places[i] = buffer + (Size) i * BLCKSZ;
	smgrreadv(smgr, fork, first, places, nblocks);
#else
	for (int i = 0; i < nblocks; i++)
		smgrread(smgr, fork, first + i, buffer + (Size) i * BLCKSZ);
#endif
}

/*
 * 17 reads and advises several blocks in one call; its name for the member that
 * says how a relation persists was changed in 18.
 */
#if PG_VERSION_NUM >= 170000
#define LA_HAVE_READ_BUFFERS 1
#define LA_HAVE_RANGE_ADVICE 1
#else
#define LA_HAVE_READ_BUFFERS 0
#define LA_HAVE_RANGE_ADVICE 0
#endif
#if PG_VERSION_NUM >= 180000
#define la_set_persistence(read, p) ((read)->persistence = (p))
#elif PG_VERSION_NUM >= 170000
#define la_set_persistence(read, p) ((read)->smgr_persistence = (p))
#endif

/*
 * From 18 on a read may be left to another process; LA_READ_HERE says that it
 * is waited for at once.
 */
#if PG_VERSION_NUM >= 180000
#define LA_READ_HERE READ_BUFFERS_SYNCHRONOUSLY
#else
#define LA_READ_HERE 0
#endif

/*
 * The physical identity of a relation that no relation cache entry stands for.
 */
#if PG_VERSION_NUM >= 170000
#define la_smgropen(locator) smgropen((locator), INVALID_PROC_NUMBER)
#else
#define la_smgropen(locator) smgropen((locator), InvalidBackendId)
#endif
#if PG_VERSION_NUM >= 160000
#define la_smgr_locator(smgr) ((smgr)->smgr_rlocator)
#else
#define la_smgr_locator(smgr) ((smgr)->smgr_rnode)
#endif
#if PG_VERSION_NUM >= 170000
#define la_smgr_close_all() smgrdestroyall()
#else
#define la_smgr_close_all() smgrcloseall()
#endif

/*
 * 16 made rings of any size.
 */
#if PG_VERSION_NUM >= 160000
#define LA_HAVE_SIZED_RING 1
#define la_bulk_read_strategy(nblocks) \
	GetAccessStrategyWithSize(BAS_BULKREAD, (nblocks) * (BLCKSZ / 1024))
#else
#define LA_HAVE_SIZED_RING 0
#define la_bulk_read_strategy(nblocks) GetAccessStrategy(BAS_BULKREAD)
#endif

/*
 * What a buffer ring is, which only freelist.c knows.  15 keeps there, too,
 * whether the last buffer was the ring's own.  See service/ring.c.
 */
typedef struct LaStrategy
{
	BufferAccessStrategyType btype;
	int			nbuffers;
	int			current;		/* the place whose buffer was taken last */
#if !LA_HAVE_SIZED_RING
	bool		current_was_in_ring;
#endif
	Buffer		buffers[FLEXIBLE_ARRAY_MEMBER];
} LaStrategy;

/*
 * The ring of VACUUM, and what a larger one may have, in kilobytes.  Before 16
 * it has a fixed size that is small; the only larger one, which differs in
 * nothing else, is the one of bulk writes.
 */
#if PG_VERSION_NUM >= 160000
#if PG_VERSION_NUM >= 170000
#define LA_SERVERS_VACUUM_KB 2048
#else
#define LA_SERVERS_VACUUM_KB 256
#endif

#define LA_LEAST_VACUUM_KB 0
#define LA_MOST_VACUUM_KB INT_MAX
#define la_vacuum_strategy(kb) GetAccessStrategyWithSize(BAS_VACUUM, kb)

/*
 * Has nobody asked for another ring than the server makes by itself?
 */
static inline bool
la_is_servers_vacuum_ring(BufferAccessStrategy strategy)
{
	return strategy != NULL &&
		VacuumBufferUsageLimit == LA_SERVERS_VACUUM_KB &&
		GetAccessStrategyBufferCount(strategy) <=
		LA_SERVERS_VACUUM_KB / (BLCKSZ / 1024);
}
#else
#define LA_SERVERS_VACUUM_KB 256
#define LA_LEAST_VACUUM_KB (16 * 1024)
#define LA_MOST_VACUUM_KB LA_LEAST_VACUUM_KB
#define la_vacuum_strategy(kb) GetAccessStrategy(BAS_BULKWRITE)
#define la_is_servers_vacuum_ring(strategy) ((strategy) != NULL)
#endif

/*
 * Does VACUUM of a table that is named vacuum those below it?  18 does so of
 * inheritance, too, and not of partitions if they are left out by ONLY.
 */
#if PG_VERSION_NUM >= 180000
#define la_vacuum_goes_below(named, relkind) \
	((named)->relation != NULL && (named)->relation->inh)
#else
#define la_vacuum_goes_below(named, relkind) \
	((relkind) == RELKIND_PARTITIONED_TABLE)
#endif

/*
 * What an idle worker of the I/O service waits for.  17 gives it a name.
 */
#if PG_VERSION_NUM >= 170000
static inline uint32
la_wait_event_worker_main(void)
{
	static uint32 event = 0;

	if (event == 0)
		event = WaitEventExtensionNew("LookaheadWorkerMain");
	return event;
}
#else
#define la_wait_event_worker_main() PG_WAIT_EXTENSION
#endif

/*
 * Counters that PostgreSQL keeps of a relation in this backend and that index
 * access methods and the buffer manager add to.  16 renamed the members.
 */
#if PG_VERSION_NUM >= 160000
#define la_stat_numscans(rel) ((rel)->pgstat_info->counts.numscans)
#define la_stat_fetched(rel) ((rel)->pgstat_info->counts.blocks_fetched)
#define la_stat_hit(rel) ((rel)->pgstat_info->counts.blocks_hit)
#else
#define la_stat_numscans(rel) ((rel)->pgstat_info->t_counts.t_numscans)
#define la_stat_fetched(rel) ((rel)->pgstat_info->t_counts.t_blocks_fetched)
#define la_stat_hit(rel) ((rel)->pgstat_info->t_counts.t_blocks_hit)
#endif

/*
 * 18 reads bitmap heap scans through a stream, and has iterators over a bitmap
 * that return a block; earlier ones return a pointer, and those over a private
 * bitmap have another name.
 */
#if PG_VERSION_NUM >= 180000
#define LA_HAVE_BITMAP_STREAM 1
static inline BlockNumber
la_tbm_private_next(TBMPrivateIterator *iterator)
{
	TBMIterateResult result;

	return tbm_private_iterate(iterator, &result) ?
		result.blockno : InvalidBlockNumber;
}
static inline BlockNumber
la_tbm_shared_next(TBMSharedIterator *iterator)
{
	TBMIterateResult result;

	return tbm_shared_iterate(iterator, &result) ?
		result.blockno : InvalidBlockNumber;
}
#else
#define LA_HAVE_BITMAP_STREAM 0
#define TBMPrivateIterator TBMIterator
#define tbm_begin_private_iterate(tbm) tbm_begin_iterate(tbm)
#define tbm_end_private_iterate(iterator) tbm_end_iterate(iterator)
static inline BlockNumber
la_tbm_private_next(TBMPrivateIterator *iterator)
{
	TBMIterateResult *result = tbm_iterate(iterator);

	return result ? result->blockno : InvalidBlockNumber;
}
static inline BlockNumber
la_tbm_shared_next(TBMSharedIterator *iterator)
{
	TBMIterateResult *result = tbm_shared_iterate(iterator);

	return result ? result->blockno : InvalidBlockNumber;
}
#endif

/*
 * A descent of a B-tree for reading.  16 added the table, which only writers
 * need; 17 took the snapshot away.
 */
#include "access/nbtree.h"
#if PG_VERSION_NUM >= 170000
#define la_bt_search(index, key, leaf) \
	_bt_search(index, NULL, key, leaf, BT_READ)
#elif PG_VERSION_NUM >= 160000
#define la_bt_search(index, key, leaf) \
	_bt_search(index, NULL, key, leaf, BT_READ, NULL)
#else
#define la_bt_search(index, key, leaf) \
	_bt_search(index, key, leaf, BT_READ, NULL)
#endif

/*
 * May a bitmap heap scan leave out pages that are all-visible, because it needs
 * no column?  It could until 15.13, 16.9 and 17.5.
 */
static inline bool
la_bitmap_skips_pages(const BitmapHeapScanState *node)
{
#if PG_VERSION_NUM >= 180000
	return false;
#elif PG_VERSION_NUM >= 170000
	return node->ss.ss_currentScanDesc != NULL &&
		(node->ss.ss_currentScanDesc->rs_flags & SO_NEED_TUPLES) == 0;
#else
	return node->can_skip_fetch;
#endif
}

/*
 * A B-tree scan with arrays that has come to the end of what it searched for:
 * go on with the next values?  17 made this one function; before, the arrays
 * had to be started, and may not be satisfiable.
 */
#if PG_VERSION_NUM >= 170000
#define la_bt_start_arrays(scan, direction) (true)
#define la_bt_next_arrays(scan, direction) _bt_start_prim_scan(scan, direction)
#else
static inline bool
la_bt_start_arrays(IndexScanDesc scan, ScanDirection direction)
{
	BTScanOpaque so = (BTScanOpaque) scan->opaque;

	if (so->numArrayKeys > 0)
		_bt_start_array_keys(scan, direction);
	return so->numArrayKeys >= 0;
}
#define la_bt_next_arrays(scan, direction) \
	_bt_advance_array_keys(scan, direction)
#endif

/*
 * Marks on a B-tree scan's key that it has no value at the moment.  18 has
 * them, for skip scans.
 */
#if PG_VERSION_NUM >= 180000
#define LA_HAVE_SKIP_SCANS 1
#define LA_BT_NO_VALUE \
	(SK_BT_MINVAL | SK_BT_MAXVAL | SK_BT_NEXT | SK_BT_PRIOR)
#else
#define LA_HAVE_SKIP_SCANS 0
#define LA_BT_NO_VALUE 0
#endif

/*
 * The column that an array of a B-tree scan is for.  Before 17 it belongs to a
 * key as the query has given it.
 */
static inline AttrNumber
la_bt_array_attno(const BTScanOpaqueData *so, const BTArrayKeyInfo *array)
{
#if PG_VERSION_NUM >= 170000
	return so->keyData[array->scan_key].sk_attno;
#else
	return so->arrayKeyData[array->scan_key].sk_attno;
#endif
}

/*
 * A skip scan (18) has arrays without elements, and searches all values of a
 * column, maybe NULL too; at most one key bounds them on each side, or NULL.
 */
static inline bool
la_bt_array_is_skip(const BTArrayKeyInfo *array)
{
#if PG_VERSION_NUM >= 180000
	return array->num_elems == -1;
#else
	return false;
#endif
}

static inline bool
la_bt_array_has_null(const BTArrayKeyInfo *array)
{
#if PG_VERSION_NUM >= 180000
	return array->null_elem;
#else
	return false;
#endif
}

static inline ScanKey
la_bt_skip_bound(const BTArrayKeyInfo *array, bool is_forward)
{
#if PG_VERSION_NUM >= 180000
	return is_forward ? array->high_compare : array->low_compare;
#else
	return NULL;
#endif
}

/*
 * What the server calls in place of a function that runs as another user or
 * with other parameters.  Declared in fmgr.c.
 */
extern Datum fmgr_security_definer(PG_FUNCTION_ARGS);

/*
 * 18 declares this in a header.
 */
#if PG_VERSION_NUM < 180000
extern PGDLLIMPORT bool ignore_checksum_failure;
#endif

/*
 * Cleanup of asynchronous I/O after an error that we swallow.
 */
#if LA_HAVE_AIO
#define la_aio_error_cleanup() pgaio_error_cleanup()
#else
#define la_aio_error_cleanup() ((void) 0)
#endif

/*
 * A buffer that was being read when an error came.  From 16 the resource owner
 * knows of it; before, the server ends it by name.
 */
#if PG_VERSION_NUM >= 160000
#define la_buffer_io_error_cleanup() ((void) 0)
#else
#define la_buffer_io_error_cleanup() AbortBufferIO()
#endif

/*
 * The name of the server's I/O method, or NULL before 18.
 */
#if LA_HAVE_AIO
#define la_io_method_name() GetConfigOption("io_method", false, false)
#else
#define la_io_method_name() ((const char *) NULL)
#endif

/*
 * 17 made the number of blocks that one read may combine a setting.
 */
#if PG_VERSION_NUM >= 170000
#define la_io_combine_limit() (io_combine_limit)
#else
#define la_io_combine_limit() (16)
#endif

/*
 * The most blocks that StartReadBuffers() can be given.  On 18 that is what an
 * asynchronous I/O has room for, which only an assertion checks.
 */
#if PG_VERSION_NUM >= 180000
#define la_most_read_blocks() (io_max_combine_limit)
#elif PG_VERSION_NUM >= 170000
#define la_most_read_blocks() (MAX_IO_COMBINE_LIMIT)
#endif

/*
 * What EXPLAIN does for one planned query, for a hook that finds no previous
 * hook to call.  17 exports it.
 */
static inline void
la_standard_ExplainOneQuery(Query *query, int cursorOptions,
							IntoClause *into, struct ExplainState *es,
							const char *queryString, ParamListInfo params,
							QueryEnvironment *queryEnv)
{
#if PG_VERSION_NUM >= 170000
	standard_ExplainOneQuery(query, cursorOptions, into, es, queryString,
							 params, queryEnv);
#else
	PlannedStmt *plan;
	instr_time	start,
				duration;
	BufferUsage before,
				used;

	before = pgBufferUsage;
	INSTR_TIME_SET_CURRENT(start);
	plan = pg_plan_query(query, queryString, cursorOptions, params);
	INSTR_TIME_SET_CURRENT(duration);
	INSTR_TIME_SUBTRACT(duration, start);
	memset(&used, 0, sizeof(used));
	BufferUsageAccumDiff(&used, &pgBufferUsage, &before);
	ExplainOnePlan(plan, into, es, queryString, params, queryEnv, &duration,
				   es->buffers ? &used : NULL);
#endif
}

/* -------------------------------------------------------------------------
 * For commands that are followed from outside (source/maintenance.c)
 * -------------------------------------------------------------------------
 */

#include "access/syncscan.h"
#include "catalog/pg_class.h"
#include "commands/progress.h"
#include "utils/backend_status.h"

/*
 * The progress counter of VACUUM that has the number of dead items in memory.
 */
#if PG_VERSION_NUM >= 170000
#define LA_PROGRESS_DEAD_ITEMS PROGRESS_VACUUM_NUM_DEAD_ITEM_IDS
#else
#define LA_PROGRESS_DEAD_ITEMS PROGRESS_VACUUM_NUM_DEAD_TUPLES
#endif

/*
 * Fill in the physical identity of a relation.  16 renamed the members.
 */
static inline void
la_locator_set(RelFileLocator *locator, Oid tablespace, Oid database,
			   Oid number)
{
#if PG_VERSION_NUM >= 160000
	locator->spcOid = tablespace;
	locator->dbOid = database;
	locator->relNumber = number;
#else
	locator->spcNode = tablespace;
	locator->dbNode = database;
	locator->relNode = number;
#endif
}

/*
 * Where synchronized scans of a relation are.  The server's function wants a
 * Relation, of which it uses the physical identity (and, where it was built to
 * trace, the name): one without a relation cache entry will do.
 */
static inline BlockNumber
la_sync_scan_location(const RelFileLocator *locator, BlockNumber nblocks)
{
	FormData_pg_class form;
	RelationData rel;

	memset(&form, 0, sizeof(form));
	memset(&rel, 0, sizeof(rel));
	rel.rd_rel = &form;
	*la_rel_locator(&rel) = *locator;
	return ss_get_location(&rel, nblocks);
}

/*
 * The server's status array, as it is, with a place for each of MaxBackends.
 * They are in the order of backend ids before 17 and of process numbers since;
 * where it begins follows from our own place.
 */
static inline const volatile PgBackendStatus *
la_status_array(void)
{
#if PG_VERSION_NUM >= 170000
	return MyBEEntry - MyProcNumber;
#else
	return MyBEEntry - (MyBackendId - 1);
#endif
}

/*
 * What the watcher waits for between two looks.  17 gives it a name.
 */
#if PG_VERSION_NUM >= 170000
static inline uint32
la_wait_event_watcher_main(void)
{
	static uint32 event = 0;

	if (event == 0)
		event = WaitEventExtensionNew("LookaheadWatcherMain");
	return event;
}
#else
#define la_wait_event_watcher_main() PG_WAIT_EXTENSION
#endif

/* -------------------------------------------------------------------------
 * For space before it is needed (extend/)
 * -------------------------------------------------------------------------
 */

/*
 * 16 made extension by several pages an interface, and split the permissions of
 * a query off its range table.
 */
#if PG_VERSION_NUM >= 160000
#define LA_HAVE_EXTEND_BY 1
#define LA_PERMS_PARAMS List *rangeTable, List *rtePermInfos, \
	bool ereport_on_violation
#define LA_PERMS_ARGS rangeTable, rtePermInfos, ereport_on_violation
#define LA_REQUIRED_PERMS \
	(list_length(rtePermInfos) != 1 ? ACL_NO_RIGHTS : \
	 linitial_node(RTEPermissionInfo, rtePermInfos)->requiredPerms)
#else
#define LA_HAVE_EXTEND_BY 0
#define LA_PERMS_PARAMS List *rangeTable, bool ereport_on_violation
#define LA_PERMS_ARGS rangeTable, ereport_on_violation
#define LA_REQUIRED_PERMS \
	(list_length(rangeTable) != 1 ? ACL_NO_RIGHTS : \
	 linitial_node(RangeTblEntry, rangeTable)->requiredPerms)
#endif

/*
 * Wake the WAL writer, if there is one.  Its latch may be read without a lock.
 */
static inline void
la_wake_wal_writer(void)
{
#if PG_VERSION_NUM >= 180000
	volatile PROC_HDR *global = ProcGlobal;
	ProcNumber	writer = global->walwriterProc;

	if (writer != INVALID_PROC_NUMBER)
		SetLatch(&GetPGProcByNumber(writer)->procLatch);
#else
	Latch	   *volatile *latch = &ProcGlobal->walwriterLatch;
	Latch	   *writer = *latch;

	if (writer)
		SetLatch(writer);
#endif
}

/*
 * Take a lock for the session, without waiting and without an error if there is
 * no room for it.  18 can log who is in the way.
 */
#if PG_VERSION_NUM >= 180000
#define la_session_lock(tag, mode) \
	LockAcquireExtended(tag, mode, true, true, false, NULL, false)
#else
#define la_session_lock(tag, mode) \
	LockAcquireExtended(tag, mode, true, true, false, NULL)
#endif

/*
 * Does this process hold exactly this lock?  17 can ask for stronger ones, too.
 */
#if PG_VERSION_NUM >= 170000
#define la_lock_is_held(tag, mode) LockHeldByMe(tag, mode, false)
#else
#define la_lock_is_held(tag, mode) LockHeldByMe(tag, mode)
#endif

/*
 * The storage manager writes several pages with one call (17).  What the buffer
 * manager does before and after it writes a page is its own until 18; for 17 it
 * is done here, as there.  A start that would have to wait is none.
 */
#if PG_VERSION_NUM >= 180000
#define LA_HAVE_WRITE_RUNS 1
#define la_start_buffer_write(desc) StartBufferIO(desc, false, true)
#define la_end_buffer_write(desc) TerminateBufferIO(desc, true, 0, true, false)
#define la_count_write(context, start, npages) \
	pgstat_count_io_op_time(IOOBJECT_RELATION, context, IOOP_WRITE, start, \
							1, (npages) * BLCKSZ)
#elif PG_VERSION_NUM >= 170000
#define LA_HAVE_WRITE_RUNS 1
#define la_count_write(context, start, npages) \
	pgstat_count_io_op_time(IOOBJECT_RELATION, context, IOOP_WRITE, start, \
							npages)

static inline bool
la_start_buffer_write(BufferDesc *desc)
{
	uint32		state;

	ResourceOwnerEnlarge(CurrentResourceOwner);
	state = LockBufHdr(desc);
	if ((state & BM_IO_IN_PROGRESS) || !(state & BM_DIRTY))
	{
		UnlockBufHdr(desc, state);
		return false;
	}
	UnlockBufHdr(desc, state | BM_IO_IN_PROGRESS);
	ResourceOwnerRememberBufferIO(CurrentResourceOwner,
								  BufferDescriptorGetBuffer(desc));
	return true;
}

static inline void
la_end_buffer_write(BufferDesc *desc)
{
	uint32		state = LockBufHdr(desc);

	Assert(state & BM_IO_IN_PROGRESS);
	state &= ~(BM_IO_IN_PROGRESS | BM_IO_ERROR);
	if (!(state & BM_JUST_DIRTIED))
		state &= ~(BM_DIRTY | BM_CHECKPOINT_NEEDED);
	UnlockBufHdr(desc, state);
	ResourceOwnerForgetBufferIO(CurrentResourceOwner,
								BufferDescriptorGetBuffer(desc));
	ConditionVariableBroadcast(BufferDescriptorGetIOCV(desc));
}
#else
#define LA_HAVE_WRITE_RUNS 0
#endif

#endif							/* LA_COMPAT_H */
