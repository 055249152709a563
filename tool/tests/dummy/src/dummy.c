/*
 * dummy.c
 *	  A function that returns a number.
 */
#include "postgres.h"

#include "fmgr.h"

PG_MODULE_MAGIC;

PG_FUNCTION_INFO_V1(la_dummy);

Datum
la_dummy(PG_FUNCTION_ARGS)
{
	PG_RETURN_INT32(7);
}
