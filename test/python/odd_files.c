/*
 * odd_files.c
 *	  Preloaded into a server: writes of several pages to a table fail while the
 *	  file that LA_FAILING_WRITES names exists, and take a millisecond more while
 *	  the one that LA_SLOW_WRITES names does.  Single pages are left alone.
 *
 *	  While there is the one that LA_SLOW_READS names, reads of pages of a table
 *	  take two milliseconds more.
 *
 *	  While there is the one that LA_COLD_READS names, reads of pages of a table
 *	  that this process has neither read before nor advised the kernel of take
 *	  half a millisecond more, as if they came from storage.  The file says how
 *	  many pages at the beginning of each table are like that; with a minus sign
 *	  before, no advice helps.  From the first such read on it is them that a
 *	  process measures: its clock goes on with each, by that much, and with each
 *	  look at it, by a nanosecond, and stands still otherwise, whatever else the
 *	  machine does.
 *
 *	  While there is the one that LA_NO_ALLOCATION names fallocate() cannot
 *	  allocate, and while there is that of LA_SLOW_ZEROS writes from several
 *	  places in memory take 5 milliseconds more.
 *
 *	  While there is the one that LA_READ_AHEAD names, it says how far the kernel
 *	  reads ahead.
 *
 *	  If there is the one that LA_SHORT_SPACE names, the next table that is to
 *	  get longer gets half of it, as where a quota ends, and the file is gone.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <time.h>
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

/* Which pages of a file were read or advised; of the first files that are. */
#define FILES	16
#define PAGES	32768

typedef struct File
{
	ino_t		number;
	char		is_warm[PAGES];
} File;

static int
warm(int fd, off_t offset, size_t length)
{
	static File files[FILES];
	struct stat st;
	File	   *file = files;
	off_t		end = (offset + (off_t) length) / PAGE;
	int			is_new = 0;

	if (fstat(fd, &st) != 0)
		return 0;
	while (file->number != st.st_ino && file->number != 0)
		if (++file == files + FILES)
			return 0;
	file->number = st.st_ino;
	for (off_t page = offset / PAGE; page < end && page < PAGES; page++)
	{
		is_new |= !file->is_warm[page];
		file->is_warm[page] = 1;
	}
	return is_new;
}

/* The number in the file that makes reads cold, 0 if there is none. */
static long
cold_pages(int fd)
{
	FILE	   *flag;
	long		n = 0;

	if (!is_odd("LA_COLD_READS", fd, PAGE + 1))
		return 0;
	flag = fopen(getenv("LA_COLD_READS"), "r");
	if (flag != NULL)
	{
		if (fscanf(flag, "%ld", &n) != 1)
			n = 0;
		fclose(flag);
	}
	return n;
}

static int	(*next_clock_gettime) (clockid_t, struct timespec *);

/* The clock of a process that has had cold reads; not set before. */
static struct timespec cold_clock;

static void
advance(long nanoseconds)
{
	cold_clock.tv_nsec += nanoseconds;
	if (cold_clock.tv_nsec >= 1000000000)
	{
		cold_clock.tv_nsec -= 1000000000;
		cold_clock.tv_sec++;
	}
}

static int
is_cold_clock(void)
{
	const char *flag = getenv("LA_COLD_READS");

	return cold_clock.tv_sec != 0 && flag != NULL && access(flag, F_OK) == 0;
}

int
clock_gettime(clockid_t clock, struct timespec *now)
{
	if (next_clock_gettime == NULL)
		next_clock_gettime = (int (*) (clockid_t, struct timespec *))
			dlsym(RTLD_NEXT, "clock_gettime");
	if (clock == CLOCK_MONOTONIC && is_cold_clock())
	{
		advance(1);
		*now = cold_clock;
		return 0;
	}
	/* It computes no time at all. */
	if (clock == CLOCK_THREAD_CPUTIME_ID && is_cold_clock())
	{
		memset(now, 0, sizeof(*now));
		return 0;
	}
	return next_clock_gettime(clock, now);
}

static void
read_cold(int fd, off_t offset, size_t length)
{
	long		n = cold_pages(fd);

	if (n == 0)
		return;
	if (cold_clock.tv_sec == 0)
		(void) clock_gettime(CLOCK_MONOTONIC, &cold_clock);
	if (warm(fd, offset, length) && offset / PAGE < labs(n))
	{
		advance(500000);
		usleep(1);			/* the kernel counts that it slept */
	}
}

#define FADVISE(name, offset_type) \
int \
name(int fd, offset_type offset, offset_type length, int advice) \
{ \
	static int	(*next) (int, offset_type, offset_type, int); \
\
	if (next == NULL) \
		next = (int (*) (int, offset_type, offset_type, int)) \
			dlsym(RTLD_NEXT, #name); \
	if (advice == POSIX_FADV_WILLNEED && cold_pages(fd) > 0) \
		(void) warm(fd, offset, length); \
	return next(fd, offset, length, advice); \
}

FADVISE(posix_fadvise, off_t)
FADVISE(posix_fadvise64, off64_t)

#define PREADV(name, offset_type) \
ssize_t \
name(int fd, const struct iovec *iov, int count, offset_type offset) \
{ \
	static ssize_t (*next) (int, const struct iovec *, int, offset_type); \
	size_t		length = 0; \
\
	if (next == NULL) \
		next = (ssize_t (*) (int, const struct iovec *, int, offset_type)) \
			dlsym(RTLD_NEXT, #name); \
	for (int i = 0; i < count; i++) \
		length += iov[i].iov_len; \
	read_cold(fd, offset, length); \
	return next(fd, iov, count, offset); \
}

PREADV(preadv, off_t)
PREADV(preadv64, off64_t)

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
	read_cold(fd, offset, length); \
	return next(fd, data, length, offset); \
}

PREAD(pread, off_t)
PREAD(pread64, off64_t)

PWRITEV(pwritev, off_t)
PWRITEV(pwritev64, off64_t)

static const char *
in_place_of(const char *path)
{
	const char *flag = getenv("LA_READ_AHEAD");
	const char *name = strrchr(path, '/');

	/* Nor does it have to wait for a processor. */
	if (name != NULL && strcmp(name, "/schedstat") == 0 && is_cold_clock())
		return "";
	if (flag == NULL || name == NULL || strcmp(name, "/read_ahead_kb") != 0)
		return path;
	return access(flag, F_OK) == 0 ? flag : path;
}

#define OPEN(name) \
int \
name(const char *path, int flags, ...) \
{ \
	static int	(*next) (const char *, int, ...); \
	mode_t		mode = 0; \
\
	if (next == NULL) \
		next = (int (*) (const char *, int, ...)) dlsym(RTLD_NEXT, #name); \
	if (flags & O_CREAT) \
	{ \
		va_list		arguments; \
\
		va_start(arguments, flags); \
		mode = va_arg(arguments, mode_t); \
		va_end(arguments); \
	} \
	return next(in_place_of(path), flags, mode); \
}

OPEN(open)
OPEN(open64)

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
