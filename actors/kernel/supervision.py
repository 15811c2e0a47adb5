"""Supervision: run an actor, read the reason of its exit, and restart it if the tables allow.

Rules: A9 (only restartable exits are restarted), A10 (backoff with jitter; at most ``restarts_max`` restarts
in ``window`` seconds, then it gives up; a healthy run resets the backoff).

Cancellation passes at once, from the actor and from the wait between two runs. KeyboardInterrupt and
SystemExit are reported as poisoned and then pass: they are meant for the process. Time is
``anyio.current_time`` (rule C8).
"""

from __future__ import annotations

import enum
from collections import deque
from collections.abc import Awaitable, Callable
from random import Random

import anyio
from msgspec import Struct
from msgspec.structs import replace

from ...storage_backends.base.errors import InvalidArgument
from .backoff import Backoff
from .exits import RESTARTABLE, ActorExit, exit_of

DEFAULT_BACKOFF = Backoff(first=0.1, maximum=30.0)


class RestartPolicy(Struct, frozen=True):
    backoff: Backoff = DEFAULT_BACKOFF
    restarts_max: int = 10
    """Restarts allowed within ``window``; 0 means none."""
    window: float = 300.0
    """Seconds in which restarts are counted."""
    healthy_after: float = 60.0
    """A run of this many seconds resets the backoff."""

    def __post_init__(self) -> None:
        if self.restarts_max < 0 or self.window <= 0 or self.healthy_after < 0:
            raise InvalidArgument(f"invalid {self}: restarts_max >= 0, window > 0, healthy_after >= 0")


class SupervisionStep(enum.Enum):
    STARTED = "started"
    RESTARTING = "restarting"
    """It ended and is restarted after ``delay`` seconds."""
    ENDED = "ended"
    """It ended with an exit that is not restarted."""
    GAVE_UP = "gave-up"
    """It ended too often."""


class SupervisionEvent(Struct, frozen=True):
    name: str
    step: SupervisionStep
    exit: ActorExit | None = None
    delay: float = 0.0
    restarts: int = 0
    """Restarts since supervision began."""


class RestartPlan:
    """Decides whether and when to restart, from exits and times alone."""

    __slots__ = ("_attempt", "_policy", "_random", "_recent", "restarts")

    def __init__(self, policy: RestartPolicy, random: Random) -> None:
        self._policy = policy
        self._random = random
        self._recent: deque[float] = deque()
        self._attempt = 0
        self.restarts = 0

    def __repr__(self) -> str:
        return f"<RestartPlan {self.restarts} restarts, {len(self._recent)} in the window>"

    def next_delay(self, started: float, ended: float) -> float | None:
        """Seconds to wait before the next start, or None to give up. Call it once for each restartable
        exit."""
        policy = self._policy
        while self._recent and self._recent[0] <= ended - policy.window:
            self._recent.popleft()

        # A10: so many in the window show that restarts do not help.
        if len(self._recent) >= policy.restarts_max:
            return None

        # A10: after a healthy run this is a new failure, not the previous one again.
        if ended - started >= policy.healthy_after:
            self._attempt = 0
        delay = policy.backoff.delay(self._attempt, self._random)
        self._attempt += 1
        self._recent.append(ended)
        self.restarts += 1
        return delay

    def give_up(self, last: ActorExit) -> ActorExit:
        """The exit to report at the limit: the last one, with the reason for giving up."""
        policy = self._policy
        if not policy.restarts_max:
            return last
        why = f"gave up: {policy.restarts_max} restarts within {policy.window:g} s were not enough"
        return replace(last, detail=f"{why}; last: {last.detail}" if last.detail else why)


async def supervise(
    name: str,
    run: Callable[[], Awaitable[ActorExit]],
    policy: RestartPolicy,
    on_event: Callable[[SupervisionEvent], None],
    random: Random,
) -> ActorExit:
    """Run ``run`` until it ends for good, and return its last exit.

    An exception that escapes from ``run`` counts as the exit it stands for (``exit_of``).
    """
    plan = RestartPlan(policy, random)
    while True:
        on_event(SupervisionEvent(name, SupervisionStep.STARTED, restarts=plan.restarts))
        started = anyio.current_time()
        ended = await _run_once(name, run, on_event, plan)
        if not RESTARTABLE[ended.kind]:
            on_event(SupervisionEvent(name, SupervisionStep.ENDED, ended, restarts=plan.restarts))
            return ended

        delay = plan.next_delay(started, anyio.current_time())
        if delay is None:
            ended = plan.give_up(ended)
            on_event(SupervisionEvent(name, SupervisionStep.GAVE_UP, ended, restarts=plan.restarts))
            return ended

        on_event(SupervisionEvent(name, SupervisionStep.RESTARTING, ended, delay, plan.restarts))
        await anyio.sleep(delay)


async def _run_once(
    name: str,
    run: Callable[[], Awaitable[ActorExit]],
    on_event: Callable[[SupervisionEvent], None],
    plan: RestartPlan,
) -> ActorExit:
    try:
        return await run()
    except BaseException as error:
        # First: whatever else a group holds, a cancellation must reach its scope.
        if _holds(error, anyio.get_cancelled_exc_class()):
            raise

        ended = exit_of(error, "an exception escaped from the actor")
        if _holds(error, (KeyboardInterrupt, SystemExit)):
            on_event(SupervisionEvent(name, SupervisionStep.ENDED, ended, restarts=plan.restarts))
            raise
        return ended


def _holds(error: BaseException, kinds: type[BaseException] | tuple[type[BaseException], ...]) -> bool:
    if isinstance(error, BaseExceptionGroup):
        return error.subgroup(kinds) is not None
    return isinstance(error, kinds)
