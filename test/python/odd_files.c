/*
 * odd_files.c
 *	  Preloaded into a server: writes of several pages to a table fail while the
 *	  file that LA_FAILING_WRITES names exists, and take a millisecond more while
 *	  the one that LA_SLOW_WRITES names does.  Single pages are left alone.
 *
 *	  While there is the one that LA_SLOW_READS names, reads of pages of a table
 *	  take two milliseconds more.
 *
 *	  While there is the one that LA_NO_ALLOCATION names fallocate() cannot
 *	  allocate, and while there is that of LA_SLOW_ZEROS writes from several
 *	  places in memory take 5 milliseconds more.
 *
 *	  If there is the one that LA_SHORT_SPACE names, the next table that is to
 *	  get longer gets half of it, as where a quota ends, and the file is gone.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <unistd.h>

#define PAGE	8192

static int
is_odd(const char *variable, int fd, size_t length)
{
	const char *flag = getenv(variable);
	char		link[64];
	char		path[4096];
	ssize_t		n;

	if (length <= PAGE || flag == NULL || access(flag, F_OK) != 0)
		return 0;
	snprintf(link, sizeof(link), "/proc/self/fd/%d", fd);
	n = readlink(link, path, sizeof(path) - 1);
	if (n < 0)
		return 0;
	path[n] = '\0';
	return strstr(path, "/base/") != NULL;
}

#define PWRITE(name, offset_type) \
ssize_t \
name(int fd, const void *data, size_t length, offset_type offset) \
{ \
	static ssize_t (*next) (int, const void *, size_t, offset_type); \
\
	if (next == NULL) \
		next = (ssize_t (*) (int, const void *, size_t, offset_type)) \
			dlsym(RTLD_NEXT, #name); \
	if (is_odd("LA_SLOW_WRITES", fd, length)) \
		usleep(1000); \
	if (is_odd("LA_FAILING_WRITES", fd, length)) \
	{ \
		errno = EIO; \
		return -1; \
	} \
	return next(fd, data, length, offset); \
}

PWRITE(pwrite, off_t)
PWRITE(pwrite64, off64_t)

#define PWRITEV(name, offset_type) \
ssize_t \
name(int fd, const struct iovec *iov, int count, offset_type offset) \
{ \
	static ssize_t (*next) (int, const struct iovec *, int, offset_type); \
\
	if (next == NULL) \
		next = (ssize_t (*) (int, const struct iovec *, int, offset_type)) \
			dlsym(RTLD_NEXT, #name); \
	if (is_odd("LA_SLOW_ZEROS", fd, (size_t) count * PAGE)) \
		usleep(5000); \
	return next(fd, iov, count, offset); \
}

#define PREAD(name, offset_type) \
ssize_t \
name(int fd, void *data, size_t length, offset_type offset) \
{ \
	static ssize_t (*next) (int, void *, size_t, offset_type); \
\
	if (next == NULL) \
		next = (ssize_t (*) (int, void *, size_t, offset_type)) \
			dlsym(RTLD_NEXT, #name); \
	if (length >= PAGE && is_odd("LA_SLOW_READS", fd, length + 1)) \
		usleep(2000); \
	return next(fd, data, length, offset); \
}

PREAD(pread, off_t)
PREAD(pread64, off64_t)

PWRITEV(pwritev, off_t)
PWRITEV(pwritev64, off64_t)

/* fallocate() of file_extend.c sets errno, posix_fallocate() of the server returns it. */
static int
is_short(int fd, off_t length)
{
	return is_odd("LA_SHORT_SPACE", fd, length) &&
		unlink(getenv("LA_SHORT_SPACE")) == 0;
}

#define FALLOCATE(name, offset_type) \
int \
name(int fd, int mode, offset_type offset, offset_type length) \
{ \
	static int	(*next) (int, int, offset_type, offset_type); \
\
	if (next == NULL) \
		next = (int (*) (int, int, offset_type, offset_type)) \
			dlsym(RTLD_NEXT, #name); \
	if (is_odd("LA_NO_ALLOCATION", fd, length)) \
	{ \
		errno = EOPNOTSUPP; \
		return -1; \
	} \
	if (!is_short(fd, length)) \
		return next(fd, mode, offset, length); \
	if (next(fd, mode, offset, length / 2 / PAGE * PAGE) == 0) \
		errno = EDQUOT; \
	return -1; \
}

#define POSIX_FALLOCATE(name, offset_type) \
int \
name(int fd, offset_type offset, offset_type length) \
{ \
	static int	(*next) (int, offset_type, offset_type); \
	int			error; \
\
	if (next == NULL) \
		next = (int (*) (int, offset_type, offset_type)) \
			dlsym(RTLD_NEXT, #name); \
	if (!is_short(fd, length)) \
		return next(fd, offset, length); \
	error = next(fd, offset, length / 2 / PAGE * PAGE); \
	return error ? error : EDQUOT; \
}

FALLOCATE(fallocate, off_t)
FALLOCATE(fallocate64, off64_t)
POSIX_FALLOCATE(posix_fallocate, off_t)
POSIX_FALLOCATE(posix_fallocate64, off64_t)
