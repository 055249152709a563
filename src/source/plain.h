/*-------------------------------------------------------------------------
 *
 * plain.h
 *	  Can the functions that an index calls be run on look-ahead's account?
 *
 * Copyright (c) 2026, the pg_lookahead authors
 *
 *-------------------------------------------------------------------------
 */
#ifndef LA_PLAIN_H
#define LA_PLAIN_H

#include "access/skey.h"
#include "utils/relcache.h"

/* An index, and what a node of a plan scans it for. */
typedef struct LaIndexKeys
{
	Relation	index;
	const ScanKeyData *keys;
	int			nkeys;
	const ScanKeyData *orderbys;
	int			norderbys;
} LaIndexKeys;

extern bool la_columns_are_plain(Relation index);
extern bool la_keys_are_plain(const LaIndexKeys *all);

#endif							/* LA_PLAIN_H */
