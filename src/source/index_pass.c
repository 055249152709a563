/*-------------------------------------------------------------------------
 *
 * index_pass.c
 *	  Follows VACUUM through the indexes of a table.
 *
 * VACUUM says that it is in the indexes, and not in which, nor where.  B-tree,
 * GiST and SP-GiST go through the file from its beginning to its end, and have
 * one page pinned at a time.  A pin shows in the buffer's header, not whose it
 * is.  So a pass is known by what it does:
 *
 *		block     1   2   3  ...    815  816  ...    990   ...    1420
 *		look 1                       R
 *		look 2                            .    .  .   P
 *		look 3                                             .  .   P
 *
 *		R	being read by somebody: looked for from end to end while the command
 *			is found waiting for reads, LA_SEEK_BLOCKS at a time
 *		P	pinned: the next after that, in the LA_STRIDE blocks behind it (or
 *			as far as the target's margin, see below)
 *
 * After LA_LEAST_STEPS steps on, each soon after the one before, it is taken
 * for the pass.  Others have pins here and there as well, but not one after the
 * other; and none for long, because VACUUM itself waits for them.
 *
 *		SOUGHT -- R --> SIGHTED -- steps --> FOLLOWED -- end --> OVER
 *		   ^               |                    |
 *		   +--- nothing ---+--------------------+
 *
 * Parallel workers of VACUUM each have an index of their own, so several passes
 * are followed at a time.  Access methods that read in another order are not
 * found, and after LA_MAX_ROUNDS no longer sought.
 *
 * If another's pin is taken for VACUUM's, the place is wrong by LA_STRIDE at
 * the most.  The next look begins behind the place before that one, and may
 * find VACUUM where it is; or the pass is lost and sought again.  Either way no
 * more than what is read ahead is wrong.  (In SP-GiST that happens without
 * others: VACUUM looks at pages out of their order where rows were moved.)
 *
 * With direct I/O our own workers pin what they read.  They read nothing that
 * is nearer than the target's margin (see maintenance.c), and only that far
 * VACUUM is looked for.  Nobody tells them where it is at that moment; if it
 * comes to a page that is being read it waits, as for any other reader.
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

/* Blocks that one look searches for a pass: some tenths of a millisecond. */
#define LA_SEEK_BLOCKS		8192

/* Searches from end to end, and looks, after which nothing more is found. */
#define LA_MAX_ROUNDS		8
#define LA_MAX_SEEKS		200

/*
 * A pass is looked at this often at the least, and as often as can be if it was
 * not seen: it goes ten times as fast once it does not wait.
 */
#define LA_PASS_LOOK_US		5000

/*
 * It comes no further from one look to the next, and each time that it is not
 * seen it may have come as far again, up to LA_MOST_STRIDES.
 */
#define LA_STRIDE			2048
#define LA_MOST_STRIDES		4

/* Steps on after which it is a pass. */
#define LA_LEAST_STEPS		3

/*
 * Looks in a row without a step after which it was none, or is lost.  VACUUM
 * may be sleeping (vacuum_cost_delay), with no page pinned.
 */
#define LA_MOST_MISSES		20
#define LA_LOST_MISSES		200

typedef enum LaPassState
{
	LA_PASS_SOUGHT,
	LA_PASS_SIGHTED,			/* "position" was seen */
	LA_PASS_FOLLOWED,			/* and "pursuit" is open */
	LA_PASS_OVER,
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
	LaPursuit	pursuit;
} LaIndexPass;

struct LaIndexPasses
{
	int			pid;			/* of the command */
	int			seeking;		/* the index that is searched next, ... */
	BlockNumber seek;			/* ... from this block on */
	int			rounds;			/* since a pass was found */
	int			seeks;
	int			npasses;
	LaIndexPass passes[FLEXIBLE_ARRAY_MEMBER];
};

/* What somebody does with a block. */
typedef enum LaUse
{
	LA_USE_NONE,
	LA_USE_PINNED,
	LA_USE_READ,				/* into shared buffers */
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
	return (state & BM_IO_IN_PROGRESS) != 0 && (state & BM_VALID) == 0 ?
		LA_USE_READ : LA_USE_PINNED;
}

/*
 * The first block from "from" to before "end" of which at least that use is
 * made, or InvalidBlockNumber.
 */
static BlockNumber
la_find_use(const LaTarget *target, BlockNumber from, BlockNumber end,
			LaUse least)
{
	for (BlockNumber blkno = from; blkno < end; blkno++)
		if (la_block_use(target, blkno) >= least)
			return blkno;
	return InvalidBlockNumber;
}

/*
 * How far from its last place may the pass be?
 */
static BlockNumber
la_pass_reach(const LaIndexPass *pass)
{
	int			stride = pass->target.margin;

	if (pass->target.advise_only)
		stride = LA_STRIDE * Min(1 + pass->misses, LA_MOST_STRIDES);
	return (BlockNumber) Min(pass->nblocks, (uint64) pass->position + stride);
}

/*
 * Leave a pass alone, which has come to its end or was lost.
 */
static void
la_pass_close(LaIndexPass *pass, bool is_over)
{
	if (pass->state != LA_PASS_FOLLOWED)
	{
		pass->state = LA_PASS_SOUGHT;
		return;
	}
	if (is_over)
		pass->pursuit.position = pass->nblocks;
	elog(DEBUG1, "left process %d on index %u at position %u of %u",
		 pass->pursuit.pid, pass->target.relid, pass->position, pass->nblocks);
	la_pursuit_close(&pass->pursuit);
	pass->state = is_over ? LA_PASS_OVER : LA_PASS_SOUGHT;
}

/*
 * See where a pass has come.  Returns true if it is now followed and was not
 * before.
 */
static bool
la_pass_step(LaIndexPasses *passes, LaIndexPass *pass)
{
	const BlockNumber reach = la_pass_reach(pass);
	BlockNumber next = la_find_use(&pass->target, pass->before + 1, reach,
								   LA_USE_PINNED);

	/* It may stay with a page that somebody else has pinned. */
	if (next == pass->position)
	{
		next = la_find_use(&pass->target, pass->position + 1, reach,
						   LA_USE_PINNED);
		if (next == InvalidBlockNumber)
			return false;
	}
	if (next == InvalidBlockNumber)
	{
		if (++pass->misses > (pass->state == LA_PASS_FOLLOWED ?
							  LA_LOST_MISSES : LA_MOST_MISSES))
			la_pass_close(pass, reach == pass->nblocks);
		return false;
	}

	/* Not if it was not so far yet. */
	if (next > pass->position)
		pass->before = pass->position;
	pass->position = next;
	pass->misses = 0;
	if (pass->state == LA_PASS_FOLLOWED)
	{
		if (next > pass->pursuit.position)
			la_pursuit_advance(&pass->pursuit, next);
	}
	else if (++pass->steps >= LA_LEAST_STEPS)
	{
		la_pursuit_open(&pass->pursuit, &pass->target, passes->pid, 0,
						pass->nblocks, next);
		pass->state = LA_PASS_FOLLOWED;
		elog(DEBUG1, "following process %d on index %u, position %u",
			 passes->pid, pass->target.relid, next);
		return true;
	}
	return false;
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
 * are followed.  Returns true if there is one more of these.  May raise errors;
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
	if (is_found)
		passes->rounds = passes->seeks = 0;
	return is_found;
}

/*
 * Is there any that may be found yet?
 */
bool
la_passes_are_sought(const LaIndexPasses *passes)
{
	if (passes->rounds >= LA_MAX_ROUNDS && passes->seeks >= LA_MAX_SEEKS)
		return false;
	for (int i = 0; i < passes->npasses; i++)
		if (passes->passes[i].state == LA_PASS_SOUGHT)
			return true;
	return false;
}

/*
 * Search the next blocks for a pass.
 */
void
la_passes_seek(LaIndexPasses *passes)
{
	BlockNumber left = LA_SEEK_BLOCKS;

	passes->seeks++;
	for (int i = 0; i < passes->npasses && left > 0; i++)
	{
		LaIndexPass *pass = &passes->passes[passes->seeking];
		BlockNumber end = Min(pass->nblocks, passes->seek + left);

		if (pass->state == LA_PASS_SOUGHT)
		{
			BlockNumber found = la_find_use(&pass->target, passes->seek, end,
											LA_USE_READ);

			left -= end - passes->seek;
			if (found != InvalidBlockNumber)
			{
				pass->state = LA_PASS_SIGHTED;
				pass->position = pass->before = found;
				pass->steps = pass->misses = 0;
			}
			else if (end < pass->nblocks)
			{
				passes->seek = end;
				return;
			}
		}
		passes->seek = 0;
		if (++passes->seeking == passes->npasses)
		{
			passes->seeking = 0;
			passes->rounds++;
		}
	}
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
		if (pass->state == LA_PASS_SIGHTED || pass->misses > 0)
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
		la_pass_close(&passes->passes[i], is_over);
	pfree(passes);
}
