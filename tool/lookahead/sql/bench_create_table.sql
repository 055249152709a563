CREATE TABLE {table} (a bigint, b text) WITH (fillfactor = 20)
