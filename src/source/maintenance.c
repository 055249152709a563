/*-------------------------------------------------------------------------
 *
 * maintenance.c
 *	  Follows VACUUM, ANALYZE, index builds, CLUSTER and COPY TO from outside.
 *
 * These go past the executor, and on 15 to 17 they read a block when they come
 * to it.  Nothing of ours is in their path.  A background worker, the watcher,
 * looks at what they report of themselves (pg_stat_progress_*), and where one
 * reads a large table in physical order it has the I/O service read ahead.
 *
 *		status array --- where is it? ---> watcher ---ask---> I/O workers
 *		pg_class ------- which file? ----> (resolver.c)
 *		visibility map - which blocks? --> (vm_runs.c)
 *
 * What is followed, and how its position is known:
 *
 *		command				blocks				position
 *		VACUUM, 1st pass	not all-visible		the block's number
 *		VACUUM, 2nd pass	not all-visible		the block's number
 *		... over indexes	all, of the index	seen in shared buffers, where it
 *												is told by nobody: index_pass.c
 *		CREATE INDEX,		all					blocks since the start, which is
 *		REINDEX									found by synchronized scans
 *		... CONCURRENTLY,	all, of the index	the block's number; only B-trees
 *		    validation							tell it
 *		... and then		all					the block's number
 *		CLUSTER, VACUUM		all					as index builds; not if CLUSTER
 *		FULL									reads through an index
 *		COPY table TO		all					where synchronized scans are
 *		ANALYZE				all					blocks of the sample done
 *
 * The start of a scan.  A scan of a table larger than a quarter of shared
 * buffers may start anywhere, and reports where it is to others that may join.
 * The location is shared and bears no name.  If location less blocks done is
 * the same at two looks, that may be the start; if the location stands still
 * while blocks are done, the scan started at block 0.  (Asking for the location
 * makes the server remember one, out of 20, for a table that had none: as much
 * as the beginning of a scan does.)
 *
 * It may be another scan's: of a query, beside a build that takes no part in
 * synchronized scans (BRIN, GIN), and both go at the pace of the disk.  So we
 * look whether what the build would just have read, had it started at block 0,
 * is in shared buffers, and what it would read soon is not.  Twice so, and it
 * did.  Of a parallel build of a large table the location may be any process's,
 * chunks away from the leader, whose blocks are counted: such a build is
 * followed in this way, or if the location stands still, and else left alone.
 *
 * COPY reports rows and bytes, no blocks; there the location is all that there
 * is, and with synchronize_seqscans off (pg_dump) or a smaller table it is not
 * followed.
 *
 * ANALYZE takes a random sample that nobody else knows, in physical order, and
 * advises the kernel of it a few blocks ahead by itself (14 and later).  That
 * is left alone, unless the sample is the table.
 *
 * What they have read.  The kernel is advised, whatever the method: to copy
 * into shared buffers costs the command less than to find there what another
 * processor has copied.  With direct I/O, or where the kernel takes no advice,
 * the workers read into shared buffers.  In front of a VACUUM that does not
 * wait one of them reads the file to nowhere; see below.
 *
 * VACUUM needs a page that nobody else has pinned, and leaves one unpruned if
 * it does not get that at once; a worker that has just read the page would be
 * in its way.  Workers look at VACUUM's own counter before each read and keep
 * at a distance that VACUUM does not cross while they read (LA_LEAST_MARGIN, of
 * blocks that it visits: it jumps over others), unless one of them gets no
 * processor meanwhile.  The validation of an index wants its leaf pages to
 * itself as well, and waits for them: it is treated the same.  So is VACUUM in
 * indexes, but there the distance is from where the watcher has seen it last.
 * CLUSTER and VACUUM FULL let nobody else lock the table: advice, or nothing.
 *
 * When.  A command is followed once it is found waiting for reads a quarter of
 * the time (command_waits.c).  One that reads alone, and for which the kernel
 * is advised, need not wait: it is followed if what it reads is from storage,
 * for 256 MB, and then judged anew.  The kernel's read-ahead is work of the
 * command then, and with advice a worker's.  So is one that reads with parallel
 * workers where the kernel's read-ahead is short, as it is by default: each of
 * them waits at the end of it then.  Where it reaches far they are faster with
 * it.  A process that has pg_lookahead.enabled off says so in shared memory
 * (resolver.c) and is left alone.
 *
 * For advice Linux takes single pages, and large ones for its read-ahead.
 * VACUUM writes what it has read, and to write single pages costs more than it
 * is spared.  So a worker reads the file in front of it, for the sake of the
 * kernel's read-ahead of that worker.  If VACUUM waits all the same, the worker
 * does, too, and the kernel is advised from then on.
 *
 * What was found waiting is judged anew as well, after 256 MB and then after
 * twice as much each time that it is found so again: one bad moment of the disk
 * should not decide how the rest of a large table is read, which may be in the
 * page cache, or come faster.  Nothing else tells that, as advice takes the
 * command's reads from it.  Where storage is read it is followed again after
 * 2 MB, or where that is not counted when it has waited for LA_FEW_LOOKS, a
 * sixth of a second.  So only what can be followed without waiting is judged
 * anew: neither parallel builds with a long read-ahead, nor direct I/O.
 *
 * Safety.  The watcher holds no lock while a command is followed, so its owners
 * promise less than those of a scan (owner.c).  What may happen:
 *
 *	- The command ends, and the table is dropped, truncated or rewritten before
 *	  we see that.  A worker may then still try to read.  Reading a block that
 *	  is there is what any reader may do; reading one that is not fails, leaves
 *	  no valid buffer, and is counted.  A commit gives its locks back a moment
 *	  before it drops buffers and cuts the file, so a worker may leave a clean
 *	  page of a file that is gone.  Nobody looks for it; it is thrown out like
 *	  any other.
 *	- VACUUM truncates the table.  That needs an exclusive lock, which waits
 *	  for a worker's (a few milliseconds, and VACUUM tries again).  Blocks
 *	  behind the new end: as above.
 *	- The file that the resolver found is not the one that the command reads,
 *	  because the command's transaction has made a new one.  It holds an
 *	  exclusive lock then, and nothing is read.  A file that is smaller than
 *	  what the command reports is not followed.  CLUSTER, VACUUM FULL and ALTER
 *	  TABLE that adds a constraint hold such a lock in any case, and then the
 *	  table does not grow: the kernel is advised if the file has exactly the
 *	  size that is reported.
 *	- The database is dropped: workers lock it too, and the server has every
 *	  process close its files first.
 *
 * Nothing that the watcher does waits for a lock on a relation or a page:
 * readers' locks are taken if they are free, for as long as a page of the
 * visibility map is copied.
 *
 * Copyright (c) 2026, the pg_lookahead authors
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "common/relpath.h"
#include "compat.h"
#include "extend/wal_ahead.h"
#include "lib/ilist.h"
#include "method/method.h"
#include "postmaster/interrupt.h"
#include "service/background.h"
#include "service/lookup.h"
#include "service/service.h"
#include "settings.h"
#include "source/command_waits.h"
#include "source/index_pass.h"
#include "source/maintenance.h"
#include "source/progress.h"
#include "source/vm_runs.h"
#include "storage/buf_internals.h"
#include "storage/ipc.h"
#include "storage/lock.h"
#include "storage/proc.h"
#include "storage/procarray.h"
#include "utils/inval.h"
#include "utils/memutils.h"
#include "window/guard.h"
#include "window/pursuit.h"
#include "window/window.h"

/* Commands that are known of at a time. */
#define LA_MAX_COMMANDS		64

/*
 * We look this often while nothing is followed.  Those who run such a command
 * by hand wake us (hook/utility.c); then we look more often for LA_EAGER_US.
 */
#define LA_IDLE_LOOK_MS		500L

/* Seconds after which a watcher that has died is started again. */
#define LA_RESTART_SECONDS	1

/* VACUUM skips no shorter range in its first pass. */
#define LA_VACUUM_GAP		32

/*
 * Blocks in front of VACUUM that no worker reads, at the least, so that it has
 * let go of a page when VACUUM comes there.  With less room VACUUM is left
 * alone.
 */
#define LA_LEAST_MARGIN		(4 * 1024 * 1024 / BLCKSZ)

/*
 * What is followed is judged anew after so much; what waits again and again
 * after more, but no more than the second.
 */
#define LA_JUDGE_AGAIN		(256 * 1024 * 1024 / BLCKSZ)
#define LA_JUDGE_SELDOM		(16 * LA_JUDGE_AGAIN)

/* Looks after which the start of a scan is given up. */
#define LA_MAX_START_LOOKS	500

/* Two estimates of the start that are the same, in blocks. */
#define LA_START_TOLERANCE	256

/* A scan must have moved so far between two estimates. */
#define LA_START_STEP		64

/* So far beyond a scan, in blocks, nothing is there yet because of it. */
#define LA_BEYOND			(4 * LA_TRAIL)

/* Processes of a parallel scan take chunks: the table has so many of them. */
#define LA_SERVERS_CHUNKS	2048

/*
 * In the second pass of VACUUM: as many blocks of each look are checked for
 * having been visited, and after so many of them it must be every fourth.
 */
#define LA_VISITS_PER_LOOK	8
#define LA_LEAST_VISITS		64

/* The second pass is left alone if the map shows so many times more blocks. */
#define LA_MOST_EXCESS		4

/* The blocks by which that is judged. */
#define LA_DENSITY_BLOCKS	8192

/*
 * Up to here the read-ahead of several processes is worse than advice, and from
 * four times as much on it is better.
 */
#define LA_SHORT_AHEAD_KB	512

typedef enum LaCommandState
{
	LA_COMMAND_NEW,				/* not yet worth a lookup */
	LA_COMMAND_LOOKUP,			/* a resolver was asked; "lookup" is valid */
	LA_COMMAND_KNOWN,			/* "files" and "nblocks" are valid */
	LA_COMMAND_IGNORED,			/* not to be followed, until it ends */
} LaCommandState;

/* A command that runs. */
typedef struct LaCommand
{
	dlist_node	node;

	/* immutable: what it is known by */
	int			pid;
	ProgressCommandType type;
	Oid			dbid;
	Oid			relid;
	TimestampTz started;

	LaCommandState state;
	uint64		turn;			/* when it was seen last */
	int			lookup;
	LaFiles		files;
	BlockNumber nblocks;
	bool		is_ahead_short; /* what the kernel reads ahead of the table */

	/* of the scan that it does now */
	LaSight		sight;
	bool		is_open;		/* "pursuit" follows it */
	bool		is_given_up;
	bool		is_start_known; /* "start" is valid */
	int			start_looks;
	bool		is_estimated;	/* what follows is of an earlier look */
	BlockNumber start;			/* the estimate at the last look */
	BlockNumber location;		/* of synchronized scans then */
	int64		done;			/* blocks done then */
	bool		is_from_zero;	/* it was seen where it would be from block 0 */
	LaCommandWaits waits;		/* before it is followed because it waits */
	bool		is_wanted;		/* there was something to gain */
	bool		by_reads;		/* and it does not wait, but has storage read */
	uint64		judge_after;	/* blocks, when it was found waiting last */
	uint64		judge_at;		/* until it has come here */
	int			visits;			/* second pass: blocks checked, ... */
	int			visited;		/* ... and blocks that it had been to */
	LaPursuit	pursuit;
	LaVmRuns	runs;
	LaIndexPasses *passes;		/* over indexes, or NULL */
} LaCommand;

static dlist_head la_commands = DLIST_STATIC_INIT(la_commands);
static int	la_ncommands = 0;
static uint64 la_turn = 0;

/* -------------------------------------------------------------------------
 * The scan of a command
 * -------------------------------------------------------------------------
 */

/*
 * Decide how the scan's blocks are read; see the file header.  Returns false if
 * they cannot be.
 */
static bool
la_choose_method(LaTarget *target, LaScanKind kind)
{
	target->is_watched = true;
	target->advise_only = la_may_advise();
	if (la_method == LA_METHOD_NONE)
		return false;
	switch (kind)
	{
		case LA_SCAN_REWRITE:
			target->no_lock = true;
			return target->advise_only;
		case LA_SCAN_VACUUM:
		case LA_SCAN_VACUUM_INDEXES:
			if (la_damage_is_accepted())
				return false;
			/* FALLTHROUGH */
		case LA_SCAN_VALIDATE_INDEX:
			target->no_lock = true;
			if (target->advise_only)
				return true;
			target->margin = Min(la_owner_share(),
								 LA_PURSUIT_MAX_AHEAD) / 2;
			return target->margin >= LA_LEAST_MARGIN;
		case LA_SCAN_VACUUM_DEAD:
			target->no_lock = true;
			/* What VACUUM leaves out is in a page that must not be read. */
			return !la_damage_is_accepted();
		default:
			return true;
	}
}

/*
 * Is the scan where it would be if it had started at block 0?  What is at its
 * position it has just read then, and of what is beyond not all is there.
 * Returns false if it cannot be told: it has read more while we looked, and
 * given up what it had read before.
 */
static bool
la_see_from_zero(const LaCommand *command, const LaSight *sight,
				 bool *is_from_zero)
{
	const LaTarget *target = &command->files.target;
	const volatile int64 *live =
		la_progress_counter(command->pid, sight->kind == LA_SCAN_REWRITE ?
							PROGRESS_CLUSTER_HEAP_BLKS_SCANNED :
							PROGRESS_SCAN_BLOCKS_DONE);
	int64		done = live == NULL ? 0 : *live;

	if (done < LA_TRAIL || done + LA_BEYOND > command->nblocks)
		return false;

	/* 17 may have taken most of its ring for the blocks that come next. */
	*is_from_zero = (la_has_trail(target, (BlockNumber) done) ||
					 la_has_trail(target, (BlockNumber) done + LA_TRAIL + 1)) &&
		!la_has_trail(target, (BlockNumber) done + LA_BEYOND);
	return *live >= done && *live - done <= LA_TRAIL;
}

/*
 * Are the processes of a parallel scan further apart than we can tell?
 */
static bool
la_is_far_apart(LaCommand *command)
{
	return command->nblocks / LA_SERVERS_CHUNKS > LA_START_TOLERANCE / 2 &&
		la_has_parallel_workers(&command->waits, command->pid);
}

/*
 * Do two looks tell where the scan started?  *start is what the location says
 * now.
 */
static bool
la_start_is_known(LaCommand *command, BlockNumber location,
				  BlockNumber *start, bool is_from_zero)
{
	const int64 n = command->nblocks;
	const int64 apart = Max(*start, command->start) -
		Min(*start, command->start);

	if (location == command->location ||
		(is_from_zero && command->is_from_zero))
	{
		*start = 0;
		return true;
	}
	if (is_from_zero || command->is_from_zero || la_is_far_apart(command) ||
		Min(apart, n - apart) > LA_START_TOLERANCE)
		return false;
	if (Min(*start, n - *start) <= LA_START_TOLERANCE)
		*start = 0;
	return true;
}

/*
 * Look for where the scan started.  Returns false if that is not known yet, or
 * will never be; then is_given_up is set.
 */
static bool
la_look_for_start(LaCommand *command, const LaSight *sight)
{
	const int64 n = command->nblocks;
	BlockNumber location;
	BlockNumber start;
	bool		is_from_zero;
	bool		is_known;

	if (sight->kind != LA_SCAN_BUILD && sight->kind != LA_SCAN_REWRITE &&
		sight->kind != LA_SCAN_COPY)
	{
		command->start = 0;
		return true;
	}
	if (n <= NBuffers / 4)
	{
		/* No synchronized scan. */
		command->start = 0;
		command->is_given_up = sight->kind == LA_SCAN_COPY;
		return !command->is_given_up;
	}
	if (command->start_looks++ > LA_MAX_START_LOOKS)
	{
		command->is_given_up = true;
		return false;
	}

	location = la_sync_scan_location(&command->files.target.locator,
									 command->nblocks);
	if (sight->kind == LA_SCAN_COPY)
	{
		if (command->is_estimated && location != command->location)
		{
			command->start = location;
			return true;
		}
		command->is_estimated = true;
		command->location = location;
		return false;
	}

	if (command->is_estimated &&
		sight->done < command->done + LA_START_STEP)
		return false;
	if (!la_see_from_zero(command, sight, &is_from_zero))
		return false;
	start = (BlockNumber) ((location + n - sight->done % n) % n);
	is_known = command->is_estimated &&
		la_start_is_known(command, location, &start, is_from_zero);
	command->is_estimated = true;
	command->location = location;
	command->done = sight->done;
	command->start = start;
	command->is_from_zero = is_from_zero;
	return is_known;
}

/*
 * Find where the scan started, once: it may be opened many times.
 */
static bool
la_find_start(LaCommand *command, const LaSight *sight)
{
	if (!command->is_start_known)
		command->is_start_known = la_look_for_start(command, sight);
	return command->is_start_known;
}

/*
 * The position of the scan, counted from its start.
 */
static uint64
la_command_position(const LaCommand *command, const LaSight *sight)
{
	const int64 n = command->nblocks;

	switch (sight->kind)
	{
		case LA_SCAN_COPY:
			return (la_sync_scan_location(&command->files.target.locator,
										  command->nblocks) +
					n - command->start) % n;
		case LA_SCAN_SAMPLE:
			return sight->done * n / Max(sight->total, 1);
		default:
			return Min(sight->done, n);
	}
}

/*
 * Would the second pass visit most of what the visibility map shows?  Only if
 * there are dead items enough, one a page.  If many are on a page it visits
 * less: see la_check_visits().
 */
static bool
la_is_dense(LaCommand *command, const LaSight *sight)
{
	BlockNumber from = (BlockNumber) Min(sight->done, sight->end);
	BlockNumber until = (BlockNumber) Min(sight->end,
										  (int64) from + LA_DENSITY_BLOCKS);
	int			shown = la_vm_count(&command->runs, from, until);
	double		dead = (double) sight->ndead * (until - from) /
		Max(sight->end, 1);

	return shown <= LA_MOST_EXCESS * Max(dead, 1.0);
}

/*
 * Was VACUUM at this block a moment ago?  What it has just read is still in
 * shared buffers.  What a worker has read is there anyway, but the second pass
 * changes the pages that it visits.
 */
static bool
la_was_visited(const LaCommand *command, BlockNumber blkno)
{
	Buffer		buffer = la_block_buffer(&command->files.target.locator,
										 MAIN_FORKNUM, blkno);
	uint32		state;

	if (buffer == InvalidBuffer || command->pursuit.target.advise_only)
		return buffer != InvalidBuffer;
	state = pg_atomic_read_u32(&GetBufferDescriptor(buffer - 1)->state);
	return (state & BM_DIRTY) != 0;
}

/*
 * Has the second pass been to the blocks that we thought it would visit?
 */
static void
la_check_visits(LaCommand *command, uint64 position)
{
	BlockNumber blocks[LA_VISITS_PER_LOOK];
	int			n = la_pursuit_passed(&command->pursuit, position, blocks,
									  LA_VISITS_PER_LOOK);

	for (int i = 0; i < n; i++)
	{
		command->visits++;
		if (la_was_visited(command, blocks[i]))
			command->visited++;
	}
	if (command->visits >= LA_LEAST_VISITS)
	{
		if (command->visited < command->visits / 4)
			command->is_given_up = true;
		command->visits = command->visited = 0;
	}
}

/*
 * The counter that tells workers where a scan is at any moment, of scans that
 * they must not meet; or -1.
 */
static int
la_live_counter(LaScanKind kind)
{
	switch (kind)
	{
		case LA_SCAN_VACUUM:
			return PROGRESS_VACUUM_HEAP_BLKS_SCANNED;
		case LA_SCAN_VACUUM_DEAD:
			return PROGRESS_VACUUM_HEAP_BLKS_VACUUMED;
		case LA_SCAN_VALIDATE_INDEX:
			return PROGRESS_SCAN_BLOCKS_DONE;
		default:
			return -1;
	}
}

/*
 * Follow the scan no more; it is over if the command does something else now.
 */
static void
la_scan_close(LaCommand *command, bool is_over)
{
	if (command->is_open)
		la_pursuit_close(&command->pursuit);
	command->is_open = false;
	if (command->passes != NULL)
		la_passes_end(command->passes, is_over);
	command->passes = NULL;
}

/*
 * A scan that is at this position was found waiting: when to judge it anew?
 */
static void
la_scan_waits(LaCommand *command, uint64 position)
{
	command->judge_after = Min(Max(2 * command->judge_after, LA_JUDGE_AGAIN),
							   LA_JUDGE_SELDOM);
	command->judge_at = position + command->judge_after;
}

/*
 * Judge a scan anew.
 */
static void
la_scan_judge(LaCommand *command)
{
	la_scan_close(command, false);
	la_waits_begin(&command->waits);
}

/*
 * Begin to follow a scan.
 */
static void
la_scan_open(LaCommand *command, const LaSight *sight)
{
	LaTarget	target = command->files.target;
	const bool	is_dead = sight->kind == LA_SCAN_VACUUM_DEAD;
	const bool	is_vacuum = sight->kind == LA_SCAN_VACUUM || is_dead;
	const int	counter = la_live_counter(sight->kind);

	if (!la_choose_method(&target, sight->kind))
	{
		command->is_given_up = true;
		return;
	}
	target.page_in = is_vacuum && command->by_reads;
	if (!la_find_start(command, sight))
		return;
	if (counter >= 0)
	{
		target.live = la_progress_counter(command->pid, counter);
		if (target.live == NULL)
			return;
	}
	if (is_vacuum)
	{
		la_vm_open(&command->runs, &target, is_dead ? 1 : LA_VACUUM_GAP,
				   is_dead ? InvalidBlockNumber : command->nblocks - 1);
		/* Later it is judged by its visits. */
		if (is_dead && command->visits == 0 && !la_is_dense(command, sight))
		{
			/* Or the map could not be looked at. */
			command->is_given_up =
				command->runs.ahead.state != LA_MAP_LOCKED;
			return;
		}
	}
	la_pursuit_open(&command->pursuit, &target, command->pid, command->start,
					command->nblocks, la_command_position(command, sight));
	if (is_vacuum)
	{
		command->pursuit.wanted = la_vm_next;
		command->pursuit.wanted_arg = &command->runs;
	}
	if (sight->end > 0)
		command->pursuit.end = (BlockNumber) Min(sight->end,
												 (int64) command->nblocks);
	command->is_open = true;
	if (command->by_reads)
	{
		la_waits_begin(&command->waits);
		command->judge_at = command->pursuit.position + LA_JUDGE_AGAIN;
	}
	else
		la_scan_waits(command, command->pursuit.position);
	elog(DEBUG1, "following process %d on relation %u, start block %u, position %u",
		 command->pid, command->relid, command->start,
		 (BlockNumber) command->pursuit.position);
}

/*
 * Follow VACUUM through the indexes.
 */
static void
la_indexes_follow(LaCommand *command)
{
	if (command->passes == NULL)
	{
		LaTarget	targets[LA_MAX_INDEXES];
		int			n = 0;

		for (int i = 0; i < command->files.nindexes; i++)
		{
			targets[n] = command->files.indexes[i];
			if (la_choose_method(&targets[n], LA_SCAN_VACUUM_INDEXES))
				n++;
		}
		command->passes = la_passes_begin(command->pid, targets, n);
		if (command->passes == NULL)
		{
			command->is_given_up = true;
			return;
		}
	}

	/* Another one that is looked for has to wait by itself. */
	if (la_passes_track(command->passes))
		la_waits_begin(&command->waits);
	if (la_passes_are_sought(command->passes,
							 !la_has_parallel_workers(&command->waits,
													  command->pid)) &&
		la_waits_look(&command->waits, command->pid, true))
		la_passes_seek(command->passes, la_ncommands);
}

/*
 * Does the command read as one process, or is advice better than what the
 * kernel reads ahead of several?
 */
static bool
la_may_relieve(LaCommand *command)
{
	return command->is_ahead_short ||
		!la_has_parallel_workers(&command->waits, command->pid);
}

/*
 * Is the kernel's read-ahead work that another process could do?
 */
static bool
la_is_read_ahead(LaCommand *command)
{
	return la_may_advise() && la_may_relieve(command) &&
		la_reads_storage(&command->waits, command->pid);
}

/*
 * Is there something to gain for the command's scan?  Not asked while it is
 * followed because it waits.
 */
static void
la_scan_look(LaCommand *command)
{
	const LaSight *sight = &command->sight;
	const bool	waits = la_waits_look(&command->waits, command->pid, false);
	uint64		position;

	if (!command->is_open)
	{
		command->by_reads = !waits && la_is_read_ahead(command);
		command->is_wanted = waits || command->by_reads;
		if (command->is_wanted)
			la_scan_open(command, sight);
		return;
	}
	position = la_command_position(command, sight);
	if (waits)
	{
		/* Who reads for it waits as much: have more read at a time. */
		command->by_reads = false;
		if (command->pursuit.target.page_in)
			la_pursuit_reopen(&command->pursuit, position, false);
		la_scan_waits(command, position);
	}
	else if (position >= command->judge_at || !la_may_relieve(command))
	{
		/* What comes may be in the page cache, or read by several. */
		la_scan_judge(command);
	}
}

/*
 * A scan that waited has come to where it may be judged anew.  Is it?
 */
static bool
la_scan_is_judged(LaCommand *command)
{
	if (la_start_after == 0 || !la_may_advise() || !la_may_relieve(command))
	{
		command->judge_at += command->judge_after;
		return false;
	}
	la_scan_judge(command);
	return true;
}

/*
 * Follow the scan.  Runs under la_guard_run().
 */
static void
la_scan_follow(void *arg)
{
	LaCommand  *command = arg;
	const LaSight *sight = &command->sight;
	uint64		position;

	if (sight->kind == LA_SCAN_VACUUM_INDEXES)
	{
		la_indexes_follow(command);
		return;
	}
	if (!command->is_open || command->by_reads)
		la_scan_look(command);
	if (!command->is_open)
		return;

	position = la_command_position(command, sight);
	if (position < command->pursuit.position)
	{
		/* Another scan of the same kind, or a COPY that shares the location. */
		la_scan_close(command, false);
		command->is_start_known = false;
		return;
	}
	if (!command->by_reads && position >= command->judge_at &&
		la_scan_is_judged(command))
		return;
	if (sight->kind == LA_SCAN_VACUUM &&
		!la_vm_check(&command->runs, (BlockNumber) position))
		la_pursuit_reopen(&command->pursuit, position,
						  command->pursuit.target.page_in);
	if (sight->kind == LA_SCAN_VACUUM_DEAD)
		la_check_visits(command, position);
	if (command->is_given_up)
		la_scan_close(command, false);
	else
		la_pursuit_advance(&command->pursuit, position);
}

/* -------------------------------------------------------------------------
 * Commands
 * -------------------------------------------------------------------------
 */

static void
la_command_ignore(LaCommand *command)
{
	la_scan_close(command, false);
	if (command->state == LA_COMMAND_LOOKUP)
		la_lookup_cancel(command->lookup);
	command->state = LA_COMMAND_IGNORED;
}

/*
 * Call body(command) so that its errors end here.
 */
static void
la_command_run(LaCommand *command, void (*body) (void *))
{
	LaCounters	counters = {0};

	if (la_guard_run_silent(body, command))
		return;
	/* What is locked for one look no transaction gives back. */
	LockReleaseAll(DEFAULT_LOCKMETHOD, true);
	counters.errors_total = 1;
	la_counters_report(command->dbid, command->relid, &counters);
	la_command_ignore(command);
}

/*
 * How large is the file, and how far does the kernel read ahead of it?  Runs
 * under la_guard_run().
 */
static void
la_command_measure(void *arg)
{
	LaCommand  *command = arg;
	const LaSight *sight = &command->sight;
	const LaTarget *target = &command->files.target;
	BlockNumber nblocks = smgrnblocks(la_smgropen(target->locator),
									  MAIN_FORKNUM);
	char	   *path = la_locator_path(target->locator);
	int64		ahead_kb = la_kernel_ahead_kb(path);

	pfree(path);
	command->nblocks = nblocks;
	command->is_ahead_short = ahead_kb >= 0 && ahead_kb <= LA_SHORT_AHEAD_KB;
	if (sight->kind == LA_SCAN_SAMPLE)
	{
		if (sight->total < (int64) nblocks / 10 * 9)
			command->state = LA_COMMAND_IGNORED;
	}
	else if (sight->total > 0)
	{
		/* The table may have grown since; the scan does not go there. */
		command->nblocks = (BlockNumber) sight->total;
		command->files.target.is_exact = nblocks == command->nblocks;
		if (nblocks < command->nblocks ||
			(sight->kind == LA_SCAN_REWRITE && nblocks > command->nblocks))
			command->state = LA_COMMAND_IGNORED;
	}
	if (command->nblocks < (BlockNumber) la_min_table_size)
		command->state = LA_COMMAND_IGNORED;
}

/*
 * Ask which file a command reads, or see whether the answer has come.
 */
static void
la_command_lookup(LaCommand *command)
{
	if (command->state == LA_COMMAND_NEW)
	{
		command->lookup = la_lookup_begin(command->dbid, command->relid);
		if (command->lookup >= 0)
			command->state = LA_COMMAND_LOOKUP;
		return;
	}
	switch (la_lookup_poll(command->lookup, &command->files))
	{
		case LA_LOOKUP_PENDING:
			break;
		case LA_LOOKUP_NOTHING:
			command->state = LA_COMMAND_IGNORED;
			break;
		case LA_LOOKUP_FOUND:
			command->state = LA_COMMAND_KNOWN;
			la_command_run(command, la_command_measure);
			break;
	}
}

/*
 * A command was seen again.
 */
static void
la_command_seen(LaCommand *command, const LaSight *sight)
{
	if (sight->kind != command->sight.kind ||
		sight->pass != command->sight.pass)
	{
		la_scan_close(command, true);
		command->is_given_up = false;
		command->is_start_known = false;
		command->start_looks = 0;
		command->is_estimated = false;
		command->judge_after = 0;
		command->runs.skip = LA_SKIP_VISIBLE;
		la_waits_begin(&command->waits);
		command->visits = command->visited = 0;
	}
	command->sight = *sight;
	if (!la_sight_is_large(sight))
		return;
	if (command->state == LA_COMMAND_NEW || command->state == LA_COMMAND_LOOKUP)
		la_command_lookup(command);
	if (command->state == LA_COMMAND_KNOWN && !command->is_given_up)
		la_command_run(command, la_scan_follow);
}

static void
la_command_end(LaCommand *command)
{
	la_command_ignore(command);
	dlist_delete(&command->node);
	la_ncommands--;
	pfree(command);
}

/*
 * Find the command that a process runs, or make one if it is worth following.
 * NULL if it is not, or if there are too many.
 */
static LaCommand *
la_command_of(const LaSight *sight)
{
	dlist_iter	iter;
	LaCommand  *command;

	dlist_foreach(iter, &la_commands)
	{
		command = dlist_container(LaCommand, node, iter.cur);
		if (command->pid == sight->pid &&
			command->type == sight->type &&
			command->dbid == sight->dbid &&
			command->relid == sight->relid &&
			command->started == sight->started)
			return command;
	}
	if (!la_sight_is_large(sight) || la_ncommands >= LA_MAX_COMMANDS)
		return NULL;
	command = MemoryContextAllocZero(TopMemoryContext, sizeof(LaCommand));
	command->pid = sight->pid;
	command->type = sight->type;
	command->dbid = sight->dbid;
	command->relid = sight->relid;
	command->started = sight->started;
	la_waits_begin(&command->waits);
	dlist_push_tail(&la_commands, &command->node);
	la_ncommands++;
	return command;
}

/*
 * End the commands that were not seen in this turn.
 */
static void
la_commands_sweep(void)
{
	dlist_mutable_iter iter;
	const int	before = la_ncommands;

	dlist_foreach_modify(iter, &la_commands)
	{
		LaCommand  *command = dlist_container(LaCommand, node, iter.cur);

		if (command->turn != la_turn)
			la_command_end(command);
	}

	/* Nobody needs those files open here any more. */
	if (before > la_ncommands)
		la_smgr_close_all();
}

/* -------------------------------------------------------------------------
 * The process
 * -------------------------------------------------------------------------
 */

/*
 * After how many microseconds to look at a command again.
 */
static int64
la_command_look_us(const LaCommand *command)
{
	const LaSight *sight = &command->sight;
	int64		look_us;

	if (command->is_open && command->by_reads)
		return Min(command->pursuit.look_us, command->waits.look_ms * 1000);
	if (command->is_open)
		return command->pursuit.look_us;
	if (command->passes != NULL)
	{
		look_us = la_passes_look_us(command->passes);
		if (look_us > 0)
			return look_us;
		if (!la_passes_are_sought(command->passes, false))
			return LA_IDLE_LOOK_MS * 1000;
	}
	if (!la_sight_is_large(sight) || command->is_given_up)
		return LA_IDLE_LOOK_MS * 1000;
	switch (command->state)
	{
		case LA_COMMAND_NEW:	/* nobody could be asked */
		case LA_COMMAND_IGNORED:
			break;
		case LA_COMMAND_LOOKUP:
			return LA_EAGER_LOOK_MS * 1000;
		case LA_COMMAND_KNOWN:
			/* Where it is, is seen only while it moves. */
			return sight->kind == LA_SCAN_COPY && command->is_wanted ?
				LA_MAX_LOOK_US : command->waits.look_ms * 1000;
	}
	return LA_IDLE_LOOK_MS * 1000;
}

/*
 * What a process does is not known in this turn: it goes on.  Returns after how
 * many microseconds to look at it again.
 */
static int64
la_commands_keep(int pid)
{
	int64		look_us = LA_IDLE_LOOK_MS * 1000;
	dlist_iter	iter;

	dlist_foreach(iter, &la_commands)
	{
		LaCommand  *command = dlist_container(LaCommand, node, iter.cur);

		if (command->pid != pid)
			continue;
		command->turn = la_turn;
		look_us = Min(look_us, la_command_look_us(command));
	}
	return look_us;
}

/*
 * Does the command write as it reads, and is looked at often?  Index builds
 * write when they have read; see index_extend.c.
 */
static bool
la_makes_wal(const LaCommand *command)
{
	switch (command->sight.kind)
	{
		case LA_SCAN_VACUUM:
		case LA_SCAN_VACUUM_DEAD:
		case LA_SCAN_REWRITE:
			return command->is_open;
		case LA_SCAN_VACUUM_INDEXES:
			return command->passes != NULL;
		default:
			return false;
	}
}

/*
 * Look at all processes once.  Returns after how many milliseconds to look
 * again.
 */
static long
la_watch(void)
{
	int64		look_us = LA_IDLE_LOOK_MS * 1000;
	bool		makes_wal = false;

	la_turn++;
	for (int i = 0; i < MaxBackends; i++)
	{
		LaSight		sight;
		LaCommand  *command;

		if (!la_sight(&sight, i))
		{
			if (sight.is_torn)
				look_us = Min(look_us, la_commands_keep(sight.pid));
			continue;
		}
		if (la_watcher_is_declined(i, sight.pid))
			continue;
		command = la_command_of(&sight);
		if (command == NULL)
			continue;
		command->turn = la_turn;
		la_command_seen(command, &sight);
		look_us = Min(look_us, la_command_look_us(command));
		makes_wal |= la_makes_wal(command);
	}
	la_commands_sweep();
	if (makes_wal && !RecoveryInProgress())
		la_wal_look(GetXLogInsertRecPtr());
	return (long) Max(look_us / 1000, 1);
}

/*
 * Entry point of the watcher.
 */
void
la_watcher_main(Datum arg)
{
	MemoryContext turn_context;
	uint64		woken_us = 0;

	pqsignal(SIGHUP, SignalHandlerForConfigReload);
	pqsignal(SIGINT, SIG_IGN);	/* there is no query to cancel */
	pqsignal(SIGTERM, SignalHandlerForShutdownRequest);
	BackgroundWorkerUnblockSignals();
	BackgroundWorkerInitializeConnection(NULL, NULL, 0);

	la_guard_process("pg_lookahead watcher");
	turn_context = AllocSetContextCreate(TopMemoryContext,
										 "pg_lookahead watcher",
										 ALLOCSET_DEFAULT_SIZES);
	MemoryContextSwitchTo(turn_context);
	la_watcher_attach();

	for (;;)
	{
		long		timeout = -1;
		int			events;

		/* Not 0: who is terminated, and no shutdown, is started again. */
		if (ShutdownRequestPending)
			proc_exit(1);
		CHECK_FOR_INTERRUPTS();
		if (ConfigReloadPending)
		{
			ConfigReloadPending = false;
			ProcessConfigFile(PGC_SIGHUP);
		}
		AcceptInvalidationMessages();

		if (la_maintenance && la_enabled)
			timeout = la_watch();
		else
		{
			la_turn++;
			la_commands_sweep();
		}
		MemoryContextReset(turn_context);

		if (timeout > LA_EAGER_LOOK_MS && woken_us != 0)
		{
			if (la_now_us() - woken_us < LA_EAGER_US)
				timeout = LA_EAGER_LOOK_MS;
			else
				woken_us = 0;
		}
		events = WaitLatch(MyLatch,
						   WL_LATCH_SET | WL_EXIT_ON_PM_DEATH |
						   (timeout >= 0 ? WL_TIMEOUT : 0),
						   timeout, la_wait_event_watcher_main());
		ResetLatch(MyLatch);
		if ((events & WL_LATCH_SET) != 0)
			woken_us = la_now_us();
	}
}

/*
 * Have the postmaster start the watcher.  Called while libraries are preloaded.
 */
void
la_maintenance_register(void)
{
	BackgroundWorker worker;

	if (!la_watcher_is_wanted())
		return;
	la_background_describe(&worker, "la_watcher_main", "pg_lookahead watcher");
	worker.bgw_flags |= BGWORKER_BACKEND_DATABASE_CONNECTION;
	worker.bgw_restart_time = LA_RESTART_SECONDS;
	RegisterBackgroundWorker(&worker);
}
