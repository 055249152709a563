-- One statement a line: each is a step of the progress bar.
CREATE INDEX orders_customer ON orders (customer_id, placed_at);
CREATE INDEX orders_placed ON orders (placed_at);
CREATE INDEX orders_product ON orders (product_id, placed_at);
VACUUM (ANALYZE) customers;
VACUUM (ANALYZE) products;
VACUUM (ANALYZE, PARALLEL 0) orders;
UPDATE orders SET status = 'returned' WHERE placed_at >= '2025-01-01' AND hashint8(order_id) % 60 = 0;
CHECKPOINT;
