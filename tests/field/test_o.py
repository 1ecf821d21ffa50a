"""Field cases: containers, namespaces, and process data that is hidden, empty or altered."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from dataclasses import replace

import pytest

from birthmark import ChildKind, Verdict, find_carriers, open_installation, prove, prove_mark, stop_set_now
from birthmark.core.identity import EnvironState
from birthmark.core.parsers import parse_stat
from birthmark.platforms import load
from birthmark.testing.puppet import puppet
from tests.field.staging import PATIENT, in_pid_namespace, python, shell, wait_lifeline_end

PRELOAD = """
import ctypes, json, os, subprocess, sys
import birthmark
from birthmark import *
from birthmark.platforms import load
import birthmark.children.control, birthmark.platforms.linux
for name in birthmark.children.__all__: getattr(birthmark, name)
# The first spawn imports what it needs, while the interpreter's folder is still open to us.
with Spawner() as warm: warm.spawn_owned_supervised(Command("/bin/true")).wait(5)
"""


@pytest.mark.root
@pytest.mark.namespaces
def test_o1_behind_hidepid_strangers_are_skipped_and_our_services_are_stopped() -> None:
    script = (
        PRELOAD
        + """
stranger = subprocess.Popen(["sleep", "60"])
subprocess.run(["mount", "-t", "proc", "-o", "hidepid=2", "proc", "/proc"], check=True)
os.environ["BIRTHMARK_HOME"] = "/tmp/birthmark-hidepid-%d" % stranger.pid
os.setgroups([]); os.setgid(65534); os.setuid(65534)
me = os.getpid()
visible = load().all_pids()
with Spawner() as spawner:
    cat = Command("/bin/cat", stdin=Stdio.PIPE, stdout=Stdio.PIPE)
    child = spawner.spawn_owned_supervised(mark_child(cat, ChildKind.MCP, "mine"))
    # Inside its exec this procfs hides even a process of our own; it answers when it is through.
    child.stdin.write(b"?")
    child.stdout.read(1)
    proof = prove(child.identity)
    found = find_carriers([child.birth], child.identity.installation)
    receipt = stop_set_now(child.identity, StopPolicy(), asked_by="test", held=child.pinned)
    print(json.dumps([stranger.pid in visible, me in visible, proof.verdict.value,
                      [c.pid == child.pid for c in found], receipt.termination.value]))
    child.wait(5)
"""
    )
    hidden, shown, verdict, found, termination = json.loads(in_pid_namespace(script))
    assert (hidden, shown) == (False, True)
    assert verdict == "same"
    assert found == [True]
    assert termination == "exited"


PERL = shutil.which("perl")
TITLE = """$| = 1; print "R"; $0 = "x" x 6000; print "R"; <STDIN>; sleep 60"""


@pytest.mark.skipif(PERL is None, reason="perl is missing (Debian package perl-base)")
def test_o2_o3_a_child_that_wrote_its_title_over_its_environment_is_still_ours() -> None:
    with shell(f"exec perl -e '{TITLE}'", readies=2) as child:
        seen = load().observe(child.pinned)
        assert seen is not None
        assert seen.environ_state is EnvironState.DESTROYED
        # The mark is gone for good; the record, and the tag, are not.
        assert child.identity.service is not None
        owner = open_installation().id
        assert prove_mark(child.pid, ChildKind.MCP, child.identity.service, owner).verdict is Verdict.UNKNOWN
        assert prove(child.identity).verdict is Verdict.SAME
        assert prove(replace(child.identity, inode=None)).verdict is Verdict.SAME, (
            "by the tag, without an inode"
        )
        assert child.birth is not None
        assert [c.found.value for c in find_carriers([child.birth], owner)] == ["tag"]
        receipt = stop_set_now(child.identity, PATIENT, asked_by="test")
        assert receipt.members[0].pid == child.pid
        wait_lifeline_end(child)


def test_o4_one_process_with_bytes_that_are_no_text_breaks_no_search() -> None:
    environ = {**os.environ, "MARK": "\udcff\udcfe", "BIRTHMARK_BIRTH": "\udcff", "BIRTHMARK_SUBPROCESS": "1"}
    with puppet(env=environ) as odd, python("ready(); sys.stdin.read()") as child:
        odd.wait_ready()
        assert child.birth is not None
        found = find_carriers([child.birth], open_installation().id)
        assert [carrier.pid for carrier in found] == [child.pid]
        odd.ask()


def test_o7_a_child_that_is_not_dumpable_is_managed_normally() -> None:
    script = "import ctypes; ctypes.CDLL(None).prctl(4, 0, 0, 0, 0); ready(); sys.stdin.read()"
    with python(script) as child:
        assert prove(child.identity).verdict is Verdict.SAME
        receipt = stop_set_now(child.identity, PATIENT, asked_by="test")
        assert receipt.members[0].pid == child.pid
        wait_lifeline_end(child)


@pytest.mark.parametrize("name", ["a) S 1 (b", "x\ny", ")", "((", " R 0 0"])
def test_o8_the_start_time_is_right_whatever_a_process_calls_itself(name: str) -> None:
    script = (
        f"import ctypes; ctypes.CDLL(None).prctl(15, {name.encode()!r}, 0, 0, 0); ready(); sys.stdin.read()"
    )
    with python(script) as child:
        with open(f"/proc/{child.pid}/stat", "rb") as file:
            text = file.read()
        assert name.encode() in text
        assert parse_stat(text).start_ticks == child.identity.start_ticks > 0
        assert prove(child.identity).verdict is Verdict.SAME


def test_o9_a_mark_behind_a_long_environment_is_found() -> None:
    owner = open_installation().id
    padding = {f"PAD{number}": "x" * 1024 for number in range(200)}
    marks = {
        "BIRTHMARK_SUBPROCESS": "1",
        "BIRTHMARK_MCP": "far",
        "BIRTHMARK_INSTALLATION": str(owner),
        "BIRTHMARK_BIRTH": "c" * 32,
    }
    with puppet(env={"PATH": os.environ["PATH"], **padding, **marks}) as child:
        child.wait_ready()
        assert prove_mark(child.pid, ChildKind.MCP, "far", owner).verdict is Verdict.SAME


@pytest.mark.root
@pytest.mark.namespaces
def test_o10_as_pid_1_beside_strangers_nothing_is_swept_at_the_end() -> None:
    script = """
import os, subprocess
from birthmark import ChildKind, Command, Spawner, mark_child
stranger = subprocess.Popen(["sleep", "60"])
spawner = Spawner()
child = spawner.spawn_owned_supervised(mark_child(Command("sleep", "60"), ChildKind.MCP, "mine"))
spawner.close(children="stop")
print(os.getpid(), child.poll(), stranger.poll())
stranger.kill(); stranger.wait()
"""
    assert in_pid_namespace(script).split() == ["1", "signal", "15", "(SIGTERM)", "None"]


def test_o11_a_helper_that_double_forked_is_found_without_any_cgroup() -> None:
    script = """
if os.fork() == 0:
    os.setsid()
    if os.fork(): os._exit(0)
    ready(); signal.pause()
os.wait()
ready(); sys.stdin.read()
"""
    with python(script, readies=2) as child:
        receipt = stop_set_now(child.identity, PATIENT, asked_by="test", held=child.pinned)
        assert sorted(member.found.value for member in receipt.members) == ["leader", "mark"]
        wait_lifeline_end(child)


@pytest.mark.parametrize("errno_name", ["ENOSYS", "EPERM"])
def test_o5_o6_without_pidfds_the_start_time_is_compared_right_before_each_signal(errno_name: str) -> None:
    script = f"""
import errno, json, os
from tests.seccomp import forbid_pidfds
forbid_pidfds(errno.{errno_name})
from birthmark import *
from birthmark.platforms import load
with Spawner() as spawner:
    child = spawner.spawn_owned_supervised(mark_child(Command("sleep", "60"), ChildKind.MCP, "old kernel"))
    assert child.exit_fd is None
    proof = prove(child.identity)
    receipt = stop_set_now(child.identity, StopPolicy(), asked_by="test", held=child.pinned)
    print(json.dumps([load().capabilities().pidfd, proof.verdict.value, proof.reason.value,
                      receipt.termination.value, str(child.wait(5))]))
"""
    done = subprocess.run(
        [sys.executable, "-c", script],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        cwd=os.getcwd(),
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == [False, "same", "mark_of_this_birth", "exited", "signal 15 (SIGTERM)"]
