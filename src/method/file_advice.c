/*-------------------------------------------------------------------------
 *
 * file_advice.c
 *	  Advises the kernel of a range of blocks of one relation.
 *
 * From 17 the storage manager takes a range in one call.  Before, it takes one
 * block at a time, and the kernel makes as many small reads as there are
 * blocks; so there a longer range goes past the storage manager, to the
 * segment file itself, through the server's own virtual file descriptors.  The
 * file is closed again at once: nobody tells us when it has been replaced.
 *
 * Either way in pieces of LA_ADVICE_BYTES.  Linux reads of one piece of advice
 * no more than a device takes at a time (max_sectors_kb) or than it reads ahead
 * by itself (read_ahead_kb), whichever is more, and forgets the rest without a
 * word.  That is a few megabytes on many disks, and 256 kB or 128 kB on others
 * and on network file systems.  The reads of several pieces go on at the same
 * time.
 *
 * Advice that the kernel does not take is no error.  A segment that is missing
 * is one to the storage manager (17 and later, and single blocks before).
 *
 * Copyright (c) 2026, the pg_lookahead authors
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include <fcntl.h>

#include "common/relpath.h"
#include "compat.h"
#include "method/method.h"

/* What Linux reads ahead of a file by default, so that it takes that, too. */
#define LA_ADVICE_BYTES		(128 * 1024)
#define LA_ADVICE_BLOCKS	(LA_ADVICE_BYTES / BLCKSZ)

#if LA_HAVE_RANGE_ADVICE || !LA_HAVE_ADVICE

/*
 * Advise blocks first to first + nblocks - 1 of a fork.
 */
void
la_file_advise(SMgrRelation smgr, ForkNumber fork, BlockNumber first,
			   int nblocks)
{
	while (nblocks > 0)
	{
		int			n = Min(nblocks, LA_ADVICE_BLOCKS);

		la_smgr_prefetch(smgr, fork, first, n);
		first += n;
		nblocks -= n;
	}
}

#else

/* From this many blocks on the cost of opening the file is worth it. */
#define LA_MIN_RANGE_BLOCKS	4

/*
 * Advise the part of a range that is in one segment.
 */
static void
la_advise_segment(SMgrRelation smgr, ForkNumber fork, BlockNumber first,
				  int nblocks)
{
	uint32		segment = first / RELSEG_SIZE;
	off_t		offset = (off_t) (first % RELSEG_SIZE) * BLCKSZ;
	off_t		end = offset + (off_t) nblocks * BLCKSZ;
	char	   *path = relpath(la_smgr_locator(smgr), fork);
	char	   *name = path;
	File		file;

	if (segment > 0)
		name = psprintf("%s.%u", path, segment);
	file = PathNameOpenFile(name, O_RDONLY | PG_BINARY);
	if (file >= 0)
	{
		for (; offset < end; offset += LA_ADVICE_BYTES)
			(void) FilePrefetch(file, offset,
								Min(end - offset, LA_ADVICE_BYTES),
								WAIT_EVENT_DATA_FILE_PREFETCH);
		FileClose(file);
	}
	if (name != path)
		pfree(name);
	pfree(path);
}

/*
 * Advise blocks first to first + nblocks - 1 of a fork.
 */
void
la_file_advise(SMgrRelation smgr, ForkNumber fork, BlockNumber first,
			   int nblocks)
{
	if (nblocks < LA_MIN_RANGE_BLOCKS)
	{
		la_smgr_prefetch(smgr, fork, first, nblocks);
		return;
	}
	while (nblocks > 0)
	{
		int			room = RELSEG_SIZE - first % RELSEG_SIZE;
		int			n = Min(nblocks, room);

		la_advise_segment(smgr, fork, first, n);
		first += n;
		nblocks -= n;
	}
}

#endif
