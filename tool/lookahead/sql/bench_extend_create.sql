CREATE TABLE loaded (a bigint, b bigint, c text) TABLESPACE {tablespace}
