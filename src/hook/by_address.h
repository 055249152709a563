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

/* Looked up lately, each at the only place where it can be. */
#define LA_RECENT_BITS	6

/* All that of one kind.  Zeroed there is none. */
typedef struct LaByAddress
{
	struct laaddress_hash *entries; /* NULL until there is one */
	struct
	{
		const void *theirs;
		void	   *ours;		/* beside that, or NULL */
	}			recent[1 << LA_RECENT_BITS];
} LaByAddress;

extern void la_by_address_put(LaByAddress *all, const void *theirs,
							  void *ours);
extern void la_by_address_remove(LaByAddress *all, const void *theirs,
								 const void *ours);
extern void *la_by_address_lookup(LaByAddress *all, const void *theirs);

static inline int
la_recent_place(const void *theirs)
{
	uint32		hash = (uint32) ((uintptr_t) theirs >> 4) * 2654435769U;

	return hash >> (32 - LA_RECENT_BITS);
}

/*
 * What stands beside this, if that is found at once.  NULL tells nothing.
 */
static inline void *
la_by_address_peek(const LaByAddress *all, const void *theirs)
{
	int			place = la_recent_place(theirs);

	if (likely(theirs == all->recent[place].theirs))
		return all->recent[place].ours;
	return NULL;
}

/*
 * What stands beside this, or NULL.  Nearly always the same few are asked for.
 */
static inline void *
la_by_address_get(LaByAddress *all, const void *theirs)
{
	int			place = la_recent_place(theirs);

	if (likely(theirs == all->recent[place].theirs))
		return all->recent[place].ours;
	return la_by_address_lookup(all, theirs);
}

#endif							/* LA_BY_ADDRESS_H */
