-- A small shop.  Orders arrive in time order, so placed_at follows the heap;
-- customers and products buy and are bought at random places in it, a few of
-- them far more often than the rest.
CREATE TABLE customers (
    customer_id integer PRIMARY KEY,
    name        text NOT NULL,
    email       text NOT NULL,
    city        text NOT NULL,
    segment     text NOT NULL,
    signed_up   timestamptz NOT NULL
);
CREATE TABLE products (
    product_id  integer PRIMARY KEY,
    category    integer NOT NULL,
    title       text NOT NULL,
    price       numeric(10, 2) NOT NULL,
    description text NOT NULL
);
CREATE TABLE orders (
    order_id    bigint NOT NULL,
    customer_id integer NOT NULL,
    product_id  integer NOT NULL,
    placed_at   timestamptz NOT NULL,
    status      text NOT NULL,
    channel     text NOT NULL,
    quantity    smallint NOT NULL,
    amount      numeric(10, 2) NOT NULL,
    note        text
);
