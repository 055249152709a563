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
 * A ring knows its buffers by number and would overwrite such pages, or share
 * the buffers with another ring for good.  So what was read into each is noted,
 * and before a worker goes on that had nothing to do for a while, some are
 * looked at.  If too many are strangers' there is a new ring; while it fills,
 * what is left of the old one is in shared buffers, too, and unprotected.
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

/* Pages that are looked at; of so many one may be a stranger's. */
#define LA_RING_SAMPLE	32
#define LA_RING_STRANGERS	16

/* A page that was read through a ring. */
typedef struct LaRingPage
{
	Buffer		buffer;
	BufferTag	tag;
} LaRingPage;

struct LaRing
{
	MemoryContext context;
	int			nblocks;		/* of all strategies together */
	int			nstrategies;
	int			current;
	int			used;			/* blocks read through the current one */
	uint64		nnoted;			/* pages noted, ever */
	LaRingPage *pages;			/* the last "nblocks" of them */
	BufferAccessStrategy strategies[FLEXIBLE_ARRAY_MEMBER];
};

/*
 * How many blocks has a ring of about this many kilobytes?  No more than an
 * eighth of shared buffers, but LA_SMALL_RING at least.
 */
static int
la_ring_size_of(int kb)
{
	int			nblocks = Max(Min(kb / (BLCKSZ / 1024), NBuffers / 8),
							  LA_SMALL_RING);

	return LA_HAVE_SIZED_RING ? nblocks :
		nblocks / LA_SMALL_RING * LA_SMALL_RING;
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
	int			n = LA_HAVE_SIZED_RING ? 1 : nblocks / LA_SMALL_RING;
	LaRing	   *ring;

	ring = palloc0(offsetof(LaRing, strategies) +
				   n * sizeof(BufferAccessStrategy));
	ring->context = context;
	ring->nstrategies = n;
	ring->nblocks = nblocks;
	ring->pages = palloc(nblocks * sizeof(LaRingPage));
	for (int i = 0; i < n; i++)
		ring->strategies[i] = la_bulk_read_strategy(nblocks);
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
 * Note what was read into a buffer, which the caller has pinned.
 */
static inline void
la_ring_note(LaRing *ring, Buffer buffer)
{
	LaRingPage *page = &ring->pages[ring->nnoted++ % ring->nblocks];

	page->buffer = buffer;
	page->tag = GetBufferDescriptor(buffer - 1)->tag;
}

/*
 * Are too many of its buffers another page's?  Looks without a lock, at a few
 * that are spread over the ring: a guess is enough.
 */
static bool
la_ring_is_lost(const LaRing *ring)
{
	int			npages = (int) Min(ring->nnoted, (uint64) ring->nblocks);
	int			step = Max(npages / LA_RING_SAMPLE, 1);
	int			nseen = 0;
	int			nstrangers = 0;

	for (int i = 0; i < npages; i += step)
	{
		const LaRingPage *page = &ring->pages[i];

		nseen++;
		nstrangers +=
			!BufferTagsEqual(&page->tag,
							 &GetBufferDescriptor(page->buffer - 1)->tag);
	}
	return nstrangers > nseen / LA_RING_STRANGERS;
}

/*
 * This ring, or a new one in its place if others have its buffers now.
 */
LaRing *
la_ring_renew(LaRing *ring, MemoryContext parent)
{
	int			nblocks = ring->nblocks;

	if (!la_ring_is_lost(ring))
		return ring;
	MemoryContextDelete(ring->context);
	return la_ring_create(parent, nblocks);
}

/*
 * The strategy for the next run of blocks.
 */
static BufferAccessStrategy
la_ring_next(LaRing *ring, int nblocks)
{
	if (ring->nstrategies > 1 && ring->used + nblocks > LA_SMALL_RING)
	{
		ring->current = (ring->current + 1) % ring->nstrategies;
		ring->used = 0;
	}
	ring->used += nblocks;
	return ring->strategies[ring->current];
}

/*
 * Count what was read since so many blocks had been read by this process.  What
 * another was first to read is a hit; not on 17, where the server counts it for
 * both, and on 18 what is read in two parts counts twice in part.  Returns
 * whether something was.
 */
static inline bool
la_count_read(LaRange *range, int64 before)
{
	int			nblocks = (int) (pgBufferUsage.shared_blks_read - before);

	range->nread += nblocks;
	if (nblocks > 0)
		range->nreads++;
	return nblocks > 0;
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
	Buffer		buffers[MAX_IO_COMBINE_LIMIT];
	ReadBuffersOperation read;
	uint32		most = la_most_read_blocks();

	memset(&read, 0, sizeof(read));
	memset(buffers, 0, sizeof(buffers));
	read.smgr = la_smgropen(target->locator);
	la_set_persistence(&read, target->persistence);
	read.forknum = target->fork;
	read.strategy = la_ring_next(ring, range->nblocks);
	LimitAdditionalPins(&most);
	while (range->done < range->nblocks)
	{
		int			n = Min(range->nblocks - range->done, (int) most);
		int			wanted = n;
		int64		before = pgBufferUsage.shared_blks_read;
		bool		is_ours;

		/* The part that was split off has to be read first. */
		if (buffers[0] == InvalidBuffer && !la_is_wanted(range->owner))
			return;
		if (StartReadBuffers(&read, buffers, range->first + range->done, &n, 0))
			WaitReadBuffers(&read);
		is_ours = la_count_read(range, before);
		for (int i = 0; i < n; i++)
		{
			if (is_ours)
				la_ring_note(ring, buffers[i]);
			ReleaseBuffer(buffers[i]);
		}

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
		int64		before = pgBufferUsage.shared_blks_read;
		Buffer		buffer;

		if (!la_is_wanted(range->owner))
			return;
		buffer = ReadBufferWithoutRelcache(target->locator, target->fork,
										   range->first + range->done,
										   RBM_NORMAL, la_ring_next(ring, 1),
										   permanent);
		if (la_count_read(range, before))
			la_ring_note(ring, buffer);
		ReleaseBuffer(buffer);
		range->done++;
	}
}

#endif
