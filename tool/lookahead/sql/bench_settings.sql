-- Everything that could make two runs differ, except where files are, what the
-- session is called, and the one thing that the arms are allowed to differ in.
SELECT name, setting
FROM pg_settings
WHERE name NOT LIKE 'pg_lookahead.%'
  AND name <> ALL (ARRAY[
      'shared_preload_libraries', 'session_preload_libraries',
      'data_directory', 'config_file', 'hba_file', 'ident_file',
      'external_pid_file', 'unix_socket_directories', 'port',
      'application_name', 'cluster_name', 'log_filename', 'log_directory',
      'log_file_mode', 'data_directory_mode', 'shared_memory_size',
      'shared_memory_size_in_huge_pages'])
  AND (source <> 'default' OR setting IS DISTINCT FROM boot_val)
ORDER BY name
