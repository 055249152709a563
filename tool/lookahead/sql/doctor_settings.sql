-- Settings by name, and all of the library's; those that this user may not see
-- are left out, and so are settings of libraries that are not loaded.
SELECT name, setting, source, pending_restart, max_val
  FROM pg_settings
 WHERE name = ANY (%s) OR name LIKE 'pg\_lookahead.%%';
