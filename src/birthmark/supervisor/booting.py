"""Boot: what an earlier supervisor left is proven, ended and said; what cannot be proven is named and left alone."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Final

import anyio
import anyio.to_thread

from birthmark.children.control import stop_set
from birthmark.children.proving import find_carriers, nobody_of, prove
from birthmark.config.model import ServiceSpec
from birthmark.core.identity import Proof, Reason, Verdict
from birthmark.core.outcomes import Receipt
from birthmark.core.policies import StopPolicy
from birthmark.core.service import BirthId, ServiceName
from birthmark.errors import IdentityMismatch, StopTimedOut, SupervisionError
from birthmark.registry.contract import BirthOrigin, BirthRecord, BirthState
from birthmark.supervisor.house import House
from birthmark.supervisor.records import hide_secrets
from birthmark.supervisor.taking_in import take_in

ASKED_BY: Final = "boot"

ENDED_SWEPT: Final = 1000
"""How many of the births that have ended are looked for all the same, newest first."""

OPEN_STATES: Final = frozenset({BirthState.INTENDED, BirthState.BORN})


@dataclass(frozen=True, slots=True)
class Leftover:
    """A recorded birth that could not be ended: unproven, or it survived. `proof` is None in the latter case."""

    record: BirthRecord
    proof: Proof | None
    why: str


@dataclass(slots=True, kw_only=True)
class BootReport:
    """What boot found. `gone` had ended by itself, `ended` was ended by us, `leftovers` were left alone."""

    gone: list[BirthRecord] = field(default_factory=list)
    ended: list[Receipt] = field(default_factory=list)
    strangers: list[Proof] = field(default_factory=list)
    """Live processes that have a recorded pid and are proven to be somebody else."""
    elsewhere: list[Leftover] = field(default_factory=list)
    """Births recorded on another host or in another pid namespace: what became of them cannot be seen from here."""
    leftovers: list[Leftover] = field(default_factory=list)
    taken_in: int = 0
    """Births of `birthmark run` whose papers are in the registry now."""
    lines: list[str] = field(default_factory=list)
    """All of it in words, in the order it was said."""

    def to_dict(self) -> dict[str, object]:
        """Return it as plain values for JSON."""
        return {
            "gone": [record.birth for record in self.gone],
            "ended": [receipt.to_dict() for receipt in self.ended],
            "strangers": [proof.to_dict() for proof in self.strangers],
            "leftovers": [
                {"birth": left.record.birth, "service": str(left.record.service), "why": left.why}
                for left in self.leftovers
            ],
            "elsewhere": [
                {"birth": left.record.birth, "service": str(left.record.service), "why": left.why}
                for left in self.elsewhere
            ],
            "taken_in": self.taken_in,
            "lines": list(self.lines),
        }


async def sweep_births(house: House, specs: Mapping[ServiceName, ServiceSpec]) -> BootReport:
    """End what is left of earlier births, all at once, and write down what became of each.

    The papers of `birthmark run` are taken in first, as far as nobody stands by them, so that its births are
    swept like our own. Births without an end on record are proven one by one. Of those that have one, nothing
    should live; what carries their mark or tag all the same escaped once, and is ended too.

    Args:
        specs: What is configured: their policies are used to stop; others get the default one.

    Raises:
        RegistryError: The records cannot be read (nothing was signalled), or an end cannot be written.
        LookFailed: The processes cannot be listed.
    """
    report = BootReport()
    await _take_papers_in(house, report)
    still_open = await anyio.to_thread.run_sync(house.registry.open_births)
    ended = await anyio.to_thread.run_sync(partial(house.registry.ended_births, last=ENDED_SWEPT))
    # One sweep for all: who carries the mark or the tag of any of them, however far it got away.
    carried = await anyio.to_thread.run_sync(_carried, house, [each.birth for each in (*still_open, *ended)])
    failed: list[SupervisionError] = []

    async def settle(record: BirthRecord) -> None:
        try:
            await _settle(house, report, record, specs.get(record.service), record.birth in carried)
        except SupervisionError as err:
            # The others are settled all the same; the first failure is told afterwards, by its own name.
            failed.append(err)

    async with anyio.create_task_group() as tasks:
        for record in [*still_open, *(each for each in ended if each.birth in carried)]:
            tasks.start_soon(settle, record)
    if failed:
        raise failed[0]
    return report


async def _take_papers_in(house: House, report: BootReport) -> None:
    """Have the births of `birthmark run` that nobody stands by in the registry, and say which had to stay."""
    taken = await anyio.to_thread.run_sync(
        partial(take_in, house.installation, house.registry, epoch=house.epoch, at=house.clock.now())
    )
    report.taken_in = len(taken.births)
    for unreadable in taken.unreadable:
        _tell(house, report, f"a paper cannot be read, and stays where it is: {unreadable}")
    for papers in taken.unsure:
        _tell(
            house,
            report,
            f"{papers.service} (birth {papers.birth[:8]}): whether its `birthmark run` (pid {papers.by_pid})"
            " lives cannot be known from here; its papers stay",
        )


def _carried(house: House, births: list[BirthId]) -> set[BirthId]:
    """Return the births that somebody alive carries the mark or the tag of."""
    return {carrier.birth for carrier in find_carriers(births, house.installation.id)} if births else set()


async def _settle(
    house: House, report: BootReport, record: BirthRecord, spec: ServiceSpec | None, carried: bool
) -> None:
    """Bring one birth to its end, or say why not."""
    name = f"{record.service} (birth {record.birth[:8]})"
    if of_run := record.origin is BirthOrigin.RUN:
        spec = None  # a service of the same name is another one
    proof = await _proof_of(record)
    if proof is not None and proof.elsewhere:
        # No pid of ours says anything about it. Its row stays open, for whoever boots where it was written.
        why = f"it was left alone, and stays on record: {proof}"
        report.elsewhere.append(Leftover(record, proof, why))
        _tell(house, report, f"{name}: whether pid {proof.pid} lives cannot be seen from here; {why}")
        return
    if proof is not None and proof.verdict is Verdict.DIFFERENT and proof.reason is not Reason.OTHER_BOOT:
        report.strangers.append(proof)
        _tell(house, report, f"{name}: pid {proof.pid} is somebody else's now, and was left alone: {proof}")
    try:
        receipt = await _end(house, record, StopPolicy() if spec is None else spec.stop, proof, carried)
        hide_secrets(spec, receipt)
    except _NotEnded as err:
        report.leftovers.append(Leftover(record, err.proof, str(err)))
        _tell(house, report, f"{name}: {err}")
        return
    if receipt is not None:
        report.ended.append(receipt)
        pids = ", ".join(f"{member.pid} ({member.found.value})" for member in receipt.members)
        left_by = "a `birthmark run` that is gone" if of_run else "an earlier supervisor"
        _tell(house, report, f"{name}: left over from {left_by}, ended: {pids}")
        why = "ended by the next supervisor"
    elif record.state in OPEN_STATES:
        report.gone.append(record)
        words, why = _how_it_went(record, proof)
        _tell(house, report, f"{name}: {words}")
    if record.state in OPEN_STATES:
        await _write_lost(house, record, why)


def _how_it_went(record: BirthRecord, proof: Proof | None) -> tuple[str, str]:
    """Return what is said, and what is written down, of a birth of which nothing was left."""
    if record.identity is None:
        return "was never born", "never born"
    if proof is not None and proof.reason is Reason.OTHER_BOOT:
        return "ended with an earlier boot of this host", "it ended with an earlier boot"
    return "had ended by itself", "gone when the next supervisor looked"


class _NotEnded(Exception):
    """Something that is, or may be, of a birth goes on living; `proof` says why it was left alone, if it was."""

    def __init__(self, why: str, proof: Proof | None = None) -> None:
        super().__init__(why)
        self.proof = proof


async def _proof_of(record: BirthRecord) -> Proof | None:
    """Prove the leader on record; None where none was written down, or its birth has ended."""
    if record.identity is None or record.state not in OPEN_STATES:
        return None
    return await anyio.to_thread.run_sync(prove, record.identity)


async def _end(
    house: House, record: BirthRecord, policy: StopPolicy, proof: Proof | None, carried: bool
) -> Receipt | None:
    """End all that is left of a birth; None when there was nothing.

    Raises:
        _NotEnded: The leader is not proven, or somebody survived.
    """
    if proof is not None and proof.verdict is Verdict.UNKNOWN:
        raise _NotEnded(
            f"pid {proof.pid} lives and is not proven to be it, and was left alone: {proof}", proof
        )
    # Dead and not reaped, a leader still stands for its group, whose members may carry nothing.
    stands = proof is not None and (proof.verdict is Verdict.SAME or proof.reason is Reason.ZOMBIE)
    if not carried and not stands:
        return None
    leader = record.identity if proof is not None else None
    try:
        nobody = nobody_of(record.birth, house.installation.id, record.kind, record.service)
        receipt = await stop_set(leader or nobody, policy, asked_by=ASKED_BY)
    except IdentityMismatch as err:
        raise _NotEnded(str(err), err.proof) from err
    except StopTimedOut as err:
        raise _NotEnded(str(err)) from err
    return receipt if receipt.members else None


async def _write_lost(house: House, record: BirthRecord, why: str) -> None:
    await house.write(
        partial(house.registry.ended, record.birth, house.clock.now(), epoch=house.epoch, lost=True, why=why)
    )


def _tell(house: House, report: BootReport, line: str) -> None:
    report.lines.append(line)
    house.trail.note({"asked_by": ASKED_BY, "found": line})
    house.say(line)


async def still_there(house: House, leftover: Leftover) -> str | None:
    """Try once more to end what an earlier look had to leave; None once it is gone, which is then written down.

    Raises:
        LookFailed: We could not look.
        RegistryError: Its end could not be written down.
    """
    record = leftover.record
    proof = await _proof_of(record)
    carried = await anyio.to_thread.run_sync(_carried, house, [record.birth])
    try:
        await _end(house, record, StopPolicy(), proof, bool(carried))
    except _NotEnded as err:
        return str(err)
    if record.state in OPEN_STATES:
        await _write_lost(house, record, "gone when it was looked at again")
    return None
