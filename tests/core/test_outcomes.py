"""Exits, stops and signals as values."""

from __future__ import annotations

import signal

import pytest

from birthmark.core.identity import Evidence, Proof, Reason, Verdict
from birthmark.core.outcomes import (
    Basis,
    Delivery,
    ExitStatus,
    Found,
    MemberReceipt,
    NotOurs,
    NotRunning,
    Receipt,
    Scope,
    SignalRecord,
    Stopped,
    Termination,
    Warrant,
    signal_name,
)

SAME = Proof(7, Verdict.SAME, (Evidence(Reason.SAME_INODE),))


@pytest.mark.parametrize(
    ("status", "text", "code"),
    [
        (ExitStatus(code=0), "exit code 0", 0),
        (ExitStatus(code=3), "exit code 3", 3),
        (ExitStatus(signal=15), "signal 15 (SIGTERM)", 143),
        (ExitStatus(signal=11, core_dumped=True), "signal 11 (SIGSEGV)", 139),
    ],
)
def test_an_exit_is_a_code_or_a_signal(status: ExitStatus, text: str, code: int) -> None:
    assert (str(status), status.shell_code(), status.known) == (text, code, True)


def test_an_unknown_exit_is_not_zero() -> None:
    assert (str(ExitStatus()), ExitStatus().known) == ("unknown", False)
    with pytest.raises(ValueError, match="unknown"):
        ExitStatus().shell_code()


def test_an_exit_as_json() -> None:
    assert ExitStatus(signal=9).to_dict() == {"code": None, "signal": 9, "core_dumped": False}


def test_a_signal_has_its_name_or_its_number() -> None:
    assert (signal_name(15), signal_name(0), signal_name(999)) == ("SIGTERM", "0", "999")
    assert signal_name(signal.SIGINT) == "SIGINT"


@pytest.mark.parametrize(
    ("warrant", "covered"),
    [
        (Warrant(basis=Basis.PROOF, asked_by="x", proof=SAME), True),
        (Warrant(basis=Basis.PROOF, asked_by="x"), False),
        (Warrant(basis=Basis.PROOF, asked_by="x", proof=Proof(8, Verdict.SAME, SAME.evidence)), False),
        (Warrant(basis=Basis.PROOF, asked_by="x", proof=Proof(7, Verdict.UNKNOWN, SAME.evidence)), False),
        (Warrant(basis=Basis.PROOF, asked_by="x", proof=Proof(7, Verdict.DIFFERENT, SAME.evidence)), False),
        (Warrant(basis=Basis.PROOF, asked_by="x", proof=Proof(7, Verdict.GONE, SAME.evidence)), False),
        (Warrant(basis=Basis.DESCENT, asked_by="x"), False),
        (Warrant(basis=Basis.DESCENT, asked_by="x", parent=1), True),
        (Warrant(basis=Basis.CHILD, asked_by="x"), True),
        (Warrant(basis=Basis.MEMBER, asked_by="x"), True),
        (Warrant(basis=Basis.CALLER, asked_by="x"), True),
    ],
)
def test_a_warrant_covers_what_its_basis_says(warrant: Warrant, covered: bool) -> None:
    assert warrant.covers(7) is covered


def test_a_line_of_the_audit_as_json() -> None:
    record = SignalRecord(
        pid=7,
        signal=15,
        scope=Scope.GROUP,
        basis=Basis.CALLER,
        asked_by="birthmark stop",
        result=Delivery.SENT,
    )
    assert record.to_dict() == {
        "pid": 7,
        "signal": "SIGTERM",
        "scope": "group",
        "basis": "caller's word",
        "asked_by": "birthmark stop",
        "result": "sent",
        "detail": "",
    }


def test_a_receipt_lists_its_members_and_who_survived() -> None:
    gone = MemberReceipt(
        pid=7, found=Found.LEADER, command="srv", sent=[("SIGTERM", 0)], end="signal 15 (SIGTERM)"
    )
    left = MemberReceipt(pid=8, found=Found.TAG, sent=[("SIGTERM", 0), ("SIGKILL", 5000)])
    receipt = Receipt(service="time", termination=Termination.KILLED, members=[gone, left], took_ms=10_000)
    assert receipt.survivors == [left]
    assert receipt.to_dict() == {
        "service": "time",
        "termination": "killed",
        "members": [
            {
                "pid": 7,
                "found": "leader",
                "command": "srv",
                "sent": [{"signal": "SIGTERM", "after_ms": 0}],
                "end": "signal 15 (SIGTERM)",
                "why": None,
            },
            {
                "pid": 8,
                "found": "tag",
                "command": "",
                "sent": [{"signal": "SIGTERM", "after_ms": 0}, {"signal": "SIGKILL", "after_ms": 5000}],
                "end": None,
                "why": None,
            },
        ],
        "took_ms": 10_000,
        "notes": [],
    }


def test_the_outcomes_of_a_stop_are_three_values() -> None:
    outcomes = [NotRunning(7), NotOurs(7, SAME), Stopped(7, Termination.EXITED)]
    assert [type(each).__name__ for each in outcomes] == ["NotRunning", "NotOurs", "Stopped"]
    assert len(set(map(repr, outcomes))) == 3
    assert Stopped(7, Termination.EXITED) == Stopped(7, Termination.EXITED)
