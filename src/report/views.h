/*-------------------------------------------------------------------------
 *
 * views.h
 *	  What the SQL functions that show something have in common.
 *
 * Copyright (c) 2026, the pg_lookahead authors
 *
 *-------------------------------------------------------------------------
 */
#ifndef LA_VIEWS_H
#define LA_VIEWS_H

#include "fmgr.h"
#include "funcapi.h"

/*
 * For a function that returns one row, or some.  They fail if the function was
 * created with another number of columns than this library gives.
 */
extern TupleDesc la_row_desc(FunctionCallInfo fcinfo, int ncolumns);
extern ReturnSetInfo *la_rows_begin(FunctionCallInfo fcinfo, int ncolumns);

#endif							/* LA_VIEWS_H */
