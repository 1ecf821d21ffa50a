"""What happens to the host while and after it starts programs: death, fork, exit, interruption, filters.

Each host is a process of its own. A lifeline (a pipe that its children inherit) tells by end-of-file that all are gone.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from birthmark.platforms.launch import Way
from tests.platforms.launching import both_ways, ends_within, host, lines, name_of, told_by_host

pytestmark = [pytest.mark.skipif(sys.platform != "linux", reason="parent death is Linux's"), both_ways]


@contextmanager
def lifeline() -> Iterator[tuple[int, int]]:
    """Make the pipe; the write end is closed here as soon as the host has it, or at the end."""
    r, w = os.pipe()
    try:
        yield r, w
    finally:
        os.close(r)


def wait_ready(process_stdout: int) -> None:
    assert os.read(process_stdout, 1) == b"R"


# -- parent death --------------------------------------------------------------

START_AND_STAY = """
    line = int(sys.argv[1])
    start(b"/bin/sleep", b"1000", descriptors=((line, 9),), {options})
    os.close(line)
    os.write(1, b"R")
    signal.pause()
"""


@pytest.mark.parametrize("options", ["", "session=Session.NEW_SESSION", "parent_death=signal.SIGKILL"])
def test_a_child_ends_when_its_parent_is_killed(way: Way, options: str) -> None:
    with lifeline() as (r, w):
        with host(way, START_AND_STAY.format(options=options), str(w), pass_fds=(w,)) as process:
            os.close(w)
            assert process.stdout is not None
            wait_ready(process.stdout.fileno())
            process.kill()
            assert ends_within(r)


@pytest.mark.root
@pytest.mark.parametrize("options", ["uid=65534", "gid=65534", "uid=65534, gid=65534, groups=()"])
def test_a_child_with_other_credentials_ends_when_its_parent_is_killed(way: Way, options: str) -> None:
    with lifeline() as (r, w):
        with host(way, START_AND_STAY.format(options=options), str(w), pass_fds=(w,)) as process:
            os.close(w)
            assert process.stdout is not None
            wait_ready(process.stdout.fileno())
            process.kill()
            assert ends_within(r)


def test_a_child_ends_when_its_parent_exits(way: Way) -> None:
    script = """
        import atexit
        line = int(sys.argv[1])
        atexit.register(lambda: start(b"/bin/sleep", b"1000", descriptors=((line, 9),)))
        start(b"/bin/sleep", b"1000", descriptors=((line, 9),))
        {end}
    """
    for end, status in (("pass", 0), ("sys.exit(3)", 3), ("os.kill(os.getpid(), 15)", -15)):
        with lifeline() as (r, w):
            with host(way, script.format(end=end), str(w), pass_fds=(w,)) as process:
                os.close(w)
                assert process.wait(5) == status
                assert ends_within(r)


def test_a_child_that_is_not_armed_outlives_its_parent(way: Way) -> None:
    script = """
        line = int(sys.argv[1])
        pid, _ = start(b"/bin/cat", into=int(sys.argv[2]), out=line, parent_death=None)
        print(pid)
    """
    into, question = os.pipe()
    with lifeline() as (r, w):
        told_by_host(way, script, str(w), str(into), pass_fds=(w, into))
        os.close(w)
        os.close(into)
        os.write(question, b"?")
        assert os.read(r, 1) == b"?"
        os.close(question)
        assert ends_within(r)


RACE = """
    # Forked, so that each try costs little: every child of ours is a host that is killed at a random moment of its launch.
    libc.prctl(36, 1, 0, 0, 0)  # PR_SET_CHILD_SUBREAPER: orphans come to us
    rng = random.Random(int(sys.argv[1]))
    tries, armed, longest_s = int(sys.argv[2]), {{"yes": 15, "no": None}}[sys.argv[3]], float(sys.argv[4])
    orphans = 0
    for _ in range(tries):
        line, held = os.pipe()
        ready, tell = os.pipe()
        victim = os.fork()
        if victim == 0:
            os.write(tell, b"R")
            start(b"/bin/sleep", b"1000", descriptors=((held, 9),), parent_death=armed)
            os.write(tell, b"S")
            signal.pause()
        os.close(held)
        os.close(tell)
        os.read(ready, 1)
        if armed is None:
            os.read(ready, 1)
        os.close(ready)
        until = time.perf_counter() + rng.random() * longest_s
        while time.perf_counter() < until:
            pass
        os.kill(victim, signal.SIGKILL)
        os.waitpid(victim, 0)
        ended = select.select([line], [], [], {within_s})[0]
        orphans += not ended
        os.close(line)
        while True:  # whoever fell to us
            left = children()
            if not left:
                break
            for pid in left:
                os.kill(pid, signal.SIGKILL)
                os.waitpid(pid, 0)
    print(orphans)
"""


@pytest.mark.parametrize("seed", [1, 2])
def test_a_parent_killed_at_a_random_moment_of_its_launch_leaves_no_child(way: Way, seed: int) -> None:
    longest_s = {"native_launch": 0.002, "pure_launch": 0.060}[name_of(way)]
    script = RACE.format(within_s=5)
    assert told_by_host(way, script, str(seed), "100", "yes", str(longest_s), within_s=50) == "0\n"


def test_the_race_sees_the_children_that_are_not_armed(way: Way) -> None:
    """The counterpart of the test above: it fails if that one could not have failed."""
    assert told_by_host(way, RACE.format(within_s=0.1), "3", "5", "no", "0.001", within_s=20) == "5\n"


# -- fork in the host ----------------------------------------------------------


def test_a_fork_of_the_host_can_start_programs_of_its_own(way: Way) -> None:
    script = """
        assert run(b"/bin/echo", b"before") == b"before\\n"
        pid = os.fork()
        if pid == 0:
            assert run(b"/bin/echo", b"child") == b"child\\n"
            grandchild = os.fork()
            if grandchild == 0:
                assert run(b"/bin/echo", b"grandchild") == b"grandchild\\n"
                os._exit(0)
            assert os.waitpid(grandchild, 0)[1] == 0
            os._exit(0)
        assert os.waitpid(pid, 0)[1] == 0
        assert run(b"/bin/echo", b"after") == b"after\\n"
        print("good")
    """
    assert told_by_host(way, script) == "good\n"


def test_a_child_of_a_fork_ends_with_the_fork_and_not_with_the_host(way: Way) -> None:
    script = """
        line = int(sys.argv[1])
        run(b"/bin/true")
        pid = os.fork()
        if pid == 0:
            start(b"/bin/sleep", b"1000", descriptors=((line, 9),))
            os.write(1, b"R")
            signal.pause()
        os.close(line)
        os.read(0, 1)
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        os.write(1, b"K")
        os.read(0, 1)
    """
    with lifeline() as (r, w):
        with host(way, script, str(w), pass_fds=(w,)) as process:
            os.close(w)
            assert process.stdout is not None
            assert process.stdin is not None
            wait_ready(process.stdout.fileno())
            process.stdin.write(b"k")
            process.stdin.flush()
            assert process.stdout.read(1) == b"K"
            assert ends_within(r)


def test_forks_in_the_middle_of_launches_harm_neither_side(way: Way) -> None:
    script = """
        stop = False
        def keep_starting():
            while not stop:
                assert run(b"/bin/echo", b"x") == b"x\\n"
        threads = [threading.Thread(target=keep_starting) for _ in range(3)]
        for thread in threads: thread.start()
        for _ in range(int(sys.argv[1])):
            pid = os.fork()
            if pid == 0:
                ok = run(b"/bin/echo", b"forked") == b"forked\\n"
                os._exit(0 if ok else 1)
            assert os.waitpid(pid, 0)[1] == 0
        stop = True
        for thread in threads: thread.join()
        print("good")
    """
    forks = {"native_launch": "40", "pure_launch": "10"}[name_of(way)]
    assert told_by_host(way, script, forks, within_s=30) == "good\n"


def test_a_fork_that_stays_does_not_hide_that_a_program_runs(way: Way) -> None:
    """The forked process may hold what the launch waits on: forks come at random moments, and live on."""
    script = """
        line, held = os.pipe()
        forks = []
        def fork_and_stay():
            for _ in range(30):
                pid = os.fork()
                if pid == 0:
                    os.close(held)
                    os.read(line, 1)
                    os._exit(0)
                forks.append(pid)
                time.sleep(0.002)
        thread = threading.Thread(target=fork_and_stay)
        thread.start()
        launches = 0
        while thread.is_alive():
            pid, pidfd = start(b"/bin/true")
            os.waitpid(pid, 0)
            os.close(pidfd)
            launches += 1
        thread.join()
        os.close(held)
        for pid in forks: os.waitpid(pid, 0)
        print("good" if launches else "too late")
    """
    for _ in range(3):
        assert told_by_host(way, script, within_s=8) == "good\n"


# -- an exception while we wait ------------------------------------------------


@pytest.mark.parametrize("seed", [1, 2])
def test_a_requester_that_is_interrupted_leaves_no_child(way: Way, seed: int) -> None:
    script = """
        class Interrupted(BaseException): pass
        def interrupt(*_): raise Interrupted
        signal.signal(signal.SIGALRM, interrupt)
        rng = random.Random(int(sys.argv[1]))
        tries, longest_s = int(sys.argv[2]), float(sys.argv[3])
        run(b"/bin/true")
        interrupted = 0
        asked = Launch(path=b"/bin/sleep", argv=(b"sleep", b"1000"), env=(), descriptors=((NULL, 0), (NULL, 1), (2, 2)))
        before = set(os.listdir("/proc/self/fd"))
        for _ in range(tries):
            born = None
            try:
                signal.setitimer(signal.ITIMER_REAL, 1e-6 + rng.random() * longest_s)
                born = launch(asked)
                signal.setitimer(signal.ITIMER_REAL, 0)
            except Interrupted:
                interrupted += 1
            signal.setitimer(signal.ITIMER_REAL, 0)
            if born is not None:
                os.kill(born[0], signal.SIGKILL)
                os.waitpid(born[0], 0)
                os.close(born[1])
        run(b"/bin/true")  # comes after whatever the spawner still had to put right
        import gc
        gc.collect()  # a close() that was itself interrupted is made up for by the collector
        print(children(), set(os.listdir("/proc/self/fd")) == before, interrupted > 0)
    """
    longest_s, tries = {"native_launch": ("0.001", "300"), "pure_launch": ("0.040", "60")}[name_of(way)]
    assert told_by_host(way, script, str(seed), tries, longest_s, within_s=30) == "[] True True\n"


# -- kernels and filters that know less ----------------------------------------


def test_without_pidfds_a_launch_returns_none_for_one(way: Way) -> None:
    script = """
        forbid(434, flags_of_clone=0x1000)  # pidfd_open, CLONE_PIDFD
        pid, pidfd = start(b"/bin/true")
        assert os.waitpid(pid, 0)[1] == 0
        try:
            start(b"/nowhere")
        except LaunchFailed as err:
            print(pidfd, err.step, children())
    """
    assert told_by_host(way, script) == "None exec []\n"


def test_without_close_range_the_undeclared_is_closed_all_the_same(way: Way) -> None:
    script = """
        forbid(436)  # close_range
        leak = os.dup2(NULL, 300)
        os.set_inheritable(leak, True)
        show = b"import os; os.write(1, repr(sorted(map(int, os.listdir('/proc/self/fd')))).encode())"
        print(run(os.fsencode(sys.executable), b"-I", b"-S", b"-c", show, descriptors=((NULL, 50),)).decode())
    """
    assert told_by_host(way, script) == "[0, 1, 2, 3, 50]\n"


@pytest.mark.namespaces
def test_without_procfs_the_undeclared_is_closed_all_the_same(way: Way) -> None:
    script = """
        forbid(436)
        leak = os.dup2(NULL, 300)
        os.set_inheritable(leak, True)
        libc.unshare(0x00020000)
        assert libc.mount(b"none", b"/", None, 1 << 14 | 1 << 18, None) == 0
        assert libc.umount2(b"/proc", 2) == 0
        show = b"import os\\nfor fd in range(1000):\\n  try: os.fstat(fd)\\n  except OSError: continue\\n  print(fd, end=' ')"
        print(run(os.fsencode(sys.executable), b"-I", b"-S", b"-c", show, descriptors=((NULL, 50),)).decode())
    """
    if os.geteuid() != 0:
        pytest.skip("unmounting /proc in a namespace of one's own needs root here")
    assert lines(told_by_host(way, script))[-1].split() == ["0", "1", "2", "50"]


def test_a_host_that_ignores_sigchld_gets_its_child(way: Way) -> None:
    script = """
        signal.signal(signal.SIGCHLD, signal.SIG_IGN)
        pid, pidfd = start(b"/bin/cat", into=(r := os.pipe())[0])
        try:
            start(b"/nowhere")
        except LaunchFailed as err:
            print(err.step)
        assert not select.select([pidfd], [], [], 0)[0]
        os.close(r[1]); os.close(r[0])
        print(bool(select.select([pidfd], [], [], 5)[0]))
    """
    assert told_by_host(way, script) == "exec\nTrue\n"


def test_a_host_that_dies_of_sigpipe_does_not_die_of_a_failed_launch(way: Way) -> None:
    script = """
        signal.signal(signal.SIGPIPE, signal.SIG_DFL)
        for _ in range(5):
            try:
                start(b"/nowhere")
            except LaunchFailed as err:
                print(err.step)
    """
    assert lines(told_by_host(way, script)) == ["exec"] * 5


def test_a_host_that_changes_its_user_can_go_on(way: Way) -> None:
    """setuid() of the C library stops every thread for a moment, the spawner's among them."""
    if os.geteuid() != 0:
        pytest.skip("needs root")
    script = """
        run(b"/bin/true")
        become_ordinary()
        print(run(b"/usr/bin/id", b"-u").decode(), end="")
    """
    assert told_by_host(way, script) == "65534\n"


def test_a_child_killed_before_it_runs_is_nobody_elses_harm(way: Way) -> None:
    script = """
        signal.signal(signal.SIGTERM, lambda *_: None)
        for _ in range(30):
            timer = threading.Timer(random.random() * 0.002, os.killpg, (os.getpgrp(), signal.SIGTERM))
            timer.start()
            try:
                pid, pidfd = start(b"/bin/true")
            except LaunchFailed as err:
                print(err)
                continue
            assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) in (0, -15)
            os.close(pidfd)
            timer.join()
        print("good")
    """
    with host(way, script) as process:
        output, _ = process.communicate(timeout=20)
    assert output.decode() == "good\n"
    assert process.returncode == 0
