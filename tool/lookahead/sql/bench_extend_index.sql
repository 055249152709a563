CREATE INDEX ON loaded (b, c) TABLESPACE {tablespace}
