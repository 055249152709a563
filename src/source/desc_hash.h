/*-------------------------------------------------------------------------
 *
 * desc_hash.h
 *	  A hash table of scans that we follow, by their descriptors.
 *
 * To be included by the file that has one; everything is static in it.
 *
 * Copyright (c) 2026, the pg_lookahead authors
 *
 *-------------------------------------------------------------------------
 */
#ifndef LA_DESC_HASH_H
#define LA_DESC_HASH_H

#include "access/genam.h"
#include "common/hashfn.h"

typedef struct LaDescEntry
{
	IndexScanDesc desc;			/* hash key */
	char		status;			/* used by simplehash */
	void	   *scan;
} LaDescEntry;

#define SH_PREFIX ladesc
#define SH_ELEMENT_TYPE LaDescEntry
#define SH_KEY_TYPE IndexScanDesc
#define SH_KEY desc
#define SH_HASH_KEY(tb, key) murmurhash32((uint32) ((uintptr_t) (key) >> 4))
#define SH_EQUAL(tb, a, b) ((a) == (b))
#define SH_SCOPE static inline
#define SH_DECLARE
#define SH_DEFINE
#include "lib/simplehash.h"

#endif							/* LA_DESC_HASH_H */
