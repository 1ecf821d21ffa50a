"""What the bare interpreter of the pure path does before it becomes the program.

Run as `python -I -S -c SOURCE CONTROL`, with every signal blocked, and imported by nobody. CONTROL is a
socket to the requester: the request comes in, marshalled, up to end-of-file; out goes `+` right before the
exec, and `-ERRNO STEP` if anything fails. It closes on exec, so end-of-file after `+` means that the
program runs, and end-of-file before it that this interpreter died.

The order of the steps is the native path's.
"""

import errno
import marshal
import os
import signal
import sys

assert sys.platform != "win32"

TYPE_CHECKING = False  # typing's own is not worth its import here
if TYPE_CHECKING:
    from collections.abc import Callable

PR_SET_PDEATHSIG = 1
KEEP_HARD = -2
RT_SIGACTION = {"x86_64": 13, "aarch64": 134, "riscv64": 134, "ppc64le": 173, "s390x": 174}


def main() -> None:
    """Become the program, or say why not."""
    control = int(sys.argv[1])
    os.set_inheritable(control, False)
    request = marshal.loads(read_all(control))
    step = "spawn"
    try:
        # Whatever is imported is imported now: afterwards a limit or another user may forbid it.
        arm = arming() if request["parent_death"] else None
        if request["limits"]:
            import resource  # noqa: F401
        program = (request["path"], request["argv"], dict(entry.split(b"=", 1) for entry in request["env"]))

        default_hidden_signals()

        step = "descriptors"
        for stash, theirs in request["descriptors"]:
            os.dup2(stash, theirs)
        close_all_but({control, *(theirs for _, theirs in request["descriptors"])})
        step = "limits"
        for limit in request["limits"]:
            set_limit(*limit)
        step = "credentials"
        if request["umask"] is not None:
            os.umask(request["umask"])
        set_credentials(request["uid"], request["gid"], request["groups"])
        step = "cwd"
        if request["cwd"] is not None:
            os.chdir(request["cwd"])
        step = "parent"
        if arm is not None:
            # After the credentials, since the kernel disarms it when they change. Then look: a parent that
            # died before the arming will never send it. Compared with the recorded pid, since not every
            # orphan falls to pid 1.
            arm(request["parent_death"])
            if os.getppid() != request["parent"]:
                raise ProcessLookupError(errno.ESRCH, "the parent is gone")

        step = "exec"
        for number in (
            signal.SIGINT,
            signal.SIGPIPE,
            signal.SIGXFSZ,
        ):  # what an interpreter changes at its start
            signal.signal(number, signal.SIG_DFL)
        os.write(control, b"+")
        signal.pthread_sigmask(signal.SIG_SETMASK, ())
        os.execve(*program)
    except BaseException as err:
        code = err.errno if isinstance(err, OSError) and err.errno else errno.EINVAL
        if isinstance(err, MemoryError):
            code = errno.ENOMEM
        os.write(control, f"-{code} {step}".encode())


def read_all(fd: int) -> bytes:
    """Read up to end-of-file. Cut short, because the requester died, it is no request."""
    parts = []
    while part := os.read(fd, 1 << 16):
        parts.append(part)
    return b"".join(parts)


def close_all_but(keep: set[int]) -> None:
    """Close every descriptor that the child shall not have."""
    try:
        listed = [int(name) for name in os.listdir("/proc/self/fd" if sys.platform == "linux" else "/dev/fd")]
    except OSError:
        listed = list(range(os.sysconf("SC_OPEN_MAX")))
    for fd in listed:
        if fd not in keep:
            try:
                os.close(fd)
            except OSError:
                pass  # the listing's own, or a hole in the range


def set_limit(number: int, soft: int, hard: int) -> None:
    """Set one limit. With KEEP_HARD only the soft value, and no harm if that cannot be done."""
    import resource

    keep = hard == KEEP_HARD
    try:
        resource.setrlimit(number, (soft, resource.getrlimit(number)[1] if keep else hard))
    except (OSError, ValueError) as err:
        if keep:
            return
        if isinstance(err, OSError):
            raise
        # The module turns the errno into a sentence.
        above = hard != resource.RLIM_INFINITY and (soft == resource.RLIM_INFINITY or soft > hard)
        raise OSError(errno.EINVAL if above or "invalid" in str(err) else errno.EPERM, str(err)) from err


def set_credentials(uid: int | None, gid: int | None, groups: list[int] | None) -> None:
    """Take other groups, then another group, then another user: the last takes the right to the others."""
    if groups is not None:
        os.setgroups(groups)
    if sys.platform == "linux":
        if gid is not None:
            os.setresgid(gid, gid, gid)
        if uid is not None:
            os.setresuid(uid, uid, uid)
    else:
        if gid is not None:
            os.setregid(gid, gid)
        if uid is not None:
            os.setreuid(uid, uid)


def arming() -> "Callable[[int], None]":
    """Return what arms parent death."""
    if sys.platform != "linux":
        raise OSError(errno.ENOSYS, "no parent-death signal on this system")
    import ctypes

    prctl = ctypes.CDLL(None, use_errno=True).prctl

    def arm(number: int) -> None:
        if prctl(PR_SET_PDEATHSIG, ctypes.c_ulong(number), 0, 0, 0) != 0:
            raise OSError(ctypes.get_errno(), "prctl")

    return arm


def default_hidden_signals() -> None:
    """Give back their default to the two signals that glibc hides, and that its posix_spawn sets to *ignored*."""
    call = RT_SIGACTION.get(os.uname().machine)
    if sys.platform != "linux" or call is None:
        return
    import ctypes

    zeros = ctypes.create_string_buffer(256)  # SIG_DFL in every layout
    for number in (32, 33):
        ctypes.CDLL(None).syscall(call, number, zeros, None, 8)


if __name__ == "__main__":
    main()
    os._exit(127)
