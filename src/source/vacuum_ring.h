/*-------------------------------------------------------------------------
 *
 * vacuum_ring.h
 *	  Gives VACUUM of a large table a wider ring of buffers.
 *
 * Copyright (c) 2026, the pg_lookahead authors
 *
 *-------------------------------------------------------------------------
 */
#ifndef LA_VACUUM_RING_H
#define LA_VACUUM_RING_H

#include "nodes/parsenodes.h"
#include "storage/bufmgr.h"
#include "utils/rel.h"

extern void la_vacuum_begin(const VacuumStmt *statement);
extern void la_vacuum_end(void);
extern BufferAccessStrategy la_vacuum_ring(Relation rel,
										   BufferAccessStrategy servers);

#endif							/* LA_VACUUM_RING_H */
