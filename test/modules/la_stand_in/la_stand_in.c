/*-------------------------------------------------------------------------
 *
 * la_stand_in.c
 *	  Stands in for the access method of an index, and counts what it is asked.
 *
 * As an extension may that has come before pg_lookahead.  Each call is passed
 * on to B-tree's own function.
 *
 * Copyright (c) 2026, the pg_lookahead authors
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/genam.h"
#include "access/nbtree.h"
#include "catalog/pg_am.h"
#include "fmgr.h"
#include "utils/rel.h"

PG_MODULE_MAGIC;

PG_FUNCTION_INFO_V1(la_stand_in);
PG_FUNCTION_INFO_V1(la_stood_in);

static int	tuples_asked;
static int	bitmaps_asked;

static bool
la_counted_tuple(IndexScanDesc scan, ScanDirection direction)
{
	tuples_asked++;
	return btgettuple(scan, direction);
}

static int64
la_counted_bitmap(IndexScanDesc scan, TIDBitmap *bitmap)
{
	bitmaps_asked++;
	return btgetbitmap(scan, bitmap);
}

/*
 * la_stand_in(index regclass) returns void: from now on, in this session, until
 * the server reads the index's catalog entries again.
 */
Datum
la_stand_in(PG_FUNCTION_ARGS)
{
	static IndexAmRoutine routine;
	Relation	index = index_open(PG_GETARG_OID(0), AccessShareLock);

	if (index->rd_rel->relam != BTREE_AM_OID)
		ereport(ERROR,
				errcode(ERRCODE_WRONG_OBJECT_TYPE),
				errmsg("\"%s\" is not a B-tree",
					   RelationGetRelationName(index)));
	routine = *index->rd_indam;
	routine.amgettuple = la_counted_tuple;
	routine.amgetbitmap = la_counted_bitmap;
	index->rd_indam = &routine;
	tuples_asked = bitmaps_asked = 0;
	index_close(index, AccessShareLock);
	PG_RETURN_VOID();
}

/*
 * la_stood_in(what text) returns integer: how often "tuples" or "bitmaps" were
 * asked for since.
 */
Datum
la_stood_in(PG_FUNCTION_ARGS)
{
	char		what = *VARDATA_ANY(PG_GETARG_TEXT_PP(0));

	PG_RETURN_INT32(what == 't' ? tuples_asked : bitmaps_asked);
}
