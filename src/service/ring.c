/*-------------------------------------------------------------------------
 *
 * ring.c
 *	  Reads blocks into shared buffers through a ring of a worker's own.
 *
 * A ring is the server's: an access strategy for bulk reads, which takes the
 * same buffers again and again.  A worker needs a wide one, because a page must
 * stay from when it is read until the scan comes to it.  From 16 the server
 * makes rings of any size.  Before, they have 32 buffers; then we keep many and
 * read through each in turn:
 *
 *		ring	  0		  1		  2		  0		...
 *		blocks	0-31   32-63   64-95   96-127	<- overwrites 0-31
 *
 * which comes to the same: what was read before the whole round is overwritten.
 *
 * The server's rings last as long as a scan, ours as long as a worker.
 * Meanwhile a buffer may become another page's: those of a table that is
 * dropped, truncated or rewritten are free at once, and the next to be taken.
 * A ring knows its buffers by number.  It would overwrite such a page, and if
 * that is one which another ring has read, the two would share the buffer for
 * good, each reading over what the other read last.  So we note which pages
 * were read into them.  Where the buffer whose turn it is has another page by
 * now, we raise its usage count to what tells the ring that others want it;
 * then the ring lets go of the buffer, and takes a new one in its place.  (A
 * pin would tell it, too.  But who drops a relation spins while one of its
 * pages is pinned, and we have no lock on that one.)
 *
 *		ring	7	12	30		buffers, as the server has them
 *		pages	a	 b	 c		that were read into them
 *		pool	a	 x	 c		that they have: 12 is let go
 *
 * Which buffer has its turn only the server's ring itself tells (LaStrategy):
 * neither what a read returns nor what it counts says whether the ring has
 * moved on, or whether another process was reading the page already.  We look
 * into it and never change it.  If it were not what we take it for, the wrong
 * buffers would be spared and some blocks counted wrongly, no more.
 *
 * Copyright (c) 2026, the pg_lookahead authors
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "compat.h"
#include "executor/instrument.h"
#include "service/service.h"
#include "storage/buf_internals.h"

/* Buffers of the server's ring for bulk reads, before 16. */
#define LA_SMALL_RING	(256 * 1024 / BLCKSZ)

/* The server's ring takes buffers of its own up to this usage count. */
#define LA_RING_USAGE	1

/* What we raise it to.  The clock's hand may pass before the ring comes. */
#define LA_SPARED_USAGE	(LA_RING_USAGE + 2)

/* One of the server's rings. */
typedef struct LaRingPart
{
	BufferAccessStrategy strategy;
	const LaStrategy *places;	/* what it points to; NULL: unknown */
	BufferTag  *pages;			/* one for each place; zeros: unknown */
	int			npages;
	int			noted;			/* the last place whose page was noted */
} LaRingPart;

struct LaRing
{
	MemoryContext context;
	int			nblocks;		/* of all parts together */
	int			nparts;
	int			current;
	int			used;			/* blocks asked of the current part */
	LaRingPart	parts[FLEXIBLE_ARRAY_MEMBER];
};

/*
 * How many blocks has a ring of about this many kilobytes?  LA_SMALL_RING at
 * least, but no more than an eighth of shared buffers, as the server sees to.
 */
static int
la_ring_size_of(int kb)
{
	int			nblocks = Min(Max(kb / (BLCKSZ / 1024), LA_SMALL_RING),
							  NBuffers / 8);

	return LA_HAVE_SIZED_RING || nblocks < LA_SMALL_RING ? nblocks :
		nblocks / LA_SMALL_RING * LA_SMALL_RING;
}

/*
 * Look into a ring that was just made.  Returns NULL if that is not what this
 * server's source says it is.
 */
static const LaStrategy *
la_ring_places(BufferAccessStrategy strategy, int nbuffers)
{
	const LaStrategy *places = (const LaStrategy *) strategy;

	/* The space has a header, too. */
	if (GetMemoryChunkSpace(strategy) <
		offsetof(LaStrategy, buffers) + nbuffers * sizeof(Buffer) +
		MAXALIGN(1) ||
		places->btype != BAS_BULKREAD || places->nbuffers != nbuffers ||
		places->current != 0)
		return NULL;
	for (int i = 0; i < nbuffers; i++)
	{
		if (places->buffers[i] != InvalidBuffer)
			return NULL;
	}
	return places;
}

/*
 * Make a ring of so many blocks, in a memory context of its own.
 */
static LaRing *
la_ring_create(MemoryContext parent, int nblocks)
{
	MemoryContext context = AllocSetContextCreate(parent, "pg_lookahead ring",
												  ALLOCSET_DEFAULT_SIZES);
	MemoryContext save = MemoryContextSwitchTo(context);
	int			n = LA_HAVE_SIZED_RING ? 1 : Max(nblocks / LA_SMALL_RING, 1);
	LaRing	   *ring;

	ring = palloc0(offsetof(LaRing, parts) + n * sizeof(LaRingPart));
	ring->context = context;
	ring->nparts = n;
	ring->nblocks = nblocks;
	for (int i = 0; i < n; i++)
	{
		LaRingPart *part = &ring->parts[i];

		part->strategy = la_bulk_read_strategy(nblocks);
		part->npages = nblocks / n;
		part->pages = palloc0(part->npages * sizeof(BufferTag));
		part->places = la_ring_places(part->strategy, part->npages);
		Assert(part->places != NULL);
	}
	if (ring->parts[0].places == NULL)
		ereport(LOG,
				(errmsg("I/O worker cannot look into the server's buffer rings"),
				 errdetail("Other tables' pages may have to be read again."),
				 errhint("Update pg_lookahead.")));
	MemoryContextSwitchTo(save);
	return ring;
}

/*
 * Make a ring of about this many kilobytes in place of this one (NULL: none),
 * or return this one if it has that size.
 *
 * A new ring takes other pages' buffers until it is full, while those of the
 * old one stay what they are, and unprotected; so none is made without need.
 */
LaRing *
la_ring_resize(LaRing *ring, MemoryContext parent, int kb)
{
	int			nblocks = la_ring_size_of(kb);

	if (ring != NULL)
	{
		if (ring->nblocks == nblocks)
			return ring;
		MemoryContextDelete(ring->context);
	}
	return la_ring_create(parent, nblocks);
}

/*
 * How many blocks are read until the first is overwritten?
 */
int
la_ring_blocks(const LaRing *ring)
{
	return ring->nblocks;
}

/*
 * The part of the ring for the next so many blocks.
 */
static LaRingPart *
la_ring_next(LaRing *ring, int nblocks)
{
	if (ring->nparts > 1 && ring->used + nblocks > LA_SMALL_RING)
	{
		ring->current = (ring->current + 1) % ring->nparts;
		ring->used = 0;
	}
	ring->used += nblocks;
	return &ring->parts[ring->current];
}

/*
 * The buffer at a place of the ring, or NULL.
 */
static inline BufferDesc *
la_ring_buffer(const LaRingPart *part, int place)
{
	Buffer		buffer = part->places->buffers[place];

	return buffer > 0 && buffer <= NBuffers ?
		GetBufferDescriptor(buffer - 1) : NULL;
}

/*
 * Would the server's ring take a buffer in this state, or let go of it?
 */
static inline bool
la_ring_would_take(uint32 state)
{
	return BUF_STATE_GET_REFCOUNT(state) == 0 &&
		BUF_STATE_GET_USAGECOUNT(state) <= LA_RING_USAGE;
}

/*
 * Is this a page of the range?
 */
static bool
la_range_has(const LaRange *range, const BufferTag *tag)
{
	const LaTarget *target = range->target;
	BufferTag	own;

	InitBufferTag(&own, &target->locator, target->fork, tag->blockNum);
	return BufferTagsEqual(&own, tag) && tag->blockNum >= range->first &&
		tag->blockNum - range->first < (BlockNumber) range->nblocks;
}

/*
 * Note which pages of the range, whose buffers the caller has pinned, were read
 * since the last time.  Returns how many places the ring has moved on.
 *
 * It may have moved over buffers that it did not use in the end.  What these
 * have is not ours; nor is what a read that failed has left, since nobody has
 * pinned that (NULL: such places only).
 */
static int
la_ring_note(LaRingPart *part, const LaRange *range)
{
	int			moved = 0;

	while (part->noted != part->places->current && moved < part->npages)
	{
		const BufferDesc *desc;
		BufferTag  *page;

		part->noted = (part->noted + 1) % part->npages;
		page = &part->pages[part->noted];
		desc = la_ring_buffer(part, part->noted);
		if (range != NULL && desc != NULL && la_range_has(range, &desc->tag))
			*page = desc->tag;
		else
			memset(page, 0, sizeof(*page));
		moved++;
	}
	return moved;
}

/*
 * The ring may be about to take so many buffers.  Have it let go of those that
 * have become another page's.
 */
static void
la_ring_spare(LaRingPart *part, int nblocks)
{
	if (part->places == NULL)
		return;
	(void) la_ring_note(part, NULL);
	for (int i = 1; i <= part->npages && nblocks > 0; i++)
	{
		int			place = (part->noted + i) % part->npages;
		BufferDesc *desc = la_ring_buffer(part, place);
		uint32		state = 0;

		/* Without a lock: it may become another's a moment later, too. */
		if (desc != NULL && BufferTagsEqual(&part->pages[place], &desc->tag))
			state = pg_atomic_read_u32(&desc->state);
		else if (desc != NULL)
		{
			state = LockBufHdr(desc);
			if ((state & BM_VALID) != 0 && la_ring_would_take(state))
				state += BUF_USAGECOUNT_ONE *
					(LA_SPARED_USAGE - BUF_STATE_GET_USAGECOUNT(state));
			UnlockBufHdr(desc, state);
		}
		/* It may move over what would have to be written out. */
		if ((state & BM_DIRTY) == 0 || !la_ring_would_take(state))
			nblocks--;
	}
}

/*
 * Note and count what was read of so many blocks since this process had read
 * "before".  What another was first to read is a hit, but 17 counts it for
 * both; there it is no more than the ring has moved on.  On 18 what is read in
 * two parts counts twice in part.
 */
static inline void
la_count_read(LaRingPart *part, LaRange *range, int64 before, int nblocks)
{
	int			counted = (int) (pgBufferUsage.shared_blks_read - before);

	if (part->places != NULL)
	{
		int			moved = la_ring_note(part, range);

		if (LA_HAVE_READ_BUFFERS && !LA_HAVE_AIO)
			nblocks = Min(nblocks, moved);
	}
	nblocks = Min(nblocks, counted);
	range->nread += nblocks;
	if (nblocks > 0)
		range->nreads++;
}

#if LA_HAVE_READ_BUFFERS

/*
 * Read a range of blocks, in as few reads as can be, for as long as they are
 * wanted.  Raises errors.
 *
 * No more of them at a time than this process may pin: shared buffers may be
 * small, and are everybody's.  So there can be many reads all the same.
 */
void
la_read_range(LaRing *ring, LaRange *range)
{
	const LaTarget *target = range->target;
	LaRingPart *part = la_ring_next(ring, range->nblocks);
	Buffer		buffers[MAX_IO_COMBINE_LIMIT];
	ReadBuffersOperation read;
	uint32		most = la_most_read_blocks();

	memset(&read, 0, sizeof(read));
	memset(buffers, 0, sizeof(buffers));
	read.smgr = la_smgropen(target->locator);
	la_set_persistence(&read, target->persistence);
	read.forknum = target->fork;
	read.strategy = part->strategy;
	LimitAdditionalPins(&most);
	/* Once round would look like not at all. */
	most = Min(most, (uint32) part->npages - 1);
	while (range->done < range->nblocks)
	{
		int			n = Min(range->nblocks - range->done, (int) most);
		int			wanted = n;
		int64		before = pgBufferUsage.shared_blks_read;

		/* The part that was split off has to be read first. */
		if (buffers[0] == InvalidBuffer && !la_is_wanted(range->owner))
			return;
		la_ring_spare(part, n);
		if (StartReadBuffers(&read, buffers, range->first + range->done, &n,
							 LA_READ_HERE))
			WaitReadBuffers(&read);
		la_count_read(part, range, before, n);
		for (int i = 0; i < n; i++)
			ReleaseBuffer(buffers[i]);

		/* What the server has pinned for a part it split off comes first. */
		memmove(buffers, buffers + n, (wanted - n) * sizeof(Buffer));
		memset(buffers + (wanted - n), 0,
			   (MAX_IO_COMBINE_LIMIT - (wanted - n)) * sizeof(Buffer));
		range->done += n;
	}
}

#else

/*
 * Read a range of blocks, one by one, for as long as they are wanted.  Raises
 * errors.
 */
void
la_read_range(LaRing *ring, LaRange *range)
{
	const LaTarget *target = range->target;
	bool		permanent = target->persistence == RELPERSISTENCE_PERMANENT;

	while (range->done < range->nblocks)
	{
		LaRingPart *part;
		int64		before = pgBufferUsage.shared_blks_read;
		Buffer		buffer;

		if (!la_is_wanted(range->owner))
			return;
		part = la_ring_next(ring, 1);
		la_ring_spare(part, 1);
		buffer = ReadBufferWithoutRelcache(target->locator, target->fork,
										   range->first + range->done,
										   RBM_NORMAL, part->strategy,
										   permanent);
		la_count_read(part, range, before, 1);
		ReleaseBuffer(buffer);
		range->done++;
	}
}

#endif
