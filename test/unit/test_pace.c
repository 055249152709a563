/*-------------------------------------------------------------------------
 *
 * test_pace.c
 *	  The control rule of look-ahead, move by move, without a server.
 *
 * A model of a scan calls src/window/pace.c as source/index_scan.c does; time
 * is a number that the model adds to.  test/python/test_pace.py compiles both
 * with a server's headers.  Prints each check that fails.
 *
 * Copyright (c) 2026, the pg_lookahead authors
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "window/pace.h"

/* The server's own is in its libraries, which are not needed here. */
#undef printf

/* As in pace.c, whose header explains them; the rule is what is tested. */
#define START_AFTER		8
#define MAX_DISTANCE	256
#define FIRST_DISTANCE	16
#define EMPTY_BLOCKS	512
#define UNAIDED_UPWARD	48
#define GRANT_LENGTH	256
#define TRIAL_RAMP		512
#define TRIAL_LENGTH	2048
#define FIRST_HOLD		(32 * TRIAL_LENGTH)
#define LAST_HOLD		(128 * TRIAL_LENGTH)

#define BUSY_NS			INT64CONST(5000)
#define WAIT_NS			INT64CONST(100000)

/* What a scan meets at a block. */
typedef enum Met
{
	HIT,						/* in shared buffers */
	COPIED,						/* in the kernel's page cache */
	WAITED,						/* on the device */
} Met;

typedef struct Scan
{
	LaPace		pace;
	bool		is_looking;
	int64		now_ns;
	int64		busy_ns;
	BlockNumber next;			/* of scans that go forward */
} Scan;

static int	failures = 0;

#define CHECK(condition) \
	do { \
		if (!(condition)) \
		{ \
			printf("%s:%d: %s: not so: %s\n", __FILE__, __LINE__, __func__, \
				   #condition); \
			failures++; \
		} \
	} while (0)

#ifdef USE_ASSERT_CHECKING
void
ExceptionalCondition(const char *conditionName,
#if PG_VERSION_NUM < 160000
					 const char *errorType,
#endif
					 const char *fileName, int lineNumber)
{
	printf("%s:%d: assertion failed: %s\n", fileName, lineNumber,
		   conditionName);
	exit(1);
}
#endif

static void
begin(Scan *scan, int start_after, bool has_page_cache)
{
	memset(scan, 0, sizeof(Scan));
	la_pace_init(&scan->pace, start_after, MAX_DISTANCE, has_page_cache);
	/* 0 would mean that the time is not known. */
	scan->now_ns = scan->busy_ns = 1;
}

/*
 * The scan comes to a block.  Returns whether look-ahead starts or idles there.
 */
static bool
visit(Scan *scan, BlockNumber blkno, Met met)
{
	LaPace	   *pace = &scan->pace;
	bool		is_waited = met == WAITED;
	bool		is_turn = false;

	la_pace_moved(pace, blkno);
	scan->busy_ns += BUSY_NS;
	scan->now_ns += BUSY_NS + (is_waited ? WAIT_NS : 0);

	if (met != HIT && la_pace_read(pace, 1, is_waited))
		is_turn = la_pace_clock(pace, scan->now_ns, scan->busy_ns);
	if (scan->is_looking)
	{
		if (is_waited)
			la_pace_waited(pace);
	}
	else
	{
		if (met != HIT)
			la_pace_saw_read(pace, is_waited);
		is_turn = la_pace_watch(pace, is_waited) || is_turn;
	}
	if (is_turn)
		scan->is_looking = !scan->is_looking;
	return is_turn;
}

/*
 * Blocks all over the table, the same in each run.
 */
static BlockNumber
anywhere(int i)
{
	return (BlockNumber) ((uint64) (i + 1) * 7919 * 104729 % 1000003);
}

/*
 * How many blocks, each the next, are visited until look-ahead turns?  Every
 * so many of them one is waited for; 0: none.  Returns at most "most" + 1.
 */
static int
forward(Scan *scan, int interval, int most)
{
	for (int i = 1; i <= most; i++)
		if (visit(scan, scan->next++,
				  interval > 0 && i % interval == 0 ? WAITED : COPIED))
			return i;
	return most + 1;
}

/* -------------------------------------------------------------------------
 * Start
 * -------------------------------------------------------------------------
 */

static void
test_start_on_waits(void)
{
	Scan		scan;

	begin(&scan, START_AFTER, true);
	for (int i = 1; i < START_AFTER; i++)
		CHECK(!visit(&scan, anywhere(i), WAITED));
	CHECK(visit(&scan, anywhere(START_AFTER), WAITED));
	CHECK(la_pace_distance(&scan.pace) == FIRST_DISTANCE);
}

static void
test_one_wait_is_not_enough(void)
{
	Scan		scan;

	begin(&scan, START_AFTER, true);
	CHECK(!visit(&scan, anywhere(0), WAITED));
	for (int i = 1; i < 16; i++)
		CHECK(!visit(&scan, anywhere(i), HIT));
	CHECK(visit(&scan, anywhere(16), WAITED));
}

static void
test_a_cold_block_now_and_then(void)
{
	Scan		scan;

	begin(&scan, START_AFTER, true);
	for (int i = 0; i < 64 * 128; i++)
		CHECK(!visit(&scan, anywhere(i), i % 64 == 0 ? WAITED : HIT));
	/* From cached to cold. */
	CHECK(!visit(&scan, anywhere(10001), WAITED));
	CHECK(visit(&scan, anywhere(10002), WAITED));
}

static void
test_at_once(void)
{
	Scan		scan;

	begin(&scan, 0, true);
	CHECK(la_pace_at_once(&scan.pace));
	CHECK(visit(&scan, anywhere(0), HIT));
	begin(&scan, 1, true);
	CHECK(!la_pace_at_once(&scan.pace));
	CHECK(visit(&scan, anywhere(0), WAITED));
}

static void
test_credit(void)
{
	Scan		scan;

	begin(&scan, START_AFTER, true);
	la_pace_credit(&scan.pace, 1000);
	CHECK(!visit(&scan, anywhere(0), WAITED));
	CHECK(visit(&scan, anywhere(1), WAITED));
}

/*
 * Waits that are known of, in stretches that are not looked at.
 */
static void
test_rows_that_go_by(void)
{
	Scan		scan;

	begin(&scan, START_AFTER, true);
	la_pace_credit(&scan.pace, START_AFTER);
	la_pace_went_by(&scan.pace, 16, true);
	CHECK(visit(&scan, anywhere(0), WAITED));

	/* Long ago it counts half, that is, not. */
	begin(&scan, START_AFTER, true);
	la_pace_credit(&scan.pace, START_AFTER);
	la_pace_went_by(&scan.pace, 16, true);
	for (int i = 0; i < 4; i++)
		la_pace_went_by(&scan.pace, 16, false);
	CHECK(!visit(&scan, anywhere(0), WAITED));
}

/* -------------------------------------------------------------------------
 * How far, and when to idle
 * -------------------------------------------------------------------------
 */

static void
test_distance(void)
{
	LaPace		pace;
	int			distance = FIRST_DISTANCE;

	la_pace_init(&pace, START_AFTER, MAX_DISTANCE, true);
	CHECK(!la_pace_filled(&pace, 16, 16));
	CHECK(la_pace_distance(&pace) == distance);
	while (distance < MAX_DISTANCE)
	{
		la_pace_waited(&pace);
		la_pace_waited(&pace);
		CHECK(!la_pace_filled(&pace, 16, 16));
		distance *= 2;
		CHECK(la_pace_distance(&pace) == distance);
		/* Not without a wait since then. */
		CHECK(!la_pace_filled(&pace, 16, 16));
		CHECK(la_pace_distance(&pace) == distance);
	}
	la_pace_waited(&pace);
	CHECK(!la_pace_filled(&pace, 16, 16));
	CHECK(la_pace_distance(&pace) == MAX_DISTANCE);

	la_pace_bound(&pace, 10);
	CHECK(la_pace_distance(&pace) == 10);
	la_pace_bound(&pace, 0);
	CHECK(la_pace_distance(&pace) == LA_LEAST_BOUND);
	la_pace_bound(&pace, PG_INT32_MAX);
	CHECK(la_pace_distance(&pace) == MAX_DISTANCE);

	la_pace_init(&pace, START_AFTER, 4, true);
	CHECK(la_pace_distance(&pace) == 4);
}

static void
test_all_cached(void)
{
	LaPace		pace;

	la_pace_init(&pace, START_AFTER, MAX_DISTANCE, true);
	la_pace_deepen(&pace);
	CHECK(!la_pace_filled(&pace, EMPTY_BLOCKS, 0));
	CHECK(!la_pace_filled(&pace, 32, 1));
	CHECK(!la_pace_filled(&pace, EMPTY_BLOCKS, 0));
	CHECK(!la_pace_filled(&pace, 0, 0));
	CHECK(la_pace_filled(&pace, 1, 0));
	/* It begins carefully when waits come back. */
	CHECK(la_pace_distance(&pace) == FIRST_DISTANCE);

	/* Small windows are many.  One block to be read among them is enough. */
	for (int round = 0; round < 3; round++)
	{
		for (int i = 8; i < EMPTY_BLOCKS; i += 8)
			CHECK(!la_pace_filled(&pace, 8, 0));
		CHECK(!la_pace_filled(&pace, 8, 1));
	}
	for (int i = 8; i < EMPTY_BLOCKS; i += 8)
		CHECK(!la_pace_filled(&pace, 8, 0));
	CHECK(la_pace_filled(&pace, 8, 0));

	/* Where the source names nothing new, two looks far ahead are enough. */
	CHECK(!la_pace_filled_none(&pace));
	CHECK(!la_pace_filled(&pace, 8, 1));
	CHECK(!la_pace_filled_none(&pace));
	CHECK(la_pace_filled_none(&pace));

	la_pace_init(&pace, 0, MAX_DISTANCE, true);
	for (int i = 0; i < 10; i++)
		CHECK(!la_pace_filled(&pace, EMPTY_BLOCKS, 0));
}

static void
test_probes(void)
{
	LaPace		pace;

	la_pace_init(&pace, START_AFTER, MAX_DISTANCE, true);
	for (int i = 0; i < 3; i++)
	{
		for (int j = 1; j < 8; j++)
			CHECK(!la_pace_wants_probe(&pace));
		CHECK(la_pace_wants_probe(&pace));
		CHECK(!la_pace_probed(&pace, true));
	}
	/* After one in vain each window has one. */
	for (int j = 1; j < 8; j++)
		CHECK(!la_pace_wants_probe(&pace));
	for (int i = 0; i < 3; i++)
	{
		CHECK(la_pace_wants_probe(&pace));
		CHECK(!la_pace_probed(&pace, false));
	}
	CHECK(la_pace_wants_probe(&pace));
	CHECK(la_pace_probed(&pace, false));

	la_pace_init(&pace, START_AFTER, MAX_DISTANCE, false);
	for (int i = 0; i < 100; i++)
		CHECK(!la_pace_wants_probe(&pace));
}

/* -------------------------------------------------------------------------
 * The kernel's help
 * -------------------------------------------------------------------------
 */

/*
 * A scan that the kernel reads ahead for is known as one after eight reads,
 * and after sixteen where it is doubted.
 */
static void
test_helped(void)
{
	Scan		scan;

	begin(&scan, START_AFTER, true);
	scan.next = 100;
	CHECK(forward(&scan, 16, 7) == 8);
	CHECK(!la_pace_is_helped(&scan.pace));
	CHECK(forward(&scan, 16, 1) == 2);
	CHECK(la_pace_is_helped(&scan.pace));

	la_pace_doubt(&scan.pace);
	CHECK(forward(&scan, 16, 15) == 16);
	CHECK(!la_pace_is_helped(&scan.pace));
	CHECK(forward(&scan, 16, 1) == 2);
	CHECK(la_pace_is_helped(&scan.pace));

	/* Many moves in one, as far as those may go: no doubt. */
	la_pace_skips(&scan.pace, 16);
	scan.next += 16 * 64 - 2;
	CHECK(forward(&scan, 16, 1) == 2);
	CHECK(la_pace_is_helped(&scan.pace));
	la_pace_skips(&scan.pace, 16);
	scan.next += 16 * 64;
	CHECK(forward(&scan, 16, 1) == 2);
	CHECK(!la_pace_is_helped(&scan.pace));

	/* Nobody else's pattern, and nobody's without a page cache. */
	begin(&scan, START_AFTER, true);
	for (int i = 0; i < 32; i++)
		CHECK(!visit(&scan, anywhere(i), COPIED));
	CHECK(!la_pace_is_helped(&scan.pace));
	begin(&scan, START_AFTER, false);
	CHECK(forward(&scan, 0, 64) == 65);
	CHECK(!la_pace_is_helped(&scan.pace));
}

/*
 * What goes backward is not what the kernel reads ahead for.
 */
static void
test_backward(void)
{
	Scan		scan;

	begin(&scan, START_AFTER, true);
	/* For eight blocks it may still be on its way forward, to and fro. */
	for (int i = 1; i < 64; i++)
	{
		bool		starts = visit(&scan, (BlockNumber) (10000 - i), WAITED);

		CHECK(starts == (i == START_AFTER + 1));
		if (starts)
			break;
	}
	CHECK(scan.is_looking);
	CHECK(scan.pace.trial == LA_TRIAL_NONE);
}

static void
test_direct(void)
{
	Scan		scan;

	begin(&scan, START_AFTER, false);
	CHECK(forward(&scan, 1, 64) == START_AFTER);
	CHECK(scan.pace.trial == LA_TRIAL_NONE);
}

/*
 * Who waits for each of its reads starts without a trial, once.
 */
static void
test_grant(void)
{
	Scan		scan;

	begin(&scan, START_AFTER, true);
	CHECK(forward(&scan, 1, 1000) == UNAIDED_UPWARD);
	CHECK(forward(&scan, 1, GRANT_LENGTH - 1) == GRANT_LENGTH);
	CHECK(!la_pace_filled(&scan.pace, 16, 16));
	CHECK(forward(&scan, 1, 1) == 2);
	/* Now it must prove itself. */
	CHECK(la_pace_filled(&scan.pace, 16, 16));
	CHECK(scan.pace.trial == LA_TRIAL_WATCH_RAMP);
	scan.is_looking = false;
	CHECK(forward(&scan, 1, 1000) == 1001);

	/* It is not spent by a start that came to nothing. */
	begin(&scan, START_AFTER, true);
	CHECK(forward(&scan, 1, 1000) == UNAIDED_UPWARD);
	la_pace_stopped(&scan.pace);
	scan.is_looking = false;
	CHECK(forward(&scan, 1, 1000) == 1);
	CHECK(forward(&scan, 1, 1) == 2);
	la_pace_stopped(&scan.pace);
	scan.is_looking = false;
	CHECK(forward(&scan, 1, 1000) == 1001);
}

/* -------------------------------------------------------------------------
 * The trial
 * -------------------------------------------------------------------------
 */

/*
 * Go on until look-ahead begins for the trial's sake.  The kernel helps: every
 * 8th read is waited for.
 */
static void
to_look(Scan *scan)
{
	begin(scan, START_AFTER, true);
	/* The second wait is at the 16th block, and the trial's first is the 17th. */
	CHECK(forward(scan, 8, 10000) == 16 + TRIAL_RAMP + TRIAL_LENGTH);
	CHECK(scan->pace.trial == LA_TRIAL_LOOK_RAMP);
	CHECK(la_pace_distance(&scan->pace) == MAX_DISTANCE);
}

static void
test_trial_won(void)
{
	Scan		scan;

	to_look(&scan);
	CHECK(forward(&scan, 64, TRIAL_RAMP + TRIAL_LENGTH) ==
		  TRIAL_RAMP + TRIAL_LENGTH + 1);
	CHECK(scan.pace.trial == LA_TRIAL_WON);
	CHECK(!la_pace_is_helped(&scan.pace));

	/* What comes may be in the page cache; not while it is measured. */
	for (int i = 1; i < 8; i++)
		CHECK(!la_pace_wants_probe(&scan.pace));
	CHECK(la_pace_wants_probe(&scan.pace));
	CHECK(!la_pace_probed(&scan.pace, true));

	/* It is measured again, and lost when it has become worse. */
	CHECK(forward(&scan, 64, 16 * TRIAL_LENGTH) == 16 * TRIAL_LENGTH + 1);
	CHECK(scan.pace.trial == LA_TRIAL_LOOK);
	for (int i = 0; i < 16; i++)
		CHECK(!la_pace_wants_probe(&scan.pace));
	CHECK(forward(&scan, 4, TRIAL_LENGTH) <= TRIAL_RAMP);
	CHECK(la_pace_has_lost(&scan.pace));
}

/*
 * What was won is no more, where all is in the page cache.
 */
static void
test_won_in_vain(void)
{
	Scan		scan;

	to_look(&scan);
	(void) forward(&scan, 64, TRIAL_RAMP + TRIAL_LENGTH);
	CHECK(scan.pace.trial == LA_TRIAL_WON);
	for (int i = 1; i < 8; i++)
		CHECK(!la_pace_wants_probe(&scan.pace));
	for (int i = 1; i < 4; i++)
	{
		CHECK(la_pace_wants_probe(&scan.pace));
		CHECK(!la_pace_probed(&scan.pace, false));
	}
	CHECK(la_pace_wants_probe(&scan.pace));
	CHECK(la_pace_probed(&scan.pace, false));
	la_pace_stopped(&scan.pace);
	scan.is_looking = false;
	CHECK(scan.pace.trial == LA_TRIAL_NONE);
	CHECK(forward(&scan, 0, 10000) == 10001);
}

/*
 * Where the rest of the plan reads as well, several blocks count at once, and
 * the trial may end beyond its length.
 */
static void
test_trial_of_several_reads(void)
{
	LaPace		pace;
	int64		now = 1;

	for (int share = 6; share <= 8; share += 2)
	{
		Scan		scan;
		int			turns = 0;

		to_look(&scan);
		pace = scan.pace;
		now = scan.now_ns;
		/* 7 at once, in so many tenths of the time that they took before. */
		for (int n = 0; n < TRIAL_RAMP + TRIAL_LENGTH + 64; n += 7)
		{
			now += pace.watch_ns / TRIAL_LENGTH * 7 * share / 10;
			if (la_pace_read(&pace, 7, false))
				turns += la_pace_clock(&pace, now, scan.busy_ns);
		}
		CHECK(turns == (share == 8));
		CHECK(pace.trial == (share == 8 ? LA_TRIAL_LOST : LA_TRIAL_WON));
	}
}

static void
test_trial_lost(void)
{
	Scan		scan;
	int			hold = FIRST_HOLD;

	/* As fast as without is not enough. */
	to_look(&scan);
	CHECK(forward(&scan, 8, 10000) == TRIAL_RAMP + TRIAL_LENGTH);
	CHECK(la_pace_has_lost(&scan.pace));

	/* It stays away, longer each time. */
	for (int i = 0; i < 4; i++)
	{
		CHECK(scan.pace.hold == hold);
		CHECK(forward(&scan, 8, hold - 1) == hold);
		CHECK(la_pace_has_lost(&scan.pace));
		CHECK(forward(&scan, 8, 1) == 2);
		CHECK(!la_pace_has_lost(&scan.pace));
		CHECK(forward(&scan, 8, 10000) < 10000);
		CHECK(scan.pace.trial == LA_TRIAL_LOOK_RAMP);
		/* Far slower: no need to go on to the end. */
		CHECK(forward(&scan, 1, TRIAL_RAMP) < TRIAL_RAMP);
		CHECK(la_pace_has_lost(&scan.pace));
		hold = Min(hold * 2, LAST_HOLD);
	}
}

/*
 * The scan starts again.
 */
static void
restart(Scan *scan)
{
	la_pace_stopped(&scan->pace);
	la_pace_restart(&scan->pace, START_AFTER, MAX_DISTANCE, true);
	scan->is_looking = false;
}

/*
 * What is lost in one round is lost in the next, if that moves in the same way.
 */
static void
test_trial_lost_in_another_round(void)
{
	Scan		scan;

	to_look(&scan);
	CHECK(forward(&scan, 8, 10000) == TRIAL_RAMP + TRIAL_LENGTH);
	CHECK(la_pace_has_lost(&scan.pace));

	/* It goes on for as long as it would have without the restarts. */
	for (int left = FIRST_HOLD; left > 0; left -= Min(left, 5000))
	{
		restart(&scan);
		CHECK(!la_pace_has_lost(&scan.pace));
		CHECK(forward(&scan, 8, Min(left, 5000) - 1) == Min(left, 5000));
		CHECK(la_pace_has_lost(&scan.pace));
		CHECK(forward(&scan, 8, 1) == 2);
	}
	CHECK(!la_pace_has_lost(&scan.pace));
	CHECK(scan.pace.hold == 2 * FIRST_HOLD);
	restart(&scan);
	CHECK(scan.pace.hold == 2 * FIRST_HOLD);

	/* A round that goes all over the table is not held back. */
	to_look(&scan);
	CHECK(forward(&scan, 8, 10000) == TRIAL_RAMP + TRIAL_LENGTH);
	restart(&scan);
	for (int i = 1; i < START_AFTER; i++)
		CHECK(!visit(&scan, anywhere(i), WAITED));
	CHECK(visit(&scan, anywhere(START_AFTER), WAITED));
	CHECK(scan.pace.trial == LA_TRIAL_NONE);

	/* Nor one that finds its first blocks in shared buffers. */
	to_look(&scan);
	CHECK(forward(&scan, 8, 10000) == TRIAL_RAMP + TRIAL_LENGTH);
	restart(&scan);
	for (int i = 0; i < 100; i++)
		CHECK(!visit(&scan, anywhere(i), HIT));
	CHECK(!la_pace_has_lost(&scan.pace));
	CHECK(!visit(&scan, anywhere(101), WAITED));
	CHECK(visit(&scan, anywhere(102), WAITED));

	/* Nor one that goes forward and waits at each read. */
	to_look(&scan);
	CHECK(forward(&scan, 8, 10000) == TRIAL_RAMP + TRIAL_LENGTH);
	restart(&scan);
	CHECK(forward(&scan, 1, 1000) == UNAIDED_UPWARD);
	CHECK(scan.pace.grant == LA_GRANT_GRANTED);

	/* A trial that the round's end cuts short: as slow as without, ... */
	to_look(&scan);
	CHECK(forward(&scan, 7, TRIAL_RAMP + 1200) == TRIAL_RAMP + 1201);
	CHECK(scan.pace.trial == LA_TRIAL_LOOK);
	la_pace_stopped(&scan.pace);
	CHECK(scan.pace.trial == LA_TRIAL_NONE);
	restart(&scan);
	CHECK(scan.pace.trial == LA_TRIAL_LOST);

	/* ... a bit faster, and too early to tell. */
	to_look(&scan);
	CHECK(forward(&scan, 10, TRIAL_RAMP + 1200) == TRIAL_RAMP + 1201);
	CHECK(scan.pace.trial == LA_TRIAL_LOOK);
	restart(&scan);
	CHECK(scan.pace.trial == LA_TRIAL_NONE);
	to_look(&scan);
	CHECK(forward(&scan, 7, TRIAL_RAMP + 900) == TRIAL_RAMP + 901);
	CHECK(scan.pace.trial == LA_TRIAL_LOOK);
	restart(&scan);
	CHECK(scan.pace.trial == LA_TRIAL_NONE);

	/* Lost against what was measured long ago, before look-ahead has won. */
	to_look(&scan);
	CHECK(forward(&scan, 64, TRIAL_RAMP + TRIAL_LENGTH) ==
		  TRIAL_RAMP + TRIAL_LENGTH + 1);
	CHECK(forward(&scan, 64, 16 * TRIAL_LENGTH) == 16 * TRIAL_LENGTH + 1);
	CHECK(forward(&scan, 4, TRIAL_LENGTH) <= TRIAL_RAMP);
	CHECK(la_pace_has_lost(&scan.pace));
	restart(&scan);
	CHECK(scan.pace.trial == LA_TRIAL_NONE);

	/* That there was nothing to win says nothing of the kernel. */
	begin(&scan, START_AFTER, true);
	CHECK(forward(&scan, 8, 16 + TRIAL_RAMP) == 17 + TRIAL_RAMP);
	CHECK(forward(&scan, 64, TRIAL_LENGTH) == TRIAL_LENGTH + 1);
	CHECK(la_pace_has_lost(&scan.pace));
	restart(&scan);
	CHECK(scan.pace.trial == LA_TRIAL_NONE);
}

/*
 * Where the scan is busy nearly all the time nothing is to be had.
 */
static void
test_trial_of_a_busy_scan(void)
{
	Scan		scan;

	begin(&scan, START_AFTER, true);
	CHECK(forward(&scan, 8, 16 + TRIAL_RAMP) == 17 + TRIAL_RAMP);
	CHECK(scan.pace.trial == LA_TRIAL_WATCH);
	CHECK(forward(&scan, 64, TRIAL_LENGTH) == TRIAL_LENGTH + 1);
	CHECK(la_pace_has_lost(&scan.pace));

	/* And where it waits no more, there is no trial any more. */
	begin(&scan, START_AFTER, true);
	CHECK(forward(&scan, 8, 16 + TRIAL_RAMP) == 17 + TRIAL_RAMP);
	CHECK(forward(&scan, 0, TRIAL_LENGTH) == TRIAL_LENGTH + 1);
	CHECK(scan.pace.trial == LA_TRIAL_NONE);
}

/*
 * Time that is the client's is not measured.
 */
static void
test_time_between_runs(void)
{
	Scan		scan;

	to_look(&scan);
	for (int i = 0; i < (TRIAL_RAMP + TRIAL_LENGTH) / LA_LEAST_RUN; i++)
	{
		CHECK(forward(&scan, 0, LA_LEAST_RUN) == LA_LEAST_RUN + 1);
		if (la_pace_run_ends(&scan.pace))
		{
			la_pace_pause(&scan.pace, scan.now_ns, scan.busy_ns);
			scan.now_ns += 100 * WAIT_NS;
			scan.busy_ns += 50 * WAIT_NS;
			la_pace_resume(&scan.pace, scan.now_ns, scan.busy_ns);
		}
	}
	CHECK(scan.pace.trial == LA_TRIAL_WON);

	/* After a short run it is not left out; it makes void what was measured. */
	to_look(&scan);
	CHECK(forward(&scan, 0, TRIAL_RAMP + 100) == TRIAL_RAMP + 101);
	CHECK(scan.pace.trial == LA_TRIAL_LOOK);
	CHECK(la_pace_run_ends(&scan.pace));
	CHECK(forward(&scan, 0, LA_LEAST_RUN - 1) == LA_LEAST_RUN);
	CHECK(!la_pace_run_ends(&scan.pace));
	scan.now_ns += 10000 * WAIT_NS;
	la_pace_interrupted(&scan.pace);
	CHECK(scan.pace.trial_reads == 0);
	/* The first of these says when it begins anew. */
	CHECK(forward(&scan, 0, 1 + TRIAL_LENGTH) == 2 + TRIAL_LENGTH);
	CHECK(scan.pace.trial == LA_TRIAL_WON);
}

/*
 * Look-ahead that stops for another reason leaves no trial behind.
 */
static void
test_stopped(void)
{
	Scan		scan;

	to_look(&scan);
	CHECK(la_pace_distance(&scan.pace) == MAX_DISTANCE);
	la_pace_stopped(&scan.pace);
	CHECK(scan.pace.trial == LA_TRIAL_NONE);
	CHECK(la_pace_distance(&scan.pace) == FIRST_DISTANCE);

	begin(&scan, START_AFTER, true);
	CHECK(forward(&scan, 8, 16 + TRIAL_RAMP) == 17 + TRIAL_RAMP);
	la_pace_stopped(&scan.pace);
	CHECK(scan.pace.trial == LA_TRIAL_WATCH);
}

/*
 * A scan that turns begins as if it had not waited yet, and not far ahead; one
 * that only stops goes on as it was.
 */
static void
test_turned(void)
{
	LaPace		pace;
	Scan		scan;
	int			nblocks = 1;

	la_pace_init(&pace, START_AFTER, MAX_DISTANCE, true);
	for (int i = 0; i < START_AFTER - 1; i++)
		CHECK(!la_pace_watch(&pace, true));
	CHECK(la_pace_watch(&pace, true));
	la_pace_waited(&pace);
	CHECK(!la_pace_filled(&pace, 16, 16));
	la_pace_stopped(&pace);
	CHECK(la_pace_distance(&pace) == 2 * FIRST_DISTANCE);
	CHECK(la_pace_watch(&pace, false));

	la_pace_turned(&pace);
	CHECK(la_pace_distance(&pace) == FIRST_DISTANCE);
	CHECK(!la_pace_watch(&pace, false));
	CHECK(!la_pace_watch(&pace, true));
	CHECK(la_pace_watch(&pace, true));

	/* That the kernel has won says nothing of the way back. */
	to_look(&scan);
	CHECK(forward(&scan, 8, 10000) == TRIAL_RAMP + TRIAL_LENGTH);
	la_pace_stopped(&scan.pace);
	la_pace_turned(&scan.pace);
	while (nblocks < 1000 && !visit(&scan, --scan.next, WAITED))
		nblocks++;
	CHECK(nblocks <= 10);

	/* But forward again it holds. */
	to_look(&scan);
	CHECK(forward(&scan, 8, 10000) == TRIAL_RAMP + TRIAL_LENGTH);
	la_pace_turned(&scan.pace);
	la_pace_turned(&scan.pace);
	CHECK(forward(&scan, 8, 10000) == 10001);
	CHECK(la_pace_has_lost(&scan.pace));
}

int
main(void)
{
	test_start_on_waits();
	test_one_wait_is_not_enough();
	test_a_cold_block_now_and_then();
	test_at_once();
	test_credit();
	test_rows_that_go_by();
	test_distance();
	test_all_cached();
	test_probes();
	test_helped();
	test_backward();
	test_direct();
	test_grant();
	test_trial_won();
	test_won_in_vain();
	test_trial_of_several_reads();
	test_trial_lost();
	test_trial_lost_in_another_round();
	test_trial_of_a_busy_scan();
	test_time_between_runs();
	test_stopped();
	test_turned();
	return failures > 0;
}
