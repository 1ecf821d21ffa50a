"""Requests that reach the control socket before the supervisor's loop runs."""

from __future__ import annotations

import json
import socket
from collections.abc import Sequence
from pathlib import Path

import anyio.lowlevel
import pytest

from birthmark.children.installation import open_installation
from birthmark.config.load import load_files
from birthmark.core.outcomes import ApiServerStamp
from birthmark.interfaces.cli.serving import serve
from birthmark.interfaces.sockets import address_of, control_socket
from birthmark.supervisor.supervisor import Supervisor
from tests.e2e.ups import STDIO, WITHIN_S, write_services


def test_a_down_that_comes_before_the_loop_runs_waits_for_it_and_stops_everything(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    installation = open_installation()
    config = load_files([write_services(tmp_path, {"one": {"script": STDIO}})], environ={})
    really_up = Supervisor.up
    with socket.socket(socket.AF_UNIX) as client:
        client.settimeout(WITHIN_S)

        async def up(self: Supervisor, names: Sequence[str] | None = None) -> None:
            await really_up(self, names)
            with address_of(control_socket(installation.home)) as address:
                client.connect(address)
            client.sendall(b"POST /v1/down HTTP/1.1\r\nHost: birthmark\r\nConnection: close\r\n\r\n")
            for _ in range(50):  # turns for whoever would answer now
                await anyio.lowlevel.checkpoint()

        monkeypatch.setattr(Supervisor, "up", up)
        receipts = serve(
            config, None, installation, ApiServerStamp.UNVERIFIABLE, say=lambda _: None, tell=lambda _: None
        )
        answer = b"".join(iter(lambda: client.recv(65536), b""))
    assert answer.startswith(b"HTTP/1.1 200")
    told = json.loads(answer.partition(b"\r\n\r\n")[2])
    assert told == {"receipts": [receipt.to_dict() for receipt in receipts]}
    assert [member for receipt in receipts for member in receipt.survivors] == []
