/*-------------------------------------------------------------------------
 *
 * maintenance.h
 *	  Follows VACUUM, ANALYZE, index builds, CLUSTER and COPY TO from outside.
 *
 * Copyright (c) 2026, the pg_lookahead authors
 *
 *-------------------------------------------------------------------------
 */
#ifndef LA_MAINTENANCE_H
#define LA_MAINTENANCE_H

extern void la_maintenance_register(void);

extern PGDLLEXPORT void la_watcher_main(Datum arg);

#endif							/* LA_MAINTENANCE_H */
