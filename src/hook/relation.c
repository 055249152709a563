/*-------------------------------------------------------------------------
 *
 * relation.c
 *	  Passes on to our parts which relations are made and planned.
 *
 *	object_access
 *		A relation has been made: it may be the table that a load fills
 *		(extend/load_table.c), or an index that is built next
 *		(extend/index_extend.c).
 *	get_relation_info
 *		The planner looks at a table: for the building of an index (the same),
 *		or for a plan, which is not to count pages that are empty
 *		(extend/spare.c).
 *
 * Copyright (c) 2026, the pg_lookahead authors
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "catalog/objectaccess.h"
#include "catalog/pg_class.h"
#include "extend/load.h"
#include "hook/hooks.h"
#include "optimizer/plancat.h"

static object_access_hook_type prev_object_access = NULL;
static get_relation_info_hook_type prev_get_relation_info = NULL;

static pg_attribute_hot void
la_object_access(ObjectAccessType access, Oid classId, Oid objectId,
				 int subId, void *arg)
{
	if (prev_object_access)
		prev_object_access(access, classId, objectId, subId, arg);
	if (access == OAT_POST_CREATE && classId == RelationRelationId &&
		subId == 0)
	{
		la_table_made(objectId);
		la_index_created(objectId);
	}
}

static pg_attribute_hot void
la_get_relation_info(PlannerInfo *root, Oid relationObjectId, bool inhparent,
					 RelOptInfo *rel)
{
	if (prev_get_relation_info)
		prev_get_relation_info(root, relationObjectId, inhparent, rel);
	if (la_index_builds > 0)
		la_index_planned(relationObjectId);
	if (!inhparent)
		la_spare_planned(relationObjectId, rel);
}

/*
 * Put ourselves into the hooks of relations.
 */
void
la_relation_hooks_install(void)
{
	prev_object_access = object_access_hook;
	object_access_hook = la_object_access;
	prev_get_relation_info = get_relation_info_hook;
	get_relation_info_hook = la_get_relation_info;
}
