CREATE TABLE loaded (a bigint, b bigint, c text) PARTITION BY HASH (a) TABLESPACE {tablespace}
