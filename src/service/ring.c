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
 * good, each reading over what the other read last.  So we keep a list like the
 * ring's, of the pages that were read into its buffers.  Where the buffer whose
 * turn it is has another page by now, we raise its usage count to what tells
 * the ring that others want it; then the ring lets go of the buffer, and takes
 * a new one in its place.  (A pin would tell it, too.  But who drops a relation
 * spins while one of its pages is pinned, and we have no lock on that one.)
 *
 *		ring	7	12	30		buffers, as the server has them
 *		list	a	 b	 c		pages that we read into them
 *		pool	a	 x	 c		pages that they have: 12 is let go
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

/*
 * If the server has passed over so many of its buffers, as when a page that is
 * read turns out to be there already, we find the place again.
 */
#define LA_RING_SLIP	8

/* So many pages in a row are others', and then the list must be wrong. */
#define LA_RING_OTHERS	16

/* The server's ring takes buffers of its own up to this usage count. */
#define LA_RING_USAGE	1

/* A page that was read through a ring. */
typedef struct LaRingPage
{
	Buffer		buffer;			/* InvalidBuffer: none yet */
	BufferTag	tag;
} LaRingPage;

/* One of the server's rings. */
typedef struct LaRingPart
{
	BufferAccessStrategy strategy;
	LaRingPage *pages;			/* one for each buffer */
	int			npages;
	int			next;			/* the one whose turn it is */
	int			nothers;		/* pages not noted since the last that was */
	int			npending;		/* buffers that a read takes, or has taken when
								 * it failed */
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
		part->pages = palloc0(part->npages * sizeof(LaRingPage));
	}
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
	LaRingPart *part;

	if (ring->nparts > 1 && ring->used + nblocks > LA_SMALL_RING)
	{
		ring->current = (ring->current + 1) % ring->nparts;
		ring->used = 0;
	}
	ring->used += nblocks;
	part = &ring->parts[ring->current];
	part->next = (part->next + part->npending) % part->npages;
	part->npending = 0;
	return part;
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
 * Will the ring take the buffer that is the next but so many?  If that has
 * become another page's, have the ring let go of it.
 */
static bool
la_ring_spare(const LaRingPart *part, int ahead)
{
	const LaRingPage *page = &part->pages[(part->next + ahead) % part->npages];
	BufferDesc *desc;
	uint32		state;

	if (page->buffer == InvalidBuffer)
		return false;
	/* Without a lock: it may become another's a moment later, too. */
	desc = GetBufferDescriptor(page->buffer - 1);
	if (BufferTagsEqual(&page->tag, &desc->tag))
		return la_ring_would_take(pg_atomic_read_u32(&desc->state));
	state = LockBufHdr(desc);
	if ((state & BM_VALID) != 0 && la_ring_would_take(state))
		state += BUF_USAGECOUNT_ONE *
			(LA_RING_USAGE + 1 - BUF_STATE_GET_USAGECOUNT(state));
	UnlockBufHdr(desc, state);
	return false;
}

/*
 * Note what was read into a buffer, which the caller has pinned; "expected" is
 * what la_ring_spare() has said.  If the ring did let go of a buffer, the new
 * one may have been its own at another place before: it is not looked for.
 */
static void
la_ring_note(LaRingPart *part, Buffer buffer, bool expected)
{
	LaRingPage *page = &part->pages[part->next];
	int			slip = 0;

	if (expected || page->buffer == InvalidBuffer)
		slip = Min(LA_RING_SLIP, part->npages - 1);
	for (int i = 1; page->buffer != buffer && i <= slip; i++)
	{
		int			place = (part->next + i) % part->npages;

		if (part->pages[place].buffer == buffer)
		{
			part->next = place;
			page = &part->pages[place];
		}
	}
	if (page->buffer != buffer && expected)
	{
		BufferDesc *desc = GetBufferDescriptor(page->buffer - 1);

		/* The ring would have taken that one: this is another process'. */
		if (BufferTagsEqual(&page->tag, &desc->tag) &&
			la_ring_would_take(pg_atomic_read_u32(&desc->state)) &&
			part->nothers++ < LA_RING_OTHERS)
			return;
	}
	part->nothers = 0;
	page->buffer = buffer;
	page->tag = GetBufferDescriptor(buffer - 1)->tag;
	part->next = (part->next + 1) % part->npages;
}

/*
 * This buffer has what another process was first to read.  If the one that was
 * expected has lost its page, the ring has taken it all the same, for the page
 * that we found in the end, or in vain.
 */
static void
la_ring_pass(LaRingPart *part, Buffer buffer, bool expected)
{
	LaRingPage *page = &part->pages[part->next];
	BufferDesc *desc;

	if (!expected)
		return;
	desc = GetBufferDescriptor(page->buffer - 1);
	if (BufferTagsEqual(&page->tag, &desc->tag))
		return;
	if (page->buffer == buffer)
		page->tag = desc->tag;
	part->next = (part->next + 1) % part->npages;
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
	LaRingPart *part = la_ring_next(ring, range->nblocks);
	Buffer		buffers[MAX_IO_COMBINE_LIMIT];
	bool		expected[MAX_IO_COMBINE_LIMIT];
	ReadBuffersOperation read;
	uint32		most = la_most_read_blocks();

	memset(&read, 0, sizeof(read));
	memset(buffers, 0, sizeof(buffers));
	read.smgr = la_smgropen(target->locator);
	la_set_persistence(&read, target->persistence);
	read.forknum = target->fork;
	read.strategy = part->strategy;
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
		for (int i = 0; i < n; i++)
			expected[i] = la_ring_spare(part, i);
		part->npending = n;
		if (StartReadBuffers(&read, buffers, range->first + range->done, &n, 0))
			WaitReadBuffers(&read);
		is_ours = la_count_read(range, before);
		for (int i = 0; i < n; i++)
		{
			if (is_ours)
				la_ring_note(part, buffers[i], expected[i]);
			else
				la_ring_pass(part, buffers[i], expected[i]);
			ReleaseBuffer(buffers[i]);
		}
		part->npending = 0;

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
		bool		expected;

		if (!la_is_wanted(range->owner))
			return;
		part = la_ring_next(ring, 1);
		expected = la_ring_spare(part, 0);
		part->npending = 1;
		buffer = ReadBufferWithoutRelcache(target->locator, target->fork,
										   range->first + range->done,
										   RBM_NORMAL, part->strategy,
										   permanent);
		if (la_count_read(range, before))
			la_ring_note(part, buffer, expected);
		else
			la_ring_pass(part, buffer, expected);
		part->npending = 0;
		ReleaseBuffer(buffer);
		range->done++;
	}
}

#endif
