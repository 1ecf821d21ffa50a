"""The decision: is the process seen the one recorded? A table, read from top to bottom."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from birthmark.core.identity import (
    TRANSIENT,
    EnvironState,
    Evidence,
    HostFacts,
    Identity,
    Proof,
    Reason,
    Sighting,
    Verdict,
    gone,
)
from birthmark.core.markers import ChildKind, Mark, is_tag, mark_block, read_mark, tag_of
from birthmark.core.service import InstallationId


def judge(
    expected: Identity, seen: Sighting | None, *, held: bool = False, here: HostFacts | None = None
) -> Proof:
    """Decide whether the process seen is the one recorded. The first row that holds decides.

    Args:
        expected: The identity written down at birth.
        seen: One look at the live process, or None when nothing has that pid.
        held: The look went through a pidfd that we have held since the birth.
        here: Where nothing was seen. That nothing has the pid here says nothing about a record from elsewhere;
            None: the caller knows that the record is from here.
    """
    pid = expected.pid
    if seen is None:
        away = None if here is None else _another_place(expected, here)
        return gone(pid) if away is None else Proof(pid, Verdict.DIFFERENT, (away,))
    different = _elsewhere(expected, seen)
    if different is not None:
        return Proof(pid, Verdict.DIFFERENT, (different,))
    if seen.exited:
        return gone(pid, Reason.ZOMBIE)
    if held:
        return Proof(pid, Verdict.SAME, (Evidence(Reason.HELD_SINCE_BIRTH),))
    inode = expected.inode is not None and seen.inode is not None
    stamp = _stamp_evidence(expected, seen)
    # Mark and tag are inherited: they prove this process only where its start was compared, or its inode.
    if stamp is not None and (inode or -1 not in (expected.start_ticks, seen.start_ticks)):
        same = stamp.reason in (Reason.MARK_OF_THIS_BIRTH, Reason.TAG_OF_THIS_BIRTH)
        return Proof(pid, Verdict.SAME if same else Verdict.DIFFERENT, (stamp,))
    why = Evidence(_STATE_REASON[seen.environ_state])
    if inode:
        return Proof(pid, Verdict.SAME, (Evidence(Reason.SAME_INODE), why))
    return Proof(pid, Verdict.UNKNOWN, (why, Evidence(Reason.NO_INODE)))


def judge_number(expected: Identity, seen: Sighting | None, *, held: bool = False) -> Proof:
    """Decide whether the number still is the recorded process's own, dead or alive. Arguments as for `judge`.

    Unreaped it keeps its number, and with it its group's, also when it has exited: what is left of a set can
    be addressed by it. A zombie has no environment any more, but still its start time, inode and tag.
    """
    return judge(expected, None if seen is None else replace(seen, exited=False), held=held)


def judge_mark(
    pid: int,
    seen: Sighting | None,
    *,
    kind: ChildKind,
    service: str,
    installation: InstallationId,
) -> Proof:
    """Decide by pid and mark alone: is this a process of `service`, as `kind`, of our installation?

    This is the rule for callers who kept no identity. A descendant that inherited the mark
    satisfies it too, which is why `judge` is to be preferred wherever an identity is known.
    """
    if seen is None:
        return gone(pid)
    if seen.exited:
        return gone(pid, Reason.ZOMBIE)
    state = seen.environ_state
    if state is not EnvironState.READABLE:
        return Proof(pid, Verdict.UNKNOWN, (Evidence(_STATE_REASON[state]),))
    mark = read_mark(seen.environ)
    if mark is None:
        return Proof(pid, Verdict.DIFFERENT, (Evidence(Reason.NO_MARK),))
    wrong = _mark_mismatch(mark, kind=kind, service=service, installation=installation)
    if wrong is None and not kind.identifies(seen.environ, service):
        wrong = Evidence(Reason.MARK_OF_ANOTHER_KIND, kind.value, _kinds(mark))
    if wrong is not None:
        return Proof(pid, Verdict.DIFFERENT, (wrong,))
    return Proof(pid, Verdict.SAME, (Evidence(Reason.MARK_MATCHES),))


_STATE_REASON = {
    EnvironState.READABLE: Reason.NO_MARK,
    EnvironState.DESTROYED: Reason.ENVIRON_DESTROYED,
    EnvironState.PARENTS: Reason.ENVIRON_SETTLING,
    EnvironState.SETTLING: Reason.ENVIRON_SETTLING,
    EnvironState.DENIED: Reason.ENVIRON_DENIED,
    EnvironState.HIDDEN: Reason.ENVIRON_HIDDEN,
    EnvironState.UNSUPPORTED: Reason.ENVIRON_UNSUPPORTED,
}


def _another_place(expected: Identity, facts: HostFacts) -> Evidence | None:
    if expected.host != facts.host:
        return Evidence(Reason.OTHER_HOST, expected.host, facts.host)
    if expected.boot != facts.boot:
        return Evidence(Reason.OTHER_BOOT, expected.boot, facts.boot)
    if expected.pid_namespace != facts.pid_namespace:
        return Evidence(Reason.OTHER_PID_NAMESPACE, str(expected.pid_namespace), str(facts.pid_namespace))
    return None


def _elsewhere(expected: Identity, seen: Sighting) -> Evidence | None:
    if (away := _another_place(expected, seen.facts)) is not None:
        return away
    if expected.pid != seen.pid:
        raise ValueError(f"pid {seen.pid} was looked at for a record of pid {expected.pid}")
    # A time that was hidden from us (-1) is not another one.
    if expected.start_ticks != seen.start_ticks and -1 not in (expected.start_ticks, seen.start_ticks):
        return Evidence(Reason.OTHER_START_TIME, str(expected.start_ticks), str(seen.start_ticks))
    if expected.inode is not None and seen.inode is not None and expected.inode != seen.inode:
        return Evidence(Reason.OTHER_INODE, str(expected.inode), str(seen.inode))
    return None


_OF_THIS_BIRTH: Final = Evidence(Reason.MARK_OF_THIS_BIRTH)


def _stamp_evidence(expected: Identity, seen: Sighting) -> Evidence | None:
    """Return what mark and tag say, or None when they say nothing. A readable mark outranks the tag."""
    if expected.kind is None or expected.service is None or expected.installation is None:
        return None
    if seen.environ_state is EnvironState.READABLE:
        # The block of nearly every child begins as we made it, and the first of each entry counts: a
        # comparison tells as much as reading the mark.
        if expected.birth is not None and expected.kind is not ChildKind.API:
            placed = mark_block(
                kind=expected.kind,
                service=expected.service,
                installation=expected.installation,
                birth=expected.birth,
            )
            if seen.environ.startswith(placed):
                return _OF_THIS_BIRTH
        mark = read_mark(seen.environ)
        if mark is not None:
            wrong = _mark_mismatch(
                mark, kind=expected.kind, service=str(expected.service), installation=expected.installation
            )
            if wrong is None and expected.birth is not None and mark.birth != expected.birth:
                wrong = Evidence(Reason.MARK_OF_ANOTHER_BIRTH, expected.birth, str(mark.birth))
            return wrong or Evidence(Reason.MARK_OF_THIS_BIRTH)
    if expected.birth is not None and seen.tag is not None and is_tag(seen.tag):
        # Between fork and exec the tag, like the block, may still be the parent's: it proves
        # this birth, but does not yet disprove it.
        if seen.tag == tag_of(expected.birth):
            return Evidence(Reason.TAG_OF_THIS_BIRTH)
        if seen.environ_state not in TRANSIENT:
            return Evidence(Reason.TAG_OF_ANOTHER_BIRTH)
    return None


def _mark_mismatch(mark: Mark, *, kind: ChildKind, service: str, installation: str) -> Evidence | None:
    if mark.installation != installation:
        return Evidence(Reason.MARK_OF_ANOTHER_INSTALLATION, installation, str(mark.installation))
    if (kind, service) in mark.services:
        return None
    if any(k is kind for k, _ in mark.services):
        found = ", ".join(sorted(s for k, s in mark.services if k is kind))
        return Evidence(Reason.MARK_OF_ANOTHER_SERVICE, service, found)
    return Evidence(Reason.MARK_OF_ANOTHER_KIND, kind.value, _kinds(mark))


def _kinds(mark: Mark) -> str:
    return ", ".join(sorted(k.value for k, _ in mark.services)) or "none"
