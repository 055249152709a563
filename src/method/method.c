/*-------------------------------------------------------------------------
 *
 * method.c
 *	  Which method serves a table.
 *
 * The choice depends on the setting, the server's I/O method, the storage mode
 * and the table.  Where the wanted method cannot serve, the next best one does;
 * where none can, "none" does nothing, and pg_lookahead_status() says why.
 *
 *		server	io_method	storage		auto
 *		any		any			buffered	advice
 *		16-17	-			direct		none
 *		18		sync		direct		none
 *		18		other		direct		aio
 *
 * Why not "aio" wherever there is asynchronous I/O?  With buffered I/O the
 * kernel can be asked for a whole window in one go and answers as deep as the
 * device allows, while the server's reads are limited by its handles or its
 * I/O workers, and cost this process more.  src/README.md has the numbers.
 *
 * Temporary tables cannot be read by other processes, and asynchronous I/O
 * into local buffers runs synchronously with io_method=worker: they get
 * advice, or none with direct I/O.
 *
 * Copyright (c) 2026, the pg_lookahead authors
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "compat.h"
#include "method/method.h"
#include "storage/bufpage.h"

#ifdef USE_PREFETCH
#define LA_HAVE_ADVICE 1
#else
#define LA_HAVE_ADVICE 0
#endif

/*
 * The kernel's advice if it can serve, else nothing.
 */
static const LaMethod *
la_advice_or_none(const char **reason)
{
	if (!LA_HAVE_ADVICE)
	{
		*reason = "this platform has no posix_fadvise()";
		return &la_method_none;
	}
	if (la_direct_io())
	{
		*reason = "kernel advice does nothing with direct I/O";
		return &la_method_none;
	}
	*reason = "kernel advice serves buffered I/O";
	return &la_method_advice;
}

#if LA_HAVE_AIO
/*
 * The server's asynchronous I/O if it runs asynchronously for this table.
 */
static const LaMethod *
la_aio_or_advice(Relation rel, const char **reason)
{
	if (rel != NULL && RelationUsesLocalBuffers(rel))
		return la_advice_or_none(reason);
	if (io_method == IOMETHOD_SYNC)
	{
		const LaMethod *method = la_advice_or_none(reason);

		if (method->id == LA_METHOD_NONE)
			*reason = "neither io_method \"sync\" nor kernel advice reads ahead with direct I/O";
		else
			*reason = "io_method \"sync\" reads nothing asynchronously, kernel advice does";
		return method;
	}

	/*
	 * The server's asynchronous reads repair or accept a bad page in silence
	 * then; the query's own read must be the one to warn of it.
	 */
	if (zero_damaged_pages || ignore_checksum_failure)
		return la_advice_or_none(reason);
	*reason = "the server's asynchronous I/O fills shared buffers";
	return &la_method_aio;
}
#endif

/*
 * Choose the method for a table, or for tables in general if rel is NULL.
 * *reason is set to a phrase that says why.
 */
const LaMethod *
la_method_for(Relation rel, const char **reason)
{
	const char *dummy;

	if (reason == NULL)
		reason = &dummy;

	switch ((LaMethodId) la_method)
	{
		case LA_METHOD_NONE:
			*reason = "pg_lookahead.method is \"none\"";
			return &la_method_none;

		case LA_METHOD_ADVICE:
			return la_advice_or_none(reason);

		case LA_METHOD_AIO:
#if LA_HAVE_AIO
			return la_aio_or_advice(rel, reason);
#else
			break;				/* the check hook does not let this through */
#endif

		case LA_METHOD_AUTO:
			break;
	}

	if (!la_direct_io() && LA_HAVE_ADVICE)
		return la_advice_or_none(reason);
#if LA_HAVE_AIO
	return la_aio_or_advice(rel, reason);
#else
	return la_advice_or_none(reason);
#endif
}
