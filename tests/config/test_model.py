"""The lease of a port, and a command that already runs under us. Values only."""

from __future__ import annotations

import pytest

from birthmark.config.model import ServiceSpec, with_port
from birthmark.config.unwrap import unwrap
from birthmark.core.markers import ChildKind
from birthmark.core.service import ServiceName


def test_a_leased_port_takes_the_place_of_its_template_everywhere() -> None:
    spec = ServiceSpec(
        name=ServiceName("x"),
        command=("x", "--port={port}", "${port}", "{other}"),
        written=("x", "--port={port}", "${port}", "{other}"),
        env={"PORT": "{port}"},
        url="http://127.0.0.1:{port}/mcp",
        port_range=(8900, 8999),
    )
    leased = with_port(spec, 8931)
    assert leased.command == leased.written == ("x", "--port=8931", "8931", "{other}")
    assert (leased.env, leased.url) == ({"PORT": "8931"}, "http://127.0.0.1:8931/mcp")
    assert (leased.port, leased.port_range, leased.wants_port) == (8931, None, True)
    assert spec.command[1] == "--port={port}"


@pytest.mark.parametrize("port", [0, -1, 65536, 70000, True])
def test_a_lease_of_no_port_is_refused(port: int) -> None:
    with pytest.raises(ValueError, match="is no port: 1 to 65535 is expected"):
        with_port(ServiceSpec(name=ServiceName("x")), port)


@pytest.mark.parametrize(
    "wrapper",
    [
        ["birthmark", "run", "--"],
        ["birthmark", "run"],
        ["/opt/venv/bin/birthmark", "run", "--name", "time", "--"],
        ["/opt/venv/bin/python", "-I", "-m", "birthmark", "run", "--"],
        ["/opt/venv/bin/python3.12", "-m", "birthmark", "run", "--name=time", "--"],
        [r"C:\Python\python.exe", "-I", "-m", "birthmark", "run", "--"],
        ["uvx", "birthmark", "run", "--exclusive", "--"],
        ["birthmark", "run", "--", "birthmark", "run", "--"],
    ],
)
def test_a_wrapper_of_ours_is_taken_off(wrapper: list[str]) -> None:
    assert unwrap([*wrapper, "npx", "-y", "server", "--", "--port"]) == (
        ("npx", "-y", "server", "--", "--port"),
        None,
    )


def test_the_kind_a_wrapper_was_given_is_kept() -> None:
    assert unwrap(["birthmark", "run", "--kind", "agent", "--", "x"]) == (("x",), ChildKind.AGENT)
    assert unwrap(["birthmark", "run", "--kind=agent", "x"]) == (("x",), ChildKind.AGENT)


@pytest.mark.parametrize(
    "command",
    [
        [],
        ["npx", "-y", "birthmark", "run"],
        ["birthmark"],
        ["birthmark", "run"],
        ["birthmark", "run", "--"],
        ["birthmark", "run", "--name"],
        ["birthmark", "up"],
        ["python", "-m", "other", "run", "x"],
        ["python", "-c", "-m", "birthmark", "run", "x"],
        ["python"],
        ["birthmarks", "run", "x"],
    ],
)
def test_another_command_is_left_as_it_is(command: list[str]) -> None:
    assert unwrap(command) is None
