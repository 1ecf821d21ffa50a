"""The registry in one SQLite file: WAL, mode 0600, every commit on disk before it is reported."""

from __future__ import annotations

import os
import sqlite3
import stat
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from birthmark.core.identity import Identity
from birthmark.core.markers import ChildKind
from birthmark.core.outcomes import ExitStatus
from birthmark.core.service import BirthId, InstallationId, ServiceName
from birthmark.core.states import Desired
from birthmark.errors import RecordConflict, RegistryUnavailable
from birthmark.registry.contract import AuditEntry, BirthRecord, BirthState, Owner, PortLease, ServiceRecord
from birthmark.registry.migrating import migrate
from birthmark.registry.rows import (
    audit_of,
    birth_of,
    checked_port,
    lease_of,
    owner_of,
    service_of,
    to_json,
    to_text,
    to_time,
    values_of,
)

BUSY_TIMEOUT_S: Final = 5.0
"""How long a call waits for another process's lock before it raises `RegistryUnavailable`."""

_OPEN: Final = (BirthState.INTENDED.value, BirthState.BORN.value)


class SqliteRegistry:
    """One installation's `Registry` in the file `path`, made with its tables when missing.

    May be used from any thread; calls take turns. Owns its connection: close it, or use it as a
    context manager. Not for use across os.fork().
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        installation: InstallationId,
        *,
        home: str | os.PathLike[str] | None = None,
        busy_timeout_s: float = BUSY_TIMEOUT_S,
    ) -> None:
        """Open the file.

        Args:
            path: The file; its folder exists.
            installation: Whose memory it is.
            home: The installation's folder, written down for people; by default the file's.
            busy_timeout_s: Seconds each call waits for another process's lock, 0 or more.

        Raises:
            RegistryUnavailable: It cannot be opened, is no registry, or a newer version wrote it.
        """
        self.path = str(path)
        self._installation = installation
        self._lock = threading.Lock()
        self._connection: sqlite3.Connection | None = None
        with self._translated():
            _make_private(Path(path))
            connection = sqlite3.connect(
                self.path, timeout=busy_timeout_s, isolation_level=None, check_same_thread=False
            )
            try:
                connection.row_factory = sqlite3.Row
                connection.execute("PRAGMA journal_mode = WAL")
                # An intent must be on disk before the spawn, or a power cut leaves a process nobody knows.
                connection.execute("PRAGMA synchronous = FULL")
                connection.execute("PRAGMA foreign_keys = ON")
                migrate(connection, self.path)
                connection.execute(
                    "INSERT OR IGNORE INTO installations (id, home, created_at) VALUES (?, ?, ?)",
                    (installation, to_text(str(home or Path(path).parent)), to_time(datetime.now(UTC))),
                )
            except BaseException:
                connection.close()
                raise
            self._connection = connection

    @property
    def installation(self) -> InstallationId:
        """Whose memory this is."""
        return self._installation

    # -- the owner

    def take(self, identity: Identity, at: datetime) -> int:
        """Become the owner; see `Registry.take`."""
        with self._writing(None) as db:
            db.execute(
                "UPDATE installations SET epoch = epoch + 1, owner = ?, owned_at = ? WHERE id = ?",
                (to_json(identity.to_dict()), to_time(at), self._installation),
            )
            return self._epoch(db)

    def leave(self, epoch: int) -> None:
        """Take the owner's identity out again; see `Registry.leave`."""
        with self._writing(epoch) as db:
            db.execute("UPDATE installations SET owner = NULL WHERE id = ?", (self._installation,))

    def owner(self) -> Owner | None:
        """Return who took the installation last; see `Registry.owner`."""
        rows = self._read("SELECT * FROM installations WHERE id = ?", self._installation)
        return owner_of(rows[0]) if rows else None

    # -- services

    def put_service(self, record: ServiceRecord, *, epoch: int) -> None:
        """Write a service down; see `Registry.put_service`."""
        with self._writing(epoch) as db:
            db.execute(
                "INSERT INTO services (installation, name, kind, desired, spec, digest, changed_at)"
                " VALUES (?, ?, ?, ?, ?, ?, ?) ON CONFLICT (installation, name) DO UPDATE SET"
                " kind = excluded.kind, desired = excluded.desired, spec = excluded.spec,"
                " digest = excluded.digest, changed_at = excluded.changed_at",
                (
                    self._installation,
                    str(record.name),
                    record.kind.value,
                    record.desired.value,
                    to_json(record.spec),
                    record.digest,
                    to_time(record.changed_at),
                ),
            )

    def set_desired(self, service: ServiceName, desired: Desired, at: datetime, *, epoch: int) -> None:
        """Write down what the user wants; see `Registry.set_desired`."""
        with self._writing(epoch) as db:
            done = db.execute(
                "UPDATE services SET desired = ?, changed_at = ? WHERE installation = ? AND name = ?",
                (desired.value, to_time(at), self._installation, str(service)),
            )
            if done.rowcount == 0:
                raise RecordConflict(f"service {str(service)!r}", "it is not written down")

    def services(self) -> list[ServiceRecord]:
        """Return all services written down, by name."""
        rows = self._read("SELECT * FROM services WHERE installation = ? ORDER BY name", self._installation)
        return [service_of(row) for row in rows]

    # -- births

    def intend(
        self, birth: BirthId, service: ServiceName, kind: ChildKind, at: datetime, *, epoch: int
    ) -> None:
        """Write a birth down before its spawn; see `Registry.intend`."""
        with self._writing(epoch) as db:
            if db.execute("SELECT 1 FROM births WHERE id = ?", (birth,)).fetchone():
                raise RecordConflict(f"birth {birth}", "it is written down already")
            db.execute(
                "INSERT INTO births (id, installation, service, kind, state, epoch, intended_at)"
                " VALUES (?, ?, ?, ?, 'intended', ?, ?)",
                (birth, self._installation, str(service), kind.value, epoch, to_time(at)),
            )

    def born(self, birth: BirthId, identity: Identity, at: datetime, *, epoch: int) -> None:
        """Write down who was born; see `Registry.born`."""
        with self._writing(epoch) as db:
            done = db.execute(
                "UPDATE births SET state = 'born', identity = ?, born_at = ?"
                " WHERE id = ? AND installation = ? AND state = 'intended'",
                (to_json(identity.to_dict()), to_time(at), birth, self._installation),
            )
            if done.rowcount == 0:
                raise RecordConflict(f"birth {birth}", "it is not intended (unknown, or born already)")

    def ended(
        self,
        birth: BirthId,
        at: datetime,
        *,
        epoch: int,
        status: ExitStatus | None = None,
        lost: bool = False,
        why: str | None = None,
    ) -> None:
        """Write down that all of a birth is gone; see `Registry.ended`."""
        state = BirthState.LOST if lost else BirthState.ENDED
        known = to_json(status.to_dict()) if status is not None and status.known else None
        with self._writing(epoch) as db:
            done = db.execute(
                "UPDATE births SET state = ?, ended_at = ?, exit = ?, why = ?"
                " WHERE id = ? AND installation = ? AND state IN (?, ?)",
                (
                    state.value,
                    to_time(at),
                    known,
                    None if why is None else to_text(why),
                    birth,
                    self._installation,
                    *_OPEN,
                ),
            )
            if done.rowcount == 0:
                raise RecordConflict(f"birth {birth}", "it is not open (unknown, or ended already)")

    def take_in(self, births: Sequence[BirthRecord], *, epoch: int) -> int:
        """Write down births as they are, all or none; see `Registry.take_in`."""
        with self._writing(epoch) as db:
            before = db.total_changes
            db.executemany(
                "INSERT INTO births (id, installation, service, kind, state, epoch, identity,"
                " intended_at, born_at, ended_at, exit, why, origin)"
                " VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT (id) DO NOTHING",
                [(record.birth, self._installation, *values_of(record)) for record in births],
            )
            return db.total_changes - before

    def birth(self, birth: BirthId) -> BirthRecord | None:
        """Return one birth, or None when it is not known."""
        rows = self._read("SELECT * FROM births WHERE installation = ? AND id = ?", self._installation, birth)
        return birth_of(rows[0]) if rows else None

    def open_births(self) -> list[BirthRecord]:
        """Return the births that are intended or born, oldest first."""
        rows = self._read(
            "SELECT * FROM births WHERE installation = ? AND state IN ('intended', 'born')"
            " ORDER BY intended_at, rowid",
            self._installation,
        )
        return [birth_of(row) for row in rows]

    def ended_births(self, *, last: int = 1000) -> list[BirthRecord]:
        """Return the `last` births that are ended or lost, newest first."""
        rows = self._read(
            "SELECT * FROM births WHERE installation = ? AND state IN ('ended', 'lost')"
            " ORDER BY intended_at DESC, rowid DESC LIMIT ?",
            self._installation,
            last,
        )
        return [birth_of(row) for row in rows]

    def births_of(self, service: ServiceName, *, last: int = 10) -> list[BirthRecord]:
        """Return the `last` births of a service, newest first."""
        rows = self._read(
            "SELECT * FROM births WHERE installation = ? AND service = ?"
            " ORDER BY intended_at DESC, rowid DESC LIMIT ?",
            self._installation,
            str(service),
            last,
        )
        return [birth_of(row) for row in rows]

    # -- ports

    def lease_port(self, port: int, service: ServiceName, at: datetime, *, epoch: int) -> None:
        """Hold a port for a service; see `Registry.lease_port`."""
        checked_port(port)
        with self._writing(epoch) as db:
            held = db.execute(
                "SELECT service FROM port_leases WHERE installation = ? AND port = ?",
                (self._installation, port),
            ).fetchone()
            if held is None:
                db.execute(
                    "INSERT INTO port_leases (installation, port, service, leased_at) VALUES (?, ?, ?, ?)",
                    (self._installation, port, str(service), to_time(at)),
                )
            elif held["service"] != str(service):
                raise RecordConflict(f"port {port}", f"it is leased to {held['service']!r}")

    def release_port(self, port: int, service: ServiceName, *, epoch: int) -> None:
        """Let go of a port; see `Registry.release_port`."""
        with self._writing(epoch) as db:
            db.execute(
                "DELETE FROM port_leases WHERE installation = ? AND port = ? AND service = ?",
                (self._installation, port, str(service)),
            )

    def leases(self) -> list[PortLease]:
        """Return all leases, by port."""
        rows = self._read(
            "SELECT * FROM port_leases WHERE installation = ? ORDER BY port", self._installation
        )
        return [lease_of(row) for row in rows]

    # -- the audit

    def append_audit(self, entries: Sequence[tuple[datetime, Mapping[str, object]]]) -> None:
        """Append lines to the audit, all or none."""
        with self._writing(None) as db:
            db.executemany(
                "INSERT INTO audit (installation, at, entry) VALUES (?, ?, ?)",
                [(self._installation, to_time(at), to_json(entry)) for at, entry in entries],
            )

    def audit(self, *, last: int = 100) -> list[AuditEntry]:
        """Return the `last` lines of the audit, oldest first."""
        rows = self._read(
            "SELECT * FROM audit WHERE installation = ? ORDER BY number DESC LIMIT ?",
            self._installation,
            last,
        )
        return [audit_of(row) for row in reversed(rows)]

    def close(self) -> None:
        """Let go of the file. Closing twice is harmless."""
        with self._lock:
            connection, self._connection = self._connection, None
            if connection is not None:
                connection.close()

    def __enter__(self) -> SqliteRegistry:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    # -- one statement, one transaction

    def _read(self, sql: str, *values: object) -> list[dict[str, object]]:
        with self._lock, self._translated():
            return [dict(row) for row in self._open().execute(sql, values).fetchall()]

    @contextmanager
    def _writing(self, epoch: int | None) -> Iterator[sqlite3.Connection]:
        """Hold the write lock for one transaction, fenced by `epoch` unless None."""
        with self._lock, self._translated():
            db = self._open()
            # IMMEDIATE: a read that turns into a write could meet SQLITE_BUSY without waiting.
            db.execute("BEGIN IMMEDIATE")
            try:
                if epoch is not None and (current := self._epoch(db)) != epoch:
                    raise RecordConflict(
                        f"installation {self._installation}",
                        f"another supervisor took it over (epoch {current}, ours is {epoch})",
                    )
                yield db
                db.execute("COMMIT")
            except BaseException:
                if db.in_transaction:
                    db.execute("ROLLBACK")
                raise

    def _epoch(self, db: sqlite3.Connection) -> int:
        row = db.execute("SELECT epoch FROM installations WHERE id = ?", (self._installation,)).fetchone()
        return int(row["epoch"])

    def _open(self) -> sqlite3.Connection:
        if self._connection is None:
            raise RegistryUnavailable(self.path, "it is closed")
        return self._connection

    @contextmanager
    def _translated(self) -> Iterator[None]:
        """Turn what SQLite and the file system say into words, once."""
        try:
            yield
        except sqlite3.Error as err:
            raise RegistryUnavailable(self.path, _words(err)) from err
        except OSError as err:
            raise RegistryUnavailable(self.path, os.strerror(err.errno or 0)) from err


def _make_private(path: Path) -> None:
    """Have the file be there, a regular file, readable by its owner only; its WAL inherits the mode."""
    try:
        found = path.lstat()
    except FileNotFoundError:
        # Made here, since SQLite would make it with the umask's mode. The descriptor is closed before
        # SQLite opens the file: closing one later would drop SQLite's own locks (POSIX).
        os.close(os.open(path, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC | getattr(os, "O_NOFOLLOW", 0), 0o600))
        return
    if not stat.S_ISREG(found.st_mode):
        raise RegistryUnavailable(str(path), "it is not a regular file")
    if stat.S_IMODE(found.st_mode) & 0o077 and found.st_uid == getattr(os, "geteuid", lambda: found.st_uid)():
        path.chmod(0o600)


_HINTS: Final = {
    sqlite3.SQLITE_BUSY: "another process holds its lock; try again, or find it with `lsof`",
    sqlite3.SQLITE_NOTADB: "it is no SQLite database; move it away, and a new one is made",
    sqlite3.SQLITE_CORRUPT: "it is damaged; move it away, and a new one is made",
    sqlite3.SQLITE_READONLY: "it, or its folder, cannot be written",
    sqlite3.SQLITE_CANTOPEN: "it, or its folder, cannot be opened",
    sqlite3.SQLITE_FULL: "the disk is full",
}


def _words(err: sqlite3.Error) -> str:
    # Extended codes carry the plain one in their low byte.
    code = getattr(err, "sqlite_errorcode", None)
    hint = None if code is None else _HINTS.get(code & 0xFF)
    return f"{err} ({hint})" if hint else str(err)
