/*
 * odd_writes.c
 *	  Preloaded into a server: writes of several pages to a table fail while the
 *	  file that LA_FAILING_WRITES names exists, and take a millisecond more while
 *	  the one that LA_SLOW_WRITES names does.  Single pages are left alone.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/types.h>
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
