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
 *		18		worker		buffered	aio for leaf pages, unless the index
 *									scan is parallel, and bitmaps
 *		other	other		buffered	worker for leaf pages, with the service,
 *									unless the scan is parallel, and for
 *									sequential scans likewise
 *		16-17	-			direct		worker, or none without the service
 *		18		sync		direct		worker, or none without the service
 *		18		other		direct		aio
 *
 * Why not "aio" wherever there is asynchronous I/O?  With buffered I/O the
 * kernel can be asked for a whole window in one go and answers as deep as the
 * device allows, while the server's reads are limited by its handles or its
 * I/O workers, and cost this process more.  src/README.md has the numbers.
 *
 * In a parallel plan, and in a statement that writes or locks rows, "aio"
 * serves with io_method=worker only; see la_aio_or_advice().
 *
 * Temporary tables cannot be read by other processes, and asynchronous I/O
 * into local buffers runs synchronously with io_method=worker: they get
 * advice, or none with direct I/O.  The service's workers cannot lock a table
 * that this transaction has locked against all others: likewise.
 *
 * Copyright (c) 2026, the pg_lookahead authors
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/xact.h"
#include "compat.h"
#include "method/method.h"
#include "service/service.h"
#include "storage/bufpage.h"
#include "window/guard.h"

/*
 * Does a lock of this transaction keep everybody else from the relation?  So it
 * is with a table that was made or truncated in it, for example.
 */
static bool
la_is_ours_alone(Relation rel)
{
	LOCKTAG		tag;

	SET_LOCKTAG_RELATION(tag, rel->rd_lockInfo.lockRelId.dbId,
						 RelationGetRelid(rel));
	return la_lock_is_held(&tag, AccessExclusiveLock);
}

/*
 * Can the I/O service serve this table?  Its workers cannot see local buffers,
 * and have to lock it.
 */
static bool
la_worker_can_serve(Relation rel)
{
	return la_service_is_running() &&
		(rel == NULL ||
		 (!RelationUsesLocalBuffers(rel) && !la_is_ours_alone(rel)));
}

/*
 * The kernel's advice if it can serve, else the I/O service, else nothing.
 */
static const LaMethod *
la_advice_or_worker(Relation rel, const char **reason)
{
	if (la_may_advise())
	{
		*reason = "kernel advice serves buffered I/O";
		return &la_method_advice;
	}
	if (la_worker_can_serve(rel))
	{
		*reason = "the I/O service fills shared buffers";
		return &la_method_worker;
	}
	*reason = LA_HAVE_ADVICE ?
		"kernel advice does nothing with direct I/O" :
		"this platform has no posix_fadvise()";
	return &la_method_none;
}

/*
 * The I/O service if it can serve, else the kernel's advice, else nothing.
 */
static const LaMethod *
la_worker_or_advice(Relation rel, const char **reason)
{
	const LaMethod *method;

	if (la_worker_can_serve(rel))
	{
		*reason = "the I/O service fills shared buffers";
		return &la_method_worker;
	}
	method = la_advice_or_worker(rel, reason);
	if (method->id == LA_METHOD_ADVICE)
		*reason = "there is no I/O service, but kernel advice";
	return method;
}

#if LA_HAVE_AIO
/*
 * May a query wait for other processes while it reads: for those of its plan,
 * for transactions that have changed the rows it writes or locks, or for one
 * that replays the log, which has pages locked while it reads others?
 */
static bool
la_may_wait_for_others(const EState *estate)
{
	const PlannedStmt *statement = estate ? estate->es_plannedstmt : NULL;

	return IsInParallelMode() || RecoveryInProgress() ||
		(statement != NULL &&
		 (statement->commandType != CMD_SELECT ||
		  statement->rowMarks != NIL || statement->hasModifyingCTE));
}

/*
 * The server's asynchronous I/O if it runs asynchronously for this table.
 */
static const LaMethod *
la_aio_or_advice(Relation rel, const EState *estate, const char **reason)
{
	const char *dummy;

	if (rel != NULL && RelationUsesLocalBuffers(rel))
		return la_advice_or_worker(rel, reason);
	if (io_method == IOMETHOD_SYNC)
	{
		const LaMethod *method = la_advice_or_worker(rel, reason);

		if (method->id == LA_METHOD_NONE && la_direct_io())
			*reason = "neither io_method \"sync\" nor kernel advice reads ahead with direct I/O";
		else if (method->id == LA_METHOD_ADVICE)
			*reason = "io_method \"sync\" reads nothing asynchronously, kernel advice does";
		return method;
	}

	/*
	 * A read through io_uring is completed by who began it, or by who waits for
	 * it once it was submitted.  A process that came upon it a moment earlier
	 * sleeps until the first one looks; and if that one waits for the sleeper,
	 * for ever, which no check for deadlocks sees.  A function that a query
	 * calls may wait as well, and a page that is locked by who splits its
	 * neighbour; nothing tells, so aio.c makes that moment short.
	 */
	if (io_method != IOMETHOD_WORKER && la_may_wait_for_others(estate))
	{
		*reason = "another process may wait for a read that only this one can complete";
		return la_advice_or_worker(rel, &dummy);
	}

	/*
	 * The server's asynchronous reads repair or accept a bad page in silence
	 * then; the query's own read must be the one to warn of it.
	 */
	if (la_damage_is_accepted())
	{
		*reason = "damaged pages are accepted, and the query's own read must warn of them";
		return la_advice_or_worker(rel, &dummy);
	}
	*reason = "the server's asynchronous I/O fills shared buffers";
	return &la_method_aio;
}
#endif

/*
 * Choose the method for a table that a query reads, or for tables and queries
 * in general if these are NULL.  *reason is set to a phrase that says why.
 */
const LaMethod *
la_method_for(Relation rel, const EState *estate, const char **reason)
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
			return la_advice_or_worker(rel, reason);

		case LA_METHOD_AIO:
#if LA_HAVE_AIO
			return la_aio_or_advice(rel, estate, reason);
#else
			break;				/* the check hook does not let this through */
#endif

		case LA_METHOD_WORKER:
			return la_worker_or_advice(rel, reason);

		case LA_METHOD_AUTO:
			break;
	}

	if (la_may_advise())
		return la_advice_or_worker(rel, reason);
#if LA_HAVE_AIO
	return la_aio_or_advice(rel, estate, reason);
#else
	return la_advice_or_worker(rel, reason);
#endif
}

/*
 * Choose the method for blocks that the query has much to do with, such as
 * those of a bitmap; see la_leaf_method_for().
 */
const LaMethod *
la_dense_method_for(Relation rel, const EState *estate)
{
	const LaMethod *method = la_method_for(rel, estate, NULL);

#if LA_HAVE_AIO
	const char *reason;

	if (la_method == LA_METHOD_AUTO && method->id == LA_METHOD_ADVICE &&
		io_method == IOMETHOD_WORKER)
		return la_aio_or_advice(rel, estate, &reason);
#endif
	return method;
}

/*
 * Choose the method for leaf pages.
 *
 * Each keeps the scan busy, which waits for few.  What is left to gain is that
 * another processor copies and checks the page, and the server's I/O workers,
 * or those of the service, are fast enough for that.  A scan that takes one row
 * of each block would wait for them.
 */
const LaMethod *
la_leaf_method_for(Relation rel, const EState *estate)
{
	const LaMethod *method = la_dense_method_for(rel, estate);
	const char *reason;

	if (la_method == LA_METHOD_AUTO && method->id == LA_METHOD_ADVICE)
		return la_worker_or_advice(rel, &reason);
	return method;
}

/*
 * Choose the method for a scan of all blocks in physical order, or NULL for
 * none.
 *
 * If one process scans, the kernel reads ahead already, and what is left to
 * gain is that somebody else copies: so the I/O service comes first.  Several
 * processes copy beside each other; but each takes its chunks here and there,
 * where the kernel does not follow.  To tell it is cheaper than a worker, which
 * would take a processor from them.
 */
const LaMethod *
la_range_method_for(Relation rel, bool is_shared)
{
	const char *reason;
	const LaMethod *method = NULL;

	switch ((LaMethodId) la_method)
	{
		case LA_METHOD_NONE:
			break;
		case LA_METHOD_ADVICE:
			method = la_advice_or_worker(rel, &reason);
			break;
		case LA_METHOD_AUTO:
			method = is_shared ? la_advice_or_worker(rel, &reason) :
				la_worker_or_advice(rel, &reason);
			break;
		case LA_METHOD_AIO:
		case LA_METHOD_WORKER:
			method = la_worker_or_advice(rel, &reason);
			break;
	}
	return method == NULL || method->id == LA_METHOD_NONE ? NULL : method;
}
