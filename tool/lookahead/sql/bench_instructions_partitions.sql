SELECT count(f) FROM parted WHERE a >= 0
