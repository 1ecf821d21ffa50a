"""An exec that does not come to its end: a program on a file system that the host itself serves.

fanotify stands in for one: the kernel holds the exec until a thread of the same process has allowed it.
"""

from __future__ import annotations

import os
import sys

import pytest

from birthmark.platforms.launch import Way
from tests.platforms.launching import both_ways, told_by_host

pytestmark = [
    pytest.mark.root,
    pytest.mark.skipif(sys.platform != "linux", reason="fanotify is Linux's"),
    both_ways,
]

SERVED = """
    import shutil, tempfile
    FAN_CLASS_CONTENT, FAN_CLOEXEC, FAN_MARK_ADD, FAN_OPEN_EXEC_PERM, FAN_ALLOW = 4, 1, 1, 0x40000, 1

    class Served:
        "A program whose every exec waits for `allow`, called by a thread of ours."
        def __init__(self):
            self.folder = tempfile.mkdtemp()
            self.path = os.path.join(self.folder, "program").encode()
            shutil.copy("/bin/true", self.path)
            self.fd = libc.fanotify_init(FAN_CLASS_CONTENT | FAN_CLOEXEC, os.O_RDONLY)
            marked = self.fd >= 0 and libc.fanotify_mark(
                self.fd, FAN_MARK_ADD, ctypes.c_uint64(FAN_OPEN_EXEC_PERM), -100, self.path)
            if self.fd < 0 or marked != 0:
                print("no fanotify:", os.strerror(ctypes.get_errno()))
                sys.exit()
        def asked(self):
            "Wait until an exec hangs, and return the descriptor that stands for the question."
            assert select.select([self.fd], [], [], 5)[0]
            return struct.unpack_from("IBBHQii", os.read(self.fd, 24))[5]  # one at a time
        def allow(self, question):
            os.write(self.fd, struct.pack("iI", question, FAN_ALLOW))
            os.close(question)
        def close(self):
            os.close(self.fd)
            shutil.rmtree(self.folder)

    served = Served()
"""


def told(way: Way, script: str) -> str:
    output = told_by_host(way, SERVED + script, within_s=10)
    if output.startswith("no fanotify"):
        pytest.skip(output)
    return output


def test_a_program_on_a_file_system_that_the_host_itself_serves_starts(way: Way) -> None:
    """The one who allows the exec needs the GIL, which the one who waits for it must not keep."""
    script = """
    thread = threading.Thread(target=lambda: served.allow(served.asked()))
    thread.start()
    pid, pidfd = start(served.path)
    print(os.waitpid(pid, 0)[1])
    served.close()
    """
    assert told(way, script) == "0\n"


def test_an_exec_that_hangs_holds_up_no_other_launch(way: Way) -> None:
    script = """
    born = []
    thread = threading.Thread(target=lambda: born.append(start(served.path)))
    thread.start()
    question = served.asked()
    for _ in range(5):
        print(run(b"/bin/echo", b"unhurried").decode(), end="")
    print(born)
    served.allow(question)
    thread.join()
    print(os.waitpid(born[0][0], 0)[1])
    served.close()
    """
    assert told(way, script) == "unhurried\n" * 5 + "[]\n0\n"


def test_many_execs_that_hang_are_all_served_in_the_end(way: Way) -> None:
    """The native spawner has a last thread; behind it launches wait, and can be interrupted."""
    script = """
    born = []
    def ask():
        born.append(start(served.path))
    threads = [threading.Thread(target=ask) for _ in range(12)]
    for thread in threads: thread.start()
    for _ in threads: served.allow(served.asked())
    for thread in threads: thread.join()
    print(sorted(os.waitpid(pid, 0)[1] for pid, _ in born))
    served.close()
    """
    assert told(way, script) == f"{[0] * 12}\n"


def test_a_requester_interrupted_in_an_exec_that_hangs_leaves_no_child(way: Way) -> None:
    script = """
    class Interrupted(BaseException): pass
    def interrupt(*_): raise Interrupted
    signal.signal(signal.SIGALRM, interrupt)
    signal.setitimer(signal.ITIMER_REAL, 0.3)
    try:
        start(served.path)
    except Interrupted:
        print("interrupted")
    until = time.monotonic() + 5
    while children() and time.monotonic() < until:
        time.sleep(0.01)
    print(children())
    served.close()
    print(run(b"/bin/echo", b"again").decode(), end="")
    """
    assert told(way, script) == "interrupted\n[]\nagain\n"


def test_a_parent_that_dies_in_an_exec_that_hangs_takes_the_child_along(way: Way) -> None:
    r, w = os.pipe()
    script = f"""
    question = []
    def die():
        served.asked()
        shutil.rmtree(served.folder)
        print("dies", flush=True)
        os.kill(os.getpid(), signal.SIGTERM)
    threading.Thread(target=die).start()
    os.set_inheritable({w}, False)
    start(served.path, descriptors=(({w}, 9),))
    """
    from tests.platforms.launching import ends_within, host

    try:
        with host(way, SERVED + script, pass_fds=(w,)) as process:
            os.close(w)
            output, _ = process.communicate(timeout=10)
            if output.startswith(b"no fanotify"):
                pytest.skip(output.decode())
            assert output == b"dies\n"
            assert ends_within(r)
    finally:
        os.close(r)
