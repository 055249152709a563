/*-------------------------------------------------------------------------
 *
 * plain.c
 *	  Can the functions that an index calls be run on look-ahead's account?
 *
 * A second scan of an index, and whoever looks at its pages before the query
 * does, calls the functions of its operator classes, for entries that the query
 * may never come to.  An error there is to be forgotten, and guard.c cannot put
 * back all that a function may leave.  A function is plain if
 *
 *	- it is written in C: others may run queries
 *	- it is not SECURITY DEFINER and sets no parameters: the server leaves the
 *	  user and the values as they are after an error, and has the transaction's
 *	  abort put them back
 *
 * and what it calls itself is plain.  Those of arrays, domains and the like
 * call the functions of what is inside.  Those of enums are, though they ask
 * the catalog, once in a session, for the order of values that were added
 * between others.
 *
 * That is asked when a plan starts, not when look-ahead begins.  Of common
 * types and built-in functions no catalog is asked.  Of others the server has
 * looked up much of it for the plan itself; the rest may have to be waited for,
 * where VACUUM FULL rewrites a catalog, or may not be readable.  There a query
 * may fail, as with any catalog that it needs.  In the middle of a scan it
 * would wait for what it never needed without us, in a guard, which cannot put
 * back all that an error leaves in the caches.  No table is opened for it, as
 * the type cache does to compare rows, and no library is loaded that a scan
 * would not load: it may be gone.
 *
 * Of the columns of an index it is asked once for each relcache entry, when a
 * plan uses it first (index_am.c): the entry keeps what it has looked up of its
 * support functions as well.  Of what a node scans the index for it is asked
 * each time.
 *
 * Copyright (c) 2026, the pg_lookahead authors
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/genam.h"
#include "access/gist.h"
#include "access/hash.h"
#include "access/htup_details.h"
#include "access/nbtree.h"
#include "access/spgist.h"
#include "access/transam.h"
#include "catalog/pg_am.h"
#include "catalog/pg_language.h"
#include "catalog/pg_proc.h"
#include "catalog/pg_type.h"
#include "compat.h"
#include "executor/instrument.h"
#include "source/plain.h"
#include "utils/fmgrtab.h"
#include "utils/lsyscache.h"
#include "utils/rel.h"
#include "utils/syscache.h"
#include "utils/typcache.h"

/*
 * Numbers of several kinds, moments and strings, that the server's own families
 * of operators compare with each other.  The functions for that are built in,
 * of which no catalog need be asked.
 */
static const Oid la_kin[][3] = {
	{INT2OID, INT4OID, INT8OID},
	{FLOAT4OID, FLOAT8OID},
	{DATEOID, TIMESTAMPOID, TIMESTAMPTZOID},
	{TEXTOID, NAMEOID},
};

/*
 * Is it a function that the catalog says to be plain?
 */
static bool
la_listed_is_plain(Oid funcid)
{
	HeapTuple	tuple = SearchSysCache1(PROCOID, ObjectIdGetDatum(funcid));
	Form_pg_proc form;
	bool		is_plain;

	if (!HeapTupleIsValid(tuple))
		return false;
	form = (Form_pg_proc) GETSTRUCT(tuple);
	is_plain = (form->prolang == INTERNALlanguageId ||
				form->prolang == ClanguageId) &&
		!form->prosecdef &&
		heap_attisnull(tuple, Anum_pg_proc_proconfig, NULL);
	ReleaseSysCache(tuple);
	return is_plain;
}

/*
 * Is it a function that the server calls as C, whatever the catalog says, or
 * none?
 */
static inline bool
la_is_built_in(Oid funcid)
{
	return !OidIsValid(funcid) ||
		(funcid <= fmgr_last_builtin_oid &&
		 fmgr_builtin_oid_index[funcid] != InvalidOidBuiltinMapping);
}

static bool
la_function_is_plain(Oid funcid)
{
	return la_is_built_in(funcid) || la_listed_is_plain(funcid);
}

/*
 * The same of one that is looked up already, maybe long ago.
 */
static bool
la_call_is_plain(const FmgrInfo *flinfo)
{
	return la_function_is_plain(flinfo->fn_oid) &&
		flinfo->fn_addr != fmgr_security_definer;
}

/*
 * Are the support functions of a type all that a comparison of it calls?
 *
 * Those of composite types, arrays and ranges are written in C, but call the
 * functions of what is inside.  Those of arrays are asked; what has a composite
 * type or a range inside is left alone, except the built-in ranges.
 */
static bool
la_type_is_plain(Oid typid)
{
	Oid			element = get_element_type(typid);
	TypeCacheEntry *type;

	if (OidIsValid(element))
	{
		/* First: of rows the type cache would open the tables. */
		if (!la_type_is_plain(element))
			return false;
		type = lookup_type_cache(element, TYPECACHE_EQ_OPR |
								 TYPECACHE_CMP_PROC | TYPECACHE_HASH_PROC);
		return la_function_is_plain(OidIsValid(type->eq_opr) ?
									get_opcode(type->eq_opr) : InvalidOid) &&
			la_function_is_plain(type->cmp_proc) &&
			la_function_is_plain(type->hash_proc);
	}
	if (typid < FirstNormalObjectId)
		return typid != RECORDOID && typid != RECORDARRAYOID;

	switch (get_typtype(typid))
	{
		case TYPTYPE_BASE:
		case TYPTYPE_ENUM:
			return true;
		case TYPTYPE_DOMAIN:
			return la_type_is_plain(getBaseType(typid));
		default:
			return false;
	}
}

/*
 * Is it of a built-in type that has nothing inside, as can be told without
 * asking a catalog?
 */
static bool
la_is_common_type(Form_pg_attribute attr)
{
	if (attr->atttypid >= FirstNormalObjectId)
		return false;
	switch (attr->atttypid)
	{
		case TEXTOID:
		case VARCHAROID:
		case BPCHAROID:
		case BYTEAOID:
		case NUMERICOID:
		case INETOID:
		case CIDROID:
		case JSONBOID:
		case TSVECTOROID:
		case BITOID:
		case VARBITOID:
		case CSTRINGOID:		/* a name, in a B-tree */
			return true;
		default:
			return attr->attlen > 0;
	}
}

static bool
la_are_kin(Oid one, Oid other)
{
	for (int i = 0; i < lengthof(la_kin); i++)
	{
		int			n = 0;

		for (int k = 0; k < lengthof(la_kin[i]); k++)
			n += la_kin[i][k] == one || la_kin[i][k] == other;
		if (n == 2)
			return true;
	}
	return false;
}

/*
 * Is a key of another type than the column's, and not as the server brings it?
 */
static inline bool
la_is_of_other_type(Relation index, const ScanKeyData *key)
{
	Oid			subtype = key->sk_subtype;
	Oid			opcintype = index->rd_opcintype[key->sk_attno - 1];

	if (!OidIsValid(subtype) || subtype == opcintype)
		return false;
	return index->rd_opfamily[key->sk_attno - 1] >= FirstNormalObjectId ||
		!la_are_kin(subtype, opcintype);
}

/*
 * Are the functions plain of the operators that a family of B-tree's has for a
 * type?
 */
static bool
la_operators_are_plain(Oid family, Oid type)
{
	for (int strategy = 1; strategy <= BTMaxStrategyNumber; strategy++)
	{
		Oid			operator = get_opfamily_member(family, type, type,
												   strategy);

		if (OidIsValid(operator) &&
			!la_function_is_plain(get_opcode(operator)))
			return false;
	}
	return true;
}

/*
 * The functions that an access method fetches for such a key, which are not
 * among those of the index.  B-tree compares two keys of a column with more
 * functions than these: then the answer is no.
 */
static bool
la_other_type_is_plain(const LaIndexKeys *all, const ScanKeyData *key)
{
	Relation	index = all->index;
	Oid			subtype = key->sk_subtype;
	Oid			opcintype = index->rd_opcintype[key->sk_attno - 1];
	Oid			family = index->rd_opfamily[key->sk_attno - 1];
	Oid			procs[2] = {InvalidOid, InvalidOid};

	switch (index->rd_rel->relam)
	{
		case BTREE_AM_OID:
			for (int i = 0; i < all->nkeys; i++)
				if (&all->keys[i] != key &&
					all->keys[i].sk_attno == key->sk_attno &&
					(all->keys[i].sk_flags & SK_ROW_HEADER) == 0)
					return false;

			/* It looks for the least or the greatest of them. */
			if ((key->sk_flags & SK_SEARCHARRAY) != 0 &&
				key->sk_strategy != BTEqualStrategyNumber &&
				!la_operators_are_plain(family, subtype))
				return false;
			procs[0] = get_opfamily_proc(family, opcintype, subtype,
										 BTORDER_PROC);
			if ((key->sk_flags & SK_SEARCHARRAY) != 0)
				procs[1] = get_opfamily_proc(family, subtype, subtype,
											 BTORDER_PROC);
			break;
		case HASH_AM_OID:
			procs[0] = get_opfamily_proc(family, subtype, subtype,
										 HASHSTANDARD_PROC);
			break;
	}
	return la_type_is_plain(subtype) &&
		la_function_is_plain(procs[0]) && la_function_is_plain(procs[1]);
}

/*
 * Does the index say what its column is of?  A hash is an integer, and what
 * stands for several ranges is "anyrange".
 */
static bool
la_column_is_known(Relation index, int column)
{
	switch (index->rd_opcintype[column])
	{
		case RECORDOID:
		case ANYARRAYOID:
		case ANYRANGEOID:
		case ANYMULTIRANGEOID:
			return index->rd_rel->relam != HASH_AM_OID &&
				!IsPolymorphicType(TupleDescAttr(index->rd_att,
												 column)->atttypid);
		default:
			return true;
	}
}

/*
 * Does a scan of an index look up this support function of all of its columns?
 * Others are for building, inserting and sorting.  B-tree looks up the one that
 * compares where there is a key; see la_order_is_plain().
 */
static bool
la_scan_looks_up(Relation index, int procnum)
{
	switch (index->rd_rel->relam)
	{
		case BTREE_AM_OID:
			return false;
		case HASH_AM_OID:
			return procnum == HASHSTANDARD_PROC;
		case GIST_AM_OID:
			return procnum <= GIST_FETCH_PROC;	/* all that were there first */
		case SPGIST_AM_OID:
			return procnum == SPGIST_CONFIG_PROC ||
				procnum == SPGIST_INNER_CONSISTENT_PROC ||
				procnum == SPGIST_LEAF_CONSISTENT_PROC;
		default:
			return true;
	}
}

static bool
la_column_is_plain(Relation index, int column)
{
	Form_pg_attribute attr = TupleDescAttr(index->rd_att, column);
	Oid			family = index->rd_opfamily[column];
	Oid			opcintype = index->rd_opcintype[column];
	int			nprocs = index->rd_indam->amsupport;

	if (!la_column_is_known(index, column) ||
		(!la_is_common_type(attr) && !la_type_is_plain(attr->atttypid)))
		return false;
	for (int i = 1; i <= nprocs; i++)
	{
		Oid			proc = index_getprocid(index, column + 1, i);

		if (la_is_built_in(proc))
			continue;
		if (!la_listed_is_plain(proc))
			return false;
		/* The index shall look it up now, and keep what we ask of. */
		if (la_scan_looks_up(index, i) &&
			!la_call_is_plain(index_getprocinfo(index, column + 1, i)))
			return false;
	}

	/* For a column that has no key 18 makes one, to skip. */
	return !LA_HAVE_SKIP_SCANS ||
		index->rd_rel->relam != BTREE_AM_OID ||
		(family < FirstNormalObjectId && opcintype < FirstNormalObjectId) ||
		la_operators_are_plain(family, opcintype);
}

/*
 * Are the functions plain that an access method calls for the columns of an
 * index, whatever the keys are?  For this and for la_keys_are_plain(): raises
 * an error if a catalog cannot be read.  What is read does not count for the
 * query.
 */
bool
la_columns_are_plain(Relation index)
{
	BufferUsage usage = pgBufferUsage;
	bool		is_plain = true;

	/* What is only included is compared with nothing. */
	for (int i = 0;
		 is_plain && i < IndexRelationGetNumberOfKeyAttributes(index);
		 i++)
		is_plain = la_column_is_plain(index, i);
	pgBufferUsage = usage;
	return is_plain;
}

/*
 * The first of the columns that a B-tree compares for a key, up to the key's:
 * 18 makes keys for those in front that have none, to skip.
 */
#define la_first_compared(key) (LA_HAVE_SKIP_SCANS ? 1 : (key)->sk_attno)

/*
 * Does a B-tree compare these by functions that are built in?
 */
static inline bool
la_order_is_built_in(Relation index, const ScanKeyData *key)
{
	if (index->rd_rel->relam != BTREE_AM_OID)
		return true;
	for (AttrNumber i = la_first_compared(key); i <= key->sk_attno; i++)
		if (!la_is_built_in(index_getprocid(index, i, BTORDER_PROC)))
			return false;
	return true;
}

/*
 * Are those functions plain?  The scan looks them up as well.
 */
static bool
la_order_is_plain(Relation index, const ScanKeyData *key)
{
	if (la_order_is_built_in(index, key))
		return true;
	for (AttrNumber i = la_first_compared(key); i <= key->sk_attno; i++)
		if (!la_call_is_plain(index_getprocinfo(index, i, BTORDER_PROC)))
			return false;
	return true;
}

/*
 * Are the functions plain that are called for a key, as most are, of which no
 * catalog is asked?
 */
static inline bool
la_key_is_common(const LaIndexKeys *all, const ScanKeyData *key)
{
	return (key->sk_flags & SK_ROW_HEADER) == 0 &&
		la_is_built_in(key->sk_func.fn_oid) &&
		la_order_is_built_in(all->index, key) &&
		!la_is_of_other_type(all->index, key);
}

/*
 * The same of any key.
 */
static bool
la_key_is_plain(const LaIndexKeys *all, const ScanKeyData *key)
{
	/* Of a row the header has no function, but each member has. */
	if ((key->sk_flags & SK_ROW_HEADER) != 0)
	{
		const ScanKeyData *member = (const ScanKeyData *)
			DatumGetPointer(key->sk_argument);

		for (;; member++)
		{
			if (!la_key_is_plain(all, member))
				return false;
			if ((member->sk_flags & SK_ROW_END) != 0)
				return true;
		}
	}
	return la_call_is_plain(&key->sk_func) &&
		la_order_is_plain(all->index, key) &&
		(!la_is_of_other_type(all->index, key) ||
		 la_other_type_is_plain(all, key));
}

/*
 * Are all functions plain that are called for what an index is scanned for?
 */
pg_attribute_hot bool
la_keys_are_plain(const LaIndexKeys *all)
{
	BufferUsage usage;
	bool		is_plain = true;
	int			ncommon = 0;

	while (ncommon < all->nkeys && la_key_is_common(all, &all->keys[ncommon]))
		ncommon++;
	if (ncommon == all->nkeys && all->norderbys == 0)
		return true;

	usage = pgBufferUsage;
	for (int i = ncommon; is_plain && i < all->nkeys; i++)
		is_plain = la_key_is_plain(all, &all->keys[i]);
	for (int i = 0; is_plain && i < all->norderbys; i++)
		is_plain = la_call_is_plain(&all->orderbys[i].sk_func);
	pgBufferUsage = usage;
	return is_plain;
}
