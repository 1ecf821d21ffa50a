def launch(
    path: bytes,
    argv: list[bytes],
    env: list[bytes],
    cwd: bytes | None,
    fds: list[tuple[int, int]],
    parent_death: int | None,
    session: int,
    umask: int | None,
    uid: int | None,
    gid: int | None,
    groups: list[int] | None,
    limits: list[tuple[int, int, int]],
    claimed: list[tuple[int, int | None]],
    /,
) -> tuple[int, str] | None: ...
def look(pid: int, pidfd: int, /) -> tuple[int, int, int, int, int, str, int, bytes, int | None] | None: ...
