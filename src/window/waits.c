/*-------------------------------------------------------------------------
 *
 * waits.c
 *	  What a process waited for, told from outside.
 *
 * The kernel counts how often a process went to sleep by itself, which is what
 * waiting for storage is.  A block that is in the page cache is copied without
 * sleeping.  The clock alone cannot tell the two apart: a process that loses
 * its processor to another one looks like one that waits.  Where waits are
 * measured by the clock, the time for which the process was ready to run is no
 * wait: processors are scarce then, and nothing is gained by having more
 * processes work.
 *
 * Copyright (c) 2026, the pg_lookahead authors
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include <fcntl.h>
#ifdef __linux__
#include <sched.h>
#endif
#include <sys/resource.h>
#ifdef __linux__
#include <sys/stat.h>
#include <sys/sysmacros.h>
#endif
#include <time.h>
#include <unistd.h>

#include "miscadmin.h"
#include "window/waits.h"

/* So much waiting, of the time it took, is worth an effort: 35 %. */
#define LA_WORTH_NS(took)	((took) / 20 * 7)

/* One thread is all there is; where it can be named the kernel is faster. */
#ifdef RUSAGE_THREAD
#define LA_RUSAGE_WHO		RUSAGE_THREAD
#else
#define LA_RUSAGE_WHO		RUSAGE_SELF
#endif

/*
 * What has the kernel counted so far?  Nothing if it does not say.  Costs a
 * system call.
 */
void
la_usage(LaUsage *usage)
{
	struct rusage r;

	memset(&r, 0, sizeof(r));
	(void) getrusage(LA_RUSAGE_WHO, &r);
	usage->sleeps = r.ru_nvcsw;
	usage->reads = r.ru_inblock;
}

/*
 * How often has this process slept so far?  Costs a system call.
 */
long
la_sleeps(void)
{
	LaUsage		usage;

	la_usage(&usage);
	return usage.sleeps;
}

/*
 * How often this process had slept when la_has_slept() looked last, and whether
 * some of what came since may have been our own.
 */
long		la_last_sleeps = 0;
bool		la_sleeps_are_stale = true;

/*
 * Has this process slept since we last asked?  Costs a system call.
 */
bool
la_has_slept(void)
{
	long		sleeps = la_sleeps();
	bool		slept = sleeps != la_last_sleeps;

	la_sleeps_are_stale = false;
	la_last_sleeps = sleeps;
	return slept;
}

/*
 * How long has this process computed so far, in nanoseconds?
 */
int64
la_cpu_ns(void)
{
	struct timespec ts;

	if (clock_gettime(CLOCK_THREAD_CPUTIME_ID, &ts) != 0)
		return 0;
	return (int64) ts.tv_sec * 1000000000 + ts.tv_nsec;
}

/* As much as we read of a file of the kernel's. */
#define LA_KERNEL_LINE	256

/*
 * The beginning of a file of the kernel's.  Returns false if there is none, or
 * it is nothing that this process may see.
 * Costs three system calls.
 */
static bool
la_kernel_line(const char *path, char *line)
{
#ifdef __linux__
	ssize_t		nread;
	int			fd = open(path, O_RDONLY | O_CLOEXEC);

	if (fd < 0)
		return false;
	nread = read(fd, line, LA_KERNEL_LINE - 1);
	(void) close(fd);
	if (nread <= 0)
		return false;
	line[nread] = '\0';
	return true;
#else
	return false;
#endif
}

/*
 * The number after the "skip"th space in the line of a file of the kernel's, -1
 * if there is none.
 */
static int64
la_kernel_number(const char *path, int skip)
{
	char		line[LA_KERNEL_LINE];
	char	   *number = line;

	if (!la_kernel_line(path, line))
		return -1;
	while (skip-- > 0)
	{
		number = strchr(number, ' ');
		if (number == NULL)
			return -1;
		number++;
	}
	return (int64) strtoll(number, NULL, 10);
}

/*
 * The beginning of what /proc has of this name for another process.  Returns
 * false if there is none, or if /proc is that of another space of process
 * numbers.
 */
static bool
la_process_line(int pid, const char *name, char *line)
{
	static int	own_pid = 0;	/* that it was asked for, ... */
	static bool is_ours;		/* ... and whether it names our processes */
	char		path[64];

	if (own_pid != MyProcPid)
	{
		is_ours = la_kernel_number("/proc/self/stat", 0) == MyProcPid;
		own_pid = MyProcPid;
	}
	snprintf(path, sizeof(path), "/proc/%d/%s", pid, name);
	return is_ours && la_kernel_line(path, line);
}

/*
 * What another process has read.  Returns false if that is not known.
 */
bool
la_process_reads(int pid, LaProcessReads *reads)
{
	char		text[LA_KERNEL_LINE];
	const char *from_storage;

	if (!la_process_line(pid, "io", text))
		return false;
	from_storage = strstr(text, "\nread_bytes: ");
	if (from_storage == NULL ||
		sscanf(text, "rchar: " INT64_FORMAT, &reads->asked) != 1)
		return false;
	return sscanf(from_storage, " read_bytes: " INT64_FORMAT,
				  &reads->from_storage) == 1;
}

/*
 * How many kilobytes may the kernel read ahead of who reads this file in order,
 * by itself?  -1 if it does not say.
 */
int64
la_kernel_ahead_kb(const char *file)
{
#ifdef __linux__
	/* Of a whole device, or a file system without one; of a partition. */
	static const char *const names[] = {
		"/sys/class/bdi/%u:%u/read_ahead_kb",
		"/sys/dev/block/%u:%u/../queue/read_ahead_kb",
	};
	struct stat st;

	if (stat(file, &st) != 0)
		return -1;
	for (int i = 0; i < lengthof(names); i++)
	{
		char		path[64];
		char		line[LA_KERNEL_LINE];

		snprintf(path, sizeof(path), names[i], major(st.st_dev),
				 minor(st.st_dev));
		if (la_kernel_line(path, line))
			return (int64) strtoll(line, NULL, 10);
	}
#endif
	return -1;
}

/*
 * Does another process sleep, in a system call or the like, at this moment?
 */
LaSleep
la_process_sleeps(int pid)
{
	char		line[LA_KERNEL_LINE];
	char	   *state;

	if (!la_process_line(pid, "stat", line))
		return LA_SLEEP_UNKNOWN;

	/* "123 (postgres) R ..." */
	state = strrchr(line, ')');
	if (state == NULL || state[1] != ' ')
		return LA_SLEEP_UNKNOWN;
	return state[2] == 'R' ? LA_SLEEP_NOT : LA_SLEEP_YES;
}

/*
 * How long was this process ready to run so far, while others ran?  -1 if the
 * kernel does not say.
 */
static int64
la_ready_ns(void)
{
	return la_kernel_number("/proc/self/schedstat", 1);
}

/*
 * How long has this process not waited so far?  It computed, or would have.
 */
int64
la_busy_ns(void)
{
	return la_cpu_ns() + Max(la_ready_ns(), 0);
}

/*
 * Nanoseconds since some point in the past.
 */
int64
la_wall_ns(void)
{
	instr_time	now;

	INSTR_TIME_SET_CURRENT(now);
	return (int64) (INSTR_TIME_GET_DOUBLE(now) * 1e9);
}

static void
la_times_now(LaTimes *now)
{
	now->wall_ns = la_wall_ns();
	now->cpu_ns = la_cpu_ns();
	now->ready_ns = la_ready_ns();
	now->reads = la_blocks_read();
	now->blocks = 0;
}

/*
 * Add to "sum" what was spent from "start" to "now".  Once it is not known how
 * long the process was ready to run, it stays so.
 */
static void
la_times_add(LaTimes *sum, const LaTimes *start, const LaTimes *now)
{
	sum->wall_ns += now->wall_ns - start->wall_ns;
	sum->cpu_ns += now->cpu_ns - start->cpu_ns;
	sum->reads += now->reads - start->reads;
	if (sum->ready_ns < 0 || start->ready_ns < 0 ||
		now->ready_ns < start->ready_ns)
		sum->ready_ns = -1;
	else
		sum->ready_ns += now->ready_ns - start->ready_ns;
}

/*
 * The scan goes on after la_time_pause().
 */
void
la_time_resume(LaTimeMeter *meter)
{
	if (!meter->is_begun || !meter->is_paused)
		return;
	la_times_now(&meter->start);
	meter->is_paused = false;
}

/*
 * What the scan did while it came over its last "length" blocks, or more.
 * Measures again and again; returns false until there is a result.
 */
bool
la_time_measure(LaTimeMeter *meter, uint64 position, uint64 length,
				LaTimes *spent)
{
	bool		was_begun = meter->is_begun;
	LaTimes		now;

	la_time_resume(meter);
	if (was_begun && position - meter->from < length)
		return false;

	la_times_now(&now);
	if (was_begun)
	{
		*spent = meter->before;
		la_times_add(spent, &meter->start, &now);
		spent->blocks = (int64) (position - meter->from);
	}
	memset(meter, 0, sizeof(*meter));
	meter->is_begun = true;
	meter->from = position;
	meter->start = now;
	return was_begun;
}

/*
 * See how many processes run or are ready to, on the whole machine.  The kernel
 * says it for the moment, so this is to be called often while there is
 * something to be measured; it costs some microseconds.
 */
void
la_time_look_around(LaTimeMeter *meter)
{
	int64		running;

	/* Nor is there much to be judged by where the kernel tells nothing. */
	if (!meter->is_begun || meter->is_paused || meter->start.ready_ns < 0)
		return;
	running = la_kernel_number("/proc/loadavg", 3);
	if (running < 1)
		return;					/* we do run */
	meter->before.running += running;
	meter->before.looks++;
}

/*
 * How many processors has the machine, if this process may run on all of them?
 * 0 if not, or if that is not known: then it says nothing to us how many
 * processes of the machine run.
 */
static long
la_processors(void)
{
#ifdef __linux__
	cpu_set_t	allowed;
	long		online = sysconf(_SC_NPROCESSORS_ONLN);

	if (sched_getaffinity(0, sizeof(allowed), &allowed) == 0 &&
		CPU_COUNT(&allowed) >= online)
		return online;
#endif
	return 0;
}

/*
 * Of how many processors had nobody a use, on the average?  None, if that is
 * not known.
 */
double
la_idle_processors(const LaTimes *spent)
{
	long		processors = la_processors();

	if (spent->looks == 0 || processors <= 0)
		return 0;
	return processors - (double) spent->running / spent->looks;
}

/*
 * The time that begins is not the scan's, until la_time_resume(), or until it
 * is measured again.
 */
void
la_time_pause(LaTimeMeter *meter)
{
	LaTimes		now;

	if (!meter->is_begun || meter->is_paused)
		return;
	la_times_now(&now);
	la_times_add(&meter->before, &meter->start, &now);
	meter->is_paused = true;
}

/*
 * Has the scan waited for a good part of its time?
 *
 * Where the server or the kernel reads ahead well a scan waits now and then,
 * but little.  Looking ahead costs more there than it can win.
 */
bool
la_waited_much(const LaTimes *spent)
{
	return spent->wall_ns - spent->cpu_ns - Max(spent->ready_ns, 0) >
		LA_WORTH_NS(spent->wall_ns);
}
