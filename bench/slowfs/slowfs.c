/*-------------------------------------------------------------------------
 *
 * slowfs.c
 *	  A file system whose reads, writes and allocations cost time.
 *
 *		slowfs [-r USECS] [-w USECS] [-f USECS] [-a USECS] [-e FILE] [-E FILE]
 *			   FOLDER MOUNTPOINT [-- FUSE OPTIONS]
 *
 * Everything is passed on to FOLDER.  Before it, a request sleeps:
 *
 *		-r	a read
 *		-w	a write, a sync
 *		-f	a sync, instead of -w
 *		-a	what makes room or gives it back: fallocate, truncate, create, and a
 *			write behind the space that the file has, on top of -w
 *
 * As long as the file of -e exists, writes fail with EIO; reads do so as long as
 * that of -E exists.
 *
 * Requests run beside each other, each with its own sleep: the storage is slow to
 * answer, as one in a network is, and not narrow.  Names, sizes and the like
 * cost nothing.  The kernel's page cache works as for other file systems; a
 * write goes through it at once.
 *
 * At the end the numbers of requests are printed to standard error, and when
 * SIGUSR1 comes.
 *
 * Run as root it serves everybody, with the kernel's checks, and becomes the
 * owner of FOLDER once it is mounted: that user could have root follow a link
 * there to any file.  So whatever is made belongs to them: let FOLDER be the
 * servers' user's.  It cannot unmount then, if it is ended otherwise than by
 * umount.  Run by somebody else it serves its user and needs the program
 * fusermount3.
 *
 * Copyright (c) 2026, the pg_lookahead authors
 *
 *-------------------------------------------------------------------------
 */
#define FUSE_USE_VERSION 31
#define _GNU_SOURCE

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <fuse.h>
#include <grp.h>
#include <limits.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <time.h>
#include <unistd.h>

/* Requests that nobody waits for; the kernel's own limit is 12. */
#define MOST_IN_FLIGHT	1024

static int	folder;				/* FOLDER, opened */
static long read_us = 0;
static long write_us = 0;
static long sync_us = -1;		/* -1: as a write */
static long allocate_us = 0;
static const char *failing = NULL;
static const char *failing_reads = NULL;

static atomic_long reads;
static atomic_long writes;
static atomic_long syncs;
static atomic_long allocations;

/*
 * The name below FOLDER, where we are, of a name below MOUNTPOINT.
 */
static const char *
real(char *buffer, const char *path)
{
	snprintf(buffer, PATH_MAX, ".%s", path);
	return buffer;
}

/*
 * Sleep for as long as a request of this kind costs, and count it.
 */
static void
cost(atomic_long *counter, long usecs)
{
	struct timespec span = {usecs / 1000000, usecs % 1000000 * 1000};

	atomic_fetch_add(counter, 1);
	if (usecs > 0)
		nanosleep(&span, NULL);
}

static int
result(long outcome)
{
	return outcome < 0 ? -errno : (int) outcome;
}

static int
slow_getattr(const char *path, struct stat *found, struct fuse_file_info *info)
{
	char		name[PATH_MAX];

	if (info)
		return result(fstat((int) info->fh, found));
	return result(lstat(real(name, path), found));
}

static int
slow_readlink(const char *path, char *target, size_t size)
{
	char		name[PATH_MAX];
	ssize_t		length = readlink(real(name, path), target, size - 1);

	if (length < 0)
		return -errno;
	target[length] = '\0';
	return 0;
}

static int
slow_mkdir(const char *path, mode_t mode)
{
	char		name[PATH_MAX];

	return result(mkdir(real(name, path), mode));
}

static int
slow_unlink(const char *path)
{
	char		name[PATH_MAX];

	return result(unlink(real(name, path)));
}

static int
slow_rmdir(const char *path)
{
	char		name[PATH_MAX];

	return result(rmdir(real(name, path)));
}

static int
slow_symlink(const char *target, const char *path)
{
	char		name[PATH_MAX];

	return result(symlink(target, real(name, path)));
}

static int
slow_rename(const char *from, const char *to, unsigned int flags)
{
	char		one[PATH_MAX];
	char		other[PATH_MAX];

	if (flags)
		return -EINVAL;
	return result(rename(real(one, from), real(other, to)));
}

static int
slow_link(const char *from, const char *to)
{
	char		one[PATH_MAX];
	char		other[PATH_MAX];

	return result(link(real(one, from), real(other, to)));
}

static int
slow_chmod(const char *path, mode_t mode, struct fuse_file_info *info)
{
	char		name[PATH_MAX];

	return result(chmod(real(name, path), mode));
}

static int
slow_chown(const char *path, uid_t user, gid_t group,
		   struct fuse_file_info *info)
{
	char		name[PATH_MAX];

	return result(lchown(real(name, path), user, group));
}

static int
slow_truncate(const char *path, off_t size, struct fuse_file_info *info)
{
	char		name[PATH_MAX];

	cost(&allocations, allocate_us);
	if (info)
		return result(ftruncate((int) info->fh, size));
	return result(truncate(real(name, path), size));
}

static int
slow_open(const char *path, struct fuse_file_info *info)
{
	char		name[PATH_MAX];
	int			fd = open(real(name, path), info->flags & ~O_DIRECT);

	if (fd < 0)
		return -errno;
	info->fh = (uint64_t) fd;
	/* Nobody else changes FOLDER: what is cached stays good. */
	info->keep_cache = 1;
	return 0;
}

static int
slow_create(const char *path, mode_t mode, struct fuse_file_info *info)
{
	char		name[PATH_MAX];
	int			fd;

	cost(&allocations, allocate_us);
	fd = open(real(name, path), (info->flags & ~O_DIRECT) | O_CREAT, mode);
	if (fd < 0)
		return -errno;
	info->fh = (uint64_t) fd;
	return 0;
}

static int
slow_read(const char *path, char *to, size_t size, off_t offset,
		  struct fuse_file_info *info)
{
	cost(&reads, read_us);
	if (failing_reads && access(failing_reads, F_OK) == 0)
		return -EIO;
	return result(pread((int) info->fh, to, size, offset));
}

/*
 * Does a write go to where the file has no space yet?
 *
 * Files are taken to have space from their beginning on.
 */
static bool
makes_room(int fd, off_t end)
{
	struct stat found;

	return fstat(fd, &found) == 0 && end > (off_t) found.st_blocks * 512;
}

static int
slow_write(const char *path, const char *from, size_t size, off_t offset,
		   struct fuse_file_info *info)
{
	if (makes_room((int) info->fh, offset + (off_t) size))
		cost(&allocations, allocate_us);
	cost(&writes, write_us);
	if (failing && access(failing, F_OK) == 0)
		return -EIO;
	return result(pwrite((int) info->fh, from, size, offset));
}

static int
slow_statfs(const char *path, struct statvfs *found)
{
	char		name[PATH_MAX];

	return result(statvfs(real(name, path), found));
}

static int
slow_release(const char *path, struct fuse_file_info *info)
{
	close((int) info->fh);
	return 0;
}

static int
slow_fsync(const char *path, int data_only, struct fuse_file_info *info)
{
	cost(&syncs, sync_us < 0 ? write_us : sync_us);
	return result(data_only ? fdatasync((int) info->fh) :
				  fsync((int) info->fh));
}

static int
slow_fsyncdir(const char *path, int data_only, struct fuse_file_info *info)
{
	return 0;
}

static int
slow_fallocate(const char *path, int mode, off_t offset, off_t length,
			   struct fuse_file_info *info)
{
	cost(&allocations, allocate_us);
	return result(fallocate((int) info->fh, mode, offset, length));
}

static int
slow_readdir(const char *path, void *into, fuse_fill_dir_t fill, off_t offset,
			 struct fuse_file_info *info, enum fuse_readdir_flags flags)
{
	char		name[PATH_MAX];
	DIR		   *folder = opendir(real(name, path));
	struct dirent *entry;

	if (folder == NULL)
		return -errno;
	while ((entry = readdir(folder)) != NULL)
		fill(into, entry->d_name, NULL, 0, 0);
	closedir(folder);
	return 0;
}

static int
slow_utimens(const char *path, const struct timespec times[2],
			 struct fuse_file_info *info)
{
	char		name[PATH_MAX];

	return result(utimensat(AT_FDCWD, real(name, path), times,
							AT_SYMLINK_NOFOLLOW));
}

/*
 * Go to FOLDER; if root, become its owner.  The folders above need not be open
 * to that user.
 */
static void
enter_folder(void)
{
	struct stat found;

	if (fstat(folder, &found) == 0 &&
		(geteuid() != 0 ||
		 (setgroups(0, NULL) == 0 &&
		  setresgid(found.st_gid, found.st_gid, found.st_gid) == 0 &&
		  setresuid(found.st_uid, found.st_uid, found.st_uid) == 0)) &&
		fchdir(folder) == 0)
		return;
	perror("slowfs: could not enter the folder as its owner");
	_exit(1);
}

static void *
slow_init(struct fuse_conn_info *connection, struct fuse_config *config)
{
	/* It is mounted, and no request has been served.  libfuse went to "/". */
	enter_folder();
	config->use_ino = 1;
	config->attr_timeout = 60;
	config->entry_timeout = 60;
	/* Otherwise the kernel leaves out what it should read ahead. */
	connection->max_background = MOST_IN_FLIGHT;
	connection->congestion_threshold = MOST_IN_FLIGHT;
	/* Otherwise each write throws what is cached of the file away. */
	connection->want &= ~(unsigned) FUSE_CAP_AUTO_INVAL_DATA;
	return NULL;
}

static const struct fuse_operations operations = {
	.getattr = slow_getattr,
	.readlink = slow_readlink,
	.mkdir = slow_mkdir,
	.unlink = slow_unlink,
	.rmdir = slow_rmdir,
	.symlink = slow_symlink,
	.rename = slow_rename,
	.link = slow_link,
	.chmod = slow_chmod,
	.chown = slow_chown,
	.truncate = slow_truncate,
	.open = slow_open,
	.create = slow_create,
	.read = slow_read,
	.write = slow_write,
	.statfs = slow_statfs,
	.release = slow_release,
	.fsync = slow_fsync,
	.fsyncdir = slow_fsyncdir,
	.fallocate = slow_fallocate,
	.readdir = slow_readdir,
	.utimens = slow_utimens,
	.init = slow_init,
};

static void
print_counts(int signal_number)
{
	char		line[160];
	int			length;

	length = snprintf(line, sizeof(line),
					  "reads %ld writes %ld syncs %ld allocations %ld\n",
					  atomic_load(&reads), atomic_load(&writes),
					  atomic_load(&syncs), atomic_load(&allocations));
	if (write(STDERR_FILENO, line, (size_t) length) < 0)
		return;
}

static void
usage(void)
{
	fputs("usage: slowfs [-r USECS] [-w USECS] [-f USECS] [-a USECS] [-e FILE] [-E FILE]"
		  " FOLDER MOUNTPOINT [-- FUSE OPTIONS]\n", stderr);
	exit(2);
}

int
main(int argc, char **argv)
{
	/* In the foreground; as root for everybody, with the kernel's checks. */
	char	   *arguments[64] = {argv[0], "-f"};
	int			n = 2;
	int			option;
	int			outcome;

	while ((option = getopt(argc, argv, "+r:w:f:a:e:E:")) != -1)
		switch (option)
		{
			case 'r':
				read_us = atol(optarg);
				break;
			case 'w':
				write_us = atol(optarg);
				break;
			case 'f':
				sync_us = atol(optarg);
				break;
			case 'a':
				allocate_us = atol(optarg);
				break;
			case 'e':
				failing = optarg;
				break;
			case 'E':
				failing_reads = optarg;
				break;
			default:
				usage();
		}
	if (argc - optind < 2 || argc - optind > 50)
		usage();
	folder = open(argv[optind], O_PATH | O_DIRECTORY | O_CLOEXEC);
	if (folder < 0)
	{
		perror(argv[optind]);
		return 1;
	}
	arguments[n++] = argv[optind + 1];
	arguments[n++] = "-o";
	arguments[n++] = "max_threads=300";
	if (geteuid() == 0)
	{
		arguments[n++] = "-o";
		arguments[n++] = "allow_other,default_permissions";
	}
	for (int i = optind + 2; i < argc; i++)
		if (strcmp(argv[i], "--") != 0)
			arguments[n++] = argv[i];

	umask(0);
	signal(SIGUSR1, print_counts);
	outcome = fuse_main(n, arguments, &operations, NULL);
	print_counts(0);
	return outcome;
}
