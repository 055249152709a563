SELECT {columns}
FROM {table}
WHERE a = {key}
