EXECUTE by_key (777)
