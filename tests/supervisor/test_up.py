"""Services under a supervisor: start, readiness, stop, restart. Real children, real ports, a real registry."""

from __future__ import annotations

import errno
import json
import os
import socket
from dataclasses import replace

import anyio
import anyio.lowlevel
import pytest

from birthmark.children.child import Child
from birthmark.children.command import Command
from birthmark.children.proving import prove
from birthmark.config.model import (
    HIDDEN,
    Backoff,
    EnvProfile,
    Intensity,
    ReadyKind,
    ReadySpec,
    Restart,
    Transport,
)
from birthmark.core.identity import Proof, Verdict
from birthmark.core.markers import ChildKind
from birthmark.core.outcomes import ExitStatus, Found, MemberReceipt, Receipt, Termination
from birthmark.core.policies import StopPolicy
from birthmark.core.service import ServiceName
from birthmark.core.states import Desired, Observed
from birthmark.errors import (
    ConfigError,
    InstallationLocked,
    LookFailed,
    RegistryUnavailable,
    UnknownService,
    WorkerLost,
)
from birthmark.registry.contract import BirthRecord, BirthState
from birthmark.supervisor import reconciling, starting
from birthmark.supervisor.clock import SystemClock
from birthmark.supervisor.records import hide_secrets
from birthmark.supervisor.running import Running
from birthmark.supervisor.starting import start_birth
from birthmark.supervisor.supervisor import Supervisor, _heard_or_not, own_identity
from tests.supervisor.household import (
    DEAF,
    QUICK,
    WITHIN_S,
    files_below,
    free_port,
    household,
    listener,
    log_lines,
    python,
    says,
    service,
    write_program,
)

pytestmark = pytest.mark.anyio

AT_ONCE = Backoff(first_s=0.01, cap_s=0.01, jitter=0.0)
NEVER_DUE = Backoff(first_s=3600, cap_s=3600)


# -- start


async def test_a_service_is_started_proven_and_stopped_with_a_receipt() -> None:
    async with household(service()) as house:
        status = await house.seen(Observed.READY)
        assert status.pid is not None
        assert status.proof is not None
        assert status.proof.verdict is Verdict.SAME
        receipt = await house.supervisor.stop("one")
        assert receipt is not None
        assert [member.pid for member in receipt.members] == [status.pid]
        assert receipt.members[0].sent == []  # cat leaves when its stdin is closed
        after = house.status()
        assert (after.desired, after.observed, after.pid) == (Desired.DOWN, Observed.EXITED, None)
        assert after.last_exit is not None
        assert (after.last_exit.status, after.last_exit.asked) == (ExitStatus(code=0), True)


async def test_the_birth_is_on_record_with_its_identity_while_it_lives_and_with_its_exit_afterwards() -> None:
    async with household(service()) as house:
        status = await house.seen(Observed.READY)
        (record,) = house.registry.open_births()
        assert record.identity is not None
        assert (record.identity.pid, record.birth, record.service) == (status.pid, status.birth, "one")
        assert record.identity.birth == status.birth
        await house.supervisor.stop("one")
        assert house.registry.open_births() == []
        ended = house.registry.birth(record.birth)
        assert ended is not None
        assert (ended.state, ended.exit, ended.why) == (BirthState.ENDED, ExitStatus(code=0), "stop")


async def test_a_listener_is_ready_when_its_own_set_listens_and_its_port_is_free_after_the_stop() -> None:
    port = free_port()
    async with household(listener("one", port)) as house:
        status = await house.seen(Observed.READY)
        assert status.port == port
        receipt = await house.supervisor.stop("one")
        assert receipt is not None
        assert receipt.notes == [f"port {port} is free again"]


async def test_a_server_is_ready_when_it_answers_http() -> None:
    port = free_port()
    ready = ReadySpec(kind=ReadyKind.HTTP, path="/mcp", deadline_s=WITHIN_S)
    async with household(listener("one", port, ready=ready)) as house:
        status = await house.seen(Observed.READY)
        assert status.why == "GET /mcp answers 200"


async def test_a_worker_in_a_session_of_its_own_may_hold_the_port() -> None:
    port = free_port()
    script = "import os, sys\nif os.fork(): os.wait()\nos.setsid()\nos.execv(sys.executable, sys.argv[2:])"
    spec = listener("one", port)
    wrapped = service(
        "one",
        python(script, "{port}", *spec.command),
        port=port,
        transport=Transport.HTTP,
        ready=spec.ready,
    )
    async with household(wrapped) as house:
        await house.seen(Observed.READY)
        receipt = await house.supervisor.stop("one")
        assert receipt is not None
        assert len(receipt.members) == 2
        assert receipt.notes == [f"port {port} is free again"]


async def test_a_worker_that_shed_all_it_was_given_may_hold_the_port_while_it_descends_from_the_leader() -> (
    None
):
    port = free_port()
    shed = (
        "import os, resource, sys\nif os.fork(): os.wait()\nos.setsid()\n"
        "hard = resource.getrlimit(resource.RLIMIT_RTTIME)[1]\n"
        "resource.setrlimit(resource.RLIMIT_RTTIME, (hard, hard))\n"
        "os.execve(sys.executable, sys.argv[2:], {})"
    )
    spec = listener("one", port)
    wrapped = service(
        "one",
        python(shed, "{port}", *spec.command),
        port=port,
        transport=Transport.HTTP,
        ready=spec.ready,
    )
    async with household(wrapped) as house:
        await house.seen(Observed.READY)
        receipt = await house.supervisor.stop("one")
        assert receipt is not None
        assert [member.found for member in receipt.members] == [Found.LEADER, Found.DESCENDANT]


async def test_a_port_is_picked_from_the_range_leased_and_kept_for_the_next_start() -> None:
    first = free_port()
    spec = listener("one", 1)
    auto = service(
        "one",
        spec.command,
        port_range=(first, first + 20),
        transport=Transport.HTTP,
        ready=spec.ready,
    )
    async with household(auto) as house:
        status = await house.seen(Observed.READY)
        assert status.port is not None
        assert first <= status.port <= first + 20
        assert [(lease.port, lease.service) for lease in house.registry.leases()] == [(status.port, "one")]
        await house.supervisor.restart("one")
        again = await house.seen(Observed.READY)
        assert again.port == status.port


async def test_services_that_pick_from_one_range_get_different_ports() -> None:
    first = free_port()
    specs = [service(f"s{n}", ("cat",), port_range=(first, first + 30), kind=ChildKind.MCP) for n in range(6)]
    async with household(*specs) as house:
        ports = [(await house.seen(Observed.READY, name=spec.name)).port for spec in specs]
        assert len(set(ports)) == 6
        assert sorted(lease.port for lease in house.registry.leases()) == sorted(p for p in ports if p)


async def test_a_missing_program_is_blocked_with_the_path_that_was_searched() -> None:
    env = {"PATH": "/nowhere:/nothing"}
    async with household(service(command=("no-such-server",), env=env)) as house:
        status = await house.seen(Observed.BLOCKED)
        assert "no-such-server" in status.why
        assert "/nowhere:/nothing" in status.why
        assert house.registry.births_of(ServiceName("one")) == []


async def test_a_program_that_cannot_be_executed_leaves_a_birth_that_never_was(
    tmp_path: os.PathLike[str],
) -> None:
    program = os.path.join(tmp_path, "server")
    write_program(program, "no program")
    async with household(service(command=(program,))) as house:
        status = await house.seen(Observed.BLOCKED)
        assert "no #! line" in status.why
        (record,) = house.registry.births_of(ServiceName("one"))
        assert record.state is BirthState.ENDED
        assert record.why is not None
        assert record.why.startswith("never born")


async def test_nothing_is_started_whose_intent_cannot_be_written(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reconciling, "LOOK_AGAIN_S", 3600)
    async with household(service(), names=[]) as house:
        # Somebody else took the installation over: every write of ours is refused from here on.
        house.registry.take(own_identity(house.installation), SystemClock().now())
        house.supervisor._services[ServiceName("one")].want(Desired.UP)
        status = await house.seen(Observed.BLOCKED)
        assert "another supervisor took it over" in status.why
        assert house.registry.births_of(ServiceName("one")) == []


async def test_a_child_whose_output_nobody_could_read_is_ended_and_not_started_twice(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def no_descriptor() -> None:
        raise OSError(errno.EMFILE, "Too many open files")

    monkeypatch.setattr(reconciling, "LOOK_AGAIN_S", 3600)
    async with household(service(), names=[]) as house:
        born: list[int] = []
        spawner = house.supervisor._booted().spawner
        spawn = spawner.spawn_owned_supervised

        def counted(command: Command) -> Child:
            child = spawn(command)
            born.append(child.pid)
            return child

        monkeypatch.setattr(spawner, "spawn_owned_supervised", counted)
        with monkeypatch.context() as patched:
            patched.setattr(house.supervisor._booted().drains, "_begin", no_descriptor)
            await house.supervisor.start("one")
        status = await house.seen(Observed.BLOCKED)
        assert "Too many open files" in status.why
        (pid,) = born
        with pytest.raises(ProcessLookupError):
            os.getpgid(pid)
        (record,) = house.registry.births_of(ServiceName("one"))
        assert (record.state, record.why) == (
            BirthState.ENDED,
            "ended at its birth: [Errno 24] Too many open files",
        )
        # With descriptors again, it comes up.
        await house.supervisor.start("one")
        await house.seen(Observed.READY)
        assert len(born) == 2


async def test_beside_a_newborn_that_could_not_be_ended_nothing_is_started(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(reconciling, "LOOK_AGAIN_S", 3600)
    async with household(service(command=("sleep", "600")), names=[]) as house:
        with monkeypatch.context() as patched:

            def not_ended(*args: object, **more: object) -> Receipt:
                raise LookFailed("the processes", "a test says so")

            def not_born(*args: object, **more: object) -> None:
                raise RegistryUnavailable("registry.db", "the disk is full")

            patched.setattr(starting, "stop_set_now", not_ended)
            patched.setattr(house.registry, "born", not_born)
            await house.supervisor.start("one")
            assert "the disk is full" in (await house.seen(Observed.BLOCKED)).why
        (left,) = house.supervisor._services[ServiceName("one")].leftovers
        assert prove_record(left.record) is Verdict.SAME
        # The next start ends it first.
        await house.supervisor.start("one")
        await house.seen(Observed.READY)
        assert prove_record(left.record) is Verdict.GONE
        states = {each.birth: each.state for each in house.registry.births_of(ServiceName("one"))}
        assert states.pop(left.record.birth) is BirthState.LOST
        assert list(states.values()) == [BirthState.BORN]


def prove_record(record: BirthRecord) -> Verdict:
    assert record.identity is not None
    return prove(record.identity).verdict


async def test_a_leader_that_cannot_be_looked_at_keeps_no_service_from_view(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with household(service()) as house:
        running = await house.seen(Observed.READY)

        def no_look(child: Child) -> Proof:
            raise LookFailed(f"process {child.pid}", "Too many open files")

        monkeypatch.setattr(Child, "proof", no_look)
        (status,) = house.supervisor.status()
        assert (status.pid, status.proof) == (running.pid, None)


async def test_a_name_of_any_script_has_a_log_and_a_row() -> None:
    name = "über/服务 .. 1"
    spec = service(
        name, python("import os, sys; os.write(2, b'hello\\n'); sys.stdin.read()"), ready=says("hello")
    )
    async with household(spec) as house:
        status = await house.seen(Observed.READY, name=name)
        assert [line for line in log_lines(status) if line[1:] == ["stderr", "hello"]]
        assert os.path.dirname(status.log) == str(house.installation.logs)


# -- output


async def test_a_stdio_servers_stdin_stays_open_and_its_stdout_is_drained_and_counted() -> None:
    script = """
import os, sys
for _ in range(160): os.write(1, b"x" * 65536)
os.write(2, b"all written\\n")
sys.stdin.read()
"""
    async with household(service(command=python(script), ready=says("all written"))) as house:
        await house.seen(Observed.READY)
        await house.until(lambda status: status.stdout_bytes == 160 * 65536)
        assert any("`birthmark run`" in line for line in house.said)


async def test_an_agents_stdin_is_at_its_end_and_both_its_streams_are_logged() -> None:
    script = """
import os, sys, time
assert sys.stdin.read() == ""
os.write(1, b"out\\n"); os.write(2, b"err\\n"); os.write(1, b"unfinished")
while True: time.sleep(60)
"""
    spec = service(command=python(script), kind=ChildKind.AGENT, ready=says("err"))
    async with household(spec) as house:
        status = await house.seen(Observed.READY)
        assert status.stdout_bytes is None
        await house.supervisor.stop("one")
        words = [line[1:] for line in log_lines(status)]
        assert ["stdout", "out"] in words
        assert ["stderr", "err"] in words
        assert ["stdout", "unfinished"] in words


async def test_no_secret_is_on_disk_in_a_status_or_in_what_is_said() -> None:
    secret = "hunter2-hunter2"
    declared = service(env={"TOKEN": secret}, secrets=frozenset({"TOKEN"}), env_profile=EnvProfile.MINIMAL)
    # Nobody wrote this command as a reference, so any of its arguments may be one's value.
    spoken = replace(service("two", python("import sys; sys.stdin.read()", f"--token={secret}")), written=())
    missing = service("three", ("no-such-server",), env={"TOKEN": secret, "PATH": "/nowhere"})
    async with household(declared, spoken, missing) as house:
        await house.seen(Observed.READY)
        await house.seen(Observed.READY, name="two")
        await house.seen(Observed.BLOCKED, name="three")
        shown = json.dumps([status.to_dict() for status in house.supervisor.status()]) + "\n".join(house.said)
        assert secret not in shown
        receipt = await house.supervisor.stop("two")
        assert receipt is not None
        assert receipt.members[0].command.endswith(HIDDEN)
        assert secret not in json.dumps(receipt.to_dict())
        assert len(house.registry.services()) == 3
        assert not [content for content in files_below(house.installation.home) if secret.encode() in content]


@pytest.mark.parametrize("secret", ["two\nlines", "tab\tand \udcff", "plain-hunter2"])
def test_a_secret_is_hidden_as_command_lines_are_listed_and_cut(secret: str) -> None:
    listed = {"two\nlines": "two\\x0alines", "tab\tand \udcff": "tab\\x09and \\xff"}.get(secret, secret)
    spec = replace(service(command=("x", secret)), written=("x", "${TOKEN}"))
    before = "x " + "a" * 4000 + " "
    for command, shown in (
        (f"x {listed} y", "x ${TOKEN} y"),
        (before + listed[:6], before + "${TOKEN}"),
        (before + "b" * 6, before + "b" * 6),
    ):
        member = MemberReceipt(pid=1, found=Found.LEADER, command=command)
        hide_secrets(spec, Receipt(service="one", termination=Termination.EXITED, members=[member]))
        assert member.command == shown


# -- stop


async def test_a_deaf_service_is_killed_and_its_receipt_says_so() -> None:
    async with household(service(command=python(DEAF), ready=says("deaf"))) as house:
        await house.seen(Observed.READY)
        receipt = await house.supervisor.stop("one")
        assert receipt is not None
        assert receipt.termination is Termination.KILLED
        assert [name for name, _ in receipt.members[0].sent] == ["SIGTERM", "SIGKILL"]
        status = house.status()
        assert status.last_exit is not None
        assert status.last_exit.status == ExitStatus(signal=9)


async def test_stops_at_the_same_time_join_and_force_ends_the_patience_of_all() -> None:
    patient = StopPolicy(stdin_grace_s=3600, term_grace_s=3600, settle_s=10)
    receipts: list[Receipt | None] = []
    async with household(service(command=python(DEAF), ready=says("deaf"), stop=patient)) as house:
        await house.seen(Observed.READY)

        async def stop(force: bool) -> None:
            receipts.append(await house.supervisor.stop("one", force=force))

        with anyio.fail_after(WITHIN_S):
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(stop, False)
                tasks.start_soon(stop, False)
                await house.seen(Observed.STOPPING)
                tasks.start_soon(stop, True)
        assert len(receipts) == 3
        assert all(receipt is receipts[0] for receipt in receipts)
        assert receipts[0] is not None


async def test_stopping_what_does_not_run_is_no_error_and_has_no_receipt() -> None:
    async with household(service()) as house:
        await house.seen(Observed.READY)
        await house.supervisor.stop("one")
        assert await house.supervisor.stop("one") is None


async def test_a_stop_by_hand_is_remembered_until_a_start() -> None:
    async with household(service()) as house:
        await house.seen(Observed.READY)
        await house.supervisor.stop("one")
    async with household(service()) as house:
        status = house.status()
        assert (status.desired, status.observed) == (Desired.DOWN, Observed.ABSENT)
        assert "birthmark start one" in status.why
        await house.supervisor.start("one")
        await house.seen(Observed.READY)
    async with household(service()) as house:
        await house.seen(Observed.READY)


async def test_bringing_all_down_is_no_stop_by_hand() -> None:
    async with household(service("one"), service("two")) as house:
        await house.seen(Observed.READY)
        await house.seen(Observed.READY, name="two")
        receipts = await house.supervisor.down()
        assert [receipt.service for receipt in receipts] == ["two", "one"]
    async with household(service("one")) as house:
        await house.seen(Observed.READY)


async def test_nothing_is_started_once_all_is_being_stopped() -> None:
    # Deaf: while it is waited for, the other one has been stopped already, and is asked for again.
    deaf = service("deaf", python(DEAF), ready=says("deaf"), stop=replace(QUICK, term_grace_s=600))
    async with household(service("one"), deaf) as house:
        await house.seen(Observed.READY)
        await house.seen(Observed.READY, name="deaf")
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(house.supervisor.down)
            await house.seen(Observed.EXITED)
            with pytest.raises(WorkerLost, match="stops everything now"):
                await house.supervisor.start("one")
            with pytest.raises(WorkerLost, match="stops everything now"):
                await house.supervisor.restart("one")
            assert house.status().pid is None
            house.supervisor.hurry()
        with anyio.fail_after(WITHIN_S):
            while house.supervisor.trail is not None:  # the loop lets go of it at its end
                await anyio.sleep(0.005)
        with pytest.raises(WorkerLost):
            await house.supervisor.down()  # and nobody is called a survivor


async def test_a_stop_while_it_starts_ends_it() -> None:
    slow = ReadySpec(alive_s=3600)
    async with household(service(ready=slow)) as house:
        await house.until(lambda status: status.pid is not None)
        receipt = await house.supervisor.stop("one")
        assert receipt is not None
        assert house.status().observed is Observed.EXITED


async def test_a_cancelled_supervisor_stops_what_it_started() -> None:
    async with household(service("one"), service("two", python(DEAF), ready=says("deaf"))) as house:
        pids = [(await house.seen(Observed.READY, name=name)).pid for name in ("one", "two")]
        registry, installation = house.registry, house.installation
    assert registry.path == str(installation.registry_path)
    for pid in pids:
        assert pid is not None
        with pytest.raises(ProcessLookupError):
            os.getpgid(pid)


async def test_the_verbs_refuse_an_unknown_name_and_a_remote_service() -> None:
    remote = service("far", ())
    async with household(service(), remote) as house:
        for verb in (house.supervisor.start, house.supervisor.stop, house.supervisor.restart):
            with pytest.raises(UnknownService, match="there are: one, far"):
                await verb("other")
        with pytest.raises(ConfigError, match="remote"):
            await house.supervisor.start("far")
        assert house.status("far").why == "remote: somebody else runs it"


async def test_a_disabled_service_is_started_by_name_only() -> None:
    async with household(service(enabled=False)) as house:
        assert house.status().why == "disabled in the configuration"
        await house.supervisor.start("one")
        await house.seen(Observed.READY)


async def test_before_boot_and_without_its_loop_a_supervisor_does_nothing() -> None:
    async with household(service()) as house:
        await house.seen(Observed.READY)
        await house.supervisor.down()
        await anyio.lowlevel.checkpoint()
    with pytest.raises(WorkerLost):
        await house.supervisor.start("one")


# -- exits and restarts


async def test_an_exit_that_nobody_asked_for_is_followed_by_a_restart() -> None:
    script = "import sys; sys.stdin.read()"
    spec = service(command=python(script), restart=Restart.ALWAYS, backoff=AT_ONCE)
    async with household(spec) as house:
        first = await house.seen(Observed.READY)
        assert first.pid is not None
        os.kill(first.pid, 9)
        second = await house.until(lambda s: s.pid not in (None, first.pid) and s.observed is Observed.READY)
        assert second.restarts == 1
        assert second.last_exit is not None
        assert (second.last_exit.status, second.last_exit.asked) == (ExitStatus(signal=9), False)


@pytest.mark.parametrize(
    ("policy", "code", "observed"),
    [
        (Restart.NEVER, 3, Observed.EXITED),
        (Restart.NEVER, 0, Observed.EXITED),
        (Restart.ON_FAILURE, 0, Observed.EXITED),
        (Restart.ON_FAILURE, 3, Observed.BACKOFF),
        (Restart.ALWAYS, 0, Observed.BACKOFF),
    ],
)
async def test_what_follows_an_exit_is_the_policys_word(
    policy: Restart, code: int, observed: Observed
) -> None:
    spec = service(command=python(f"raise SystemExit({code})"), restart=policy, backoff=NEVER_DUE)
    async with household(spec) as house:
        status = await house.until(lambda s: s.last_exit is not None and s.observed is observed)
        assert f"exit code {code}" in status.why


async def test_a_storm_of_restarts_is_given_up_with_the_last_exits() -> None:
    limit = Intensity(restarts=3, within_s=3600, stable_s=3600)
    spec = service(
        command=python("raise SystemExit(3)"), restart=Restart.ON_FAILURE, backoff=AT_ONCE, intensity=limit
    )
    async with household(spec) as house:
        status = await house.seen(Observed.GAVE_UP)
        assert len(house.registry.births_of(ServiceName("one"))) == 4
        assert status.why.count("exit code 3") == 4
        assert status.restarts == 3
        assert any("gave up after 3 restarts" in line for line in house.said)
        await house.supervisor.start("one")  # a person's start begins anew
        await house.until(lambda s: s.observed is Observed.GAVE_UP and s.why.count("exit code 3") == 4)
        assert len(house.registry.births_of(ServiceName("one"))) == 8


async def test_asked_for_a_hundred_times_a_failing_service_still_waits_for_its_next_start() -> None:
    spec = service(command=python("raise SystemExit(3)"), restart=Restart.ALWAYS, backoff=NEVER_DUE)
    async with household(spec) as house:
        await house.seen(Observed.BACKOFF)
        for _ in range(100):
            await house.supervisor.start("one")
        assert house.status().observed is Observed.BACKOFF
        assert len(house.registry.births_of(ServiceName("one"))) == 1


async def test_a_stop_while_it_waits_for_its_next_start_ends_the_waiting() -> None:
    spec = service(command=python("raise SystemExit(3)"), restart=Restart.ALWAYS, backoff=NEVER_DUE)
    async with household(spec) as house:
        await house.seen(Observed.BACKOFF)
        assert await house.supervisor.stop("one") is None
        assert house.status().observed is Observed.ABSENT


async def test_what_a_leader_leaves_behind_is_ended_with_it(tmp_path: os.PathLike[str]) -> None:
    lifeline = os.path.join(tmp_path, "lifeline")
    os.mkfifo(lifeline)
    script = """
import os, sys, signal, time
r, w = os.pipe()
if os.fork() == 0:
    os.setsid(); signal.signal(signal.SIGTERM, signal.SIG_IGN)
    os.open(sys.argv[1], os.O_WRONLY)
    os.write(w, b"!")
    while True: time.sleep(60)
os.read(r, 1)
os._exit(7)
"""
    reader = os.open(lifeline, os.O_RDONLY | os.O_NONBLOCK)
    try:
        async with household(service(command=python(script, lifeline))) as house:
            status = await house.until(lambda s: s.last_exit is not None)
            assert status.last_exit is not None
            assert status.last_exit.status == ExitStatus(code=7)
            with anyio.fail_after(WITHIN_S):
                await anyio.wait_readable(reader)
            assert os.read(reader, 1) == b""  # end-of-file: nobody holds the other end any more
            assert any("what it left was ended" in line for line in house.said)
    finally:
        os.close(reader)


async def test_a_restart_ends_the_old_birth_before_the_new_one_begins() -> None:
    port = free_port()
    async with household(listener("one", port)) as house:
        first = await house.seen(Observed.READY)
        await house.supervisor.restart("one")
        second = await house.seen(Observed.READY)
        assert first.birth != second.birth
        old, new = reversed(house.registry.births_of(ServiceName("one")))
        assert old.ended_at is not None
        assert old.ended_at <= new.intended_at


async def test_a_service_that_is_not_ready_by_its_deadline_is_ended_and_counts_as_failed() -> None:
    ready = ReadySpec(kind=ReadyKind.LOG, pattern="never said", deadline_s=0.1)
    async with household(service(ready=ready, restart=Restart.ON_FAILURE, backoff=NEVER_DUE)) as house:
        status = await house.seen(Observed.BACKOFF)
        assert "not ready within 0.1 s" in status.why
        assert house.registry.open_births() == []


# -- ports of others


async def test_a_stranger_that_answers_on_our_port_is_no_readiness() -> None:
    port = free_port()
    spec = service(
        port=port,
        transport=Transport.HTTP,
        command=python("import time\nwhile True: time.sleep(60)"),
        ready=ReadySpec(kind=ReadyKind.TCP, deadline_s=WITHIN_S),
    )
    async with household(spec) as house:
        await house.until(lambda status: status.pid is not None)
        with socket.socket() as stranger:
            stranger.bind(("127.0.0.1", port))
            stranger.listen()
            status = await house.seen(Observed.BLOCKED)
        assert f"port {port} is held by pid {os.getpid()}" in status.why
        assert status.pid is None


async def test_a_blocked_service_comes_up_when_the_stranger_has_left(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reconciling, "LOOK_AGAIN_S", 0.02)
    with socket.socket() as stranger:
        stranger.bind(("127.0.0.1", 0))
        stranger.listen()
        port = stranger.getsockname()[1]
        async with household(listener("one", port)) as house:
            await house.seen(Observed.BLOCKED)
            stranger.close()
            await house.seen(Observed.READY)
            assert sum("blocked" in line for line in house.said) == 1


# -- one installation, one supervisor


async def test_a_second_supervisor_is_refused_and_the_first_is_not_touched() -> None:
    async with household(service()) as house:
        status = await house.seen(Observed.READY)
        second = Supervisor(
            services=[service()],
            registry=house.registry,
            installation=house.installation,
            clock=SystemClock(),
            say=house.said.append,
            subreaper=False,
        )
        with pytest.raises(InstallationLocked, match=f"the supervisor with pid {os.getpid()}"):
            await second.boot()
        assert house.status().pid == status.pid
        await house.supervisor.restart("one")
        await house.seen(Observed.READY)


async def test_every_signal_and_its_ground_is_in_the_audit() -> None:
    async with household(service(command=python(DEAF), ready=says("deaf"))) as house:
        status = await house.seen(Observed.READY)
        await house.supervisor.stop("one")
        lines = [line for line in house.signals() if line["pid"] == status.pid]
        assert [(line["signal"], line["asked_by"], line["result"]) for line in lines] == [
            ("SIGTERM", "stop", "sent"),
            ("SIGKILL", "stop", "sent"),
        ]
        assert {line["basis"] for line in lines} == {"proof"}


async def test_a_listener_that_has_left_ends_no_service(monkeypatch: pytest.MonkeyPatch) -> None:
    def nobody_listens(line: str) -> None:
        raise BrokenPipeError(32, "Broken pipe")

    async with household(service(), names=[]) as house:
        # As the supervisor wraps what it is given: `birthmark up | head` must not end with its reader.
        monkeypatch.setattr(house.supervisor._booted(), "say", _heard_or_not(nobody_listens))
        await house.supervisor.start("one")
        await house.seen(Observed.READY)
        assert await house.supervisor.stop("one") is not None


async def test_a_stop_waits_for_a_start_that_is_being_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reconciling, "LOOK_AGAIN_S", 0.01)
    under_way, go_on = anyio.Event(), anyio.Event()

    async def slow_start(*args: object) -> Running:
        if not under_way.is_set() and house.status().observed is Observed.BLOCKED:
            under_way.set()
            await go_on.wait()
        return await start_birth(*args)  # type: ignore[arg-type]

    stranger = socket.create_server(("127.0.0.1", 0))
    port = stranger.getsockname()[1]
    async with household(listener("one", port), names=[]) as house:
        monkeypatch.setattr(reconciling, "start_birth", slow_start)
        await house.supervisor.start("one")
        with anyio.fail_after(WITHIN_S):
            await under_way.wait()
            stranger.close()
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(house.supervisor.stop, "one")
                await house.until(lambda status: status.desired is Desired.DOWN)
                go_on.set()
        # It was born after the stop had been asked for, and is gone now that the stop has returned.
        assert len(house.registry.births_of(ServiceName("one"))) == 1
        assert house.registry.open_births() == []
        assert house.status().pid is None
