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

/*
 * The logarithm of how many are found at once: those looked up lately, each at
 * the only place where it can be.
 */
#define LA_AT_ONCE_BITS 8

/* All that of one kind.  Zeroed there is none. */
typedef struct LaByAddress
{
	struct laaddress_hash *entries; /* NULL until there is one */
	struct
	{
		const void *theirs;
		void	   *ours;		/* beside that, or NULL */
	}			at_once[1 << LA_AT_ONCE_BITS];
} LaByAddress;

extern void la_by_address_put(LaByAddress *all, const void *theirs,
							  void *ours);
extern void la_by_address_remove(LaByAddress *all, const void *theirs,
								 const void *ours);
extern void *la_by_address_lookup(LaByAddress *all, const void *theirs);

static inline int
la_at_once_place(const void *theirs)
{
	uint32		hash = (uint32) ((uintptr_t) theirs >> 4) * 2654435769U;

	return hash >> (32 - LA_AT_ONCE_BITS);
}

/*
 * What stands beside this, if that is found at once.  NULL tells nothing.
 */
static inline void *
la_by_address_peek(const LaByAddress *all, const void *theirs)
{
	int			place = la_at_once_place(theirs);

	if (likely(theirs == all->at_once[place].theirs))
		return all->at_once[place].ours;
	return NULL;
}

/*
 * What stands beside this, or NULL.  Nearly always the same few are asked for.
 */
static inline void *
la_by_address_get(LaByAddress *all, const void *theirs)
{
	int			place = la_at_once_place(theirs);

	if (likely(theirs == all->at_once[place].theirs))
		return all->at_once[place].ours;
	return la_by_address_lookup(all, theirs);
}

#endif							/* LA_BY_ADDRESS_H */
