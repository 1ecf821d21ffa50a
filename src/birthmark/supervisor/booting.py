"""Boot: what an earlier supervisor left is proven, ended and said; what cannot be proven is named and left alone."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field
from functools import partial

import anyio
import anyio.to_thread

from birthmark.children.control import stop_set
from birthmark.children.proving import find_carriers, prove
from birthmark.core.identity import Identity, Proof, Verdict
from birthmark.core.outcomes import Receipt
from birthmark.core.policies import StopPolicy
from birthmark.core.service import BirthId
from birthmark.errors import IdentityMismatch, StopTimedOut, SupervisionError
from birthmark.platforms import load
from birthmark.registry.contract import BirthRecord
from birthmark.supervisor.house import House

ASKED_BY = "boot"


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
    leftovers: list[Leftover] = field(default_factory=list)
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
            "lines": list(self.lines),
        }


async def sweep_births(house: House, policies: Collection[tuple[str, StopPolicy]]) -> BootReport:
    """End what is left of every birth that has no end on record, all at once, and write down what became of each.

    Args:
        policies: The stop policy of each service that is configured; others get the default one.

    Raises:
        RegistryError: The records cannot be read. Nothing was signalled.
        LookFailed: The processes cannot be listed. Nothing was signalled.
    """
    report = BootReport()
    records = await anyio.to_thread.run_sync(house.registry.open_births)
    if not records:
        return report
    # One sweep for all: who carries the mark or the tag of any of them, however far it got away.
    carried = await anyio.to_thread.run_sync(_carried, house, [record.birth for record in records])
    known = dict(policies)
    async with anyio.create_task_group() as tasks:
        for record in records:
            policy = known.get(record.service, StopPolicy())
            tasks.start_soon(_settle, house, report, record, policy, record.birth in carried)
    return report


def _carried(house: House, births: list[BirthId]) -> set[BirthId]:
    """Return the births that somebody alive carries the mark or the tag of."""
    return {carrier.birth for carrier in find_carriers(births, house.installation.id)}


async def _settle(
    house: House, report: BootReport, record: BirthRecord, policy: StopPolicy, carried: bool
) -> None:
    """Bring one birth to its end, or say why not."""
    name = f"{record.service} (birth {record.birth[:8]})"
    identity = record.identity
    proof = None if identity is None else await anyio.to_thread.run_sync(prove, identity)
    if proof is not None and proof.verdict is Verdict.DIFFERENT:
        report.strangers.append(proof)
        _tell(house, report, f"{name}: pid {proof.pid} is somebody else's now, and was left alone: {proof}")
    if proof is not None and proof.verdict is Verdict.UNKNOWN:
        why = f"pid {proof.pid} lives and is not proven to be it, and was left alone: {proof}"
        report.leftovers.append(Leftover(record, proof, why))
        _tell(house, report, f"{name}: {why}")
        return
    target = identity if identity is not None else _nobody(house, record)
    receipt: Receipt | None = None
    if carried or (proof is not None and proof.verdict is Verdict.SAME):
        try:
            receipt = await stop_set(target, policy, asked_by=ASKED_BY)
        except (StopTimedOut, IdentityMismatch) as err:
            left = err.proof if isinstance(err, IdentityMismatch) else None
            report.leftovers.append(Leftover(record, left, str(err)))
            _tell(house, report, f"{name}: {err}")
            return
    if receipt is not None and receipt.members:
        report.ended.append(receipt)
        pids = ", ".join(f"{member.pid} ({member.found.value})" for member in receipt.members)
        _tell(house, report, f"{name}: left over from an earlier supervisor, ended: {pids}")
        why = "ended by the next supervisor"
    else:
        report.gone.append(record)
        _tell(house, report, f"{name}: had ended by itself" if identity else f"{name}: was never born")
        why = "gone when the next supervisor looked" if identity else "never born"
    await house.write(
        partial(house.registry.ended, record.birth, house.clock.now(), epoch=house.epoch, lost=True, why=why)
    )


def _tell(house: House, report: BootReport, line: str) -> None:
    report.lines.append(line)
    house.trail.note({"asked_by": ASKED_BY, "found": line})
    house.say(line)


def _nobody(house: House, record: BirthRecord) -> Identity:
    """Return an identity without a process for a birth whose leader nobody wrote down: its carriers are all there is."""
    facts = load().facts()
    return Identity(
        host=facts.host,
        boot=facts.boot,
        pid_namespace=facts.pid_namespace,
        pid=0,
        start_ticks=0,
        birth=record.birth,
        installation=house.installation.id,
        kind=record.kind,
        service=record.service,
    )


async def still_there(house: House, leftover: Leftover) -> Proof | None:
    """Look again at what could not be ended; None once it is gone, which is then written down.

    Raises:
        LookFailed: We could not look.
    """
    record = leftover.record
    if record.identity is None:
        return None
    proof = await anyio.to_thread.run_sync(prove, record.identity)
    if proof.verdict not in (Verdict.GONE, Verdict.DIFFERENT):
        return proof
    try:
        await house.write(
            partial(
                house.registry.ended,
                record.birth,
                house.clock.now(),
                epoch=house.epoch,
                lost=True,
                why="gone",
            )
        )
    except SupervisionError as err:
        house.say(f"{record.service}: its end could not be written down: {err}")
    return None
