"""Numbered files of SQL, each applied once, whole or not at all."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from birthmark.errors import RegistryUnavailable


@dataclass(frozen=True, slots=True)
class Migration:
    """One step. `number` counts from 1, without a gap."""

    number: int
    name: str
    sql: str


def migrations() -> list[Migration]:
    """Return the migrations that come with this version, in order."""
    # Not importlib.resources: every command that reads would pay 10 ms for it.
    folder = Path(__file__).with_name("migrations")
    found = [
        Migration(int(file.name.split("_", 1)[0]), file.name, file.read_text("utf-8"))
        for file in folder.iterdir()
        if file.name.endswith(".sql")
    ]
    return sorted(found, key=lambda migration: migration.number)


def migrate(connection: sqlite3.Connection, path: str) -> None:
    """Bring a database up to this version. Two that try at once do it one after the other.

    Raises:
        RegistryUnavailable: It was written by a newer version, whose tables we cannot know.
    """
    known = migrations()
    if _version(connection) == len(known):
        return
    connection.execute("BEGIN IMMEDIATE")
    try:
        # Asked again: whoever held the write lock before us may have done it.
        done = _version(connection)
        if done > len(known):
            raise RegistryUnavailable(
                path,
                f"a newer birthmark wrote it (migration {done}; this one knows {len(known)}); update birthmark",
            )
        for migration in known[done:]:
            for statement in statements(migration.sql):
                connection.execute(statement)
            connection.execute(f"PRAGMA user_version = {migration.number}")
        connection.execute("COMMIT")
    except BaseException:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise


def statements(sql: str) -> Iterator[str]:
    """Split a file into statements. `executescript` would do, but commits before it begins."""
    statement = ""
    for line in sql.splitlines(keepends=True):
        statement += line
        if sqlite3.complete_statement(statement):
            yield statement
            statement = ""
    if statement.strip():
        raise ValueError(f"an unfinished statement: {statement.strip()[:80]!r}")


def _version(connection: sqlite3.Connection) -> int:
    row = connection.execute("PRAGMA user_version").fetchone()
    return int(row[0])
