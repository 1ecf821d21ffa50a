"""The papers of births, read back, and taken away once nobody needs them.

Whoever reads may meet a front that writes at the same moment, a crash between any two steps, and what a newer
version wrote. A paper is there whole or not at all; one that cannot be understood is named, and stays.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from birthmark.core.identity import Identity
from birthmark.core.markers import ChildKind
from birthmark.core.outcomes import ExitStatus
from birthmark.core.records import dataclass, field
from birthmark.core.service import (
    BirthId,
    InstallationId,
    ServiceName,
    birth_id,
    installation_id,
    service_name,
)
from birthmark.keeper.papers import EXIT, IDENTITY, INTENT, VERSION

DONE: Final = ".done"
"""How the name of a folder ends that is being taken away. It begins with a dot, and is no birth any more."""


class PaperUnreadable(Exception):
    """A paper is there and cannot be understood; `path` names it, `why` is a half sentence."""

    def __init__(self, path: Path, why: str) -> None:
        super().__init__(f"{path}: {why}")
        self.path = path
        self.why = why


@dataclass(frozen=True, slots=True, kw_only=True)
class BirthPapers:
    """What the papers of one birth say. Times are seconds since 1970, UTC.

    `front` is who stands by the birth and writes its papers; None where an older version wrote down `by_pid`
    alone. `identity` is the leader's, None until it is known. `ended_at` is None until there is an exit
    record; then `exit` says how the leader ended, as far as it is known, `born` whether there ever was one,
    and `survivors` who was still there when they were given up.
    """

    folder: Path
    birth: BirthId
    installation: InstallationId
    kind: ChildKind
    service: ServiceName
    by_pid: int
    front: Identity | None
    intended_at: float
    identity: Identity | None = None
    born_at: float | None = None
    ended_at: float | None = None
    exit: ExitStatus | None = None
    born: bool = True
    why: str | None = None
    survivors: tuple[int, ...] = ()


@dataclass(slots=True)
class Shelf:
    """All papers of an installation: what could be read, and what could not.

    `blank` are births whose folder holds no paper: a crash just before the intent, or a disk that took none.
    """

    papers: list[BirthPapers] = field(default_factory=list)
    unreadable: list[PaperUnreadable] = field(default_factory=list)
    blank: list[BirthId] = field(default_factory=list)


def read_shelf(births: Path, *, ended: bool = True) -> Shelf:
    """Read the papers of all births in a folder, in the order of their names. Never raises for a single birth.

    Args:
        ended: Whether births with an exit record are read too.

    Raises:
        OSError: The folder itself cannot be listed.
    """
    shelf = Shelf()
    for name in sorted(os.listdir(births)):
        if name.startswith(".") or (not ended and os.path.exists(os.path.join(births, name, EXIT))):
            continue
        try:
            papers = read_papers(births / name)
        except PaperUnreadable as err:
            shelf.unreadable.append(err)
            continue
        if papers is not None:
            shelf.papers.append(papers)
        elif (births / name).exists():
            shelf.blank.append(birth_id(name))
    return shelf


def read_papers(folder: Path) -> BirthPapers | None:
    """Read the papers of one birth; None when there is no intent, or no folder any more.

    Raises:
        PaperUnreadable: One of them cannot be understood.
    """
    try:
        birth = birth_id(folder.name)
    except ValueError:
        raise PaperUnreadable(folder, "its name is no birth, so that it is nothing of ours") from None
    # The exit record is asked for first: when it is there, the others are complete.
    end = _paper(folder / EXIT, birth)
    intent = _paper(folder / INTENT, birth)
    if intent is None:
        return None
    born = _paper(folder / IDENTITY, birth)
    with _understanding(folder / INTENT):
        front = intent.get("front")
        said = {
            "installation": installation_id(_text(intent, "installation")),
            "kind": ChildKind(_text(intent, "kind")),
            "service": service_name(_text(intent, "service")),
            "by_pid": _integer(intent, "by_pid"),
            "front": None if front is None else Identity.from_dict(_object(front, "front")),
            "intended_at": _time(intent),
        }
    if born is not None:
        with _understanding(folder / IDENTITY):
            identity = Identity.from_dict(_object(born.get("identity"), "identity"))
            if identity.birth != birth:
                raise ValueError(f"it is the identity of birth {identity.birth}")
            said |= {"identity": identity, "born_at": _time(born)}
    if end is not None:
        with _understanding(folder / EXIT):
            said |= {
                "ended_at": _time(end),
                "exit": _exit(_object(end.get("exit"), "exit")),
                "born": end.get("born") is not False,
                "why": _text(end, "why"),
                "survivors": _pids(end.get("survivors")),
            }
    return BirthPapers(folder=folder, birth=birth, **said)  # type: ignore[arg-type]  # checked one by one above


def take_away(folder: Path) -> None:
    """Remove the folder of one birth. A crash in between leaves no half birth; what is no paper of ours stays.

    Raises:
        OSError: It cannot be removed. A folder that is gone already is no error.
    """
    done = folder if folder.name.endswith(DONE) else folder.with_name(f".{folder.name}{DONE}")
    try:
        if done is not folder:
            os.rename(folder, done)
        for name in os.listdir(done):
            if name.lstrip(".").startswith((INTENT, IDENTITY, EXIT)):
                os.unlink(done / name)
        os.rmdir(done)
    except FileNotFoundError:
        pass  # somebody else takes it away at the same time


# -- one paper -----------------------------------------------------------------


class _understanding:  # noqa: N801 - reads as a clause where it is used
    """Name the paper in which something could not be understood."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, err: BaseException | None, _: object) -> None:
        if isinstance(err, ValueError | TypeError | KeyError | OverflowError):
            raise PaperUnreadable(self._path, str(err) or type(err).__name__) from err


def _paper(path: Path, birth: BirthId) -> dict[str, object] | None:
    try:
        text = path.read_bytes()
    except FileNotFoundError:
        return None
    except OSError as err:
        raise PaperUnreadable(path, err.strerror or str(err)) from err
    if not text:
        raise PaperUnreadable(path, "it is empty: the machine went down before it reached the disk")
    try:
        paper = json.loads(text)
    except (ValueError, RecursionError) as err:
        raise PaperUnreadable(path, f"it is no JSON: {err}") from err
    if not isinstance(paper, dict):
        raise PaperUnreadable(path, "it is no JSON object")
    with _understanding(path):
        version = _integer(paper, "version")
        if version > VERSION:
            raise ValueError(f"a newer birthmark wrote it (version {version}; this one knows {VERSION})")
        if paper.get("birth") != birth:
            raise ValueError(f"it is about birth {paper.get('birth')!r}")
    return paper


def _text(paper: Mapping[str, object], key: str) -> str:
    value = paper.get(key)
    if not isinstance(value, str):
        raise ValueError(f"its {key!r} is {value!r}, where text is expected")
    return value


def _integer(paper: Mapping[str, object], key: str) -> int:
    value = paper.get(key)
    if not isinstance(value, int) or isinstance(value, bool):
        raise ValueError(f"its {key!r} is {value!r}, where a number is expected")
    return value


def _object(value: object, key: str) -> dict[str, object]:
    if not isinstance(value, dict):
        raise ValueError(f"its {key!r} is {value!r}, where an object is expected")
    return value


def _time(paper: Mapping[str, object]) -> float:
    at = paper.get("at")
    # Up to the year 9999, beyond which no calendar of ours goes.
    if not isinstance(at, int | float) or isinstance(at, bool) or not 0 <= at < 253_402_300_800:
        raise ValueError(f"its 'at' is {at!r}, where seconds since 1970 are expected")
    return float(at)


def _exit(record: Mapping[str, object]) -> ExitStatus:
    code, signal = record.get("code"), record.get("signal")
    for value in (code, signal):
        if value is not None and (not isinstance(value, int) or isinstance(value, bool)):
            raise ValueError(f"its exit status holds {value!r}")
    return ExitStatus(
        code=code if isinstance(code, int) else None,
        signal=signal if isinstance(signal, int) else None,
        core_dumped=record.get("core_dumped") is True,
    )


def _pids(value: object) -> tuple[int, ...]:
    if not isinstance(value, list) or not all(type(pid) is int for pid in value):
        raise ValueError(f"its 'survivors' are {value!r}, where a list of pids is expected")
    return tuple(value)
