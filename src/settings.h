/*-------------------------------------------------------------------------
 *
 * settings.h
 *	  The settings pg_lookahead.*, as variables.
 *
 * settings.c defines and documents them.  Everybody may read them; only the
 * server's GUC machinery writes them.
 *
 * Copyright (c) 2026, the pg_lookahead authors
 *
 *-------------------------------------------------------------------------
 */
#ifndef LA_SETTINGS_H
#define LA_SETTINGS_H

/* Values of pg_lookahead.method; LA_METHOD_AUTO is resolved in method.c. */
typedef enum LaMethodId
{
	LA_METHOD_AUTO,
	LA_METHOD_ADVICE,
	LA_METHOD_AIO,
	LA_METHOD_NONE,
} LaMethodId;

#define LA_DEFAULT_MAX_DISTANCE		256
#define LA_MIN_MAX_DISTANCE			8
#define LA_MAX_MAX_DISTANCE			4096

#define LA_DEFAULT_IO_CONCURRENCY	64
#define LA_MIN_IO_CONCURRENCY		1
#define LA_MAX_IO_CONCURRENCY		1000

#define LA_DEFAULT_START_AFTER		8
#define LA_MIN_START_AFTER			0
#define LA_MAX_START_AFTER			1000000

extern bool la_enabled;
extern int	la_method;			/* a LaMethodId */
extern int	la_max_distance;	/* blocks */
extern int	la_io_concurrency;	/* reads */
extern int	la_start_after;		/* heap block switches */

extern void la_settings_define(void);

#endif							/* LA_SETTINGS_H */
