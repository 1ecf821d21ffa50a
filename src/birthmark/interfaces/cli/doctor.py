"""`doctor`: what this host can guarantee, what it cannot, and what to do about it."""

from __future__ import annotations

import os
import platform as host
import shlex
import shutil
import stat
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final, NamedTuple

import click

from birthmark import __version__
from birthmark.children.installation import open_installation, state_home
from birthmark.errors import LookFailed, SupervisionError, SupervisorUnreachable
from birthmark.interfaces.cli.client import ErrorAnswer, ask
from birthmark.interfaces.cli.options import json_option
from birthmark.interfaces.cli.records import written_down
from birthmark.interfaces.cli.render import one_line, print_json, tint
from birthmark.interfaces.faces import Exit
from birthmark.platforms import load
from birthmark.platforms.contract import Capabilities

OK: Final = "ok"
LIMITED: Final = "limited"
BROKEN: Final = "broken"
_COLOURS: Final = {OK: "green", LIMITED: "yellow", BROKEN: "red"}


class Finding(NamedTuple):
    """One thing looked at: `state` is ok, limited or broken, `todo` the way out, None when nothing is to be done."""

    subject: str
    state: str
    words: str
    todo: str | None = None


class _Promise(NamedTuple):
    """What a capability buys, and what its absence costs."""

    field: str
    subject: str
    has: str
    lacks: str
    todo: str


_NEWER: Final = "run Linux 6.9 or newer"

_PROMISES: Final = (
    _Promise(
        "pidfd",
        "pinning",
        "processes are held by pidfd: a recycled pid is never signalled",
        "no pidfd: a process's start time is compared right before each signal, which leaves microseconds",
        "run Linux 5.3 or newer, and allow pidfd_open in the container's seccomp profile",
    ),
    _Promise(
        "pidfs_inode",
        "identity",
        "pidfds have inodes: a child that lost its mark is still proven",
        "pidfds have no inodes: a child that lost its mark and its tag is unknown, and is not stopped",
        _NEWER,
    ),
    _Promise(
        "group_signal",
        "groups",
        "a group is signalled through its leader's pidfd",
        "groups are signalled by number, while their unreaped leader holds it",
        _NEWER,
    ),
    _Promise(
        "environ",
        "marks",
        "other processes' environments are readable (one's own user's)",
        "environments cannot be read: marks prove nothing, tags and inodes must",
        "mount procfs on /proc for this pid namespace",
    ),
    _Promise(
        "tag",
        "tags",
        "births are tagged in a resource limit, which no cleared environment loses",
        "no tag can be set: a finite hard limit on RLIMIT_RTTIME is in the way",
        "raise it: ulimit -H -R unlimited, or LimitRTTIME=infinity in the unit",
    ),
    _Promise(
        "parent_death",
        "parent death",
        "the kernel ends direct children when their parent dies, however it dies",
        "children are not told of their parent's death",
        "use `birthmark run`, which looks for it",
    ),
    _Promise(
        "subreaper",
        "orphans",
        "double-forked descendants fall to us, and are ended with the rest",
        "double-forked descendants fall to init: mark and tag must find them",
        "run Linux 3.4 or newer",
    ),
    _Promise(
        "sock_diag",
        "ports",
        "listeners are asked of the kernel",
        "listeners are asked of a tool, which is slower and may not see everybody's",
        "install lsof",
    ),
    _Promise(
        "native_spawner",
        "spawner",
        "children are spawned by the native thread",
        "children are spawned by the slower, pure path",
        "install a wheel for this system, or a C compiler, and reinstall birthmark",
    ),
)


@click.command(
    epilog="""\b
Exit codes: 0, also when something is limited; 1 when something is broken.

\b
Examples:
  birthmark doctor
  birthmark doctor --json | jq '.findings[] | select(.state != "ok")'
"""
)
@json_option
def doctor(as_json: bool) -> int:
    """Say what this host can guarantee, what it cannot, and what to do about it. Changes nothing."""
    findings = list(examine())
    if as_json:
        print_json({"version": __version__, "findings": [each._asdict() for each in findings]})
    else:
        click.echo("\n".join(_lines(findings)))
    return Exit.FAILED if any(each.state == BROKEN for each in findings) else Exit.DONE


def examine() -> Iterator[Finding]:
    """Look at everything, in the order in which a reader wants it. What cannot be looked at is a finding."""
    yield Finding(
        "host", OK, f"{host.system()} {host.release()}, Python {host.python_version()}, {sys.executable}"
    )
    for subject, look in _LOOKS:
        try:
            yield from look()
        except (SupervisionError, OSError) as err:
            yield Finding(subject, BROKEN, str(err))


def _kernel() -> Iterator[Finding]:
    platform = load()
    try:
        platform.facts()
    except LookFailed as err:
        yield Finding("procfs", BROKEN, str(err), "mount procfs on /proc for this pid namespace")
    yield from _promises(platform.capabilities())


def _promises(found: Capabilities) -> Iterator[Finding]:
    for each in _PROMISES:
        if getattr(found, each.field):
            yield Finding(each.subject, OK, each.has)
        else:
            yield Finding(each.subject, LIMITED, each.lacks, each.todo)
    for note in found.notes:
        yield Finding("note", LIMITED, note)


def _spawner() -> Iterator[Finding]:
    from birthmark.platforms.launch import why_pure

    reason = why_pure()
    if reason is not None:
        yield Finding("spawner", LIMITED, f"why the pure path: {reason}")


def _promised() -> Iterator[Finding]:
    """What no look at this host would tell, since it follows from how birthmark is built."""
    yield Finding(
        "death",
        LIMITED,
        "when a supervisor is killed with SIGKILL its direct children get SIGTERM from the kernel; "
        "what these leave behind is found and ended by the next `birthmark up`",
        "for a single server, `birthmark run -- CMD` ends every descendant at once",
    )


def _state() -> Iterator[Finding]:
    home = state_home()
    if not home.exists():
        yield Finding("state", OK, f"{home} is not there yet; the first use makes it")
        return
    mode = stat.S_IMODE(home.stat().st_mode)
    installation = open_installation(home)
    if mode & 0o077:
        yield Finding("state", LIMITED, f"{home} is open to others (mode {mode:03o})", f"chmod 700 {home}")
    else:
        yield Finding("state", OK, f"{home}, mode {mode:03o}")
    yield Finding("installation", OK, installation.id)
    yield from _fits(home)
    with written_down(installation) as registry:
        if registry is None:
            yield Finding("registry", OK, "nothing is written down yet")
        else:
            births = len(registry.open_births())
            yield Finding(
                "registry", OK, f"{installation.registry_path}; births that have not ended: {births}"
            )


def _fits(home: Path) -> Iterator[Finding]:
    free = shutil.disk_usage(home).free
    if free < 64 * 2**20:
        words = f"{free // 2**20} MiB are free in {home}: logs and records will not fit"
        yield Finding("disk", LIMITED, words, "make room there, or choose another folder with BIRTHMARK_HOME")


def _supervisor() -> Iterator[Finding]:
    try:
        answer = ask(state_home(), "GET", "/v1/supervisor")
    except SupervisorUnreachable as err:
        yield Finding("supervisor", OK, f"none runs ({err.problem})")
    except (ErrorAnswer, TimeoutError) as err:
        yield Finding(
            "supervisor",
            BROKEN,
            str(err),
            "look at its output; `birthmark down`, or end it, and start it again",
        )
    else:
        words = f"pid {answer.get('pid')}, version {answer.get('version')}, since {answer.get('started_at')}"
        yield Finding("supervisor", OK, words)
        if answer.get("version") != __version__:
            words = f"it runs version {answer.get('version')}, and this command is {__version__}"
            yield Finding("supervisor", LIMITED, words, "restart it: `birthmark down`, then `birthmark up`")


def _tools() -> Iterator[Finding]:
    for name, use in (("uvx", "MCP servers from PyPI"), ("npx", "MCP servers from npm")):
        path = shutil.which(name)
        if path:
            yield Finding(name, OK, path)
        else:
            yield Finding(
                name,
                LIMITED,
                f"not on PATH: {use} that are started with it will be missing",
                f"install {name}",
            )
    if sys.platform != "linux" and shutil.which("lsof") is None:
        yield Finding("lsof", LIMITED, "not on PATH: who holds a port cannot be told", "install lsof")


def _wrapped() -> Iterator[Finding]:
    from birthmark.interfaces.cli.wrapped import wrapped_files

    for each in wrapped_files():
        words = f"{each.host}, {each.path}: {', '.join(each.servers)}"
        if each.trouble is None:
            yield Finding("wrapped", OK, f"{words}: under `birthmark run`")
        else:
            file = shlex.quote(str(each.path))
            todo = f"birthmark unwrap {file} && birthmark wrap {file}; then restart {each.host}"
            yield Finding("wrapped", BROKEN, f"{words}: {each.trouble}", todo)


def _identity() -> Iterator[Finding]:
    if sys.platform != "win32" and os.geteuid() == 0:
        yield Finding(
            "user",
            LIMITED,
            "this is root: servers started from here have root's rights too",
            "use a user of its own",
        )


_LOOKS: Final[tuple[tuple[str, Callable[[], Iterator[Finding]]], ...]] = (
    ("kernel", _kernel),
    ("spawner", _spawner),
    ("death", _promised),
    ("user", _identity),
    ("state", _state),
    ("supervisor", _supervisor),
    ("tools", _tools),
    ("wrapped", _wrapped),
)


def _lines(findings: list[Finding]) -> Iterator[str]:
    yield f"birthmark {__version__}"
    width = max(len(each.subject) for each in findings)
    for each in findings:
        yield f"{tint(f'{each.state:<8}', _COLOURS[each.state])}{each.subject:<{width}}  {one_line(each.words)}"
        if each.todo:
            yield f"{'':<8}{'':<{width}}  → {one_line(each.todo)}"
    broken = sum(each.state == BROKEN for each in findings)
    limited = sum(each.state == LIMITED for each in findings)
    yield f"{broken} broken, {limited} limited"
