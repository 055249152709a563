/*-------------------------------------------------------------------------
 *
 * index_extend.c
 *	  Space for indexes that are being built.
 *
 * A build writes one page after the other, each of which makes the file longer,
 * through functions of the server that cannot be replaced.  On storage where it
 * takes time to allocate space, each such write does that first.  So a
 * background worker looks at how long the file is, and keeps space allocated
 * beyond its end:
 *
 *		build		......writes....|
 *		file		[==== pages ====|.... space, of no length ....]
 *		worker		fallocate(FALLOC_FL_KEEP_SIZE)	 ^ 4 MB at a time
 *
 * The file never gets longer than the build has made it: the index is the one
 * that the server makes, to the byte, and nothing of ours is in the way of the
 * build, which may be by any access method.  Space that is not used is returned
 * when the build is over.
 *
 * Begin.  Two places tell that a build is about to start, in the process that
 * will write the index:
 *
 *		object_access_hook			an index has been made: CREATE INDEX,
 *									ALTER TABLE ... ADD CONSTRAINT, and all
 *									that is done CONCURRENTLY
 *		get_relation_info_hook		the planner is asked for how many parallel
 *									workers: REINDEX, indexes of partitions, and
 *									ALTER TABLE
 *
 * ALTER TABLE may make an index that it does not build then, or not at all: if
 * it rewrites the table its indexes are built afterwards, and if only the
 * catalog changes the new index has the file of the old one, which is live if
 * the command fails.  Neither shows when the index is made.  So that is no sign
 * there, unless the command does nothing but add constraints.
 *
 * The file is known by then, and empty.  Which table it is for, and which index
 * REINDEX is at, stands in what the process reports of its progress.  Only
 * large tables count: a worker costs a millisecond or two to start.
 *
 * End.  The worker is stopped, and then the file is truncated to the length
 * that it has.  For that moment nobody else may make it longer.  Two locks see
 * to that, which are taken if they are free: ShareLock on the index, which
 * keeps away all who write to it (hash indexes grow without any other lock),
 * and the extension lock (autoanalyze makes GIN indexes longer with a reader's
 * lock on them).  If they are not free (somebody inserts through an index that
 * was built CONCURRENTLY, again and again) the space stays allocated: at most
 * twice index_extend_size, and the first to be used when the index grows.
 *
 * A build is also over when the command makes or comes to another index.
 *
 * After an error the file goes with the transaction.  That of an index that
 * CONCURRENTLY leaves behind as invalid keeps what was allocated until it is
 * dropped, and so does one that REINDEX of many tables had finished as the last
 * before the error, and one whose command waits for others when the server
 * crashes.  If the process ends in the middle its worker is told on
 * the way out; and a worker ends by itself when the file has been unlinked.
 *
 * When the file system is nearly full nothing is allocated in advance.
 *
 * Where it costs next to nothing to allocate space (ext4 and XFS on a disk do
 * so when pages are written out, not when they are written) the worker finds
 * that out and allocates no more; see la_index_space_main().
 *
 * WAL.  All that a build writes goes into the WAL as well: page after page of a
 * B-tree, at the end of a GIN, GiST or SP-GiST index.  The process that builds
 * would write that out, too.  Once there is something in the file the worker
 * sees to it that the WAL writer does so (wal_ahead.c).  While the file does
 * not get longer it looks seldom, unless it sees that there is WAL: the command
 * may be at another part of its work, such as a GIN index that is gathered in
 * memory, or writing all of that into the WAL, or wait for others for hours.
 *
 * Copyright (c) 2026, the pg_lookahead authors
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "access/transam.h"
#include "catalog/pg_class.h"
#include "commands/progress.h"
#include "common/relpath.h"
#include "compat.h"
#include "extend/extend.h"
#include "extend/wal_ahead.h"
#include "portability/instr_time.h"
#include "postmaster/interrupt.h"
#include "service/background.h"
#include "settings.h"
#include "storage/ipc.h"
#include "storage/latch.h"
#include "storage/lmgr.h"
#include "utils/backend_progress.h"
#include "utils/backend_status.h"
#include "utils/memutils.h"
#include "utils/relcache.h"
#include "window/guard.h"

/* Indexes of tables that are smaller than this are left alone (32 MB). */
#define LA_INDEX_MIN_TABLE		4096

/*
 * If one of the first few allocations took less than this, in microseconds,
 * there is nothing to win.
 */
#define LA_CHEAP_TRIALS			3
#define LA_CHEAP_US				250

/* How often the worker looks at the file, in milliseconds. */
#define LA_LOOK_OFTEN			1
#define LA_LOOK_WAL				8
#define LA_LOOK_SELDOM			64

/* Looks in a row that saw no more of the file before they become seldom. */
#define LA_LAST_LOOKS			512

/* Bytes of WAL between two looks from which on they are not. */
#define LA_MUCH_WAL				(128 * 1024)

/* How long the worker is waited for at the end, and in what steps, in ms. */
#define LA_STOP_WAIT			5000
#define LA_STOP_STEP			10

/* How often the lock is tried at the end, and the wait between, in ms. */
#define LA_RETURN_TRIES			10
#define LA_RETURN_WAIT			2

#define LA_FILE_BYTES			((off_t) RELSEG_SIZE * BLCKSZ)

/* What a worker is told. */
typedef struct LaIndexOrder
{
	uint32		step;			/* blocks */
	bool		needs_wal;		/* what is built is in the WAL */
	char		path[BGW_EXTRALEN - sizeof(uint32) - sizeof(bool)];
} LaIndexOrder;

StaticAssertDecl(sizeof(LaIndexOrder) <= BGW_EXTRALEN,
				 "the order must fit into bgw_extra");

#ifdef FALLOC_FL_KEEP_SIZE
#define LA_HAVE_KEEP_SIZE 1
#else
#define LA_HAVE_KEEP_SIZE 0
#endif

/* Commands under way in this process that may build indexes. */
int			la_index_builds = 0;

/* The innermost of them may make an index that it does not build then. */
static bool la_may_put_off = false;

/* The build that this process is at. */
static struct
{
	Oid			created;		/* the index that was made last */
	Oid			index;			/* that space is made for, or was to be */
	RelFileLocator locator;
	BackgroundWorkerHandle *worker; /* NULL: none was started */
	int			level;			/* la_index_builds when it was started */
}			la_build;

/* -------------------------------------------------------------------------
 * The process that builds
 * -------------------------------------------------------------------------
 */

/*
 * Tell the worker to end, and forget it.
 */
static void
la_worker_abandon(void)
{
	if (la_build.worker == NULL)
		return;
	TerminateBackgroundWorker(la_build.worker);
	pfree(la_build.worker);
	la_build.worker = NULL;
}

/*
 * before_shmem_exit: the process ends in the middle of a build.
 */
static void
la_build_exit(int code, Datum arg)
{
	la_worker_abandon();
}

/*
 * Open a relation that this process has locked.  Returns NULL if it is gone.
 */
static Relation
la_open_locked(Oid relid)
{
	return OidIsValid(relid) ? RelationIdGetRelation(relid) : NULL;
}

/*
 * Is it a table whose indexes are worth a worker?
 */
static bool
la_is_large(Oid relid)
{
	Relation	rel = la_open_locked(relid);
	bool		is_large;

	if (rel == NULL)
		return false;
	is_large = (rel->rd_rel->relkind == RELKIND_RELATION ||
				rel->rd_rel->relkind == RELKIND_MATVIEW ||
				rel->rd_rel->relkind == RELKIND_TOASTVALUE) &&
		RelationGetNumberOfBlocks(rel) >= LA_INDEX_MIN_TABLE;
	RelationClose(rel);
	return is_large;
}

/*
 * The table whose index this process says that it builds, or InvalidOid.
 */
static Oid
la_reported_table(void)
{
	if (MyBEEntry == NULL ||
		MyBEEntry->st_progress_command != PROGRESS_COMMAND_CREATE_INDEX)
		return InvalidOid;
	return MyBEEntry->st_progress_command_target;
}

/*
 * The index that this process says that it builds again, or InvalidOid.
 */
static Oid
la_reported_index(void)
{
	if (!OidIsValid(la_reported_table()))
		return InvalidOid;
	return (Oid) MyBEEntry->st_progress_param[PROGRESS_CREATEIDX_INDEX_OID];
}

static bool
la_space_worker_start(const char *path, bool needs_wal)
{
	static bool has_callback = false;
	BackgroundWorker worker;
	LaIndexOrder order;
	MemoryContext save;
	bool		is_started;

	memset(&order, 0, sizeof(order));
	order.step = la_index_extend_size;
	order.needs_wal = needs_wal;
	if (strlcpy(order.path, path, sizeof(order.path)) >= sizeof(order.path))
		return false;

	la_background_describe(&worker, "la_index_space_main",
						   "pg_lookahead index space");
	worker.bgw_notify_pid = MyProcPid;
	memcpy(worker.bgw_extra, &order, sizeof(order));

	if (!has_callback)
		before_shmem_exit(la_build_exit, (Datum) 0);
	has_callback = true;

	/* A command may go through many transactions. */
	save = MemoryContextSwitchTo(TopMemoryContext);
	is_started = RegisterDynamicBackgroundWorker(&worker, &la_build.worker);
	MemoryContextSwitchTo(save);
	if (!is_started)
		la_build.worker = NULL;
	return is_started;
}

/*
 * Return what is allocated beyond the end of the file of an index.
 *
 * The caller's locks keep the file from getting longer.
 */
static void
la_index_trim(Relation index)
{
	BlockNumber nblocks = RelationGetNumberOfBlocks(index);
	BlockNumber within = nblocks % RELSEG_SIZE;
	struct stat found;
	char		more;
	char	   *path;
	int			fd;

	/* Space is never made for a file that does not exist. */
	if (within == 0)
		return;
	path = la_rel_path(index);
	if (nblocks > RELSEG_SIZE)
		path = psprintf("%s.%u", path, nblocks / RELSEG_SIZE);
	fd = OpenTransientFile(path, O_RDWR | PG_BINARY);
	if (fd < 0)
		return;

	/*
	 * To another length than it has, or with something behind its end?  Then
	 * things are not as we think.
	 */
	if (fstat(fd, &found) == 0 && found.st_size == (off_t) within * BLCKSZ &&
		pread(fd, &more, 1, found.st_size) == 0 &&
		ftruncate(fd, found.st_size) != 0)
		la_extend_count(&(LaExtendCounters) {.errors_total = 1});
	CloseTransientFile(fd);
}

static void
la_return_index_body(void *arg)
{
	bool	   *is_done = arg;
	Oid			relid = la_build.index;
	Relation	index;

	if (!ConditionalLockRelationOid(relid, ShareLock))
		return;
	index = RelationIdGetRelation(relid);
	if (index == NULL ||
		!RelFileLocatorEquals(*la_rel_locator(index), la_build.locator))
		*is_done = true;		/* it is gone, and its file with it */
	else if (ConditionalLockRelationForExtension(index, ExclusiveLock))
	{
		la_index_trim(index);
		UnlockRelationForExtension(index, ExclusiveLock);
		*is_done = true;
	}
	if (index != NULL)
		RelationClose(index);
	UnlockRelationOid(relid, ShareLock);
}

/*
 * Wait until the worker has stopped, for LA_STOP_WAIT at most.  Returns whether
 * it has.
 */
static bool
la_await_stop(BackgroundWorkerHandle *worker)
{
	TimestampTz end = TimestampTzPlusMilliseconds(GetCurrentTimestamp(),
												  LA_STOP_WAIT);
	pid_t		pid;
	int			events = 0;

	while (GetBackgroundWorkerPid(worker, &pid) != BGWH_STOPPED)
	{
		if ((events & WL_POSTMASTER_DEATH) != 0 ||
			GetCurrentTimestamp() >= end)
			break;
		/* The postmaster wakes us. */
		events = WaitLatch(MyLatch,
						   WL_LATCH_SET | WL_TIMEOUT | WL_POSTMASTER_DEATH,
						   LA_STOP_STEP, WAIT_EVENT_BGWORKER_SHUTDOWN);
		ResetLatch(MyLatch);
	}
	/* It may have been set for something else. */
	SetLatch(MyLatch);
	return GetBackgroundWorkerPid(worker, &pid) == BGWH_STOPPED;
}

/*
 * Stop the worker, and return what it has allocated in excess.
 */
static void
la_index_build_end(void)
{
	bool		is_done = false;
	bool		is_good = true;
	bool		has_stopped;

	if (la_build.worker == NULL)
		return;

	/*
	 * The command is as good as done, and may have been committed: a request
	 * to cancel waits, for as long as one allocation takes, but not for storage
	 * that does not answer.
	 */
	HOLD_INTERRUPTS();
	TerminateBackgroundWorker(la_build.worker);
	has_stopped = la_await_stop(la_build.worker);
	pfree(la_build.worker);
	la_build.worker = NULL;

	for (int i = 0; i < LA_RETURN_TRIES && has_stopped && is_good && !is_done;
		 i++)
	{
		if (i > 0)
			pg_usleep(LA_RETURN_WAIT * 1000L);
		is_good = la_guard_run_once(la_return_index_body, &is_done);
	}
	RESUME_INTERRUPTS();
	if (!is_good)
		la_extend_count(&(LaExtendCounters) {.errors_total = 1});
	else if (!is_done)
		la_extend_count(&(LaExtendCounters) {.busy_total = 1});
}

/*
 * The file of an index is about to be filled.  If there is something in it
 * already it is not, whatever we think: builds begin with an empty file.
 */
static void
la_index_build_begin(Oid relid)
{
	Relation	index = la_open_locked(relid);

	if (index == NULL)
		return;
	if (index->rd_rel->relkind == RELKIND_INDEX &&
		relid >= FirstNormalObjectId &&
		index->rd_rel->relpersistence != RELPERSISTENCE_TEMP &&
		RelationGetNumberOfBlocks(index) == 0)
	{
		Assert(la_build.worker == NULL);
		la_build.index = relid;
		la_build.locator = *la_rel_locator(index);
		la_build.level = la_index_builds;
		if (la_space_worker_start(la_rel_path(index),
								  RelationNeedsWAL(index)))
			la_extend_count(&(LaExtendCounters) {.index_builds_total = 1});
		else
			la_extend_count(&(LaExtendCounters) {.errors_total = 1});
	}
	RelationClose(index);
}

/*
 * May the space of files be allocated without being written?  The server has a
 * setting for that, in later minor releases: file systems may treat such space
 * differently.
 */
static bool
la_may_allocate(void)
{
	const char *how = GetConfigOption("file_extend_method", true, false);

	return how == NULL || strcmp(how, "write_zeros") != 0;
}

static bool
la_index_extend_wanted(void)
{
	return LA_HAVE_KEEP_SIZE && la_index_builds > 0 && la_enabled &&
		la_index_extend_size > 0 && IsUnderPostmaster && !IsBinaryUpgrade &&
		la_may_allocate();
}

/*
 * A relation has been made, and is locked.  It may be an index.
 */
void
la_index_created(Oid relid)
{
	Relation	rel;
	bool		is_index;

	if (!la_index_extend_wanted())
		return;
	rel = la_open_locked(relid);
	if (rel == NULL)
		return;
	is_index = rel->rd_rel->relkind == RELKIND_INDEX;
	RelationClose(rel);
	if (!is_index)
		return;
	la_build.created = relid;
	la_index_build_end();		/* of the one before */
	if (!la_may_put_off && la_is_large(la_reported_table()))
	{
		la_index_build_begin(relid);
		la_build.created = InvalidOid;
	}
}

/*
 * The planner looks at a table that this process may be about to build an index
 * of, and has locked.
 */
void
la_index_planned(Oid table)
{
	Relation	index;
	RelFileLocator locator;
	bool		is_of_table;
	bool		is_begun;
	Oid			relid;

	if (!la_index_extend_wanted() || !OidIsValid(la_reported_table()))
		return;
	relid = la_reported_index();
	if (!OidIsValid(relid))
		relid = la_build.created;
	index = la_open_locked(relid);
	if (index == NULL)
		return;
	is_of_table = index->rd_index != NULL && index->rd_index->indrelid == table;
	/* Once, whatever comes of it: there may be a plan for each row. */
	locator = *la_rel_locator(index);
	is_begun = la_build.index == relid &&
		RelFileLocatorEquals(locator, la_build.locator);
	RelationClose(index);
	if (!is_of_table || is_begun)
		return;
	la_build.created = InvalidOid;
	la_index_build_end();		/* of the one before */
	la_build.index = relid;
	la_build.locator = locator;
	if (la_is_large(table))
		la_index_build_begin(relid);
}

/*
 * A command begins that may build indexes, and perhaps makes some that it does
 * not build then.  The caller sees to it that la_index_builds_end() is called,
 * whatever happens, with what this returns.
 */
bool
la_index_builds_begin(bool may_put_off)
{
	bool		outer = la_may_put_off;

	la_may_put_off = may_put_off;
	la_index_builds++;
	return outer;
}

/*
 * Such a command has ended.  If that was by an error, which may be caught, the
 * index that an outer one is at, or has just built, is none of its business.
 */
void
la_index_builds_end(bool outer, bool is_good)
{
	la_build.created = InvalidOid;
	la_may_put_off = outer;
	la_index_builds--;
	if (!is_good && la_build.level > la_index_builds)
		la_worker_abandon();
	else if (la_index_builds == 0)
		la_index_build_end();
	la_build.level = Min(la_build.level, la_index_builds);
}

/* -------------------------------------------------------------------------
 * The worker
 * -------------------------------------------------------------------------
 */

#if LA_HAVE_KEEP_SIZE

/* The file that is being written. */
typedef struct LaIndexFile
{
	const char *path;
	uint32		segment;
	int			fd;				/* -1: not open */
	off_t		size;			/* as seen last */
	int			same;			/* looks since it was another */
	XLogRecPtr	wal_end;		/* as seen last */
	off_t		reserved;		/* allocated up to here */
	int			trials;			/* allocations so far */
	bool		is_enough;		/* no more of them: there is nothing to win,
								 * or it cannot be done */
} LaIndexFile;

static int
la_segment_open(const LaIndexFile *file)
{
	char		name[MAXPGPATH];

	if (file->segment == 0)
		strlcpy(name, file->path, sizeof(name));
	else
		snprintf(name, sizeof(name), "%s.%u", file->path, file->segment);
	return BasicOpenFile(name, O_RDWR | PG_BINARY);
}

/*
 * Allocate space.  Returns the time that took in microseconds, or -1 for an
 * error: little space, a quota, or a file system that cannot do it.
 */
static int64
la_reserve(LaIndexFile *file, off_t from, off_t length)
{
	struct statvfs found;
	instr_time	start;
	instr_time	end;
	int			result;

	if (fstatvfs(file->fd, &found) != 0 ||
		!la_disk_has_room(&found, (uint64) length))
		return -1;

	INSTR_TIME_SET_CURRENT(start);
	do
	{
		result = fallocate(file->fd, FALLOC_FL_KEEP_SIZE, from, length);
	} while (result != 0 && errno == EINTR && !ShutdownRequestPending);
	if (result != 0)
		return -1;
	INSTR_TIME_SET_CURRENT(end);
	INSTR_TIME_SUBTRACT(end, start);
	file->reserved = from + length;
	return INSTR_TIME_GET_MICROSEC(end);
}

/*
 * Keep space allocated beyond the end of the file, whose length is "size".
 * Returns whether there was something to do.
 */
static bool
la_keep_reserved(LaIndexFile *file, off_t size, off_t step)
{
	off_t		from = Max(file->reserved, size);
	off_t		length = Min(step, LA_FILE_BYTES - from);
	int64		took;

	if (file->is_enough || size == 0 || size + step <= file->reserved)
		return false;
	/* Nothing is left of this file: wait for the next one. */
	if (length <= 0)
		return true;
	took = la_reserve(file, from, length);
	if (took < 0)
	{
		file->is_enough = true;
		if (!ShutdownRequestPending)
			la_extend_count(&(LaExtendCounters) {.errors_total = 1});
		return false;
	}
	la_extend_count(&(LaExtendCounters)
					{.index_pages_total = length / BLCKSZ});
	if (file->trials < LA_CHEAP_TRIALS && took < LA_CHEAP_US)
		file->is_enough = true;
	file->trials++;
	return true;
}

/*
 * Have WAL flushed if there is enough of it.  Returns whether to look again
 * soon.
 */
static bool
la_look_after_wal(LaIndexFile *file)
{
	XLogRecPtr	end = GetXLogInsertRecPtr();
	bool		is_much = end >= file->wal_end + LA_MUCH_WAL;

	la_wal_look(end);
	file->wal_end = end;
	return is_much || file->same < LA_LAST_LOOKS;
}

/*
 * Entry point of the worker.
 *
 * It has no database, takes no lock and touches no buffer.  It ends when it is
 * told to, when the file has been unlinked, emptied or cannot be opened, and
 * when there is neither space to be made nor WAL to come.
 */
void
la_index_space_main(Datum arg)
{
	LaIndexOrder order;
	LaIndexFile file = {.fd = -1};
	off_t		step;
	long		wait = LA_LOOK_OFTEN;

	pqsignal(SIGTERM, SignalHandlerForShutdownRequest);
	BackgroundWorkerUnblockSignals();
	memcpy(&order, MyBgworkerEntry->bgw_extra, sizeof(order));
	file.path = order.path;
	step = (off_t) order.step * BLCKSZ;

	while (!ShutdownRequestPending)
	{
		struct stat found = {0};

		if (file.fd < 0)
			file.fd = la_segment_open(&file);
		if (file.fd < 0 ? errno != ENOENT || file.segment == 0 :
			fstat(file.fd, &found) != 0 || found.st_nlink == 0)
			break;

		if (found.st_size >= LA_FILE_BYTES)
		{
			close(file.fd);
			file.fd = -1;
			file.segment++;
			file.size = file.reserved = 0;
			continue;
		}
		if (found.st_size < file.size)
			break;
		file.same = found.st_size > file.size ? 0 : file.same + 1;
		file.size = found.st_size;
		wait = Min(wait * 2, LA_LOOK_SELDOM);
		if (order.needs_wal && (file.size > 0 || file.segment > 0) &&
			la_look_after_wal(&file))
			wait = Min(wait, LA_LOOK_WAL);
		if (la_keep_reserved(&file, file.size, step))
			wait = LA_LOOK_OFTEN;
		else if (file.is_enough && !order.needs_wal)
			break;

		(void) WaitLatch(MyLatch, WL_LATCH_SET | WL_TIMEOUT |
						 WL_EXIT_ON_PM_DEATH, wait, PG_WAIT_EXTENSION);
		ResetLatch(MyLatch);
	}
}

#else

void
la_index_space_main(Datum arg)
{
}

#endif							/* LA_HAVE_KEEP_SIZE */
