CREATE INDEX articles_embedding ON articles USING ivfflat (embedding vector_l2_ops) WITH (lists = 100);
VACUUM (ANALYZE) articles;
CHECKPOINT;
