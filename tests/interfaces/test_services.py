"""The commands that ask a supervisor, against the real API over a household of values; output compared whole."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.interfaces.running import command
from tests.interfaces.served import Api, serving


@pytest.fixture(autouse=True)
def api(birthmark_home: Path) -> Iterator[Api]:
    """A supervisor that runs `time`, `a/b stop`, `deaf` (survives its stop), `held` and `broken` (cannot start)."""
    with serving(birthmark_home) as served:
        yield served


def test_services_are_a_table() -> None:
    assert command("ps") == (
        0,
        """\
NAME      KIND  DESIRED  OBSERVED  PID  PORT  UPTIME  RESTARTS  WHY
time      mcp   up       ready     -    -     -       0         alive
a/b stop  mcp   up       ready     -    -     -       0         alive
deaf      mcp   up       ready     -    -     -       0         alive
held      mcp   up       ready     -    -     -       0         alive
broken    mcp   up       ready     -    -     -       0         alive
""",
        "",
    )


def test_named_services_are_shown_in_the_order_of_their_names() -> None:
    services = command("ps", "--json", "deaf", "time", "deaf").json["services"]
    assert isinstance(services, list)
    assert [each["name"] for each in services] == ["deaf", "time"]


def test_all_that_run_is_success_for_status() -> None:
    assert command("status", "time", "held").code == 0


@pytest.mark.parametrize("verb", ["ps", "status", "start", "stop", "restart"])
def test_an_unknown_name_is_an_error_and_nothing_is_asked_for(api: Api, verb: str) -> None:
    assert command(verb, "time", "tiem") == (
        4,
        "",
        "birthmark: no service is called 'tiem'; there are: a/b stop, broken, deaf, held, time\n",
    )
    assert api.household.heard == []


def test_a_stop_prints_the_receipt(api: Api) -> None:
    assert command("stop", "a/b stop") == (
        0,
        "time: exited in 3 ms\n  5  leader  SIGTERM at 0 ms: exit code 0  x\n",
        "",
    )
    assert api.household.heard == [("stop", "a/b stop", "False")]


def test_force_is_passed_on(api: Api) -> None:
    assert command("stop", "--force", "time").code == 0
    assert api.household.heard == [("stop", "time", "True")]


def test_survivors_have_a_code_of_their_own_and_the_others_are_stopped_all_the_same(api: Api) -> None:
    assert command("stop", "deaf", "time") == (
        6,
        (
            "time: exited in 3 ms\n  5  leader  SIGTERM at 0 ms: still alive  x\n"
            "time: exited in 3 ms\n  5  leader  SIGTERM at 0 ms: exit code 0  x\n"
        ),
        "",
    )
    assert [each[1] for each in api.household.heard] == ["deaf", "time"]


def test_a_dry_run_asks_for_nothing(api: Api) -> None:
    assert command("stop", "--dry-run", "time") == (0, "time: nothing runs\n", "")
    assert api.household.heard == []


@pytest.mark.parametrize("verb", ["start", "restart"])
def test_a_start_says_how_the_service_stands(api: Api, verb: str) -> None:
    assert command(verb, "time") == (0, "time: ready (alive)\n", "")
    assert api.household.heard == [(verb, "time")]


def test_a_start_that_is_refused_says_why() -> None:
    assert command("start", "held") == (
        5,
        "",
        (
            "birthmark: port 80 is held by process 7 (nginx). It was left alone: end it yourself, "
            "or choose another port\n"
        ),
    )


def test_a_defect_of_the_supervisor_is_told_in_its_words() -> None:
    assert command("start", "broken") == (1, "", "birthmark: ZeroDivisionError: division by zero\n")


def test_down_prints_all_receipts() -> None:
    assert command("down") == (
        0,
        "time: exited in 3 ms\n  5  leader  SIGTERM at 0 ms: exit code 0  x\n",
        "",
    )


def test_a_time_out_is_said() -> None:
    said = command("down", "--timeout", "1e-9")
    assert (said.code, said.out) == (124, "")
    assert said.err == "birthmark: the supervisor did not answer POST /v1/down within 1e-09 s\n"


@pytest.mark.parametrize("seconds", ["0", "-1", "soon", "nan", "inf", "1e300"])
def test_a_bound_that_is_none_is_a_mistake_of_usage(seconds: str) -> None:
    assert command("down", "--timeout", seconds).code == 2
