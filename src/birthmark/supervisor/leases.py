"""Ports: leased before a start, looked at before a bind, and looked at again after a stop."""

from __future__ import annotations

import errno
import random
import socket
from collections.abc import Iterable, Mapping
from functools import partial

from birthmark.children.ports import PortAnswer, PortState, holders_of
from birthmark.children.proving import pin_or_none
from birthmark.config.model import ServiceSpec
from birthmark.core.markers import is_tag, read_mark
from birthmark.core.service import ServiceName
from birthmark.errors import PortHeld, RecordConflict
from birthmark.platforms import load
from birthmark.supervisor.house import House


async def lease(house: House, spec: ServiceSpec) -> int | None:
    """Lease the service's port, or pick one; None when it wants none.

    A picked port is the one leased before, if it still is free; the reservation is the row itself,
    so that two starts at once never get one port.

    Raises:
        RecordConflict: Another service has leased the fixed port.
        PortHeld: No port of the range is free.
        RegistryError: The registry cannot be used.
    """
    if spec.port is not None:
        await house.write(partial(_lease, house, spec, spec.port))
        return spec.port
    if spec.port_range is None:
        return None
    chosen: list[int] = []
    await house.write(lambda: chosen.append(_pick(house, spec)))
    return chosen[0]


def _lease(house: House, spec: ServiceSpec, port: int) -> None:
    house.registry.lease_port(port, spec.name, house.clock.now(), epoch=house.epoch)


def _pick(house: House, spec: ServiceSpec) -> int:
    assert spec.port_range is not None
    first, last = spec.port_range
    taken = {held.port: held.service for held in house.registry.leases()}
    # The same port again where possible: clients have written it down.
    mine = [port for port, service in taken.items() if service == spec.name and first <= port <= last]
    others = [port for port in range(first, last + 1) if port not in taken]
    random.shuffle(others)
    for port in [*mine, *others]:
        if not bindable(port):
            continue
        try:
            _lease(house, spec, port)
        except RecordConflict:
            continue
        for other in mine:
            if other != port:
                house.registry.release_port(other, spec.name, epoch=house.epoch)
        return port
    raise PortHeld(first, [f"others, like every port up to {last}"])


def bindable(port: int) -> bool:
    """Say whether a listener could bind the port on any address, right now."""
    for family, address in ((socket.AF_INET, "0.0.0.0"), (socket.AF_INET6, "::")):
        try:
            with socket.socket(family, socket.SOCK_STREAM) as probe:
                # Connections of an ended listener that linger in TIME_WAIT keep nobody from the port.
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                if family == socket.AF_INET6:
                    probe.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
                probe.bind((address, port))
        except OSError as err:
            if err.errno in (errno.EAFNOSUPPORT, errno.EADDRNOTAVAIL):
                continue
            return False
    return True


def look_at(port: int, expected: Iterable[int] = ()) -> PortAnswer:
    """Look who listens on the port, whose pids are expected first. Blocks; see `holders_of`."""
    return holders_of(port, expected=tuple(expected))


def held_by(house: House, answer: PortAnswer) -> PortHeld | None:
    """Return the refusal to start on a port that somebody holds, each holder in words; None when it is free.

    A look that failed is a refusal too: it never means nobody.
    """
    if answer.state is PortState.NOBODY:
        return None
    if answer.state is PortState.COULD_NOT_LOOK:
        return PortHeld(answer.port, [f"we could not look by whom ({answer.cause})"])
    words = [_words(house, pid) for pid in answer.pids]
    words += [f"a process of user {listener.uid} that we may not see" for listener in answer.unseen]
    return PortHeld(answer.port, words)


def _words(house: House, pid: int) -> str:
    """Name a holder: a stranger by its command, one of ours by its service, since its command may hold a secret."""
    pinned = pin_or_none(pid)
    if pinned is None:
        return f"pid {pid} (gone by now)"
    with pinned:
        seen = load().observe(pinned)
    mark = None if seen is None else read_mark(seen.environ)
    if mark is not None and mark.installation == house.installation.id:
        services = ", ".join(sorted(service for _, service in mark.services))
        return f"pid {pid}, which carries the mark of our {services!r}"
    if mark is None and seen is not None and seen.tag is not None and is_tag(seen.tag):
        # It dropped the mark, and may well be one of ours: then its arguments may be secrets.
        return f"pid {pid}, which carries the tag of some birth"
    return f"pid {pid} ({load().command_line(pid) or 'unknown command'}), not ours"


def release_stale(house: House, specs: Mapping[ServiceName, ServiceSpec]) -> None:
    """Let go of ports leased to services that are configured no more, or with other ports."""
    for held in house.registry.leases():
        spec = specs.get(held.service)
        if spec is None or not _wants(spec, held.port):
            house.registry.release_port(held.port, held.service, epoch=house.epoch)


def _wants(spec: ServiceSpec, port: int) -> bool:
    if spec.port_range is not None:
        return spec.port_range[0] <= port <= spec.port_range[1]
    return port == spec.port


def report_ports(house: House, specs: Iterable[ServiceSpec]) -> list[str]:
    """Look at each fixed port, and say who holds those that are not free. Nobody is signalled."""
    lines = []
    for spec in specs:
        if spec.port is None or spec.remote:
            continue
        if (held := held_by(house, look_at(spec.port))) is not None:
            lines.append(f"{spec.name}: {held}")
            house.say(lines[-1])
    return lines
