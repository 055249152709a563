/*-------------------------------------------------------------------------
 *
 * file_extend.c
 *	  Makes the file of a table longer.
 *
 * For servers that can only add pages one by one (15).
 *
 * The storage manager asks the file how long it is whenever it wants to know,
 * so a file that got longer under the extension lock is a table with more
 * pages, all of them zeros.
 *
 * A table is a row of files of 1 GB.  We never go beyond the end of the last
 * one: the storage manager makes the next file itself, and fills it page by
 * page until we follow.
 *
 * The space is real: it is allocated by the file system (fallocate), or written
 * where the file system cannot do that.  If there is not enough of it, the file
 * may have got a part; whole pages of that are pages of the table, and behind a
 * part of a page nothing is added before the server has overwritten it with a
 * page of its own.  It is not cut off again, because another session may
 * have seen it.
 *
 * Nothing is synced here.  What is lost in a crash is empty pages; pages that
 * were used are written, synced and replayed by the server.
 *
 * Copyright (c) 2026, the pg_lookahead authors
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "compat.h"

#if !LA_HAVE_EXTEND_BY

#include <fcntl.h>
#include <unistd.h>

#include "common/relpath.h"
#include "extend/extend.h"
#include "miscadmin.h"
#include "port/pg_iovec.h"
#include "portability/instr_time.h"
#include "storage/fd.h"

/* Pages that are written in one call, where space cannot be allocated. */
#define LA_ZERO_BLOCKS	Min(32, PG_IOV_MAX)

/* Others wait for the lock meanwhile: no longer than this, in microseconds. */
#define LA_ZEROS_US		10000

/*
 * Write zeros, or a part of them if it takes long.  Returns false if that
 * failed, with errno.
 */
static bool
la_write_zeros(int fd, off_t offset, off_t length)
{
	static PGAlignedBlock zeros;
	struct iovec iov[LA_ZERO_BLOCKS];
	instr_time	start;
	instr_time	now;

	INSTR_TIME_SET_CURRENT(start);
	while (length > 0)
	{
		int			n = Min(length / BLCKSZ, LA_ZERO_BLOCKS);
		ssize_t		written;

		for (int i = 0; i < n; i++)
		{
			iov[i].iov_base = zeros.data;
			iov[i].iov_len = BLCKSZ;
		}
		written = pg_pwritev(fd, iov, n, offset);
		if (written != (ssize_t) n * BLCKSZ)
			return false;
		offset += written;
		length -= written;
		INSTR_TIME_SET_CURRENT(now);
		INSTR_TIME_SUBTRACT(now, start);
		if (InterruptPending || INSTR_TIME_GET_MICROSEC(now) >= LA_ZEROS_US)
			break;
	}
	return true;
}

/*
 * Allocate space for a part of a file and make the file that long.
 */
static bool
la_allocate(int fd, off_t offset, off_t length)
{
#ifdef __linux__
	int			result;

	/* Unlike posix_fallocate() this does not pretend. */
	do
	{
		result = fallocate(fd, 0, offset, length);
	} while (result != 0 && errno == EINTR &&
			 !QueryCancelPending && !ProcDiePending);
	if (result == 0)
		return true;
	if (errno != EOPNOTSUPP && errno != ENOSYS)
		return false;
#endif
	return la_write_zeros(fd, offset, length);
}

/*
 * How many of npages can be added to a table of nblocks: up to the end of its
 * last file.
 */
uint32
la_file_room(BlockNumber nblocks, uint32 npages)
{
	BlockNumber within = nblocks % RELSEG_SIZE;

	/* A full file: the next one does not exist. */
	if (within == 0)
		return 0;
	return Min(npages, RELSEG_SIZE - within);
}

/*
 * Open the file that a table of nblocks ends in.  Returns -1 if that failed.
 */
static int
la_open_last(Relation rel, BlockNumber nblocks)
{
	BlockNumber segment = nblocks / RELSEG_SIZE;
	char	   *path = la_rel_path(rel);
	char	   *name = segment == 0 ? pstrdup(path) :
		psprintf("%s.%u", path, segment);
	int			fd = OpenTransientFile(name, O_RDWR | PG_BINARY);

	pfree(name);
	pfree(path);
	return fd;
}

/*
 * Is there nothing behind the end of a table of nblocks?  It may be part of a
 * page.  Or the kernel may have told a length that is too small: the server
 * knows of such kernels, and takes care not to overwrite what is there.
 */
bool
la_file_ends_at(Relation rel, BlockNumber nblocks)
{
	off_t		offset = (off_t) (nblocks % RELSEG_SIZE) * BLCKSZ;
	int			fd = la_open_last(rel, nblocks);
	char		found;
	bool		is_end;

	if (fd < 0)
		return false;
	is_end = pread(fd, &found, 1, offset) == 0;
	CloseTransientFile(fd);
	return is_end;
}

/*
 * Add pages to a table of nblocks, as many as its last file has room for.
 *
 * The caller holds the extension lock and has looked at the size under it.
 * Returns false if there was an error, or the space is not there.
 */
bool
la_file_extend(Relation rel, BlockNumber nblocks, uint32 npages)
{
	BlockNumber within = nblocks % RELSEG_SIZE;
	int			fd = la_open_last(rel, nblocks);
	bool		ok;

	Assert(npages <= la_file_room(nblocks, npages));
	if (fd < 0)
		return false;

	pgstat_report_wait_start(WAIT_EVENT_DATA_FILE_EXTEND);
	ok = la_allocate(fd, (off_t) within * BLCKSZ, (off_t) npages * BLCKSZ);
	pgstat_report_wait_end();

	CloseTransientFile(fd);
	return ok;
}

#endif							/* !LA_HAVE_EXTEND_BY */
