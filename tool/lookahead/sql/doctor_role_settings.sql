-- Settings of ours that a database or a role carries.
SELECT d.datname AS database,
       r.rolname AS role,
       split_part(entry, '=', 1) AS name,
       substr(entry, strpos(entry, '=') + 1) AS setting
  FROM pg_db_role_setting s
       LEFT JOIN pg_database d ON d.oid = s.setdatabase
       LEFT JOIN pg_roles r ON r.oid = s.setrole,
       unnest(s.setconfig) AS entry
 WHERE split_part(entry, '=', 1) LIKE 'pg\_lookahead.%'
 ORDER BY 1, 2, 3;
