CREATE TABLE {table} (a integer NOT NULL, b integer NOT NULL)
