SELECT count(*), sum(amount), sum(quantity)
FROM orders
WHERE customer_id IN (211, 1303, 2017, 3511, 4409, 5003, 6007, 7013, 8009, 9001,
                      10007, 20011, 30011, 40009, 50021)
