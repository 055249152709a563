/*-------------------------------------------------------------------------
 *
 * la_index_am.c
 *	  An index access method that keeps an account of all open scans.
 *
 * It is GiST, but that it counts scans in this process, as access methods do
 * whose functions tell what a scan has found, and looks at what a scan has to
 * read the table with, as those do that check rows themselves.
 *
 * Copyright (c) 2026, the pg_lookahead authors
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/amapi.h"
#include "access/gist_private.h"
#include "access/gistscan.h"
#include "access/relscan.h"
#include "fmgr.h"
#include "utils/fmgrprotos.h"

PG_MODULE_MAGIC;

PG_FUNCTION_INFO_V1(la_index_am_handler);
PG_FUNCTION_INFO_V1(la_index_am_scans);
PG_FUNCTION_INFO_V1(la_index_am_incomplete);
PG_FUNCTION_INFO_V1(la_index_am_fail);

static int	open_scans;
static int	most_scans;
static int	incomplete_scans;
static bool incomplete_fail;

static IndexScanDesc
la_counted_begin(Relation index, int nkeys, int norderbys)
{
	open_scans++;
	most_scans = Max(most_scans, open_scans);
	return gistbeginscan(index, nkeys, norderbys);
}

static bool
la_counted_tuple(IndexScanDesc scan, ScanDirection direction)
{
	if (scan->xs_heapfetch == NULL)
	{
		incomplete_scans++;
		/* Legal, if not kind. */
		if (incomplete_fail)
			ereport(ERROR, errcode(ERRCODE_DATA_EXCEPTION));
	}
	return gistgettuple(scan, direction);
}

static void
la_counted_end(IndexScanDesc scan)
{
	open_scans--;
	gistendscan(scan);
}

Datum
la_index_am_handler(PG_FUNCTION_ARGS)
{
	IndexAmRoutine *routine = (IndexAmRoutine *)
		DatumGetPointer(gisthandler(fcinfo));

	routine->ambeginscan = la_counted_begin;
	routine->amgettuple = la_counted_tuple;
	routine->amendscan = la_counted_end;
	PG_RETURN_POINTER(routine);
}

/*
 * la_index_am_scans() returns integer: the most scans that were open at once in
 * this process since this was asked before.
 */
Datum
la_index_am_scans(PG_FUNCTION_ARGS)
{
	int			most = most_scans;

	most_scans = open_scans;
	PG_RETURN_INT32(most);
}

/*
 * la_index_am_incomplete() returns integer: how often a scan was asked for an
 * entry, in this process, that had nothing to read the table with.
 */
Datum
la_index_am_incomplete(PG_FUNCTION_ARGS)
{
	PG_RETURN_INT32(incomplete_scans);
}

/*
 * la_index_am_fail(boolean) returns void: such a call raises an error, without
 * a message, in this process from now on, or not any more.
 */
Datum
la_index_am_fail(PG_FUNCTION_ARGS)
{
	incomplete_fail = PG_GETARG_BOOL(0);
	PG_RETURN_VOID();
}
