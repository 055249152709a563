/*-------------------------------------------------------------------------
 *
 * guard.h
 *	  Runs code on look-ahead's account, so that its errors end there.
 *
 * Copyright (c) 2026, the pg_lookahead authors
 *
 *-------------------------------------------------------------------------
 */
#ifndef LA_GUARD_H
#define LA_GUARD_H

#include "miscadmin.h"
#include "storage/block.h"
#include "utils/rel.h"
#include "utils/resowner.h"

/*
 * Do something on the account of an owner; it must not raise an error.
 */
#define LA_WITH_OWNER(owner, what) \
	do { \
		ResourceOwner save_owner = CurrentResourceOwner; \
		CurrentResourceOwner = (owner); \
		what; \
		CurrentResourceOwner = save_owner; \
	} while (0)

/*
 * May a guard be used here?  Not if somebody holds a lock that it would release
 * after an error.
 */
static inline bool
la_guard_is_possible(void)
{
	return InterruptHoldoffCount == 0 && CritSectionCount == 0;
}

extern ResourceOwner la_guard_outer_owner(void);
extern ResourceOwner la_guard_owner_create(void);
extern void la_guard_owner_free(ResourceOwner owner, bool is_good);
extern bool la_guard_run(ResourceOwner owner, void (*body) (void *), void *arg);
extern bool la_guard_run_once(void (*body) (void *), void *arg);
extern bool la_guard_run_silent(void (*body) (void *), void *arg);
extern BlockNumber la_guard_size(Relation rel);

extern void la_guard_process(const char *name);
extern const char *la_guard_last_error(void);
extern bool la_damage_is_accepted(void);

#endif							/* LA_GUARD_H */
