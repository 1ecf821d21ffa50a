"""One service: look, plan, act, and wait until something happens. Twice in a row changes nothing the second time."""

from __future__ import annotations

import os
import random
from collections import deque
from collections.abc import Callable
from typing import Final

import anyio
import anyio.abc

from birthmark.children.waiting import POLL_S, Hurry
from birthmark.config.model import ServiceSpec
from birthmark.core.identity import Proof
from birthmark.core.outcomes import ExitStatus, Receipt
from birthmark.core.plan import PLAN, Action
from birthmark.core.states import Desired, Observed
from birthmark.errors import GaveUp, LookFailed, StopTimedOut, SupervisionError
from birthmark.supervisor.backoff import Next, Restarts
from birthmark.supervisor.booting import Leftover, still_there
from birthmark.supervisor.house import House
from birthmark.supervisor.probing import NotReady, wait_ready
from birthmark.supervisor.running import Running
from birthmark.supervisor.starting import RETRIED, Blocked, holds_stdin, service_log, start_birth
from birthmark.supervisor.status import LastExit, ServiceStatus
from birthmark.supervisor.stopping import end_birth

LOOK_AGAIN_S: Final = 5.0
SLOWEST_LOOK_AGAIN_S: Final = 60.0
"""How often what blocks a start, or outlived a stop, is looked at again: no event tells when it changes."""

_EXITS_KEPT: Final = 5
_NOTHING_RUNS: Final = frozenset({Observed.ABSENT, Observed.BLOCKED, Observed.EXITED, Observed.GAVE_UP})


class Service:
    """One service of the household, driven by one task: `live`. Everybody else only tells it what is wanted.

    All of it belongs to the event loop's thread.
    """

    def __init__(
        self, house: House, spec: ServiceSpec, *, desired: Desired, why: str = "not started yet"
    ) -> None:
        self.spec = spec
        self.desired = desired
        self.observed = Observed.ABSENT
        self.why = why
        self.last_exit: LastExit | None = None
        self.receipt: Receipt | None = None
        """What the last stop did; None once a new birth began."""
        self.stop_error: SupervisionError | None = None
        """Why the last stop did not end all of it."""
        self.lives = False
        """Whether its task was started."""
        self.leftovers: list[Leftover] = []
        """What an earlier supervisor left and we could not prove: while one lives, nothing is started beside it."""
        self._house = house
        self._journal = service_log(house, spec)
        self._restarts = Restarts(spec.restart, spec.backoff, spec.intensity, random=random.random)
        self._exits: deque[str] = deque(maxlen=_EXITS_KEPT)
        self._running: Running | None = None
        self._lived_s = 0.0
        self._ruled = False
        self._told: str | NotReady | None = None
        self._watch = anyio.CancelScope()
        self._hurry: Hurry | None = None
        self._force = False
        self._anew = False
        self._starting = False
        self._due: float | None = None
        self._gap_s = LOOK_AGAIN_S
        self._changed = anyio.Event()
        self._woken = anyio.Event()

    # -- what is wanted

    def want(self, desired: Desired) -> None:
        """Take in what the user wants; the service's task acts on it. Wanting *up* again ends any waiting."""
        self.desired = desired
        self._due = None
        self.stop_error = None
        if desired is Desired.UP:
            self._restarts.forget()
            self._exits.clear()
            self._force = False
            self._anew = self.observed is Observed.STOPPING
            if self.observed in _NOTHING_RUNS or self.observed is Observed.BACKOFF:
                self._see(Observed.ABSENT, "to be started")
        elif self.observed is Observed.BLOCKED:
            self._see(Observed.ABSENT, "stopped, as asked")
        self._woken.set()

    def hurry(self) -> None:
        """Shorten the grace of the stop that is under way, or comes next, to nothing."""
        self._force = True
        if self._hurry is not None:
            self._hurry.say()

    @property
    def runs(self) -> bool:
        """Whether there is anything to stop, as far as we know."""
        return self._starting or (
            self.observed not in _NOTHING_RUNS and self.observed is not Observed.BACKOFF
        )

    @property
    def rests(self) -> bool:
        """Whether nothing runs and nothing is going to by itself."""
        return self.observed in _NOTHING_RUNS and not self._starting

    async def until_settled(self) -> None:
        """Wait until a start was made or refused, or is wanted no longer."""
        await self._until(
            lambda: (
                self.desired is Desired.DOWN
                or self.observed not in (Observed.ABSENT, Observed.STARTING, Observed.STOPPING)
                or (self.observed is Observed.STARTING and self._running is not None)
            )
        )

    async def until_down(self) -> None:
        """Wait until nothing runs any more, a stop has failed, or *up* is wanted instead."""
        await self._until(lambda: self.desired is Desired.UP or self.stop_error is not None or self.rests)

    async def _until(self, reached: Callable[[], bool]) -> None:
        while not reached():
            await self._changed.wait()

    def _see(self, observed: Observed, why: str) -> None:
        self.observed, self.why = observed, why
        self._changed.set()
        self._changed = anyio.Event()

    # -- the loop

    async def live(self, tasks: anyio.abc.TaskGroup) -> None:
        """Look, plan, act, for ever; ended by cancelling. `tasks` gets whoever waits for exits and answers."""
        while True:
            # Made before the look: what happens during the round is seen in the next one.
            self._woken = anyio.Event()
            running = self._running
            # What outlived a stop is looked at again in its own time, not at once and for ever.
            if (
                running is not None
                and not running.child.is_running()
                and self.observed is not Observed.UNKNOWN
            ):
                await self._left(running)
                continue
            if (refused := self._take_in()) is not None:
                await self._refuse(refused)
                continue
            match PLAN[self.desired, self.observed]:
                case Action.START:
                    await self._start(tasks)
                case Action.STOP:
                    await self._stop()
                case Action.CONSULT_POLICY if not self._ruled:
                    self._consult()
                case Action.LOOK_AGAIN:
                    await self._rest()
                    await self._stop()
                case _:
                    await self._rest()
                    if self._due is not None and self._house.clock.monotonic() >= self._due:
                        await self._come_due(tasks)

    def _take_in(self) -> NotReady | None:
        """Take in what the probe has told since the last round; what is returned is to be refused."""
        told, self._told = self._told, None
        if isinstance(told, str) and self.observed is Observed.STARTING:
            self._see(Observed.READY, told)
            self._journal.notice(f"ready: {told}")
            self._say(f"ready ({told})")
        return told if isinstance(told, NotReady) and self.observed is Observed.STARTING else None

    async def _rest(self) -> None:
        """Wait until somebody wakes us, or something is due."""
        within_s = None if self._due is None else max(0.0, self._due - self._house.clock.monotonic())
        with anyio.move_on_after(within_s):
            await self._woken.wait()

    async def _come_due(self, tasks: anyio.abc.TaskGroup) -> None:
        self._due = None
        if PLAN[self.desired, self.observed] is not Action.WAIT:
            return
        if self.observed is Observed.BACKOFF:
            self._see(Observed.ABSENT, self.why)
        elif self.observed is Observed.BLOCKED:
            # Still called blocked while it is tried: one that flickers tells a reader nothing.
            await self._start(tasks)

    # -- start

    async def _start(self, tasks: anyio.abc.TaskGroup) -> None:
        if self.observed is not Observed.BLOCKED:
            self._see(Observed.STARTING, "being started")
        blocked: Blocked | None = None
        # A start that is tried again while *blocked* is under way all the same: a stop waits for it.
        self._starting = True
        try:
            await self._require_no_leftover()
            running = await start_birth(self._house, self.spec, self._journal)
        except Blocked as err:
            blocked = err
        except (SupervisionError, OSError) as err:
            # No descriptors left, no memory: one service waits, and the others go on.
            blocked = Blocked("system", str(err))
        finally:
            self._starting = False
        if blocked is not None:
            if blocked.leftover is not None:
                self.leftovers.append(blocked.leftover)
            self._block(blocked)
            return
        self._gap_s = LOOK_AGAIN_S
        self.receipt = self.stop_error = self._told = None
        self._running = running
        self._watch = anyio.CancelScope()
        self._see(Observed.STARTING, f"waiting until it is ready ({running.spec.ready.kind.value})")
        self._say(f"started, pid {running.child.pid}" + self._reached_by())
        tasks.start_soon(self._await_exit, running)
        tasks.start_soon(self._await_ready, running, self._watch)

    async def _require_no_leftover(self) -> None:
        while self.leftovers:
            if (why := await still_there(self._house, self.leftovers[0])) is not None:
                raise Blocked("leftover", f"of an earlier birth: {why}")
            self.leftovers.pop(0)

    def _block(self, err: Blocked) -> None:
        if self.desired is Desired.DOWN:
            self._see(Observed.ABSENT, "stopped, as asked")
            return
        news = str(err) != self.why
        self._see(Observed.BLOCKED, str(err))
        if news:
            self._say(f"blocked: {err}")
            self._journal.notice(f"blocked: {err}")
        self._due = None
        if err.reason in RETRIED:
            self._due = self._house.clock.monotonic() + self._gap_s
            self._gap_s = min(self._gap_s * 2, SLOWEST_LOOK_AGAIN_S)

    def _reached_by(self) -> str:
        if holds_stdin(self.spec):
            return "; it speaks stdio: clients reach a copy of their own through `birthmark run`"
        running = self._running
        port = None if running is None else running.spec.port
        return "" if port is None else f", port {port}"

    async def _await_exit(self, running: Running) -> None:
        """Wake the loop when the leader has exited; the kernel tells on the pidfd."""
        try:
            # A copy: a stop waits on the original, and an event loop takes one reader for each.
            waiter = None if running.child.exit_fd is None else os.dup(running.child.exit_fd)
        except OSError:
            waiter = None
        if waiter is None:
            while running.child.is_running():  # noqa: ASYNC110 - without a pidfd no event tells of an exit
                await anyio.sleep(POLL_S)
        else:
            try:
                await anyio.wait_readable(waiter)
            finally:
                os.close(waiter)
        if self._running is running:
            self._woken.set()

    async def _await_ready(self, running: Running, scope: anyio.CancelScope) -> None:
        with scope:
            try:
                told: str | NotReady = await wait_ready(self._house, running)
            except NotReady as err:
                told = err
            except (LookFailed, OSError) as err:
                told = NotReady(f"it could not be asked: {err}")
            if self._running is running:
                self._told = told
                self._woken.set()

    # -- ends

    async def _stop(self) -> None:
        """End what runs because it is not wanted any more; or try again on what an earlier stop left."""
        running = self._running
        if running is None:
            self._due = None
            self._see(Observed.ABSENT, "stopped, as asked")
            return
        asked = self.desired is Desired.DOWN
        if await self._end(running, "stop" if asked else "look again", asked=asked):
            self._say(f"stopped ({self._outcome()})")

    async def _left(self, running: Running) -> None:
        """End what a leader left behind that ended by itself."""
        asked = self.desired is Desired.DOWN
        if await self._end(running, "exit of its leader", asked=asked):
            self._say(f"ended by itself: {self.why}" + self._left_behind())

    async def _refuse(self, told: NotReady) -> None:
        """End a birth that did not become ready."""
        running = self._running
        assert running is not None
        if not await self._end(running, "not ready", asked=False):
            return
        if told.stranger:
            self._block(Blocked("port", told.why))
            return
        # However it ended when we asked it to: as a start it has failed.
        self.last_exit = LastExit(status=ExitStatus(), at=self._house.clock.now(), asked=False)
        self._see(Observed.EXITED, told.why)
        self._say(told.why)

    async def _end(self, running: Running, asked_by: str, *, asked: bool) -> bool:
        """End all of a birth; False when something of it is left, which is then *unknown*."""
        self._watch.cancel()
        self._see(Observed.STOPPING, f"ending all of it ({asked_by})")
        try:
            with Hurry() as self._hurry:
                if self._force:
                    self._hurry.say()
                receipt, status = await end_birth(self._house, running, asked_by=asked_by, hurry=self._hurry)
        except SupervisionError as err:
            self._stop_failed(err)
            return False
        except OSError as err:
            self._stop_failed(LookFailed(f"process {running.child.pid}", str(err)))
            return False
        finally:
            self._hurry = None
        clock = self._house.clock
        self._running, self._ruled, self._due = None, False, None
        self._gap_s = LOOK_AGAIN_S
        self._lived_s = clock.monotonic() - running.since
        self.receipt = receipt
        self.last_exit = LastExit(status=status, at=clock.now(), asked=asked)
        self._exits.append(str(self.last_exit))
        self._journal.notice(f"ended: {self.last_exit} ({self._outcome()})")
        self._see(Observed.EXITED, str(self.last_exit))
        if self._anew and self.desired is Desired.UP:
            # Wanted again while it was being stopped: that is a start, and no restart to be ruled on.
            self._anew = False
            self._see(Observed.ABSENT, "to be started")
        return True

    def _stop_failed(self, err: SupervisionError) -> None:
        self.receipt = err.receipt if isinstance(err, StopTimedOut) else None
        self.stop_error = err
        self._due = self._house.clock.monotonic() + self._gap_s
        self._gap_s = min(self._gap_s * 2, SLOWEST_LOOK_AGAIN_S)
        self._see(Observed.UNKNOWN, str(err))
        self._say(str(err))
        self._journal.notice(f"not stopped: {err}")

    def _consult(self) -> None:
        """Ask the restart policy what follows an exit nobody asked for."""
        self._ruled = True
        status = self.last_exit.status if self.last_exit is not None else ExitStatus()
        now = self._house.clock.monotonic()
        ruling = self._restarts.after(status, now=now, lived_s=self._lived_s)
        if ruling.next is Next.RESTART:
            self._due = now + ruling.delay_s
            self._see(Observed.BACKOFF, f"{self.why}; next start in {ruling.delay_s:.1f} s")
        elif ruling.next is Next.GIVE_UP:
            limit = self.spec.intensity
            self._see(
                Observed.GAVE_UP,
                str(GaveUp(self.spec.name, limit.restarts, limit.within_s, list(self._exits))),
            )
            self._house.say(self.why)
        else:
            self._see(Observed.EXITED, f"{self.why}; its restart policy is {self.spec.restart.value!r}")
        self._journal.notice(self.why)

    # -- words

    def status(self) -> ServiceStatus:
        """Return what can be said of it now. Looks at the leader, and at nothing else."""
        running, spec = self._running, self.spec
        known = spec if running is None else running.spec
        clock = self._house.clock
        return ServiceStatus(
            name=spec.name,
            kind=spec.kind,
            desired=self.desired,
            observed=self.observed,
            why=self.why,
            pid=None if running is None else running.child.pid,
            port=known.port,
            url=known.written_url,
            birth=None if running is None else running.birth,
            started_at=None if running is None else running.born_at,
            uptime_s=None if running is None else clock.monotonic() - running.since,
            restarts=self._restarts.total,
            last_exit=self.last_exit,
            stdout_bytes=None if running is None or running.counted is None else running.counted.total_bytes,
            proof=None if running is None else _proof_or_none(running),
            log=str(self._journal.path),
        )

    def close(self) -> None:
        """Let go of the log."""
        self._journal.close()

    def _outcome(self) -> str:
        receipt = self.receipt
        if receipt is None:
            return "nothing was left"
        count = len(receipt.members)
        return (
            f"{receipt.termination.value}, {count} process{'' if count == 1 else 'es'}, {receipt.took_ms} ms"
        )

    def _left_behind(self) -> str:
        members = [] if self.receipt is None else self.receipt.members
        if not members:
            return ""
        listed = ", ".join(f"{member.pid} ({member.found.value})" for member in members)
        return f"; what it left was ended: {listed}"

    def _say(self, text: str) -> None:
        self._house.say(f"{self.spec.name}: {text}")


def _proof_or_none(running: Running) -> Proof | None:
    """Return the proof of a leader; None where it cannot be looked at, which must not keep the others from view."""
    try:
        return running.child.proof()
    except (SupervisionError, OSError):
        return None
