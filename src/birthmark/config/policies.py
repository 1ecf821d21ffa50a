"""Policies as files say them: lengths, limits and what tells that a service is ready."""

from __future__ import annotations

from collections.abc import Mapping

from birthmark.config import values as read
from birthmark.config.model import Backoff, Intensity, LogPolicy, ReadyKind, ReadySpec
from birthmark.config.values import Said, optional
from birthmark.core.policies import StopPolicy

Words = Mapping[str, Said]


def backoff(said: Words) -> Backoff:
    """Return the pauses between starts."""
    plain = Backoff()
    first_s = optional(said, "backoff", read.duration_s, plain.first_s)
    cap_s = optional(said, "backoff_cap", read.duration_s, max(plain.cap_s, first_s))
    if cap_s < first_s:
        raise said["backoff_cap"].error(f"shorter than the first pause of {first_s:g} s")
    return Backoff(
        first_s=first_s, cap_s=cap_s, jitter=optional(said, "backoff_jitter", read.share, plain.jitter)
    )


def intensity(said: Words) -> Intensity:
    """Return how many restarts are too many."""
    plain = Intensity()
    return Intensity(
        restarts=optional(said, "restarts", read.count, plain.restarts),
        within_s=optional(said, "restarts_within", read.duration_s, plain.within_s),
        stable_s=optional(said, "stable_after", read.duration_s, plain.stable_s),
    )


def stop(said: Words) -> StopPolicy:
    """Return the stop ladder."""
    plain = StopPolicy()
    return StopPolicy(
        stdin_grace_s=optional(said, "stdin_grace", read.duration_s, plain.stdin_grace_s),
        term_grace_s=optional(said, "term_grace", read.duration_s, plain.term_grace_s),
        settle_s=optional(said, "settle", read.duration_s, plain.settle_s),
        stop_signal=optional(said, "stop_signal", read.stop_signal, plain.stop_signal),
    )


def logs(said: Words) -> LogPolicy:
    """Return how much output is kept."""
    plain = LogPolicy()
    return LogPolicy(
        file_bytes=optional(said, "log_size", read.size_bytes, plain.file_bytes),
        files=optional(said, "log_files", read.count, plain.files),
        age_s=optional(said, "log_age", read.duration_s, plain.age_s),
        total_bytes=optional(said, "log_total", read.size_bytes, plain.total_bytes),
    )


def ready(name: str, said: Words, *, has_port: bool, remote: bool) -> ReadySpec:
    """Return what tells that the service is ready: a port is connected to, a service without one only has to live.

    Raises:
        ConfigError: It is to be asked on a port that it does not have, or looked for in the log without a pattern.
    """
    kind = ReadyKind.TCP if has_port else ReadyKind.PROCESS
    if "ready_pattern" in said:
        kind = ReadyKind.LOG
    if "ready_path" in said:
        kind = ReadyKind.HTTP
    kind = optional(said, "ready", read.one_of(ReadyKind), kind)
    if kind in {ReadyKind.TCP, ReadyKind.HTTP} and not has_port and not remote:
        blamed = said["ready"] if "ready" in said else said["ready_path"]
        raise blamed.error(f"{name}: ready by {kind.value} needs a port", 'Add port = "auto", or a number')
    if kind is ReadyKind.LOG and "ready_pattern" not in said:
        raise said["ready"].error("no pattern to look for", 'Add ready_pattern = "listening on"')
    plain = ReadySpec()
    return ReadySpec(
        kind=kind,
        alive_s=optional(said, "ready_after", read.duration_s, plain.alive_s),
        path=optional(said, "ready_path", _url_path, None),
        pattern=optional(said, "ready_pattern", read.pattern, None),
        deadline_s=optional(said, "ready_deadline", read.duration_s, plain.deadline_s),
        interval_s=optional(said, "ready_interval", read.duration_s, plain.interval_s),
        timeout_s=optional(said, "ready_timeout", read.duration_s, plain.timeout_s),
    )


def _url_path(said: Said) -> str:
    path = read.full_text(said)
    if not path.startswith("/"):
        raise said.error("a path begins with a slash", f'Write "/{path[:40]}"')
    return path
