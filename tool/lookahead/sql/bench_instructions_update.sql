UPDATE t SET f = upper(f) WHERE id = 777
