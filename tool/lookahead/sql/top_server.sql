-- The server, and what there is of the extension in this database.
SELECT current_setting('server_version_num')::int AS version_num,
       current_setting('server_version') AS version,
       to_char(pg_postmaster_start_time() AT TIME ZONE 'UTC',
               'YYYY-MM-DD"T"HH24:MI:SS"+00:00"') AS started,
       current_database() AS database,
       current_user AS username,
       current_setting('block_size')::int AS block_size,
       (SELECT setting FROM pg_settings WHERE name = 'shared_preload_libraries')
           AS preload_libraries,
       a.default_version AS available_version,
       e.extversion AS extension_version,
       quote_ident(n.nspname) AS extension_schema
  FROM (SELECT 1) AS one
       LEFT JOIN pg_available_extensions a ON a.name = 'pg_lookahead'
       LEFT JOIN pg_extension e ON e.extname = 'pg_lookahead'
       LEFT JOIN pg_namespace n ON n.oid = e.extnamespace;
