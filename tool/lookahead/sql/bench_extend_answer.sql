SELECT count(*), sum(a), sum(b), sum(length(c)) FROM loaded
