SELECT count(*), md5(string_agg(found::text, ','))
FROM (
    SELECT aid, {aggregate}
    FROM {table}
    WHERE aid BETWEEN {first} AND {last}
    GROUP BY aid
    ORDER BY aid {direction}
) found
