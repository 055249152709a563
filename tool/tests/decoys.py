"""Functions of a user's that would be called in place of the server's."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from lookahead.cluster import Cluster

DECOYS = """
CREATE SCHEMA decoys;
CREATE FUNCTION decoys.quote_ident(name) RETURNS text LANGUAGE plpgsql AS
  'BEGIN RAISE EXCEPTION ''a decoy was called''; END';
CREATE FUNCTION decoys.pg_read_binary_file(text, bigint, integer, boolean) RETURNS bytea
  LANGUAGE plpgsql AS 'BEGIN RAISE EXCEPTION ''a decoy was called''; END';
CREATE FUNCTION decoys.pg_relation_size(oid) RETURNS bigint LANGUAGE plpgsql AS
  'BEGIN RAISE EXCEPTION ''a decoy was called''; END';
CREATE FUNCTION decoys.differs(oid, integer) RETURNS boolean LANGUAGE plpgsql AS
  'BEGIN RAISE EXCEPTION ''a decoy was called''; END';
CREATE OPERATOR decoys.= (LEFTARG = oid, RIGHTARG = integer, FUNCTION = decoys.differs);
"""


@contextmanager
def decoys(cluster: Cluster) -> Iterator[None]:
    """Have every session of the cluster's find them, if it looks for names anywhere."""
    cluster.psql(DECOYS)
    cluster.psql("ALTER DATABASE postgres SET search_path = decoys, pg_catalog, public")
    try:
        yield
    finally:
        cluster.psql("ALTER DATABASE postgres RESET search_path; DROP SCHEMA decoys CASCADE;")
