"""One suite for both ways to start a program; real children."""

from __future__ import annotations

import errno
import os
import resource
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from birthmark.platforms.launch import INFINITY, KEEP_HARD, Launch, LaunchFailed, Session, Step, Way
from tests.conftest import children, descriptors
from tests.platforms.launching import (
    both_ways,
    lines,
    name_of,
    output_of,
    python,
    request,
    started,
    told_by_host,
)

pytestmark = [
    pytest.mark.skipif(sys.platform != "linux", reason="what the children tell is read from /proc"),
    both_ways,
]

TAG_TICKS = (1 << 60) + 12345


# -- what the program gets -----------------------------------------------------


@pytest.mark.parametrize(
    "env",
    [
        (),
        (b"FIRST=1", b"SECOND=", b"THIRD==x=y"),
        (b"NOT_UTF8=\xff\xfe", b"\xe9=\x80"),
        (b"PYTHONPATH=/nowhere", b"PYTHONHOME=/nowhere", b"LD_LIBRARY_PATH=/nowhere"),
        tuple(b"V%02d=" % i + bytes([65 + i]) * 100_000 for i in range(11)),
    ],
    ids=["empty", "in order", "not UTF-8", "of an interpreter", "1 MB"],
)
def test_a_child_gets_argv_and_environment_byte_by_byte(way: Way, env: tuple[bytes, ...]) -> None:
    argv = (b"the name \xff", b"-u", b"-", b"")
    with started(way, b"/bin/cat", argv=argv[:3], env=env) as child:
        child.ask()
        assert Path(f"/proc/{child.pid}/cmdline").read_bytes() == b"the name \xff\0-u\0-\0"
        assert Path(f"/proc/{child.pid}/environ").read_bytes() == b"".join(entry + b"\0" for entry in env)
    assert (
        output_of(way, *python("import os, sys; os.write(1, os.fsencode(sys.argv[1]))"), b"\xff\n")
        == b"\xff\n"
    )
    assert output_of(way, b"/usr/bin/printf", b"[%s]", b"", b"") == b"[][]"


def test_a_child_starts_in_the_directory_it_was_given(way: Way, tmp_path: Path) -> None:
    place = os.fsencode(tmp_path) + b"/\xe9"
    os.mkdir(place)
    assert output_of(way, b"/bin/readlink", b"/proc/self/cwd", cwd=place) == place + b"\n"
    assert output_of(way, b"/bin/readlink", b"/proc/self/cwd") == os.getcwdb() + b"\n"


def test_a_child_has_the_umask_it_was_given_or_ours(way: Way) -> None:
    ours = os.umask(0o027)
    try:
        assert b"Umask:\t0027" in output_of(way, b"/bin/cat", b"/proc/self/status")
        assert b"Umask:\t0077" in output_of(way, b"/bin/cat", b"/proc/self/status", umask=0o077)
        assert b"Umask:\t0000" in output_of(way, b"/bin/cat", b"/proc/self/status", umask=0)
    finally:
        os.umask(ours)


@pytest.mark.parametrize("session", list(Session))
def test_a_child_starts_in_the_group_and_session_asked_for(way: Way, session: Session) -> None:
    with started(way, b"/bin/cat", session=session) as child:
        child.ask()
        group, its_session = os.getpgid(child.pid), os.getsid(child.pid)
        assert (group == child.pid, its_session == child.pid) == {
            Session.INHERIT: (False, False),
            Session.NEW_GROUP: (True, False),
            Session.NEW_SESSION: (True, True),
        }[session]
        if session is Session.INHERIT:
            assert group == os.getpgrp()
        if session is not Session.NEW_SESSION:
            assert its_session == os.getsid(0)


@contextmanager
def unfriendly_signals() -> Iterator[None]:
    """Ignore and block, as hosts do."""
    ignored = [signal.SIGPIPE, signal.SIGINT, signal.SIGUSR1, signal.SIGHUP, signal.SIGRTMIN + 3]
    before = {number: signal.signal(number, signal.SIG_IGN) for number in ignored}
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM, signal.SIGUSR2, signal.SIGRTMIN + 4})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        for number, disposition in before.items():
            signal.signal(number, disposition)


def test_neither_ignored_nor_blocked_signals_of_ours_reach_a_child(way: Way) -> None:
    with unfriendly_signals():
        status = lines(output_of(way, b"/bin/cat", b"/proc/self/status"))
    masks = {line.split(":")[0]: line.split()[1] for line in status if line.startswith("Sig")}
    assert {name: int(masks[name], 16) for name in ("SigBlk", "SigIgn", "SigCgt")} == dict.fromkeys(
        ("SigBlk", "SigIgn", "SigCgt"), 0
    )


def test_our_own_signals_are_as_before(way: Way) -> None:
    def dispositions() -> list[Any]:
        return [signal.getsignal(number) for number in signal.valid_signals()]

    with unfriendly_signals():
        before = dispositions(), signal.pthread_sigmask(signal.SIG_BLOCK, ()), os.umask(0o22)
        os.umask(before[2])
        output_of(way, b"/bin/true", umask=0, session=Session.NEW_SESSION)
        after = dispositions(), signal.pthread_sigmask(signal.SIG_BLOCK, ()), os.umask(before[2])
    assert after == before


# -- descriptors ---------------------------------------------------------------

TELL_DESCRIPTORS = """
    import os
    found = {}
    for name in os.listdir("/proc/self/fd"):
        try: found[int(name)] = os.readlink("/proc/self/fd/" + name)
        except FileNotFoundError: pass
    os.write(REPORT, repr(found).encode())
"""


def descriptors_in_child(way: Way, report: int, *whole: tuple[int, int]) -> dict[int, str]:
    """Return what a child with exactly these descriptors finds; `report` is its number of the pipe to us."""
    r, w = os.pipe()
    try:
        pairs = tuple((w if ours is None else ours, theirs) for ours, theirs in whole)
        born = way(
            request(*python(TELL_DESCRIPTORS.replace("REPORT", str(report))), whole=((w, report), *pairs))
        )
    finally:
        os.close(w)
    with os.fdopen(r, "rb") as pipe:
        text = pipe.read().decode()
    assert os.waitpid(born[0], 0)[1] == 0
    if born[1] is not None:
        os.close(born[1])
    found: dict[int, str] = eval(text, {"__builtins__": {}})
    del found[report]
    return found


@pytest.fixture
def files(tmp_path: Path) -> Iterator[dict[str, int]]:
    """Open three files, at whatever numbers come."""
    found = {name: os.open(tmp_path / name, os.O_RDWR | os.O_CREAT) for name in "abc"}
    yield found
    for fd in found.values():
        os.close(fd)


def names(found: dict[int, str]) -> dict[int, str]:
    return {fd: Path(name).name for fd, name in found.items()}


def test_a_child_has_the_declared_descriptors_and_no_other(way: Way, files: dict[str, int]) -> None:
    a, b, c = files.values()
    leak = os.dup(a)
    high = os.dup2(a, 200)
    os.set_inheritable(leak, True)
    os.set_inheritable(high, True)
    try:
        found = descriptors_in_child(way, 9, (a, 0), (b, 1), (b, 2), (c, 5), (c, 77))
    finally:
        os.close(leak)
        os.close(high)
    assert names(found) == {0: "a", 1: "b", 2: "b", 5: "c", 77: "c"}


def test_descriptors_may_trade_places(way: Way, files: dict[str, int]) -> None:
    a, b, c = files.values()
    found = descriptors_in_child(way, 60, (2, 2), (a, b), (b, c), (c, a), (a, 0), (b, 1))
    assert names({fd: found[fd] for fd in (0, 1, a, b, c)}) == {0: "a", 1: "b", b: "a", c: "b", a: "c"}
    assert len(found) == 6


def test_a_descriptor_may_keep_its_number(way: Way, files: dict[str, int]) -> None:
    a, b, _ = files.values()
    assert not os.get_inheritable(a)
    found = descriptors_in_child(way, 60, (a, a), (b, 0), (a, 1), (b, 2))
    assert names(found) == {a: "a", 0: "b", 1: "a", 2: "b"}
    assert not os.get_inheritable(a)


def test_the_standard_streams_may_trade_places(way: Way) -> None:
    script = """
        r, w = os.pipe()
        into, answer = os.pipe()
        os.dup2(w, 0)
        os.dup2(into, 1)
        # 0 is what the child writes to, and 1 what it reads from: `cat` needs them the other way round.
        pid, _ = launch(Launch(path=b"/bin/cat", argv=(b"cat",), env=(), descriptors=((0, 1), (1, 0), (2, 2))))
        os.write(answer, b"round")
        os.write(2, os.read(r, 5))
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
    """
    r, w = os.pipe()
    try:
        told_by_host(way, script, stderr=w)
    finally:
        os.close(w)
    with os.fdopen(r, "rb") as pipe:
        assert pipe.read() == b"round"


def test_a_host_without_standard_streams_can_start_programs(way: Way) -> None:
    script = """
        keep = os.dup(1)
        os.set_inheritable(keep, True)
        other = os.open(os.devnull, os.O_RDWR)
        for fd in (0, 1, 2):
            os.close(fd)
        os.close(NULL)
        pid, _ = launch(Launch(path=b"/bin/echo", argv=(b"echo", b"here"), env=(),
                               descriptors=((other, 0), (keep, 1), (other, 2))))
        assert os.waitpid(pid, 0)[1] == 0
    """
    assert told_by_host(way, script) == "here\n"


def test_no_descriptor_is_left_by_two_hundred_launches(way: Way, tmp_path: Path) -> None:
    before = descriptors()
    for i in range(200 if name_of(way) == "native_launch" else 15):
        with started(way, b"/bin/true") as child:
            child.wait()
        for wrong in (
            request(b"/nowhere"),
            request(b"/bin/true", cwd=b"/nowhere"),
            request(b"/bin/true", whole=BAD),
        ):
            with pytest.raises(LaunchFailed):
                way(wrong)
        if i == 0:
            before = descriptors()
    assert descriptors() == before
    assert children() == []


BAD = ((0, 0), (1, 1), (987654, 2))


# -- what fails ----------------------------------------------------------------


def program(place: Path, text: str, mode: int) -> bytes:
    path = place / "program"
    path.write_text(text)
    path.chmod(mode)
    return os.fsencode(path)


def failing(case: str, place: Path) -> tuple[Launch, int, Step]:
    true, gone = b"/bin/true", os.fsencode(place / "gone")
    match case:
        case "a missing program":
            return request(gone), errno.ENOENT, Step.EXEC
        case "a directory as program":
            return request(os.fsencode(place)), errno.EACCES, Step.EXEC
        case "a program that is not executable":
            return request(program(place, "#!/bin/sh\n", 0o644)), errno.EACCES, Step.EXEC
        case "a script without an interpreter":  # no shell is tried in silence
            return request(program(place, "echo oops\n", 0o755)), errno.ENOEXEC, Step.EXEC
        case "an interpreter that is missing":
            return request(program(place, "#!/nowhere\n", 0o755)), errno.ENOENT, Step.EXEC
        case "an argument of 128 KiB":
            return request(true, b"x" * (1 << 17)), errno.E2BIG, Step.EXEC
        case "an environment of 20 MB":
            env = tuple(b"V%d=" % i + b"x" * 100_000 for i in range(200))
            return request(true, env=env), errno.E2BIG, Step.EXEC
        case "a cwd that is gone":
            return request(true, cwd=gone), errno.ENOENT, Step.CWD
        case "a file as cwd":
            return request(true, cwd=b"/bin/true"), errno.ENOTDIR, Step.CWD
        case "a descriptor that is not open":
            return request(true, whole=BAD), errno.EBADF, Step.DESCRIPTORS
        case "a closed descriptor that keeps its number":
            return request(true, descriptors=((987, 987),)), errno.EBADF, Step.DESCRIPTORS
        case "a limit with soft above hard":
            return request(true, limits=((resource.RLIMIT_CORE, 2, 1),)), errno.EINVAL, Step.LIMITS
        case "a limit that does not exist":
            return request(true, limits=((99, 1, 1),)), errno.EINVAL, Step.LIMITS
        case "a signal for parent death that does not exist":
            return request(true, parent_death=99), errno.EINVAL, Step.PARENT
    raise AssertionError(case)


@pytest.mark.parametrize(
    "case",
    [
        "a missing program",
        "a directory as program",
        "a program that is not executable",
        "a script without an interpreter",
        "an interpreter that is missing",
        "an argument of 128 KiB",
        "an environment of 20 MB",
        "a cwd that is gone",
        "a file as cwd",
        "a descriptor that is not open",
        "a closed descriptor that keeps its number",
        "a limit with soft above hard",
        "a limit that does not exist",
        "a signal for parent death that does not exist",
    ],
)
def test_a_launch_that_fails_names_errno_and_step_and_leaves_nothing(
    way: Way, case: str, tmp_path: Path
) -> None:
    wrong, number, step = failing(case, tmp_path)
    with pytest.raises(LaunchFailed) as failed:
        way(wrong)
    assert (errno.errorcode[failed.value.errno], failed.value.step) == (errno.errorcode[number], step)
    assert children() == []
    assert output_of(way, b"/bin/echo", b"unharmed") == b"unharmed\n"


def test_a_program_that_is_still_being_written_is_reported_as_such(way: Way, tmp_path: Path) -> None:
    path = tmp_path / "program"
    path.write_bytes(Path("/bin/true").read_bytes())
    path.chmod(0o755)
    with path.open("ab"):
        with pytest.raises(LaunchFailed) as failed:
            way(request(os.fsencode(path)))
    assert (failed.value.errno, failed.value.step) == (errno.ETXTBSY, Step.EXEC)


def test_a_host_out_of_descriptors_is_told_so_and_recovers(way: Way) -> None:
    script = """
        run(b"/bin/true")
        taken = []
        while True:
            try: taken.append(os.dup(0))
            except OSError: break
        try:
            start(b"/bin/true")
        except LaunchFailed as err:
            print(errno.errorcode[err.errno], err.step)
        for fd in taken: os.close(fd)
        print(children())
        print(run(b"/bin/echo", b"again").decode(), end="")
    """
    assert lines(
        told_by_host(
            way, "import resource; resource.setrlimit(7, (64, 64))" + script.replace("\n        ", "\n")
        )
    ) == [
        "EMFILE spawn",
        "[]",
        "again",
    ]


# -- limits --------------------------------------------------------------------


def limit_in(output: bytes, name: str) -> tuple[str, str]:
    line = next(line for line in lines(output) if line.startswith(name))
    soft, hard = line[len(name) :].split()[:2]
    return soft, hard


def test_limits_are_set_soft_and_hard(way: Way) -> None:
    limits = (
        (resource.RLIMIT_NOFILE, 64, 128),
        (resource.RLIMIT_CORE, 0, 0),
        (resource.RLIMIT_CPU, 600, INFINITY),
    )
    output = output_of(way, b"/bin/cat", b"/proc/self/limits", limits=limits)
    assert limit_in(output, "Max open files") == ("64", "128")
    assert limit_in(output, "Max core file size") == ("0", "0")
    assert limit_in(output, "Max cpu time") == ("600", "unlimited")


def test_a_tag_in_a_soft_limit_leaves_the_hard_one_alone(way: Way) -> None:
    tag = ((resource.RLIMIT_RTTIME, TAG_TICKS, KEEP_HARD),)
    output = output_of(way, b"/bin/cat", b"/proc/self/limits", limits=tag)
    hard = resource.getrlimit(resource.RLIMIT_RTTIME)[1]
    expected = "unlimited" if hard == resource.RLIM_INFINITY else str(hard)
    assert limit_in(output, "Max realtime timeout") == (str(TAG_TICKS), expected)


TAG_AS = f"""
    import resource
    {{before}}
    print(run(b"/bin/cat", b"/proc/self/limits", limits=((resource.RLIMIT_RTTIME, {TAG_TICKS}, KEEP_HARD),)).decode())
"""


def test_a_hard_limit_below_the_tag_means_no_tag_and_no_error(way: Way) -> None:
    output = told_by_host(way, TAG_AS.format(before="resource.setrlimit(resource.RLIMIT_RTTIME, (7, 1000))"))
    assert limit_in(output.encode(), "Max realtime timeout") == ("7", "1000")


@pytest.mark.root
def test_an_ordinary_user_can_tag(way: Way) -> None:
    output = told_by_host(way, TAG_AS.format(before="become_ordinary()"))
    assert limit_in(output.encode(), "Max realtime timeout") == (str(TAG_TICKS), "unlimited")


def test_a_child_with_few_descriptors_may_have_one_with_a_high_number(
    way: Way, files: dict[str, int]
) -> None:
    limits = ((resource.RLIMIT_NOFILE, 10, 10),)
    argv = python("import os; os.write(100, b'up')")
    assert output_of(way, *argv, descriptors=((files["a"], 100),), limits=limits) == b""
    assert os.pread(files["a"], 9, 0) == b"up"


# -- credentials ---------------------------------------------------------------


@pytest.mark.root
@pytest.mark.parametrize("groups", [(), (4, 20)])
def test_a_child_gets_the_user_group_and_groups_asked_for(way: Way, groups: tuple[int, ...]) -> None:
    output = output_of(way, b"/bin/cat", b"/proc/self/status", uid=65534, gid=65533, groups=groups)
    status = {line.split(":")[0]: line.split(":")[1].split() for line in lines(output)}
    assert status["Uid"] == ["65534"] * 4
    assert status["Gid"] == ["65533"] * 4
    assert status["Groups"] == [str(group) for group in groups]
    assert os.getresuid() == (0, 0, 0)


@pytest.mark.root
def test_a_directory_is_entered_with_the_rights_of_the_child(way: Way, tmp_path: Path) -> None:
    closed = tmp_path / "closed"
    closed.mkdir(mode=0o700)
    with pytest.raises(LaunchFailed) as failed:
        way(request(b"/bin/true", uid=65534, gid=65534, groups=(), cwd=os.fsencode(closed)))
    assert (failed.value.errno, failed.value.step) == (errno.EACCES, Step.CWD)


@pytest.mark.root
@pytest.mark.parametrize("what", ["uid=0", "gid=0", "groups=(0,)", "uid=65535"])
def test_credentials_that_are_not_ours_to_give_are_refused(way: Way, what: str) -> None:
    script = f"""
        become_ordinary()
        try:
            start(b"/bin/true", {what})
        except LaunchFailed as err:
            print(errno.errorcode[err.errno], err.step, children())
    """
    assert told_by_host(way, script) == "EPERM credentials []\n"


@pytest.mark.root
def test_an_ordinary_user_may_not_raise_a_hard_limit(way: Way) -> None:
    script = """
        import resource
        resource.setrlimit(resource.RLIMIT_CORE, (1000, 1000))
        become_ordinary()
        try:
            start(b"/bin/true", limits=((resource.RLIMIT_CORE, 1000, 2000),))
        except LaunchFailed as err:
            print(errno.errorcode[err.errno], err.step)
    """
    assert told_by_host(way, script) == "EPERM limits\n"


# -- from threads --------------------------------------------------------------


def test_eight_threads_at_once_each_get_their_own_child(way: Way) -> None:
    told: dict[bytes, bytes] = {}
    each = 20 if name_of(way) == "native_launch" else 4

    def ask(number: int) -> None:
        for i in range(each):
            word = b"%d.%d" % (number, i)
            told[word] = output_of(way, b"/bin/echo", b"-n", word)

    threads = [threading.Thread(target=ask, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    assert len(told) == 8 * each
    assert all(word == answer for word, answer in told.items())


def test_children_outlive_the_thread_that_asked_for_them(way: Way) -> None:
    contexts = []
    try:
        for _ in range(100 if name_of(way) == "native_launch" else 20):
            context = started(way, b"/bin/cat", parent_death=signal.SIGKILL)
            thread = threading.Thread(
                target=lambda context=context: contexts.append((context, context.__enter__()))
            )
            thread.start()
            thread.join(5)
        for _, child in contexts:
            child.ask()
    finally:
        for context, _ in contexts:
            context.__exit__(None, None, None)


@pytest.mark.parametrize("delay_ms", [0, 10, 100, 500])
def test_children_live_whenever_the_thread_that_asked_ends(way: Way, delay_ms: int) -> None:
    ready, leave = threading.Event(), threading.Event()
    context = started(way, b"/bin/cat", parent_death=signal.SIGKILL)
    children_of: list[Any] = []

    def ask() -> None:
        children_of.append(context.__enter__())
        ready.set()
        leave.wait(delay_ms / 1000)

    thread = threading.Thread(target=ask)
    thread.start()
    try:
        assert ready.wait(5)
        children_of[0].ask()
        thread.join(5)
        children_of[0].ask()
    finally:
        thread.join(5)
        context.__exit__(None, None, None)


# -- what a launch may say -----------------------------------------------------


@pytest.mark.parametrize(
    "wrong",
    [
        {"argv": ()},
        {"argv": (b"",)},
        {"argv": (b"a", b"b\0c")},
        {"path": b"true"},
        {"path": b"/bin/true\0"},
        {"cwd": b"/\0"},
        {"env": (b"NO_VALUE",)},
        {"env": (b"=x",)},
        {"env": (b"A=1", b"A=2")},
        {"env": (b"A=\0",)},
        {"whole": ((0, 0), (1, 1))},
        {"whole": ((0, 0), (1, 1), (1, 1), (2, 2))},
        {"whole": ((0, 0), (1, 1), (2, 2), (3, -1))},
    ],
)
def test_what_no_kernel_can_be_asked_is_a_value_error(way: Way, wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError):
        way(request(b"/bin/true", **wrong))
    assert children() == []


def test_the_native_way_can_be_turned_off(way: Way) -> None:
    script = """
        import birthmark.platforms.launch as both
        print(both.why_pure())
        pid, pidfd = both.launch(Launch(path=b"/bin/true", argv=(b"true",), env=(), descriptors=((0, 0), (1, 1), (2, 2))))
        assert os.waitpid(pid, 0)[1] == 0
        print("subprocess-spawner" in [thread.name for thread in threading.enumerate()])
    """
    off = told_by_host(way, script, env={**os.environ, "BIRTHMARK_NATIVE": "0"})
    assert lines(off) == ["turned off by BIRTHMARK_NATIVE=0", "True"]
    on = told_by_host(way, script, env={k: v for k, v in os.environ.items() if k != "BIRTHMARK_NATIVE"})
    if name_of(way) == "native_launch":
        assert lines(on) == ["None", "False"]
