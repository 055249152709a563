CREATE TABLE {table} (a integer, b text, c text, d integer)
