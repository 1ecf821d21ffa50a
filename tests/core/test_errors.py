"""The family of errors: evidence in attributes, a message that names it, and each can be pickled."""

from __future__ import annotations

import errno
import pickle
from typing import Final

import pytest

from birthmark import errors
from birthmark.core.identity import Evidence, Proof, Reason, Verdict
from birthmark.core.outcomes import Receipt, Termination
from birthmark.errors import SupervisionError

PROOF: Final = Proof(77, Verdict.DIFFERENT, (Evidence(Reason.OTHER_INODE, "1", "2"),))

EXAMPLES: Final[dict[str, tuple[tuple[object, ...], tuple[str, ...]]]] = {
    "SupervisionError": (("something",), ("something",)),
    "ProcessGone": ((77,), ("77",)),
    "IdentityMismatch": ((PROOF,), ("77", "different", "recorded 1, found 2")),
    "NotPermitted": ((77, "send SIGTERM to", errno.EPERM), ("77", "send SIGTERM to", "EPERM")),
    "NotSignalable": ((77, "it is an ancestor of ours"), ("77", "ancestor")),
    "SignalFailed": ((77, "SIGTERM", errno.EINVAL), ("77", "SIGTERM", "EINVAL")),
    "SpawnFailed": (
        ("srv", errno.ENOENT, "exec", "/bin:/usr/bin", "install it"),
        ("'srv'", "exec", "ENOENT", "PATH=/bin:/usr/bin", "install it"),
    ),
    "SpawnerClosed": ((), ("closed",)),
    "ChildrenAlive": (((7, 8),), ("7, 8", 'close(children="stop")')),
    "StopTimedOut": (
        (77, (78, 79), "SIGTERM 5 s, SIGKILL 5 s", Receipt(service="t", termination=Termination.KILLED)),
        ("77", "78, 79", "SIGKILL 5 s"),
    ),
    "LookFailed": (("port 80", "no netlink"), ("port 80", "no netlink")),
    "Unsupported": (("parent death", "darwin"), ("parent death", "darwin")),
    "WorkerLost": (("the spawner thread",), ("the spawner thread",)),
    "PortHeld": ((8080, ("nginx (pid 5)",)), ("8080", "nginx (pid 5)", "left alone")),
    "GaveUp": (
        ("time", 5, 60.0, ("exit code 1", "signal 11")),
        ("time", "5", "60", "exit code 1", "signal 11"),
    ),
    "ConfigError": (
        ("birthmark.toml", "is not a number", 3, "mcp.time.port", "Write 8080"),
        ("birthmark.toml:3", "mcp.time.port", "is not a number", "Write 8080"),
    ),
    "NotTrusted": ((".mcp.json", ("npx a", "uvx b")), (".mcp.json", "npx a", "uvx b", "--trust")),
    "NotConfirmed": (
        (".mcp.json", "the answer was no"),
        (".mcp.json", "the answer was no", "nothing was changed"),
    ),
    "NotReplaced": ((".mcp.json", "it is full"), (".mcp.json", "it is full", "nothing was changed")),
    "InstallationLocked": (("/home/x", 5), ("/home/x", "5", "BIRTHMARK_HOME")),
    "InstallationBroken": (("/home/x", "is not a folder"), ("/home/x", "is not a folder")),
    "SupervisorUnreachable": (("/run/x.sock", "refused"), ("/run/x.sock", "refused", "birthmark up")),
    "UnknownService": (("tyme", ("time", "git")), ("'tyme'", "time, git")),
    "RegistryError": (("something",), ("something",)),
    "RegistryUnavailable": (("/x/registry.db", "locked"), ("/x/registry.db", "locked")),
    "RecordConflict": (("birth 7", "written by a newer epoch"), ("birth 7", "newer epoch")),
    "RecordUndecodable": (("birth 7", "no pid"), ("birth 7", "no pid")),
}
"""How each is made, and the words its message holds."""


def family(root: type[SupervisionError] = SupervisionError) -> dict[str, type[SupervisionError]]:
    found = {root.__name__: root}
    for each in root.__subclasses__():
        if each.__module__ == errors.__name__:
            found |= family(each)
    return found


def test_every_error_has_an_example() -> None:
    assert set(family()) == set(EXAMPLES)


def test_every_error_stands_in_the_drawing() -> None:
    assert [name for name in family() if name not in str(errors.__doc__)] == []


@pytest.mark.parametrize("name", EXAMPLES)
def test_a_message_names_its_evidence_on_lines_a_person_can_read(name: str) -> None:
    arguments, words = EXAMPLES[name]
    message = str(family()[name](*arguments))
    assert [word for word in words if word not in message] == []
    assert "object at 0x" not in message


@pytest.mark.parametrize("name", EXAMPLES)
def test_an_error_survives_pickling_with_all_its_evidence(name: str) -> None:
    error = family()[name](*EXAMPLES[name][0])
    again = pickle.loads(pickle.dumps(error))
    assert type(again) is type(error)
    assert again.args == error.args
    assert str(again) == str(error)
    assert vars(again) == vars(error)


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (errors.SpawnFailed("srv", None, "spawn"), "could not start 'srv': spawn: no reason given"),
        (errors.NotPermitted(7, "look at"), "not permitted to look at process 7: no reason given"),
        (
            errors.PortHeld(80, ()),
            "port 80 is held by a process we may not see. It was left alone: end it yourself, or choose another port",
        ),
        (errors.ConfigError("x.json", "is not JSON"), "x.json: is not JSON"),
        (errors.UnknownService("a", ()), "no service is called 'a'; there are: none"),
        (errors.GaveUp("a", 5, 0.5, ()), "a: gave up after 5 restarts in 0.5 s; last exits: none recorded"),
    ],
)
def test_what_is_not_known_is_left_out_or_said(error: SupervisionError, message: str) -> None:
    assert str(error) == message


def test_an_errno_without_a_name_is_its_number() -> None:
    assert errors.errno_words(99999).endswith("[99999]")
