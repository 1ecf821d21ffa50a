"""The demo from its first chapter to its last."""

from __future__ import annotations

import json
import shlex
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from birthmark.core.service import BirthId, birth_id
from birthmark.errors import SupervisionError
from birthmark.interfaces.cli.render import receipt_lines
from birthmark.interfaces.demo import a2a_client, wishes
from birthmark.interfaces.demo.installing import ensure_installed
from birthmark.interfaces.demo.mcp_client import McpSession
from birthmark.interfaces.demo.supervised import House, Status
from birthmark.interfaces.demo.telling import DemoFailed, Survivors, Teller
from birthmark.interfaces.demo.watching import Watch
from birthmark.interfaces.demo.wishes import CLOCK, SERVICES, TIME, Wishes

GONE_WITHIN_S: Final = 15.0
"""After the supervisor's death: a polite server behind two wrappers takes a second or two."""


def show(teller: Teller, *, offline: bool, keep: bool) -> bool:
    """Play the demo in a temporary folder, removed at its end unless `keep`; say whether it showed everything."""
    folder = Path(tempfile.mkdtemp(prefix="birthmark-demo-"))
    try:
        play(teller, folder, offline=offline)
        return True
    except DemoFailed as failure:
        keep = keep or isinstance(failure, Survivors)
        teller.failed(failure)
    except (SupervisionError, OSError) as err:
        teller.failed(DemoFailed(str(err)))
    finally:
        teller.facts["folder"] = str(folder) if keep else None
        # Before another word is said: whoever listened may have gone.
        if not keep:
            shutil.rmtree(folder, ignore_errors=True)
    return False


def play(teller: Teller, folder: Path, *, offline: bool) -> None:
    """Show everything, with all files of this one run in `folder`.

    Raises:
        DemoFailed: Something was not as promised. Nothing of what was started is left then either.
    """
    teller.chapter("Two MCP servers from PyPI, and an A2A agent")
    installed = ensure_installed(lambda line: teller.lines([line]), offline=offline)
    teller.lines([f"they are in {installed.folder}, $SERVERS from here on"])
    teller.shown("each server has an environment of its own")

    teller.chapter("A configuration")
    wanted = wishes.write(folder, installed)
    for path in (wanted.host_file, wanted.toml):
        teller.command(f"cat {path}")
        teller.lines(path.read_text().splitlines())
    teller.shown("a host's file is taken in as it is, and birthmark.toml adds to it")
    teller.short = {str(installed.folder): "$SERVERS", str(installed.uvx.parent): "…"}

    with House(folder, wanted.toml) as house:
        _supervise(teller, house, wanted)


def _supervise(teller: Teller, house: House, wanted: Wishes) -> None:
    first = _bring_up(teller, house, wanted)
    births = [birth_id(str(each["birth"])) for each in first]
    with Watch(births, house.installation.id) as watch:
        _prove(teller, house, first, watch)
        _speak(teller, house, wanted, first)
        _kill(teller, house, watch)
        second = _bring_up(teller, house, wanted, again=first)
        _nothing_left(house, births, watch, "of the first supervisor's births")
    _stop(teller, house, second)


def _bring_up(teller: Teller, house: House, wanted: Wishes, *, again: Sequence[Status] = ()) -> list[Status]:
    teller.chapter("The next supervisor, on the same ports" if again else "Up")
    teller.command(f"birthmark {shlex.join(house.up_words)}")
    house.up()
    services = house.until_ready(lambda each, after_s: teller.lines([_ready(each, after_s)]))
    if again:
        teller.lines(_of_boot(house.lines_said()))
    teller.command("birthmark ps")
    teller.lines(house.birthmark("ps"))
    teller.facts["services"] = services
    found = {str(each["name"]): each for each in services}
    for name, port in wanted.ports.items():
        if found[name]["port"] != port:
            raise DemoFailed(f"{name} is on port {found[name]['port']}, and {port} was asked for")
    if set(found) != set(SERVICES):
        raise DemoFailed(f"{', '.join(SERVICES)} were wanted, and {', '.join(found)} are there")
    for before in again:
        if found[str(before["name"])]["pid"] == before["pid"]:
            raise DemoFailed(f"{before['name']} has kept its pid {before['pid']}")
    ports = " and ".join(str(port) for port in wanted.ports.values())
    if again:
        teller.shown(f"new processes answer on ports {ports}; the supervisor is process {house.pid}")
    else:
        teller.shown(f"{len(services)} services are ready; the supervisor is process {house.pid}")
    return services


def _ready(service: Status, after_s: float) -> str:
    where = f" on port {service['port']}" if service["port"] is not None else ""
    return f"{service['name']} is ready{where} after {after_s:.1f} s: {service['why'] or 'it lives'}"


def _of_boot(said: Sequence[str]) -> list[str]:
    """Return what the supervisor said of the one before it, and of what that left."""
    words = ("supervisor before", "had ended by itself", "left over", "left alone", "was never born")
    return [line for line in said if any(word in line for word in words)]


def _prove(teller: Teller, house: House, services: Sequence[Status], watch: Watch) -> None:
    teller.chapter("Whose are they?")
    for service in services:
        name = str(service["name"])
        teller.command(f"birthmark explain {name}")
        # Exits with 0 only where the process is proven to be ours.
        teller.lines(house.birthmark("explain", name))
        if service["pid"] not in watch.of(birth_id(str(service["birth"]))):
            raise DemoFailed(f"{name}: process {service['pid']} carries no mark of its birth")
    teller.facts["processes"] = {str(pid): command for pid, command in watch.commands.items()}
    teller.shown(f"{len(watch)} processes, each proven to be of one of {len(services)} births")


def _speak(teller: Teller, house: House, wanted: Wishes, services: Sequence[Status]) -> None:
    teller.chapter("Do they answer?")
    asked = {TIME: _ask_server, CLOCK: _ask_agent}
    answers = {}
    for name, ask in asked.items():
        try:
            answers[name], lines = ask(wanted.ports[name])
        except DemoFailed as failure:
            service = next(each for each in services if each["name"] == name)
            raise DemoFailed(f"{name}: {failure}", house.log_of(service)) from failure
        teller.lines(lines)
    teller.facts["answers"] = answers
    teller.shown("MCP over streamable HTTP, through a tree of wrappers, and A2A")


def _ask_server(port: int) -> tuple[str, list[str]]:
    """Return the time a server told through MCP, and the conversation as lines."""
    with McpSession(port) as session:
        tools = session.tools()
        if "get_current_time" not in tools:
            raise DemoFailed(f"it offers {', '.join(tools) or 'nothing'}, and no get_current_time")
        said = " ".join(session.call("get_current_time", timezone="UTC").split())
    return said, [
        f"MCP {session.protocol}: {session.server} offers {', '.join(tools)}",
        f"get_current_time → {said}",
    ]


def _ask_agent(port: int) -> tuple[str, list[str]]:
    """Return the time an agent told through A2A, and the conversation as lines."""
    name, url = a2a_client.card_of(port)
    said = a2a_client.send_message(port, "What time is it?")
    return said, [f"A2A: the card of {name} names {url}", f"SendMessage → {said}"]


def _kill(teller: Teller, house: House, watch: Watch) -> None:
    teller.chapter("The supervisor is killed")
    teller.command(f"kill -KILL {house.pid}")
    status = house.kill()
    alive = watch.wait_gone(GONE_WITHIN_S)
    teller.lines([f"the supervisor: {status}"])
    if alive:
        # Told as it is. The next supervisor ends them, and that is looked at too.
        teller.lines(f"still there: {pid}  {command}" for pid, command in alive.items())
        teller.lines([f"{len(watch) - len(alive)} of {len(watch)} processes went with it"])
        teller.shown(f"{len(alive)} are left for the next supervisor")
    else:
        teller.shown(f"nothing is left: all {len(watch)} processes went with it")
    teller.facts["left_by_kill"] = {str(pid): command for pid, command in alive.items()}


def _nothing_left(house: House, births: Sequence[BirthId], watch: Watch, whose: str) -> None:
    """Make sure that nobody lives who was there, nor anybody else with a mark or tag of theirs.

    Raises:
        DemoFailed: Somebody does.
    """
    alive = watch.wait_gone(0)
    with Watch(births, house.installation.id) as now:
        alive |= now.commands
    if alive:
        raise DemoFailed(
            f"{len(alive)} processes {whose} still live",
            [f"{pid}  {command}" for pid, command in alive.items()],
        )


def _stop(teller: Teller, house: House, services: Sequence[Status]) -> None:
    teller.chapter("Down")
    births = [birth_id(str(each["birth"])) for each in services]
    with Watch(births, house.installation.id) as watch:
        teller.command("birthmark down")
        # Ends with 0 only where nobody survived.
        receipts = _receipts_in(house.birthmark("down", "--json"))
        for receipt in receipts:
            teller.lines(receipt_lines(receipt))
        teller.facts["receipts"] = receipts
        status = house.wait_left()
        if status.code != 0:
            raise DemoFailed(f"the supervisor ended with {status}", house.lines_said()[-12:])
        _nothing_left(house, births, watch, "that were stopped")
        teller.shown(f"{len(watch)} processes stopped, each with its receipt; the supervisor: {status}")


def _receipts_in(printed: Sequence[str]) -> list[Mapping[str, object]]:
    found = json.loads("\n".join(printed)).get("receipts")
    return found if isinstance(found, list) else []
