-- The settings of the library that is loaded, and the values they take.
SELECT name, setting, enumvals
FROM pg_settings
WHERE name LIKE 'pg_lookahead.%'
ORDER BY name
