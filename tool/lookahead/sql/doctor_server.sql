-- What any user may know about the server and this session.
SELECT current_setting('server_version_num')::int AS version_num,
       current_setting('server_version') AS version,
       version() AS build,
       current_database() AS database,
       current_setting('block_size')::int AS block_size,
       pg_is_in_recovery() AS in_recovery,
       current_user AS username,
       (SELECT rolsuper FROM pg_roles WHERE rolname = current_user) AS superuser,
       a.default_version AS available_version,
       a.installed_version AS extension_version,
       (SELECT quote_ident(n.nspname)
          FROM pg_extension e JOIN pg_namespace n ON n.oid = e.extnamespace
         WHERE e.extname = 'pg_lookahead') AS extension_schema
  FROM (SELECT 1) AS one
       LEFT JOIN pg_available_extensions a ON a.name = 'pg_lookahead';
