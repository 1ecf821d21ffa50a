"""Who listens on a TCP port, asked of ``lsof`` or psutil: where the kernel gives no list of its own."""

from __future__ import annotations

import _socket
import errno
import os
import sys
from typing import Final

from birthmark.core.parsers import parse_lsof_pids
from birthmark.errors import LookFailed

__all__ = ["UNSEEN", "pids_by_lsof", "pids_by_psutil", "pids_by_tool", "provably_free"]

LSOF_TIMEOUT_S: Final = 10.0
"""lsof needs 0.7 s with 2,000 processes; it hangs for good on a dead network file system."""

UNSEEN: Final = 0
"""Stands among the pids for a process that has the listener and that we may not see."""


def pids_by_tool(port: int) -> list[int]:
    """Return the pids that listen on `port`, ascending; empty when nobody does; `UNSEEN` for one we may not see.

    Raises:
        LookFailed: The tool is missing, failed, took too long, or could not see enough to say "nobody".
    """
    return pids_by_psutil(port) if sys.platform == "win32" else pids_by_lsof(port)


def pids_by_lsof(port: int, *, timeout_s: float = LSOF_TIMEOUT_S) -> list[int]:
    """Ask ``lsof``, bounded by `timeout_s`; see `pids_by_tool`.

    It exits with 1 and prints nothing both when nobody listens and when it may not see who does. As root
    the first is meant; else binding the port for a moment tells them apart.
    """
    import subprocess  # these two cost more to import than all else here, and are hardly ever needed
    from shutil import which

    subject = f"port {port}"
    program = which("lsof") or which("lsof", path="/usr/sbin:/usr/bin:/sbin:/bin")
    if program is None:
        raise LookFailed(subject, "lsof is not installed")
    command = [program, "-w", "-nP", "-t", f"-iTCP:{port}", "-sTCP:LISTEN"]
    try:
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, timeout=timeout_s, check=False
        )
    except subprocess.TimeoutExpired as err:
        raise LookFailed(subject, f"lsof did not answer within {timeout_s:g} s") from err
    except OSError as err:
        raise LookFailed(subject, f"{program}: {err.strerror}") from err
    output = done.stdout.decode("ascii", "replace").strip()
    pids = parse_lsof_pids(output)
    if done.returncode == 0 and pids:
        return pids
    if output or done.returncode not in (0, 1):
        said = done.stderr.decode("utf-8", "replace").strip() or output
        raise LookFailed(subject, f"lsof ended with {done.returncode}: {said[:200]}")
    if (sys.platform != "win32" and os.geteuid() == 0) or provably_free(port):
        return []
    raise LookFailed(subject, "lsof shows no listener to this user, and the port is not free")


def pids_by_psutil(port: int) -> list[int]:
    """Ask psutil; see `pids_by_tool`. On macOS it wants root."""
    subject = f"port {port}"
    try:
        import psutil
    except ImportError as err:
        raise LookFailed(subject, "psutil is not installed") from err
    try:
        connections = psutil.net_connections(kind="tcp")
    except (psutil.Error, OSError) as err:
        raise LookFailed(subject, f"psutil: {err}") from err
    return sorted(
        {
            connection.pid or UNSEEN
            for connection in connections
            if connection.status == psutil.CONN_LISTEN and connection.laddr and connection.laddr.port == port
        }
    )


def provably_free(port: int) -> bool:
    """Say whether nobody has `port` on any address, by taking it for a moment, without listening.

    False proves nothing: it may be bound and not listening, closed a moment ago, or forbidden to us.
    """
    for family, address in ((_socket.AF_INET6, "::"), (_socket.AF_INET, "0.0.0.0")):
        try:
            probe = _socket.socket(family, _socket.SOCK_STREAM)
        except OSError as err:
            if err.errno == errno.EAFNOSUPPORT:
                continue
            return False
        try:
            if family == _socket.AF_INET6:
                # Else it would take the IPv4 half as well, and the second look would meet the first.
                probe.setsockopt(_socket.IPPROTO_IPV6, _socket.IPV6_V6ONLY, 1)
            probe.bind((address, port))
        except OSError as err:
            if err.errno == errno.EADDRNOTAVAIL and family == _socket.AF_INET6:
                continue
            return False
        finally:
            probe.close()
    return True
