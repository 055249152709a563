/*-------------------------------------------------------------------------
 *
 * by_address.c
 *	  What of ours stands beside something of the server's.
 *
 * The server calls our functions with its own structures: a plan node, a scan
 * descriptor.  These have no room for a pointer of ours, so what we know of
 * them is found by their address.  Whoever puts something here removes it
 * before that memory can serve another purpose; or, where the server frees it
 * without telling us, lets what comes to be there next take its place.
 *
 * Copyright (c) 2026, the pg_lookahead authors
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "common/hashfn.h"
#include "by_address.h"
#include "utils/memutils.h"

#define LA_FIRST_SIZE	16

typedef struct LaAddressEntry
{
	const void *theirs;			/* hash key */
	char		status;			/* used by simplehash */
	void	   *ours;
} LaAddressEntry;

#define SH_PREFIX laaddress
#define SH_ELEMENT_TYPE LaAddressEntry
#define SH_KEY_TYPE const void *
#define SH_KEY theirs
#define SH_HASH_KEY(tb, key) murmurhash32((uint32) ((uintptr_t) (key) >> 4))
#define SH_EQUAL(tb, a, b) ((a) == (b))
#define SH_SCOPE static inline
#define SH_DECLARE
#define SH_DEFINE
#include "lib/simplehash.h"

static void
la_find_at_once(LaByAddress *all, const void *theirs, void *ours)
{
	int			place = la_at_once_place(theirs);

	all->at_once[place].theirs = theirs;
	all->at_once[place].ours = ours;
}

/*
 * Put something beside a structure of the server's, in place of what may have
 * been left there.
 */
void
la_by_address_put(LaByAddress *all, const void *theirs, void *ours)
{
	bool		found;

	if (all->entries == NULL)
		all->entries = laaddress_create(TopMemoryContext, LA_FIRST_SIZE, NULL);
	laaddress_insert(all->entries, theirs, &found)->ours = ours;
	la_find_at_once(all, theirs, ours);
}

/*
 * Remove it, unless something else has taken its place.
 */
void
la_by_address_remove(LaByAddress *all, const void *theirs, const void *ours)
{
	if (la_by_address_lookup(all, theirs) != ours || ours == NULL)
		return;
	laaddress_delete(all->entries, theirs);
	la_find_at_once(all, theirs, NULL);
}

/*
 * la_by_address_get() of a structure that was not looked up lately.
 */
void *
la_by_address_lookup(LaByAddress *all, const void *theirs)
{
	LaAddressEntry *entry = NULL;
	void	   *ours;

	if (all->entries != NULL)
		entry = laaddress_lookup(all->entries, theirs);
	ours = entry ? entry->ours : NULL;
	la_find_at_once(all, theirs, ours);
	return ours;
}
