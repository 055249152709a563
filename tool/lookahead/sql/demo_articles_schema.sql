CREATE TABLE articles (
    article_id integer NOT NULL,
    topic      integer NOT NULL,
    title      text NOT NULL,
    body       text NOT NULL,
    embedding  vector(32) NOT NULL
)
