/*-------------------------------------------------------------------------
 *
 * la_other_am.c
 *	  A table access method that is not heap, but does what heap does.
 *
 * Its rows have block numbers, and its routine is another one than the
 * server's own, which is how heap is told from others.
 *
 * Copyright (c) 2026, the pg_lookahead authors
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/tableam.h"
#include "catalog/pg_am.h"
#include "fmgr.h"

PG_MODULE_MAGIC;

PG_FUNCTION_INFO_V1(la_other_am_handler);

/*
 * The server builds indexes of heap's only, and a TOAST table has one.
 */
static Oid
la_other_toast_am(Relation rel)
{
	return HEAP_TABLE_AM_OID;
}

Datum
la_other_am_handler(PG_FUNCTION_ARGS)
{
	static TableAmRoutine routine;

	routine = *GetHeapamTableAmRoutine();
	routine.relation_toast_am = la_other_toast_am;
	PG_RETURN_POINTER(&routine);
}
