/*-------------------------------------------------------------------------
 *
 * views.c
 *	  The SQL functions of the extension.
 *
 * Each is documented in docs/reference.md and by COMMENT ON in the install
 * script.
 *
 * Copyright (c) 2026, the pg_lookahead authors
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "compat.h"
#include "method/method.h"
#include "report/counters.h"
#include "report/views.h"
#include "service/service.h"
#include "source/query.h"
#include "utils/builtins.h"
#include "utils/regproc.h"
#include "utils/timestamp.h"

#define LA_VERSION "0.1.0"

PG_FUNCTION_INFO_V1(pg_lookahead_version);
PG_FUNCTION_INFO_V1(pg_lookahead_status);
PG_FUNCTION_INFO_V1(pg_lookahead_session);
PG_FUNCTION_INFO_V1(pg_lookahead_relations);
PG_FUNCTION_INFO_V1(pg_stat_lookahead_reset);

/* Number of LaCounters members that are shown, depth_max included. */
#define LA_COUNTER_COLUMNS 10

/*
 * The columns that all views of counters share.
 */
static void
la_counter_columns(const LaCounters *counters, Datum *values)
{
	int			i = 0;

	values[i++] = Int64GetDatum(counters->scans_total);
	values[i++] = Int64GetDatum(counters->windows_total);
	values[i++] = Int64GetDatum(counters->blocks_issued_total);
	values[i++] = Int64GetDatum(counters->blocks_used_total);
	values[i++] = Int64GetDatum(counters->blocks_wasted_total);
	values[i++] = Int64GetDatum(counters->blocks_hit_total);
	values[i++] = Int64GetDatum(counters->blocks_dropped_total);
	values[i++] = Int64GetDatum(counters->waits_total);
	values[i++] = Int64GetDatum(counters->errors_total);
	values[i++] = Int32GetDatum(counters->depth_max);
	Assert(i == LA_COUNTER_COLUMNS);
}

/*
 * Between a restart with a new library and ALTER EXTENSION UPDATE a function
 * may have the columns of the old one.
 */
static void
la_require_columns(FunctionCallInfo fcinfo, const TupleDescData *desc,
				   int ncolumns)
{
	if (desc->natts != ncolumns)
		ereport(ERROR,
				errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				errmsg("function %s does not have the columns that the library gives",
					   format_procedure(fcinfo->flinfo->fn_oid)),
				errdetail("The function has %d, the library, version %s, gives %d.",
						  desc->natts, LA_VERSION, ncolumns),
				errhint("Run ALTER EXTENSION pg_lookahead UPDATE, or restart the server if "
						"that was done already."));
}

/*
 * The descriptor of a function's composite result.
 */
TupleDesc
la_row_desc(FunctionCallInfo fcinfo, int ncolumns)
{
	TupleDesc	desc;

	if (get_call_result_type(fcinfo, NULL, &desc) != TYPEFUNC_COMPOSITE)
		elog(ERROR, "return type must be a row type");
	la_require_columns(fcinfo, desc, ncolumns);
	return BlessTupleDesc(desc);
}

/*
 * Where a function puts its rows.
 */
ReturnSetInfo *
la_rows_begin(FunctionCallInfo fcinfo, int ncolumns)
{
	ReturnSetInfo *result = (ReturnSetInfo *) fcinfo->resultinfo;

	InitMaterializedSRF(fcinfo, 0);
	la_require_columns(fcinfo, result->setDesc, ncolumns);
	return result;
}

static void
la_require_shared(void)
{
	if (!la_counters_are_shared())
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("cumulative look-ahead counters need the library to be preloaded"),
				 errhint("Add \"pg_lookahead\" to shared_preload_libraries and restart the server; "
						 "pg_lookahead_session() works without.")));
}

/*
 * pg_lookahead_version() -> text
 */
Datum
pg_lookahead_version(PG_FUNCTION_ARGS)
{
	PG_RETURN_TEXT_P(cstring_to_text(LA_VERSION));
}

/*
 * pg_lookahead_status() -> one row
 */
Datum
pg_lookahead_status(PG_FUNCTION_ARGS)
{
	Datum		values[7];
	bool		nulls[7] = {false};
	TupleDesc	desc = la_row_desc(fcinfo, lengthof(values));
	const char *reason;
	const LaMethod *method = la_method_for(NULL, NULL, &reason);
	const char *io_method = la_io_method_name();

	if (!la_enabled)
	{
		method = &la_method_none;
		reason = "pg_lookahead.enabled is off";
	}
	values[0] = BoolGetDatum(la_counters_are_shared());
	if (io_method)
		values[1] = CStringGetTextDatum(io_method);
	else
		nulls[1] = true;
	values[2] = BoolGetDatum(la_direct_io());
	values[3] = CStringGetTextDatum(method->name);
	values[4] = CStringGetTextDatum(reason);
	if (la_counters_are_shared())
		values[5] = Int64GetDatum(la_counters_unrecorded());
	else
		nulls[5] = true;
	if (la_service != NULL)
		values[6] = Int64GetDatum(la_owners_refused());
	else
		nulls[6] = true;
	PG_RETURN_DATUM(HeapTupleGetDatum(heap_form_tuple(desc, values, nulls)));
}

/*
 * pg_lookahead_session() -> one row
 */
Datum
pg_lookahead_session(PG_FUNCTION_ARGS)
{
	Datum		values[LA_COUNTER_COLUMNS + 1];
	bool		nulls[LA_COUNTER_COLUMNS + 1] = {false};
	TupleDesc	desc = la_row_desc(fcinfo, lengthof(values));

	la_counter_columns(&la_session_counters, values);
	values[LA_COUNTER_COLUMNS] = Int32GetDatum(la_reads_in_flight());
	PG_RETURN_DATUM(HeapTupleGetDatum(heap_form_tuple(desc, values, nulls)));
}

/*
 * pg_lookahead_relations() -> a row for each relation, for pg_stat_lookahead
 */
Datum
pg_lookahead_relations(PG_FUNCTION_ARGS)
{
	ReturnSetInfo *rsinfo;
	LaRelationEntry *entries;
	int			nentries;

	la_require_shared();
	rsinfo = la_rows_begin(fcinfo, LA_COUNTER_COLUMNS + 2);
	entries = la_counters_snapshot(MyDatabaseId, &nentries);
	for (int i = 0; i < nentries; i++)
	{
		Datum		values[LA_COUNTER_COLUMNS + 2];
		bool		nulls[LA_COUNTER_COLUMNS + 2] = {false};

		values[0] = ObjectIdGetDatum(entries[i].key.relid);
		la_counter_columns(&entries[i].counters, values + 1);
		values[LA_COUNTER_COLUMNS + 1] =
			TimestampTzGetDatum(entries[i].stats_reset);
		tuplestore_putvalues(rsinfo->setResult, rsinfo->setDesc, values, nulls);
	}
	return (Datum) 0;
}

/*
 * pg_stat_lookahead_reset(oid) -> void
 */
Datum
pg_stat_lookahead_reset(PG_FUNCTION_ARGS)
{
	la_require_shared();

	/* To la_counters_reset() no relation is all of them. */
	if (PG_ARGISNULL(0))
		la_counters_reset(MyDatabaseId, InvalidOid);
	else if (OidIsValid(PG_GETARG_OID(0)))
		la_counters_reset(MyDatabaseId, PG_GETARG_OID(0));
	PG_RETURN_VOID();
}
