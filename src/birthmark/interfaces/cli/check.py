"""`check`: what a configuration comes to, and what `up` would start. Starts nothing."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from pathlib import Path

import click

from birthmark.config.model import Config, ServiceSpec
from birthmark.interfaces.cli.configuring import allow_unset_option, load
from birthmark.interfaces.cli.options import json_option
from birthmark.interfaces.cli.render import NONE, one_line, print_json, table
from birthmark.interfaces.faces import Exit

HEADS = ("NAME", "KIND", "TRANSPORT", "PORT", "READY", "RESTART", "COMMAND")


@click.command(
    epilog="""\b
Exit codes: 0, or 2 when the configuration cannot be used.

\b
Examples:
  birthmark check
  birthmark check .mcp.json
"""
)
@click.argument("files", metavar="[FILE]...", nargs=-1, type=click.Path(path_type=Path))
@allow_unset_option
@json_option
def check(files: tuple[Path, ...], allow_unset: bool, as_json: bool) -> int:
    """Read a configuration and print what it comes to. Starts nothing; secrets are not shown."""
    config = load(files, allow_unset=allow_unset)
    if as_json:
        print_json(as_values(config))
    else:
        click.echo("\n".join(_lines(config)))
    return Exit.DONE


def as_values(config: Config) -> dict[str, object]:
    """Return the configuration as plain values for JSON, without the value of any secret."""
    return {
        "sources": [{"path": str(each.path), "sha256": each.sha256} for each in config.sources],
        "warnings": list(config.warnings),
        "services": [_values(each) for each in config.services],
        "plan": [{"service": str(each.name), "action": _action(each)} for each in config.services],
    }


def _values(spec: ServiceSpec) -> dict[str, object]:
    return {
        "name": str(spec.name),
        "kind": spec.kind.value,
        "enabled": spec.enabled,
        "transport": spec.transport.value,
        "command": list(spec.written),
        "cwd": None if spec.cwd is None else str(spec.cwd),
        "env": spec.shown_env(),
        "env_profile": spec.env_profile.value,
        "port": spec.port,
        "port_range": None if spec.port_range is None else list(spec.port_range),
        "url": spec.written_url,
        "ready": {"kind": spec.ready.kind.value, "deadline_s": spec.ready.deadline_s},
        "restart": spec.restart.value,
        "stop": {
            "stdin_grace_s": spec.stop.stdin_grace_s,
            "term_grace_s": spec.stop.term_grace_s,
            "settle_s": spec.stop.settle_s,
        },
        "source": spec.source,
        "line": spec.line,
        "notes": list(spec.notes),
    }


def _action(spec: ServiceSpec) -> str:
    if spec.remote:
        return "nothing: it is somebody else's server"
    return "start" if spec.enabled else "nothing: it is disabled"


def _lines(config: Config) -> Iterator[str]:
    for source in config.sources:
        yield f"read {source.path}"
    for warning in config.warnings:
        yield f"warning: {one_line(warning)}"
    if not config.services:
        yield "it names no service"
        return
    yield table(HEADS, [_row(each) for each in config.services])
    starting = [each for each in config.services if _action(each) == "start"]
    yield f"`birthmark up` would start {len(starting)} of {len(config.services)}"
    for each in config.services:
        for note in each.notes:
            yield f"note: {one_line(each.name)}: {one_line(note)}"


def _row(spec: ServiceSpec) -> list[str]:
    port = str(spec.port) if spec.port is not None else NONE
    if spec.port_range is not None:
        port = "{}-{}".format(*spec.port_range)
    command = shlex.join(spec.written) if spec.written else spec.written_url or NONE
    return [
        str(spec.name),
        spec.kind.value,
        spec.transport.value,
        port,
        spec.ready.kind.value,
        spec.restart.value,
        command if spec.enabled else f"(disabled) {command}",
    ]
