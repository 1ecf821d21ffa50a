"""Linux itself: real processes in the states that mislead, looked at by us, by nobody, and out of namespaces."""

from __future__ import annotations

import errno
import os
import resource
import shutil
import signal
import subprocess
import sys
from dataclasses import replace
from typing import Final

import pytest

from birthmark.core.identity import (
    EnvironState,
    Identity,
    Reason,
    Sighting,
    Verdict,
)
from birthmark.core.judging import judge
from birthmark.core.markers import TAG_RESOURCE, ChildKind, entry, mark_entries, tag_of
from birthmark.core.outcomes import Basis, Delivery, Warrant
from birthmark.core.service import BirthId, ServiceName, birth_id, installation_id
from birthmark.errors import ProcessGone
from birthmark.platforms import load
from birthmark.testing import Puppet, puppet
from tests.namespaces import (
    ROOT,
    need_pidfs_inode,
    run_in_namespaces,
    run_python,
    run_without_pidfds,
)

if sys.platform != "linux":
    pytest.skip("this is about Linux", allow_module_level=True)

from birthmark.platforms import linux

BIRTH: Final = birth_id("0123456789abcdef" * 2)
OURS: Final = installation_id("aa" * 16)
TIME: Final = ServiceName("time")
MARKS: Final = mark_entries(kind=ChildKind.MCP, service=TIME, installation=OURS, birth=BIRTH)
CHILD: Final = Warrant(basis=Basis.CHILD, asked_by="a test")


def look(pid: int, *, environ: bool = True) -> Sighting:
    with linux.pin(pid) as pinned:
        seen = linux.observe(pinned, environ=environ)
    assert seen is not None
    return seen


def bare(seen: Sighting, birth: BirthId = BIRTH) -> Identity:
    """The identity as a kernel without inodes would have had it written down: mark and tag must decide."""
    return replace(
        seen.identity(birth=birth, installation=OURS, kind=ChildKind.MCP, service=TIME), inode=None
    )


def settled(child: Puppet) -> Sighting:
    child.wait_ready()
    return look(child.pid)


# States.


def test_a_running_process_is_seen_whole() -> None:
    with puppet("t = threading.Thread(target=stay); t.start(); ready(); t.join()", env=dict(MARKS)) as child:
        seen = settled(child)
        assert (seen.ppid, seen.pgid, seen.session) == (os.getpid(), child.pid, child.pid)
        assert (seen.exited, seen.threads, seen.environ_state) == (False, 2, EnvironState.READABLE)
        assert seen.environ == b"".join(entry(name, value) + b"\0" for name, value in MARKS.items())
        assert seen.facts == linux.facts()


def test_a_look_without_the_environment_reads_neither_block_nor_tag() -> None:
    with puppet() as child:
        child.wait_ready()
        seen = look(child.pid, environ=False)
        assert (seen.environ_state, seen.environ, seen.tag) == (EnvironState.UNSUPPORTED, b"", None)


def test_a_stopped_process_is_alive() -> None:
    with puppet("os.kill(os.getpid(), signal.SIGSTOP)") as child:
        os.waitid(os.P_PID, child.pid, os.WSTOPPED | os.WNOWAIT)
        seen = look(child.pid)
        assert (seen.state, seen.exited) == ("T", False)


def test_a_zombie_keeps_its_number_and_shows_no_environment() -> None:
    with puppet("ready()", env=dict(MARKS)) as child:
        child.wait_ready()
        child.wait_exited()
        seen = look(child.pid)
        assert (seen.state, seen.exited) == ("Z", True)
        assert judge(seen.identity(), seen).reason is Reason.ZOMBIE
        assert linux.is_zombie(child.pid)


ENDED_LEADER: Final = """
import ctypes
def serve():
    for line in sys.stdin: ready()
    os._exit(0)
threading.Thread(target=serve).start()
ready()
ctypes.CDLL(None).pthread_exit(None)
"""


def test_a_leader_whose_main_thread_ended_is_alive_while_others_serve() -> None:
    with puppet(ENDED_LEADER, env=dict(MARKS)) as child, linux.pin(child.pid) as pinned:
        child.wait_ready()
        # Each answer is a round trip, and the main thread is on its way out.
        for _ in range(2000):
            child.ask()
            seen = linux.observe(pinned)
            assert seen is not None
            if seen.state == "Z":
                break
        else:
            raise AssertionError("the main thread did not end")
        assert not seen.exited
        assert not linux.exited(pinned)
        assert not linux.is_zombie(child.pid)
        assert judge(bare(seen), seen).reason is Reason.MARK_OF_THIS_BIRTH
        child.ask()
        assert linux.deliver(pinned, signal.SIGTERM, CHILD) is Delivery.SENT
        child.wait_exited()
        assert linux.is_zombie(child.pid)


@pytest.mark.parametrize("name", [b") S 1 (", b"a\nb) R 1 1", b"((((", b"\xff)", b" "])
def test_no_name_of_a_process_shifts_the_fields(name: bytes) -> None:
    script = f"import ctypes; ctypes.CDLL(None).prctl(15, {name!r}, 0, 0, 0); ready(); obey()"
    with puppet(script) as child:
        seen = settled(child)
        assert (seen.ppid, seen.pgid, seen.exited) == (os.getpid(), child.pid, False)
        assert "\n" not in linux.command_line(child.pid)


# Environments.


def test_an_environment_of_a_megabyte_is_read_to_its_last_entry() -> None:
    big = {f"BIG_{number}": "x" * 100_000 for number in range(10)}
    with puppet(env={**big, **MARKS}) as child:
        seen = settled(child)
        assert len(seen.environ) > 1_000_000
        assert judge(bare(seen), seen).reason is Reason.MARK_OF_THIS_BIRTH


def test_an_environment_that_is_not_utf_8_is_read_as_bytes() -> None:
    with puppet(env={**MARKS, "ODD": os.fsdecode(b"\xff\xfe=\x80"), os.fsdecode(b"\xe4"): "1"}) as child:
        seen = settled(child)
        assert b"ODD=\xff\xfe=\x80\0" in seen.environ
        assert judge(bare(seen), seen).reason is Reason.MARK_OF_THIS_BIRTH


def test_an_environment_that_was_empty_at_birth_is_destroyed_at_the_first_look() -> None:
    with puppet(under=["env", "-i"], env=dict(MARKS)) as child:
        seen = settled(child)
        assert (seen.environ_state, seen.environ) == (EnvironState.DESTROYED, b"")


WIPED: Final = """
import ctypes
fields = open('/proc/self/stat').read().rpartition(')')[2].split()
begin, end = int(fields[47]), int(fields[48])
ctypes.memset(begin, FILL, end - begin)
ready(); obey()
"""


@pytest.mark.parametrize("fill", [0, ord("x"), ord(" ")])
def test_a_title_written_over_the_environment_leaves_the_tag(fill: int) -> None:
    with puppet(WIPED.replace("FILL", str(fill)), env={**MARKS, "PATH": "/bin"}) as child:
        resource.prlimit(child.pid, TAG_RESOURCE, (tag_of(BIRTH), resource.RLIM_INFINITY))
        seen = settled(child)
        assert seen.environ_state is EnvironState.DESTROYED
        assert judge(bare(seen), seen).reason is Reason.TAG_OF_THIS_BIRTH
        assert judge(bare(seen), replace(seen, tag=None)).verdict is Verdict.UNKNOWN


@pytest.mark.skipif(shutil.which("perl") is None, reason="perl is missing")
def test_a_real_programs_long_title_destroys_the_environment_and_not_the_tag() -> None:
    process = subprocess.Popen(
        ["perl", "-e", '$| = 1; $0 = "x" x 100000; print "R"; <STDIN>'],
        env={**MARKS, "PATH": "/bin"},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    try:
        assert process.stdout is not None
        resource.prlimit(process.pid, TAG_RESOURCE, (tag_of(BIRTH), resource.RLIM_INFINITY))
        assert process.stdout.read(1) == b"R"
        seen = look(process.pid)
        assert seen.environ_state is EnvironState.DESTROYED
        assert judge(bare(seen), seen).reason is Reason.TAG_OF_THIS_BIRTH
    finally:
        process.communicate(timeout=5)  # end-of-file ends it


def test_a_fork_that_has_not_execed_shows_its_parents_environment_and_says_so() -> None:
    script = "pid = os.fork()\nif not pid: stay()\ntell(pid); ready(); stay()"
    with puppet(script, env=dict(MARKS)) as child:
        fork = child.hear_pid()
        child.wait_ready()
        seen = look(fork)
        assert seen.environ_state is EnvironState.PARENTS
        assert judge(bare(seen, birth_id("f" * 32)), seen).verdict is Verdict.UNKNOWN
        assert judge(bare(seen), seen).verdict is Verdict.UNKNOWN


# The exec window.

SPAWNING: Final = """
for line in sys.stdin:
    birth, rounds = line.split()
    pid = os.fork()
    if not pid:
        mark = {"BIRTHMARK_SUBPROCESS": "1", "BIRTHMARK_MCP": "time", "BIRTHMARK_INSTALLATION": "aa" * 16,
                "BIRTHMARK_BIRTH": birth, "PAD": "x" * 5000}
        os.execve("/bin/sh", ["sh", "-c", "exec true"], mark)
    tell(pid)
    os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
    sys.stdin.readline()  # the watcher has let go
    os.waitpid(pid, 0)
"""


def watch_execs(count: int) -> tuple[list[str], int]:
    """Watch that many births from outside, from their fork on; return the wrong answers and the number of looks.

    The parent carries the mark of another birth, so a block read too early names another.
    """
    wrong: list[str] = []
    looks = 0
    parents = {**MARKS, "BIRTHMARK_BIRTH": "f" * 32, "PATH": "/bin:/usr/bin"}
    with puppet(SPAWNING, env=parents) as child:
        for number in range(count):
            birth = birth_id(f"{number:032x}")
            child.say(f"{birth} 1")
            pid = child.hear_pid()
            with linux.pin(pid) as pinned:
                while True:
                    seen = linux.observe(pinned)
                    looks += 1
                    if seen is None:
                        wrong.append(f"{number}: gone, though unreaped")
                        break
                    proof = judge(bare(seen, birth), seen)
                    if proof.verdict is Verdict.GONE:
                        break
                    if proof.verdict is Verdict.SAME and proof.reason is Reason.MARK_OF_THIS_BIRTH:
                        continue
                    if not proof.transient:
                        wrong.append(
                            f"{number}: {proof}, {seen.state} {seen.environ_state} {seen.environ[:60]!r}"
                        )
            child.say("done")
    return wrong, looks


def test_two_hundred_execs_watched_from_outside_give_no_wrong_answer() -> None:
    wrong, looks = watch_execs(200)
    assert wrong == []
    assert looks >= 200


@pytest.mark.slow
def test_a_thousand_execs_watched_from_outside_give_no_wrong_answer() -> None:
    wrong, _ = watch_execs(1000)
    assert wrong == []


# The tag.

ORDINARY_TAG: Final = """
drop()
value = tag_of(birth_id('0123456789abcdef' * 2))
hard = resource.getrlimit(TAG_RESOURCE)[1]
assert linux.tag_possible(value), hard

def tagged(writing):
    resource.setrlimit(TAG_RESOURCE, (value, hard))
    os.setsid()
    os.dup2(writing, 1)
    os.execve('/bin/sh', ['sh', '-c', 'printf R; exec env -i sleep 600'], {})

pid = fork(tagged)
assert linux.read_tag(pid) == value
assert resource.prlimit(pid, TAG_RESOURCE)[1] == hard, 'the hard value was touched'
with linux.pin(pid) as pinned:
    # The shell gave it a PWD; env takes that away, a moment after the byte.
    deadline = time.monotonic() + 5
    while (seen := linux.observe(pinned)).environ_state is not EnvironState.DESTROYED:
        assert time.monotonic() < deadline, seen
    assert seen.tag == value
end(pid)
assert not is_tag(linux.read_tag(os.getpid()))
"""


def test_an_ordinary_user_sets_and_reads_the_tag_through_env_i_and_setsid() -> None:
    run_python(ORDINARY_TAG)


def test_a_finite_hard_limit_leaves_no_room_for_the_tag() -> None:
    run_python(
        "resource.setrlimit(TAG_RESOURCE, (1000, 2**40))\n"
        "assert not linux.tag_possible(tag_of(birth_id('0' * 32)))\n"
        "assert not linux.capabilities().tag\n"
    )


def test_the_tag_of_nobody_is_none() -> None:
    assert linux.read_tag(2**31 - 1) is None


# Lookers without rights.

UNDUMPABLE: Final = """
drop()
def undumpable(writing):
    libc = ctypes.CDLL(None)
    libc.prctl(4, 0, 0, 0, 0)
    pause(writing)
pid = fork(undumpable)
with linux.pin(pid) as pinned:
    seen = linux.observe(pinned)
assert seen.environ_state is EnvironState.DENIED, seen
assert seen.start_ticks == linux.start_ticks_of(pid)
identity = seen.identity(birth=birth_id('0' * 32), installation=installation_id('a' * 32),
                         kind=ChildKind.MCP, service=ServiceName('x'))
proof = judge(dataclasses.replace(identity, inode=None), seen)
assert (proof.verdict, proof.reason) == (Verdict.UNKNOWN, Reason.ENVIRON_DENIED), proof
if seen.inode is not None:
    assert judge(identity, seen).reason is Reason.SAME_INODE
end(pid)
"""


def test_a_process_that_is_not_dumpable_is_denied_not_foreign() -> None:
    run_python(UNDUMPABLE)


@pytest.mark.root
def test_another_users_process_is_denied_and_not_signalled() -> None:
    with puppet(env={**MARKS}) as child:
        child.wait_ready()
        run_python(
            f"pid = {child.pid}\n"
            "drop()\n"
            "with linux.pin(pid) as pinned:\n"
            "    seen = linux.observe(pinned)\n"
            "    assert seen.environ_state is EnvironState.DENIED, seen\n"
            "    assert not seen.exited and seen.tag is None\n"
            "    try: linux.deliver(pinned, signal.SIGKILL, Warrant(basis=Basis.CALLER, asked_by='x'))\n"
            "    except NotPermitted as err: assert err.pid == pid\n"
            "    else: raise AssertionError('it was signalled')\n"
        )
        child.ask()


HIDDEN: Final = """
subprocess.run(['mount', '-o', 'remount,hidepid=2', '/proc'], check=True)
target = fork(pause)
with linux.pin(target) as pinned:
    identity = linux.observe(pinned).identity(birth=birth_id('0' * 32), installation=installation_id('a' * 32),
                                              kind=ChildKind.MCP, service=ServiceName('x'))
looker = os.fork()
if not looker:
    code = 1
    try:
        drop()
        assert target not in linux.all_pids() and os.getpid() in linux.all_pids()
        assert linux.start_ticks_of(target) is None
        with linux.pin(target) as pinned:
            assert not linux.exited(pinned)
            seen = linux.observe(pinned)
            assert seen.environ_state is EnvironState.HIDDEN, seen
            proof = judge(identity, seen)
            expected = Verdict.UNKNOWN if seen.inode is None else Verdict.SAME
            assert proof.verdict is expected, proof
            assert judge(dataclasses.replace(identity, inode=None), seen).verdict is Verdict.UNKNOWN
        code = 0
    except BaseException as err:
        print(repr(err), flush=True)
    finally:
        os._exit(code)
_, status = os.waitpid(looker, 0)
end(target)
assert status == 0
"""


@pytest.mark.root
@pytest.mark.namespaces
def test_a_process_that_hidepid_hides_is_pinned_and_unknown_never_gone() -> None:
    run_in_namespaces(HIDDEN)


# Namespaces.

BLIND: Final = """
def refused(look, *arguments):
    try: answer = look(*arguments)
    except LookFailed as err: return str(err)
    raise AssertionError(f'{look.__name__} answered {answer!r}')

pid = int(sys.argv[1]) if len(sys.argv) > 1 else fork(pause)
pinned = linux.pin(pid)
messages = {refused(linux.facts), refused(linux.all_pids), refused(linux.start_ticks_of, pid),
            refused(linux.parent_of, pid), refused(linux.observe, pinned), refused(linux.group_members, pid)}
assert len(messages) <= 2, messages
assert not linux.exited(pinned)
assert not linux.is_zombie(pid)
print(messages)
pinned.close()
if len(sys.argv) == 1: end_blind(pid)
"""


@pytest.mark.namespaces
def test_without_procfs_nothing_is_said_about_anybody() -> None:
    if os.geteuid() == 0:
        # In a pid namespace ours covers the one of the namespace above.
        script = (
            "while os.path.lexists('/proc/self'): subprocess.run(['umount', '-l', '/proc'], check=True)\n"
        )
    else:
        # A user namespace may not take away a mount it was given, but it may cover it.
        script = "subprocess.run(['mount', '-t', 'tmpfs', 'none', '/proc'], check=True)\n"
    script += "def end_blind(pid): os.kill(pid, 9); os.waitpid(pid, 0)\n"
    assert "there is no procfs" in run_in_namespaces(script + BLIND, pid=False)


@pytest.mark.namespaces
def test_procfs_of_another_pid_namespace_is_not_believed() -> None:
    script = "def end_blind(pid): os.kill(pid, 9); os.waitpid(pid, 0)\n" + BLIND
    assert "another pid namespace" in run_in_namespaces(script, mount_proc=False)


REUSED: Final = """
def recycle(pid):
    '''Have a new process born under the number of one that was reaped.'''
    for _ in range(200):
        with open('/proc/sys/kernel/ns_last_pid', 'w') as file: file.write(str(pid - 1))
        reading, writing = os.pipe()
        born = os.fork()
        if not born:
            os.close(writing)
            os.read(reading, 1)
            os._exit(7)
        os.close(reading)
        if born == pid: return writing
        os.close(writing)
        os.waitpid(born, 0)
    raise AssertionError('the number was not to be had')

same_tick = 0
for round in range(30):
    old = fork(pause)
    held = linux.pin(old)
    identity = linux.observe(held).identity(birth=birth_id('0' * 32), installation=installation_id('a' * 32),
                                            kind=ChildKind.MCP, service=ServiceName('x'))
    end(old)
    if round % 3 == 2: time.sleep(0.03)  # three ticks: this one differs in its start time for certain
    writing = recycle(old)
    assert linux.observe(held) is None
    assert linux.exited(held)
    answer = linux.deliver(held, signal.SIGKILL, Warrant(basis=Basis.CALLER, asked_by='a test'))
    assert answer is Delivery.GONE, answer
    with linux.pin(old) as pinned:
        seen = linux.observe(pinned)
        proof = judge(identity, seen)
        if seen.inode is not None:
            assert proof.verdict is Verdict.DIFFERENT, proof
        bare = judge(dataclasses.replace(identity, inode=None), seen)
        assert bare.verdict is not Verdict.SAME, bare
        same_tick += seen.start_ticks == identity.start_ticks
        if round % 3 == 2: assert bare.reason is Reason.OTHER_START_TIME, bare
    held.close()
    os.write(writing, b'x')
    os.close(writing)
    assert os.waitstatus_to_exitcode(os.waitpid(old, 0)[1]) == 7, 'the stranger was signalled'
print(same_tick)
"""


@pytest.mark.namespaces
def test_a_recycled_pid_is_different_and_its_old_pin_never_signals_it() -> None:
    need_pidfs_inode()
    run_in_namespaces(REUSED)


@pytest.mark.namespaces
def test_without_pidfds_a_recycled_pid_is_never_the_same_and_not_signalled_after_a_tick() -> None:
    script = REUSED.replace("fork(pause)\n    held", "fork(pause)\n    linux._no_pidfd = True\n    held")
    # Within one tick only a mark or a tag could tell; the gap that a pidfd closes.
    script = script.replace("if round % 3 == 2: time.sleep(0.03)", "time.sleep(0.03)")
    run_in_namespaces(script)


# A kernel without pidfds.


@pytest.mark.parametrize("number", [errno.ENOSYS, errno.EPERM])
def test_a_kernel_without_pidfds_is_detected(number: int) -> None:
    run_without_pidfds(
        "found = linux.capabilities()\n"
        "assert not (found.pidfd or found.pidfs_inode or found.group_signal), found\n"
        "assert any('no pidfd' in note for note in found.notes), found\n"
        "pid = fork(pause)\n"
        "with linux.pin(pid) as pinned:\n"
        "    assert pinned.fd is None and linux.exit_fd(pinned) is None\n"
        "    seen = linux.observe(pinned)\n"
        "    assert seen.inode is None and not seen.exited\n"
        "end(pid)\n"
        "assert linux.start_ticks_of(pid) is None\n",
        errno=number,
    )


@pytest.mark.parametrize("number", [errno.ENOSYS, errno.EPERM])
def test_the_contract_holds_on_a_kernel_without_pidfds(number: int) -> None:
    run_without_pidfds(
        "import pytest\n"
        "sys.exit(pytest.main(['-q', '-p', 'no:cacheprovider', '--basetemp', sys.argv[1],\n"
        "    'tests/contracts/test_process_control.py', '-k', 'real']))\n",
        errno=number,
        argv=[os.path.join(os.environ.get("TMPDIR", "/tmp"), f"birthmark-no-pidfd-{os.getpid()}-{number}")],
        within_s=50,
    )


# Listing.


def test_every_threads_children_are_children() -> None:
    script = (
        "def work():\n"
        "    pid = os.fork()\n"
        "    if not pid: stay()\n"
        "    tell(pid); stay()\n"
        "t = threading.Thread(target=work); t.start(); t.join()"
    )
    with puppet(script) as child:
        fork = child.hear_pid()
        assert linux.children_of(child.pid) == [fork]
        assert linux.parent_of(fork) == child.pid


def test_a_thread_is_no_process() -> None:
    with puppet("t = threading.Thread(target=stay); t.start(); tell(t.native_id); t.join()") as child:
        thread = child.hear_pid()
        assert thread != child.pid
        assert thread not in linux.all_pids()
        with pytest.raises(ProcessGone):
            linux.pin(thread)


def test_a_command_line_is_one_printable_line() -> None:
    with puppet(argv=["a b", "new\nline", "\x1b[31m", "grüße"]) as child:
        child.wait_ready()
        line = linux.command_line(child.pid)
        assert line.endswith(r"a b new\x0aline \x1b[31m grüße")
    assert linux.command_line(2**31 - 1) == ""


def test_a_zombies_command_line_is_its_name() -> None:
    with puppet("ready()") as child:
        child.wait_ready()
        child.wait_exited()
        assert linux.command_line(child.pid).startswith("[")


def test_our_own_environment_is_shown_as_it_was_at_our_birth() -> None:
    own = linux.own_environ()
    assert own is not None
    with open("/proc/self/environ", "rb") as file:
        assert own == file.read()


def test_capabilities_are_what_this_kernel_does() -> None:
    found = load().capabilities()
    assert found.platform == "linux"
    assert found.pidfd
    assert found.environ
    assert (ROOT / "src").is_dir()
    with puppet() as one, puppet() as two:
        one.wait_ready()
        two.wait_ready()
        first, second = look(one.pid).inode, look(two.pid).inode
        assert (first is not None and first != second) == found.pidfs_inode
