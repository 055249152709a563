SELECT count(DISTINCT (ctid::text::point)[0]) FROM loaded
