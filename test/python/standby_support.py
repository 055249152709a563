"""A standby of a test's server: made, followed, started again with nothing to replay."""

from __future__ import annotations

import subprocess

from lookahead import privilege
from lookahead.cluster import PORT, Cluster
from support import END_OF_WAL, connect, until, value

# Replay may end a query that needs rows which VACUUM removed; and a standby that is
# started again may find its slot still in use.
CONFLICT = (
    "conflict with recovery|terminating walreceiver|replication terminated|invalid record"
    "|unexpected directory entry|could not start WAL streaming"
    f"|{END_OF_WAL}"
)

# How long replay of a gigabyte may take on a busy machine.
REPLAY_SECONDS = 120


def base_backup(primary: Cluster, standby: Cluster) -> None:
    """Fill a cluster's data directory from another's.

    A slot keeps what the standby needs: as many checkpoints as there may be before
    it starts, or while it is away, would remove that.
    """
    done = privilege.run(
        [
            primary.server.bindir / "pg_basebackup", "--pgdata", standby.data,
            "--host", primary.socket_dir, "--port", str(PORT), "--username", "postgres",
            "--write-recovery-conf", "--checkpoint", "fast", "--no-sync",
            "--create-slot", "--slot", "standby",
        ],
        cwd=standby.dir,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout


class standby_from:
    """Fill a cluster's data directory from another's, start and stop it."""

    def __init__(self, primary: Cluster, standby: Cluster) -> None:
        self.primary, self.standby = primary, standby

    def __enter__(self) -> None:
        base_backup(self.primary, self.standby)
        self.standby.start()

    def __exit__(self, *_: object) -> None:
        self.standby.close()


def caught_up(primary: Cluster, standby: Cluster) -> None:
    """Wait until the standby has replayed what the primary has written."""
    with connect(primary) as connection:
        target = value(connection, "SELECT pg_current_wal_flush_lsn()")
    with connect(standby) as connection:
        until(connection, f"pg_last_wal_replay_lsn() >= '{target}'::pg_lsn", REPLAY_SECONDS)


def evict_all(primary: Cluster, standby: Cluster) -> None:
    """Restart the standby with nothing to replay, which would fill shared buffers."""
    with connect(primary) as connection:
        connection.execute("CHECKPOINT")
    caught_up(primary, standby)
    with connect(standby) as connection:
        connection.execute("CHECKPOINT")
    standby.restart()
