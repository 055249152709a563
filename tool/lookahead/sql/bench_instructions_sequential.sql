SELECT sum(length(f)) FROM t
