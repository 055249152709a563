/*-------------------------------------------------------------------------
 *
 * la_free_space.c
 *	  What the free space map says of a page.
 *
 * The same as pg_freespacemap, which not every server that can be had comes
 * with.
 *
 * Copyright (c) 2026, the pg_lookahead authors
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/relation.h"
#include "fmgr.h"
#include "storage/freespace.h"
#include "utils/rel.h"

PG_MODULE_MAGIC;

PG_FUNCTION_INFO_V1(la_free_space);

/*
 * la_free_space(relation regclass, block bigint) returns integer, in bytes
 */
Datum
la_free_space(PG_FUNCTION_ARGS)
{
	int64		block = PG_GETARG_INT64(1);
	Relation	rel;
	Size		avail;

	if (block < 0 || block > MaxBlockNumber)
		ereport(ERROR,
				errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				errmsg("block %lld is out of range", (long long) block));
	rel = relation_open(PG_GETARG_OID(0), AccessShareLock);
	avail = GetRecordedFreeSpace(rel, (BlockNumber) block);
	relation_close(rel, AccessShareLock);
	PG_RETURN_INT32((int32) avail);
}
