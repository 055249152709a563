/*-------------------------------------------------------------------------
 *
 * by_address.h
 *	  What of ours stands beside something of the server's.
 *
 * Copyright (c) 2026, the pg_lookahead authors
 *
 *-------------------------------------------------------------------------
 */
#ifndef LA_BY_ADDRESS_H
#define LA_BY_ADDRESS_H

/* All that of one kind.  Zeroed there is none. */
typedef struct LaByAddress
{
	struct laaddress_hash *entries; /* NULL until there is one */
	const void *last;			/* looked up last */
	void	   *found;			/* beside that, or NULL */
} LaByAddress;

extern void la_by_address_put(LaByAddress *all, const void *theirs,
							  void *ours);
extern void la_by_address_remove(LaByAddress *all, const void *theirs,
								 const void *ours);
extern void *la_by_address_lookup(LaByAddress *all, const void *theirs);

/*
 * What stands beside this, or NULL.  Nearly always the same is asked for.
 */
static inline void *
la_by_address_get(LaByAddress *all, const void *theirs)
{
	if (likely(theirs == all->last))
		return all->found;
	return la_by_address_lookup(all, theirs);
}

#endif							/* LA_BY_ADDRESS_H */
