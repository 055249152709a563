/*-------------------------------------------------------------------------
 *
 * index_pass.c
 *	  Follows VACUUM through the indexes of a table.
 *
 * VACUUM says that it is in the indexes (from 17 on, how many it is through
 * with), and not where.  B-tree, GiST and SP-GiST go through the file from its
 * beginning to its end, and have a page pinned at nearly every moment.  A pin
 * shows in the buffer's header, not whose it is.  So a pass is known by what it
 * does:
 *
 *		block     1   2   3  ...    815  816  ...    990   ...    1420
 *		look 1                       R
 *		look 2                            .    .  t   P
 *		look 3                                             .  t   P
 *
 *		R	being read by somebody: looked for from end to end while the command
 *			is found waiting for reads, for LA_SEEK_US at a time
 *		P	pinned: the next after that, in the LA_STRIDE blocks behind it, or
 *			LA_FIRST_STRIDE until it is followed
 *		t	the trail: most of the blocks before P are in shared buffers, as it
 *			has just read them
 *
 * After LA_LEAST_STEPS steps on, each soon after the one before, it is taken
 * for the pass.
 *
 *		SOUGHT ------ R ------> SIGHTED ------ steps ------> FOLLOWED
 *		   ^                       |                             |
 *		   +------- nothing -------+------- nothing, end --------+
 *
 * Parallel workers of VACUUM each have an index of their own, so several passes
 * are followed at a time.  Without them the next one is not sought before
 * nothing is seen of the one before.  Access methods that read in another order
 * are not found; each search from end to end in vain makes searches less
 * frequent.
 *
 * Others have pins, too.  VACUUM of a B-tree waits for those on leaf pages; no
 * other access method does, nor for what is behind it.  A pin that stays where
 * it is counts as nothing seen, unless somebody waits for it, and a place
 * without a trail is none; so the less of an index is in shared buffers, the
 * less can pass for VACUUM.  If a pin is taken for VACUUM's, the next look
 * begins behind the place before that one, and may find VACUUM where it is; or
 * the pass is lost and sought again, or runs through the index in vain.  No
 * more than what is read ahead is wrong.  (In SP-GiST it happens without
 * others: VACUUM looks at pages out of their order where rows were moved.)
 *
 * With direct I/O our own workers pin what they read.  They read nothing that
 * is nearer than the target's margin (see maintenance.c), and only that far
 * VACUUM is looked for.  Nobody tells them where it is at that moment, so they
 * are stopped when it was not seen at LA_FEW_MISSES looks.  If it comes to a
 * page that is being read it waits, as for any other reader.
 *
 * Copyright (c) 2026, the pg_lookahead authors
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "compat.h"
#include "service/lookup.h"
#include "settings.h"
#include "source/index_pass.h"
#include "storage/buf_internals.h"
#include "utils/memutils.h"
#include "window/pursuit.h"
#include "window/window.h"

/*
 * So long one search takes; LA_SEEK_SHARE times as long none follows, for each
 * command that is known of, and twice as long after each search from end to end
 * that was in vain, LA_MAX_PATIENCE times.
 */
#define LA_SEEK_US			300
#define LA_SEEK_SHARE		10
#define LA_MAX_PATIENCE		5

/* The time is looked at after as many blocks. */
#define LA_SEEK_BLOCKS		256

/*
 * A pass is looked at this often at the least, and as often as can be when it
 * has just not been seen: it goes ten times as fast once it does not wait.
 */
#define LA_PASS_LOOK_US		5000

/*
 * It comes no further from one look to the next; at most so many times as far
 * in the first LA_FEW_MISSES in which it is not seen.
 */
#define LA_STRIDE			2048
#define LA_FIRST_STRIDE		256
#define LA_MOST_STRIDES		4
#define LA_FEW_MISSES		4

/* Of LA_TRAIL blocks before a place so many may be missing. */
#define LA_TRAIL_GAPS		1

/* Steps on after which it is a pass. */
#define LA_LEAST_STEPS		3

/*
 * Looks in a row without a step after which it was none, or is lost.  VACUUM
 * may be sleeping (vacuum_cost_delay), with no page pinned.
 */
#define LA_MOST_MISSES		20
#define LA_LOST_MISSES		100

typedef enum LaPassState
{
	LA_PASS_SOUGHT,
	LA_PASS_SIGHTED,			/* "position" was seen */
	LA_PASS_FOLLOWED,			/* and "pursuit" is open */
} LaPassState;

/* The pass over one index. */
typedef struct LaIndexPass
{
	LaTarget	target;
	BlockNumber nblocks;		/* of the index, at the beginning */
	LaPassState state;
	BlockNumber position;		/* seen last */
	BlockNumber before;			/* the place before that */
	int			steps;			/* since it was sighted */
	int			misses;			/* looks since the last step */
	bool		is_known;		/* was followed */
	bool		is_waiting;		/* at the last look it stood still */
	LaPursuit	pursuit;
} LaIndexPass;

struct LaIndexPasses
{
	int			pid;			/* of the command */
	int			seeking;		/* the index that is searched next, ... */
	BlockNumber seek;			/* ... from this block on */
	int			patience;		/* searches from end to end in vain */
	uint64		seek_us;		/* no search before this; la_now_us() */
	int			npasses;
	LaIndexPass passes[FLEXIBLE_ARRAY_MEMBER];
};

/* What somebody does with a block, the more telling the higher. */
typedef enum LaUse
{
	LA_USE_NONE,
	LA_USE_PINNED,
	LA_USE_AWAITED,				/* pinned, and somebody waits for that to end */
	LA_USE_READ,				/* read into shared buffers */
} LaUse;

/*
 * What is done with a block at this moment?  The buffer may go to another block
 * while we look; so this is a hint.
 */
static LaUse
la_block_use(const LaTarget *target, BlockNumber blkno)
{
	Buffer		buffer = la_block_buffer(&target->locator, target->fork, blkno);
	uint32		state;

	if (buffer == InvalidBuffer)
		return LA_USE_NONE;
	state = pg_atomic_read_u32(&GetBufferDescriptor(buffer - 1)->state);
	if (BUF_STATE_GET_REFCOUNT(state) == 0)
		return LA_USE_NONE;
	if ((state & BM_IO_IN_PROGRESS) != 0 && (state & BM_VALID) == 0)
		return LA_USE_READ;
	return (state & BM_PIN_COUNT_WAITER) != 0 ? LA_USE_AWAITED : LA_USE_PINNED;
}

/*
 * Are the blocks before this one in shared buffers, all but LA_TRAIL_GAPS?
 */
bool
la_has_trail(const LaTarget *target, BlockNumber blkno)
{
	int			gaps = 0;

	for (BlockNumber i = 1; i <= LA_TRAIL && i < blkno; i++)
		if (!la_block_is_resident(&target->locator, target->fork, blkno - i) &&
			++gaps > LA_TRAIL_GAPS)
			return false;
	return true;
}

/*
 * The first block from "from" to before "end" where VACUUM may be, or
 * InvalidBlockNumber.
 */
static BlockNumber
la_find_place(const LaTarget *target, BlockNumber from, BlockNumber end)
{
	for (BlockNumber blkno = from; blkno < end; blkno++)
		if (la_block_use(target, blkno) != LA_USE_NONE &&
			la_has_trail(target, blkno))
			return blkno;
	return InvalidBlockNumber;
}

/*
 * The block behind the last one where the pass may be by now.
 */
static BlockNumber
la_pass_reach(const LaIndexPass *pass)
{
	int			stride = pass->is_known ? LA_STRIDE : LA_FIRST_STRIDE;

	if (pass->state == LA_PASS_FOLLOWED && !pass->target.advise_only)
		stride = pass->target.margin;
	else if (pass->misses <= LA_FEW_MISSES)
		stride *= Min(1 + pass->misses, LA_MOST_STRIDES);
	return (BlockNumber) Min(pass->nblocks, (uint64) pass->position + stride);
}

/*
 * Was the pass seen last where it comes to the end in one stride?
 */
static bool
la_pass_is_at_end(const LaIndexPass *pass)
{
	return (uint64) pass->position + LA_STRIDE >= pass->nblocks;
}

/*
 * Look ahead of a pass no more.  If it may be over, one that was seen close to
 * its end has been there.
 */
static void
la_pass_leave(LaIndexPass *pass, bool may_be_over)
{
	if (pass->state == LA_PASS_FOLLOWED)
	{
		if (may_be_over && la_pass_is_at_end(pass))
			pass->pursuit.position = pass->nblocks;
		la_pursuit_close(&pass->pursuit);
	}
	pass->state = LA_PASS_SIGHTED;
	pass->steps = 0;
}

/*
 * Go on to the beginning of the next index.  Returns true if that is the first
 * one again.
 */
static bool
la_seek_next(LaIndexPasses *passes)
{
	passes->seek = 0;
	if (++passes->seeking < passes->npasses)
		return false;
	passes->seeking = 0;
	passes->patience = Min(passes->patience + 1, LA_MAX_PATIENCE);
	return true;
}

/*
 * A pass was not seen.
 */
static void
la_pass_missed(LaIndexPasses *passes, LaIndexPass *pass)
{
	pass->misses++;
	if (pass->misses >= LA_FEW_MISSES && !pass->target.advise_only)
		la_pass_leave(pass, false);
	if (pass->misses <= (pass->is_known ? LA_LOST_MISSES : LA_MOST_MISSES))
		return;

	passes->seeking = pass - passes->passes;
	passes->seek = pass->position;
	if (pass->is_known && la_pass_is_at_end(pass))
	{
		(void) la_seek_next(passes);
		passes->patience = 0;
	}
	la_pass_leave(pass, true);
	pass->state = LA_PASS_SOUGHT;
}

/*
 * See where a pass has come.  Returns true if it is now followed and was not
 * before.
 */
static bool
la_pass_step(LaIndexPasses *passes, LaIndexPass *pass)
{
	const LaTarget *target = &pass->target;
	const BlockNumber reach = la_pass_reach(pass);
	const bool	was_known = pass->is_known;
	BlockNumber next;

	/* What VACUUM waits for, by itself or for another's pin. */
	pass->is_waiting = la_block_use(target, pass->position) > LA_USE_PINNED;
	if (pass->is_waiting)
		return false;

	next = la_find_place(target, pass->before + 1, reach);
	if (next == pass->position)
		next = la_find_place(target, pass->position + 1, reach);
	if (next == InvalidBlockNumber)
	{
		la_pass_missed(passes, pass);
		return false;
	}

	pass->misses = 0;
	if (next < pass->position)
	{
		/* It was not so far yet. */
		pass->position = next;
		return false;
	}
	pass->before = pass->position;
	pass->position = next;
	if (pass->state == LA_PASS_FOLLOWED)
	{
		if (next > pass->pursuit.position)
			la_pursuit_advance(&pass->pursuit, next);
		return false;
	}
	if (++pass->steps < LA_LEAST_STEPS)
		return false;

	la_pursuit_open(&pass->pursuit, target, passes->pid, 0, pass->nblocks,
					next);
	pass->state = LA_PASS_FOLLOWED;
	pass->is_known = true;
	passes->patience = 0;
	elog(DEBUG1, "following process %d on index %u, position %u",
		 passes->pid, target->relid, next);
	return !was_known;
}

/*
 * The passes over these indexes, of a command of this process; NULL if all are
 * too small.  May raise errors, which leave nothing behind.
 */
LaIndexPasses *
la_passes_begin(int pid, const LaTarget *targets, int ntargets)
{
	LaIndexPasses *passes;
	BlockNumber nblocks[LA_MAX_INDEXES];
	int			n = 0;

	Assert(ntargets <= LA_MAX_INDEXES);
	for (int i = 0; i < ntargets; i++)
	{
		nblocks[i] = smgrnblocks(la_smgropen(targets[i].locator), MAIN_FORKNUM);
		if (nblocks[i] >= (BlockNumber) la_min_table_size)
			n++;
	}
	if (n == 0)
		return NULL;

	passes = MemoryContextAllocZero(TopMemoryContext,
									offsetof(LaIndexPasses, passes) +
									n * sizeof(LaIndexPass));
	passes->pid = pid;
	for (int i = 0; i < ntargets; i++)
	{
		LaIndexPass *pass = &passes->passes[passes->npasses];

		if (nblocks[i] < (BlockNumber) la_min_table_size)
			continue;
		pass->target = targets[i];
		pass->nblocks = nblocks[i];
		passes->npasses++;
	}
	return passes;
}

/*
 * See where the passes have come that were found, and read ahead of those that
 * are followed.  Returns true if another one was found.  May raise errors;
 * to be called under la_guard_run().
 */
bool
la_passes_track(LaIndexPasses *passes)
{
	bool		is_found = false;

	for (int i = 0; i < passes->npasses; i++)
	{
		LaIndexPass *pass = &passes->passes[i];

		if (pass->state == LA_PASS_SIGHTED || pass->state == LA_PASS_FOLLOWED)
			is_found |= la_pass_step(passes, pass);
	}
	return is_found;
}

/*
 * Is there any that may be found yet?  If there is one at a time, none while
 * another is seen.
 */
bool
la_passes_are_sought(const LaIndexPasses *passes, bool one_at_a_time)
{
	bool		any = false;

	for (int i = 0; i < passes->npasses; i++)
	{
		const LaIndexPass *pass = &passes->passes[i];

		any |= pass->state == LA_PASS_SOUGHT;
		if (one_at_a_time && pass->is_known && pass->misses <= LA_FEW_MISSES &&
			pass->state != LA_PASS_SOUGHT)
			return false;
	}
	return any;
}

/*
 * Search some more blocks for a pass, if it is time for that, to the end of the
 * last index at the most.  As many commands are known of.
 */
void
la_passes_seek(LaIndexPasses *passes, int ncommands)
{
	const uint64 start = la_now_us();
	uint64		spent;

	if (start < passes->seek_us)
		return;
	do
	{
		LaIndexPass *pass = &passes->passes[passes->seeking];
		BlockNumber end = (BlockNumber) Min((uint64) pass->nblocks,
											(uint64) passes->seek +
											LA_SEEK_BLOCKS);

		if (pass->state != LA_PASS_SOUGHT)
		{
			if (la_seek_next(passes))
				break;
			continue;
		}
		while (passes->seek < end &&
			   la_block_use(&pass->target, passes->seek) != LA_USE_READ)
			passes->seek++;
		if (passes->seek < end)
		{
			pass->state = LA_PASS_SIGHTED;
			pass->position = pass->before = passes->seek;
			pass->steps = pass->misses = 0;
			pass->is_known = false;
			break;
		}
		if (end == pass->nblocks && la_seek_next(passes))
			break;
	}
	while (la_now_us() < start + LA_SEEK_US);

	spent = la_now_us() - start;
	passes->seek_us = start + spent +
		(spent * LA_SEEK_SHARE * ncommands << passes->patience);
}

/*
 * After how many microseconds to look at the passes again; 0 if there are none
 * that were found.
 */
int
la_passes_look_us(const LaIndexPasses *passes)
{
	int			look_us = 0;

	for (int i = 0; i < passes->npasses; i++)
	{
		const LaIndexPass *pass = &passes->passes[i];
		int			after;

		if (pass->state != LA_PASS_SIGHTED && pass->state != LA_PASS_FOLLOWED)
			continue;
		if (pass->misses > LA_FEW_MISSES || pass->is_waiting)
			after = LA_PASS_LOOK_US;
		else if (pass->misses > 0 || pass->state == LA_PASS_SIGHTED)
			after = LA_MIN_LOOK_US;
		else
			after = Min(pass->pursuit.look_us, LA_PASS_LOOK_US);
		look_us = look_us == 0 ? after : Min(look_us, after);
	}
	return look_us;
}

/*
 * Leave all of them alone.  They are over if the command has come to something
 * else; it may also have been cancelled.
 */
void
la_passes_end(LaIndexPasses *passes, bool is_over)
{
	for (int i = 0; i < passes->npasses; i++)
		la_pass_leave(&passes->passes[i], is_over);
	pfree(passes);
}
