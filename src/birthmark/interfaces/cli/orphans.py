"""`orphans`: what is ours and has nobody left who answers for it; `--reap` ends what is proven."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from typing import TYPE_CHECKING, Final

import click

from birthmark.children.installation import Installation, open_installation
from birthmark.core.outcomes import ExitStatus, Receipt
from birthmark.core.policies import StopPolicy
from birthmark.errors import StopTimedOut, SupervisionError
from birthmark.interfaces.cli.options import json_option
from birthmark.interfaces.cli.records import written_down
from birthmark.interfaces.cli.render import one_line, print_json, receipt_lines, tint
from birthmark.interfaces.faces import Exit, face_of
from birthmark.interfaces.orphans import Orphan, OrphanedBirth, Orphans, find_orphans
from birthmark.keeper.papers import Papers
from birthmark.registry.contract import Registry

if TYPE_CHECKING:
    import anyio

ASKED_BY: Final = "orphans --reap"

NONE_FOUND: Final = "no orphans"

AT_ONCE: Final = 32
"""Births ended at the same time: each holds some descriptors."""


@click.command(
    epilog="""\b
Exit codes: 0 done, also when nothing was found; 4 when a paper cannot be read; 6 when somebody survived.

\b
Examples:
  birthmark orphans
  birthmark orphans --reap
  birthmark orphans --json | jq '.proven[].members[].pid'
"""
)
@click.option("--reap", is_flag=True, help="End what is proven to be ours, and print the receipts.")
@click.option("--dry-run", is_flag=True, help="With --reap: list what it would end, and end nothing.")
@json_option
def orphans(reap: bool, dry_run: bool, as_json: bool) -> int:
    """List processes of ours that no supervisor and no `run` answers for."""
    installation = open_installation()
    with written_down(installation) as registry:
        found = find_orphans(installation, registry)
        for unreadable in found.unreadable:
            click.echo(f"birthmark: a paper cannot be read, and stays where it is: {unreadable}", err=True)
        code = Exit.UNKNOWN if found.unreadable else Exit.DONE
        if not reap or dry_run:
            if as_json:
                print_json(found.to_dict())
            else:
                click.echo("\n".join(_lines(found)) or NONE_FOUND)
            return code
        return _reap(installation, registry, found, as_json) or code


# -- listing -------------------------------------------------------------------


def _lines(found: Orphans, *, proven: bool = True) -> list[str]:
    """Return the levels as lines; without `proven` only those that are never ended."""
    lines: list[str] = []
    if proven and found.proven:
        lines.append(f"{tint('proven ours', 'red')}: `birthmark orphans --reap` ends them")
    for birth in found.proven if proven else ():
        lines.append(f"  {one_line(str(birth.service))} ({birth.kind.value})  birth {birth.birth}")
        lines.append(f"    {birth.why}")
        lines += [_process_line(member) for member in birth.members]
    for orphans, title in (
        (found.probably, "probably ours: listed only"),
        (found.unknown, "unknown: never touched"),
    ):
        if orphans:
            lines.append(tint(title, "yellow"))
        for orphan in orphans:
            lines.append(_process_line(orphan))
            lines += [f"      {one_line(why)}" for why in orphan.why]
    return lines


def _process_line(orphan: Orphan) -> str:
    how = orphan.found.value if orphan.found is not None else ""
    never = f"[never signalled from here: {orphan.never}]" if orphan.never else ""
    return "  ".join(filter(None, (f"    {orphan.pid}", how, one_line(orphan.command), never))).rstrip()


# -- ending --------------------------------------------------------------------


def _reap(installation: Installation, registry: Registry | None, found: Orphans, as_json: bool) -> Exit:
    """End all that is proven; returns DONE when all of it is gone."""
    total = sum(len(birth.members) for birth in found.proven)
    if found.proven:
        click.echo(f"ending {total} process(es) of {len(found.proven)} birth(s)", err=True)
    receipts: list[Receipt] = []
    failures: list[tuple[OrphanedBirth, SupervisionError]] = []

    def tell(birth: OrphanedBirth, outcome: Receipt | SupervisionError) -> None:
        if isinstance(outcome, SupervisionError):
            failures.append((birth, outcome))
            click.echo(f"birthmark: {birth.service} (birth {birth.birth[:8]}): {outcome}", err=True)
            return
        receipts.append(outcome)
        if not outcome.survivors:
            _write_end(birth)
        if not as_json:
            click.echo("\n".join(receipt_lines(outcome.to_dict())))

    with ExitStack() as later:
        if registry is not None and found.proven:
            from birthmark.supervisor.trail import AuditTrail

            trail = AuditTrail(registry, say=lambda line: click.echo(f"birthmark: {line}", err=True))
            later.callback(trail.close)
        if found.proven:
            _Reaping(found.proven, tell).run()
    for papers in found.over:
        with suppress(OSError):
            why = "nothing was left of it when `birthmark orphans` looked"
            Papers(installation.births, papers.birth).ended(ExitStatus(), why=why, survivors=[])
    if as_json:
        print_json({**found.to_dict(), "receipts": [receipt.to_dict() for receipt in receipts]})
    elif rest := _lines(found, proven=False):
        click.echo("\n".join(rest))
    elif not found.proven:
        click.echo(NONE_FOUND)
    if any(receipt.survivors for receipt in receipts):
        return Exit.SURVIVORS
    return face_of(failures[0][1]).exit_code if failures else Exit.DONE


def _write_end(birth: OrphanedBirth) -> None:
    """Complete the papers of a birth that is gone now. Nobody else writes them any more."""
    if birth.folder is not None:
        with suppress(OSError):
            papers = Papers(birth.folder.parent, birth.birth)
            papers.ended(ExitStatus(), why="ended by `birthmark orphans --reap`", survivors=[])


class _Reaping:
    """Ends several births at once, and tells of each when it is through."""

    def __init__(
        self,
        births: Sequence[OrphanedBirth],
        tell: Callable[[OrphanedBirth, Receipt | SupervisionError], None],
    ) -> None:
        self._births, self._tell = births, tell

    def run(self) -> None:
        """Block until all are through; each takes the default grace at most."""
        # Imported here: who only lists loads no event loop.
        import anyio

        anyio.run(self._all)

    async def _all(self) -> None:
        import anyio

        places = anyio.CapacityLimiter(AT_ONCE)
        async with anyio.create_task_group() as tasks:
            for birth in self._births:
                tasks.start_soon(self._one, birth, places)

    async def _one(self, birth: OrphanedBirth, places: anyio.CapacityLimiter) -> None:
        from birthmark.children.control import stop_set

        async with places:
            try:
                outcome: Receipt | SupervisionError = await stop_set(
                    birth.identity, StopPolicy(), asked_by=ASKED_BY
                )
            except StopTimedOut as err:
                outcome = err.receipt if err.receipt is not None else err
            except SupervisionError as err:
                outcome = err
        self._tell(birth, outcome)
