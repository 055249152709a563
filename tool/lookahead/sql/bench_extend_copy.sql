COPY loaded FROM {file}
