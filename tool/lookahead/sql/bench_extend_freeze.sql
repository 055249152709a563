COPY loaded FROM {file} WITH (FREEZE)
