"""What is asked of a keeper, between values and messages: the launch, and how its set may be ended."""

from __future__ import annotations

import marshal
import os
from typing import Any

from birthmark.core.policies import DeathPolicy, StopPolicy
from birthmark.platforms.launch import Launch, Session


def pack(
    launch: Launch, *, limits: tuple[tuple[int, int, int], ...] = ()
) -> tuple[bytes, list[int], list[int]]:
    """Return a launch packed, the child's descriptor numbers, and our descriptors that become those.

    Packed by marshal, which takes bytes as they are and unpacks without touching much of an interpreter: the
    keeper runs the very code of its owner, and nobody else can write to the channel between the two.

    Args:
        launch: What the kernel is to take.
        limits: More limits, which outrank the launch's own.

    Nothing is left to the place where it is carried out: without a working directory it is ours. The parent's
    death is not the asker's choice; a keeper's child dies with its keeper.
    """
    replaced = {number for number, _, _ in limits}
    values = (
        launch.path,
        launch.argv,
        launch.env,
        os.getcwdb() if launch.cwd is None else launch.cwd,
        int(launch.session),
        launch.umask,
        launch.uid,
        launch.gid,
        launch.groups,
        (*(limit for limit in launch.limits if limit[0] not in replaced), *limits),
    )
    return (
        marshal.dumps(values),
        [theirs for _, theirs in launch.descriptors],
        [ours for ours, _ in launch.descriptors],
    )


def unpack(packed: bytes, targets: list[int], descriptors: list[int], parent_death: int) -> Launch:
    """Return the launch that was packed, with the descriptors as they arrived.

    Raises:
        ValueError: It is none; what is wrong is said.
    """
    if len(targets) != len(descriptors):
        raise ValueError(f"{len(descriptors)} descriptors came for {len(targets)} numbers")
    try:
        path, argv, env, cwd, session, umask, uid, gid, groups, limits = marshal.loads(packed)
        return Launch(
            path=path,
            argv=argv,
            env=env,
            cwd=cwd,
            descriptors=tuple(zip(descriptors, targets, strict=True)),
            parent_death=parent_death,
            session=Session(session),
            umask=umask,
            uid=uid,
            gid=gid,
            groups=groups,
            limits=limits,
        )
    except (EOFError, TypeError) as err:
        raise ValueError(f"no launch: {err!r}") from err


def pack_stop(policy: StopPolicy) -> dict[str, Any]:
    """Return a stop policy as JSON values."""
    return {
        "term_grace_s": policy.term_grace_s,
        "settle_s": policy.settle_s,
        "stop_signal": int(policy.stop_signal),
    }


def unpack_stop(values: dict[str, Any]) -> StopPolicy:
    """Return the stop policy; what is missing has its default.

    Raises:
        ValueError: It is none.
    """
    known = {name: values[name] for name in ("term_grace_s", "settle_s", "stop_signal") if name in values}
    try:
        return StopPolicy(**known)
    except TypeError as err:
        raise ValueError(f"no stop policy: {values!r}") from err


def pack_death(policy: DeathPolicy) -> dict[str, Any]:
    """Return a death policy as JSON values."""
    return {"policy": "outlive" if policy.outlive else "stop", "for_s": policy.for_s}


def unpack_death(values: dict[str, Any]) -> DeathPolicy:
    """Return the death policy. A word that is not known (a newer owner's) is no policy.

    Raises:
        ValueError: It is none.
    """
    word = values.get("policy", "stop")
    if word not in ("stop", "outlive"):
        raise ValueError(f"no death policy: {word!r}")
    try:
        return DeathPolicy(outlive=word == "outlive", for_s=values.get("for_s"))
    except TypeError as err:
        raise ValueError(f"no death policy: {values!r}") from err
