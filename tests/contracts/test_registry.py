"""One suite for every registry, and what SQLite's file promises beyond it. Real files, no process."""

from __future__ import annotations

import os
import sqlite3
import stat
import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from birthmark.core.identity import Identity
from birthmark.core.markers import ChildKind
from birthmark.core.outcomes import ExitStatus
from birthmark.core.service import BirthId, ServiceName, api_server_service, birth_id, installation_id
from birthmark.core.states import Desired
from birthmark.errors import RecordConflict, RecordUndecodable, RegistryError, RegistryUnavailable
from birthmark.registry.contract import BirthOrigin, BirthRecord, BirthState, Registry, ServiceRecord
from birthmark.registry.migrating import migrations, statements
from birthmark.registry.sqlite import SqliteRegistry
from birthmark.testing.registry import MemoryRegistry

OURS = installation_id("0123456789abcdef" * 2)
NOON = datetime(2026, 2, 3, 12, 0, 0, 123456, tzinfo=UTC)
CLOCK = ServiceName("the clock / 時計")
OTHER = ServiceName("other")


def birth(number: int) -> BirthId:
    return birth_id(f"{number:032x}")


def identity(of: BirthId | None = None, *, service: ServiceName = CLOCK, pid: int = 4321) -> Identity:
    return Identity(
        host="h",
        boot="b",
        pid_namespace=7,
        pid=pid,
        start_ticks=99,
        inode=2**63 - 1,
        birth=of,
        installation=OURS,
        kind=ChildKind.MCP,
        service=service,
    )


def us() -> Identity:
    return replace(identity(service=api_server_service()), kind=ChildKind.API)


def service(name: ServiceName = CLOCK, **changes: object) -> ServiceRecord:
    record = ServiceRecord(
        name=name,
        kind=ChildKind.MCP,
        desired=Desired.UP,
        spec={"command": ["uvx", "é"], "port": 8000},
        digest="d1",
        changed_at=NOON,
    )
    return replace(record, **changes)  # type: ignore[arg-type]


@pytest.fixture(params=["sqlite", "memory"])
def registry(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Registry]:
    made: Registry = (
        MemoryRegistry(OURS) if request.param == "memory" else SqliteRegistry(tmp_path / "registry.db", OURS)
    )
    with closing(made):
        yield made


@pytest.fixture
def epoch(registry: Registry) -> int:
    return registry.take(us(), NOON)


# -- the owner


def test_a_new_registry_has_no_owner_and_remembers_nothing(registry: Registry) -> None:
    assert registry.installation == OURS
    assert registry.owner() is None
    assert registry.services() == []
    assert registry.open_births() == []
    assert registry.leases() == []
    assert registry.audit() == []
    assert registry.birth(birth(1)) is None


def test_each_owner_gets_a_higher_epoch_and_its_identity_is_written_down(registry: Registry) -> None:
    first = registry.take(us(), NOON)
    second = registry.take(replace(us(), pid=77), NOON + timedelta(seconds=1))
    assert second > first >= 1
    owner = registry.owner()
    assert owner is not None
    assert (owner.epoch, owner.identity, owner.owned_at) == (
        second,
        replace(us(), pid=77),
        NOON + timedelta(seconds=1),
    )


def test_an_owner_that_leaves_takes_its_identity_out_and_not_its_epoch(
    registry: Registry, epoch: int
) -> None:
    registry.leave(epoch)
    owner = registry.owner()
    assert owner is not None
    assert (owner.identity, owner.epoch) == (None, epoch)
    assert registry.take(us(), NOON) == epoch + 1


WRITES: dict[str, Callable[[Registry, int], object]] = {
    "leave": lambda r, e: r.leave(e),
    "put_service": lambda r, e: r.put_service(service(OTHER), epoch=e),
    "set_desired": lambda r, e: r.set_desired(CLOCK, Desired.DOWN, NOON, epoch=e),
    "intend": lambda r, e: r.intend(birth(2), CLOCK, ChildKind.MCP, NOON, epoch=e),
    "born": lambda r, e: r.born(birth(1), identity(birth(1)), NOON, epoch=e),
    "ended": lambda r, e: r.ended(birth(1), NOON, epoch=e),
    "lease_port": lambda r, e: r.lease_port(8001, CLOCK, NOON, epoch=e),
    "release_port": lambda r, e: r.release_port(8000, CLOCK, epoch=e),
}


@pytest.mark.parametrize("write", WRITES)
def test_a_supervisor_that_was_taken_over_can_write_nothing(
    registry: Registry, epoch: int, write: str
) -> None:
    registry.put_service(service(), epoch=epoch)
    registry.intend(birth(1), CLOCK, ChildKind.MCP, NOON, epoch=epoch)
    registry.lease_port(8000, CLOCK, NOON, epoch=epoch)
    newer = registry.take(us(), NOON)

    def all_of_it() -> object:
        return registry.owner(), registry.services(), registry.open_births(), registry.leases()

    before = all_of_it()
    with pytest.raises(RecordConflict, match="took it over"):
        WRITES[write](registry, epoch)
    assert all_of_it() == before
    WRITES[write](registry, newer)


# -- services


def test_a_service_comes_back_as_it_was_written(registry: Registry, epoch: int) -> None:
    registry.put_service(service(), epoch=epoch)
    registry.put_service(service(OTHER, kind=ChildKind.AGENT, spec={}), epoch=epoch)
    assert registry.services() == [service(OTHER, kind=ChildKind.AGENT, spec={}), service()]


def test_a_service_written_again_replaces_the_older_record(registry: Registry, epoch: int) -> None:
    registry.put_service(service(), epoch=epoch)
    registry.put_service(service(desired=Desired.DOWN, digest="d2"), epoch=epoch)
    assert registry.services() == [service(desired=Desired.DOWN, digest="d2")]


def test_what_is_desired_is_remembered(registry: Registry, epoch: int) -> None:
    registry.put_service(service(), epoch=epoch)
    later = NOON + timedelta(hours=1)
    registry.set_desired(CLOCK, Desired.DOWN, later, epoch=epoch)
    assert registry.services() == [service(desired=Desired.DOWN, changed_at=later)]


def test_nothing_can_be_desired_of_a_service_nobody_wrote_down(registry: Registry, epoch: int) -> None:
    with pytest.raises(RecordConflict, match="not written down"):
        registry.set_desired(CLOCK, Desired.DOWN, NOON, epoch=epoch)


# -- births


def test_a_birth_goes_from_intended_to_born_to_ended(registry: Registry, epoch: int) -> None:
    registry.intend(birth(1), CLOCK, ChildKind.MCP, NOON, epoch=epoch)
    (record,) = registry.open_births()
    assert (record.state, record.identity, record.epoch) == (BirthState.INTENDED, None, epoch)

    registry.born(birth(1), identity(birth(1)), NOON, epoch=epoch)
    (record,) = registry.open_births()
    assert (record.state, record.identity) == (BirthState.BORN, identity(birth(1)))

    registry.ended(birth(1), NOON, epoch=epoch, status=ExitStatus(signal=9), why="asked")
    assert registry.open_births() == []
    ended = registry.birth(birth(1))
    assert ended is not None
    assert (ended.state, ended.exit, ended.why, ended.ended_at) == (
        BirthState.ENDED,
        ExitStatus(signal=9),
        "asked",
        NOON,
    )


def test_a_lost_birth_has_no_exit_status(registry: Registry, epoch: int) -> None:
    registry.intend(birth(1), CLOCK, ChildKind.MCP, NOON, epoch=epoch)
    registry.ended(birth(1), NOON, epoch=epoch, lost=True, status=ExitStatus())
    record = registry.birth(birth(1))
    assert record is not None
    assert (record.state, record.exit) == (BirthState.LOST, None)


def test_an_exit_code_of_zero_is_not_unknown(registry: Registry, epoch: int) -> None:
    registry.intend(birth(1), CLOCK, ChildKind.MCP, NOON, epoch=epoch)
    registry.ended(birth(1), NOON, epoch=epoch, status=ExitStatus(code=0))
    record = registry.birth(birth(1))
    assert record is not None
    assert record.exit == ExitStatus(code=0)


def test_a_birth_happens_once_and_ends_once(registry: Registry, epoch: int) -> None:
    with pytest.raises(RecordConflict, match="not intended"):
        registry.born(birth(1), identity(birth(1)), NOON, epoch=epoch)
    with pytest.raises(RecordConflict, match="not open"):
        registry.ended(birth(1), NOON, epoch=epoch)
    registry.intend(birth(1), CLOCK, ChildKind.MCP, NOON, epoch=epoch)
    with pytest.raises(RecordConflict, match="already"):
        registry.intend(birth(1), CLOCK, ChildKind.MCP, NOON, epoch=epoch)
    registry.born(birth(1), identity(birth(1)), NOON, epoch=epoch)
    with pytest.raises(RecordConflict, match="born already"):
        registry.born(birth(1), identity(birth(1)), NOON, epoch=epoch)
    registry.ended(birth(1), NOON, epoch=epoch)
    with pytest.raises(RecordConflict, match="ended already"):
        registry.ended(birth(1), NOON, epoch=epoch)


def test_births_are_told_oldest_first_when_open_and_newest_first_by_service(
    registry: Registry, epoch: int
) -> None:
    for number in (3, 1, 2):
        at = NOON + timedelta(seconds=number)
        registry.intend(birth(number), CLOCK, ChildKind.MCP, at, epoch=epoch)
    registry.intend(birth(4), OTHER, ChildKind.AGENT, NOON, epoch=epoch)
    assert [record.birth for record in registry.open_births()] == [birth(4), birth(1), birth(2), birth(3)]
    assert [record.birth for record in registry.births_of(CLOCK, last=2)] == [birth(3), birth(2)]
    assert registry.ended_births() == []
    for number in (1, 3, 4):
        registry.ended(birth(number), NOON, epoch=epoch, lost=number == 3)
    assert [record.birth for record in registry.ended_births()] == [birth(3), birth(1), birth(4)]
    assert [record.birth for record in registry.ended_births(last=1)] == [birth(3)]


def of_run(number: int, **changes: object) -> BirthRecord:
    record = BirthRecord(
        birth=birth(number),
        service=CLOCK,
        kind=ChildKind.MCP,
        state=BirthState.ENDED,
        epoch=0,
        identity=identity(birth(number)),
        intended_at=NOON,
        born_at=NOON + timedelta(seconds=1),
        ended_at=NOON + timedelta(seconds=2),
        exit=ExitStatus(signal=9),
        why="the client is gone",
        origin=BirthOrigin.RUN,
    )
    return replace(record, **changes)  # type: ignore[arg-type]


def test_births_that_no_supervisor_started_are_taken_in_as_they_are(registry: Registry, epoch: int) -> None:
    ended = of_run(1)
    intended = of_run(
        2, state=BirthState.INTENDED, identity=None, born_at=None, ended_at=None, exit=None, why=None
    )
    assert registry.take_in([ended, intended], epoch=epoch) == 2
    assert [registry.birth(birth(1)), registry.birth(birth(2))] == [ended, intended]
    assert registry.open_births() == [intended]
    registry.ended(birth(2), NOON, epoch=epoch, lost=True, why="never born")
    assert {record.state for record in registry.ended_births()} == {BirthState.ENDED, BirthState.LOST}


def test_taking_in_twice_changes_nothing_the_second_time(registry: Registry, epoch: int) -> None:
    registry.intend(birth(1), CLOCK, ChildKind.MCP, NOON, epoch=epoch)
    known = registry.birth(birth(1))
    assert known is not None
    assert known.origin is BirthOrigin.UP
    assert registry.take_in([of_run(1), of_run(2)], epoch=epoch) == 1
    assert registry.take_in([of_run(2, why="told otherwise")], epoch=epoch) == 0
    assert [registry.birth(birth(1)), registry.birth(birth(2))] == [known, of_run(2)]


def test_an_unknown_exit_status_is_taken_in_as_none(registry: Registry, epoch: int) -> None:
    registry.take_in([of_run(1, state=BirthState.LOST, exit=ExitStatus())], epoch=epoch)
    assert registry.birth(birth(1)) == of_run(1, state=BirthState.LOST, exit=None)


def test_a_supervisor_that_was_replaced_takes_nothing_in(registry: Registry, epoch: int) -> None:
    registry.take(us(), NOON)
    with pytest.raises(RecordConflict, match="took it over"):
        registry.take_in([of_run(1)], epoch=epoch)
    assert registry.birth(birth(1)) is None


def test_a_birth_with_nonsense_in_it_leaves_all_of_them_out(path: Path) -> None:
    with SqliteRegistry(path, OURS) as registry:
        epoch = registry.take(us(), NOON)
        with pytest.raises(ValueError, match="carries no time zone"):
            registry.take_in([of_run(1), of_run(2, intended_at=datetime(2026, 1, 1))], epoch=epoch)  # noqa: DTZ001
        assert registry.birth(birth(1)) is None


def test_a_registry_of_the_first_version_keeps_its_births(path: Path) -> None:
    with closing(sqlite3.connect(path, isolation_level=None)) as first:
        for statement in statements(migrations()[0].sql):
            first.execute(statement)
        first.execute("PRAGMA user_version = 1")
        first.execute("INSERT INTO installations VALUES (?, '', ?, 1, NULL, NULL)", (OURS, NOON.isoformat()))
        first.execute(
            "INSERT INTO births (id, installation, service, kind, state, epoch, intended_at)"
            " VALUES (?, ?, 'clock', 'mcp', 'intended', 1, ?)",
            (birth(1), OURS, NOON.isoformat()),
        )
    with SqliteRegistry(path, OURS) as registry:
        (record,) = registry.open_births()
        assert (record.birth, record.origin) == (birth(1), BirthOrigin.UP)


# -- ports


def test_a_port_is_leased_to_one_service_only(registry: Registry, epoch: int) -> None:
    registry.lease_port(8000, CLOCK, NOON, epoch=epoch)
    registry.lease_port(8000, CLOCK, NOON + timedelta(1), epoch=epoch)
    with pytest.raises(RecordConflict, match=r"leased to .*時計"):
        registry.lease_port(8000, OTHER, NOON, epoch=epoch)
    registry.release_port(8000, OTHER, epoch=epoch)
    assert [(lease.port, lease.service, lease.leased_at) for lease in registry.leases()] == [
        (8000, CLOCK, NOON)
    ]
    registry.release_port(8000, CLOCK, epoch=epoch)
    registry.lease_port(8000, OTHER, NOON, epoch=epoch)
    assert [lease.service for lease in registry.leases()] == [OTHER]


@pytest.mark.parametrize("port", [0, -1, 65536, 70000])
def test_what_is_no_port_cannot_be_leased(registry: Registry, epoch: int, port: int) -> None:
    with pytest.raises(ValueError, match="no port"):
        registry.lease_port(port, CLOCK, NOON, epoch=epoch)
    assert registry.leases() == []


def test_of_twenty_that_want_one_port_at_once_one_gets_it(registry: Registry, epoch: int) -> None:
    won: list[str] = []

    def want(name: ServiceName) -> None:
        try:
            registry.lease_port(8000, name, NOON, epoch=epoch)
        except RecordConflict:
            return
        won.append(name)

    threads = [threading.Thread(target=want, args=(ServiceName(f"s{n}"),)) for n in range(20)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(5)
    assert won == [lease.service for lease in registry.leases()]
    assert len(won) == 1


# -- the audit


def test_the_audit_keeps_its_order_and_tells_the_last_lines(registry: Registry) -> None:
    registry.append_audit([(NOON, {"n": 1}), (NOON, {"n": 2})])
    registry.append_audit([(NOON, {"n": 3})])
    assert [line.entry for line in registry.audit()] == [{"n": 1}, {"n": 2}, {"n": 3}]
    assert [line.entry for line in registry.audit(last=2)] == [{"n": 2}, {"n": 3}]
    numbers = [line.number for line in registry.audit()]
    assert numbers == sorted(set(numbers))


def test_a_closed_registry_says_so(registry: Registry) -> None:
    registry.close()
    registry.close()
    with pytest.raises(RegistryUnavailable, match="closed"):
        registry.services()
    with pytest.raises(RegistryUnavailable, match="closed"):
        registry.take(us(), NOON)


# -- the file


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "registry.db"


def sql(path: Path, statement: str, *values: object) -> None:
    with closing(sqlite3.connect(path)) as db, db:
        db.execute(statement, values)


def test_all_of_it_is_there_for_the_next_who_opens_the_file(path: Path) -> None:
    with SqliteRegistry(path, OURS) as one:
        epoch = one.take(us(), NOON)
        one.put_service(service(), epoch=epoch)
        one.intend(birth(1), CLOCK, ChildKind.MCP, NOON, epoch=epoch)
        with SqliteRegistry(path, OURS) as two:
            assert two.services() == one.services() == [service()]
            assert two.open_births() == one.open_births()
    with SqliteRegistry(path, OURS) as three:
        assert len(three.open_births()) == 1
        assert three.take(us(), NOON) == epoch + 1


def test_two_installations_in_one_file_do_not_see_each_other(path: Path) -> None:
    theirs = installation_id("f" * 32)
    with SqliteRegistry(path, OURS) as one, SqliteRegistry(path, theirs) as two:
        one.put_service(service(), epoch=one.take(us(), NOON))
        assert two.services() == []
        assert two.owner() is None


def test_the_file_and_its_log_are_readable_by_their_owner_only(path: Path) -> None:
    before = os.umask(0)
    try:
        with SqliteRegistry(path, OURS) as registry:
            registry.take(us(), NOON)
            modes = {file.name: stat.S_IMODE(file.stat().st_mode) for file in path.parent.iterdir()}
    finally:
        os.umask(before)
    assert modes["registry.db"] == modes["registry.db-wal"] == 0o600
    assert set(modes.values()) == {0o600}


def test_a_file_that_others_could_read_is_closed_to_them(path: Path) -> None:
    SqliteRegistry(path, OURS).close()
    path.chmod(0o644)
    SqliteRegistry(path, OURS).close()
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_a_file_that_is_no_database_is_named_and_left_as_it_is(path: Path) -> None:
    path.write_bytes(b"not a database, but longer than a header of one hundred bytes " * 4)
    with pytest.raises(RegistryUnavailable, match=r"registry\.db.*no SQLite database; move it away"):
        SqliteRegistry(path, OURS)
    assert path.read_bytes().startswith(b"not a database")


def test_a_damaged_file_is_an_error_and_never_an_empty_registry(path: Path) -> None:
    with SqliteRegistry(path, OURS) as registry:
        epoch = registry.take(us(), NOON)
        for number in range(200):
            registry.put_service(service(ServiceName(f"s{number}"), spec={"x": "y" * 500}), epoch=epoch)
    size = path.stat().st_size
    with path.open("r+b") as file:
        file.seek(4096)
        file.write(b"\xff" * (size - 4096))
    with pytest.raises(RegistryUnavailable, match=r"damaged|malformed"):
        with SqliteRegistry(path, OURS) as registry:
            registry.services()


def test_a_folder_that_is_missing_is_named(tmp_path: Path) -> None:
    with pytest.raises(RegistryUnavailable, match="absent"):
        SqliteRegistry(tmp_path / "absent" / "registry.db", OURS)


def test_a_folder_in_the_files_place_is_named(path: Path) -> None:
    path.mkdir()
    with pytest.raises(RegistryUnavailable, match="not a regular file"):
        SqliteRegistry(path, OURS)


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() == 0, reason="root may write everywhere")
def test_a_folder_we_may_not_write_is_an_error(path: Path) -> None:
    path.parent.chmod(0o500)
    try:
        with pytest.raises(RegistryUnavailable):
            SqliteRegistry(path, OURS)
    finally:
        path.parent.chmod(0o700)


def test_a_database_locked_by_another_is_an_error_after_the_time_box(path: Path) -> None:
    with SqliteRegistry(path, OURS, busy_timeout_s=0) as registry:
        with closing(sqlite3.connect(path, isolation_level=None)) as other:
            other.execute("BEGIN IMMEDIATE")
            with pytest.raises(RegistryUnavailable, match=r"locked.*another process holds its lock"):
                registry.take(us(), NOON)
            assert registry.owner() is None
            other.execute("ROLLBACK")
        assert registry.take(us(), NOON) == 1


def test_a_newer_file_is_refused_and_left_alone(path: Path) -> None:
    SqliteRegistry(path, OURS).close()
    sql(path, f"PRAGMA user_version = {len(migrations()) + 1}")
    with pytest.raises(RegistryUnavailable, match="newer birthmark"):
        SqliteRegistry(path, OURS)


def test_many_that_open_a_new_file_at_once_make_its_tables_once(path: Path) -> None:
    failed: list[BaseException] = []
    gate = threading.Barrier(8)

    def open_it() -> None:
        try:
            gate.wait(5)
            SqliteRegistry(path, OURS).close()
        except BaseException as err:
            failed.append(err)

    threads = [threading.Thread(target=open_it) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert failed == []


DAMAGE = {
    "services": ("UPDATE services SET spec = '{'", "service '.*時計'"),
    "open_births": ("UPDATE births SET identity = '{}'", f"birth {birth(1)}"),
    "births without identity": ("UPDATE births SET identity = NULL", f"birth {birth(1)}"),
    "births of another": (
        f"UPDATE births SET identity = replace(identity, '{birth(1)}', '{birth(9)}')",
        f"birth {birth(1)}",
    ),
    "leases": ("UPDATE port_leases SET leased_at = 'noon'", "port 8000"),
    "owner": ("UPDATE installations SET owner = '[]'", f"installation {OURS}"),
}


@pytest.mark.parametrize("what", DAMAGE)
def test_a_row_that_cannot_be_decoded_is_named_and_never_skipped(path: Path, what: str) -> None:
    statement, name = DAMAGE[what]
    with SqliteRegistry(path, OURS) as registry:
        epoch = registry.take(us(), NOON)
        registry.put_service(service(), epoch=epoch)
        registry.intend(birth(1), CLOCK, ChildKind.MCP, NOON, epoch=epoch)
        registry.born(birth(1), identity(birth(1)), NOON, epoch=epoch)
        registry.lease_port(8000, CLOCK, NOON, epoch=epoch)
        sql(path, statement)
        with pytest.raises(RecordUndecodable, match=name):
            registry.services()
            registry.open_births()
            registry.leases()
            registry.owner()


@pytest.mark.parametrize("statement", ["UPDATE audit SET entry = '{}'", "DELETE FROM audit"])
def test_no_line_of_the_audit_is_changed_or_removed(path: Path, statement: str) -> None:
    with SqliteRegistry(path, OURS) as registry:
        registry.append_audit([(NOON, {"n": 1})])
        with pytest.raises(sqlite3.IntegrityError, match="append-only"):
            sql(path, statement)
        assert [line.entry for line in registry.audit()] == [{"n": 1}]


def test_an_error_in_the_middle_of_a_write_leaves_nothing_of_it(path: Path) -> None:
    with SqliteRegistry(path, OURS) as registry:
        with pytest.raises(TypeError):
            registry.append_audit([(NOON, {"n": 1}), (NOON, {"n": object()})])
        assert registry.audit() == []
        registry.append_audit([(NOON, {"n": 2})])


def test_the_migrations_are_numbered_without_a_gap() -> None:
    assert [step.number for step in migrations()] == list(range(1, len(migrations()) + 1))
    assert all(list(statements(step.sql)) for step in migrations())


def test_every_error_of_a_registry_is_one_of_its_family() -> None:
    assert issubclass(RegistryUnavailable, RegistryError)
    assert issubclass(RecordConflict, RegistryError)
    assert issubclass(RecordUndecodable, RegistryError)
