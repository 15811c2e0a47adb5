"""Supervision of one container that this process serves: runs one ownership after the other, and routes calls
to the active one.

Owns: restarts with backoff and a limit, the wait of callers for a recovering container, and their error when
there will be no further ownership. Does not own: what a container does.

A failed container is recovered while the app continues. A fenced one stays fenced and a corrupt one stays
stopped; callers get the reason. A call that was refused because the container stopped before accepting it is
tried again on the next ownership, within the wait's limit. One whose outcome is unknown never is."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from random import Random
from typing import TYPE_CHECKING, TypeVar

import anyio
from msgspec.structs import replace

from ...storage_backends.base.errors import ClosedError, NotOwner, StorageFull, TierlogError, Unavailable
from ..kernel.exits import CLEAN_EXIT, ActorExit, ExitKind, exit_of, first_leaf
from ..kernel.supervision import RestartPolicy, SupervisionEvent, supervise
from ..telemetry.logging import get_logger
from .container import Container

if TYPE_CHECKING:
    from .statistics import LocalContainerStatistics

T = TypeVar("T")
_log = get_logger("container")


class RemoteContainer:
    """Stands in for a container that this process does not serve: every call raises ``NotOwner``."""

    active: None = None

    def __init__(self, index: int) -> None:
        self.index = index

    async def ends_fenced(self) -> bool:
        return False

    def stop(self) -> None:
        """Does nothing: there is nothing to stop."""

    async def call(self, verb: Callable[[Container], Awaitable[T]]) -> T:
        raise NotOwner(f"container {self.index} is not served here")


class LocalContainer:
    """A container that this process serves."""

    def __init__(
        self,
        index: int,
        make: Callable[[], Container],
        policy: RestartPolicy,
        random: Random,
        unavailable_wait: float,
    ) -> None:
        """``make()`` builds a fresh ownership; ``unavailable_wait``: seconds that a call waits for a
        recovering container."""
        self.index = index
        self._make = make
        self._policy = policy
        self._random = random
        self._wait_limit = unavailable_wait
        self.active: Container | None = None
        """The ownership that answers now, if any. The hot path reads it."""
        self._running: Container | None = None
        self._ended: ActorExit | None = None
        self._epochs: frozenset[int] = frozenset()
        """The epochs of the ownerships so far."""
        self._started = False
        """Whether any ownership answered."""
        self._stopping = False
        self._restarts = 0
        self._changed = anyio.Event()

    # --- life ------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Supervise until ``stop``, a fence, corruption, or too many failures."""
        try:
            self._ended = await supervise(
                f"container-{self.index}", self._run_once, self._policy, self._on_event, self._random
            )
        finally:
            if self._ended is None:
                # Cancelled: callers must not wait for an ownership that will not come.
                self._ended = CLEAN_EXIT
            self._change(None)

    async def _run_once(self) -> ActorExit:
        # A new object with a new log: nothing that a failed ownership had in memory is used again (W6).
        container = self._running = self._make()
        # ``stop`` came before this run began.
        if self._stopping:
            return CLEAN_EXIT

        try:
            await container.run(
                started=lambda: self._start(container),
                ending=lambda: self._change(None),
                previous_epochs=self._epochs or None,
            )
        except Exception as error:  # noqa: BLE001 - supervision decides by the kind of error
            kind = exit_of(error)
            if container.is_poisoned:
                kind = replace(kind, kind=ExitKind.POISONED)
            elif not self._started and isinstance(first_leaf(error), StorageFull):
                # A container that served before is opened again: its users may make room meanwhile.
                kind = replace(kind, kind=ExitKind.FULL)
            return kind
        finally:
            # Those too whose raise had an unknown outcome: the next ownership may take over from any of them
            # (W1).
            self._epochs |= frozenset(container.log.own_epochs)
            self._running = None
            self._change(None)

        return CLEAN_EXIT

    @property
    def is_closing(self) -> bool:
        """Whether ``stop`` was asked for."""
        return self._stopping

    def stop(self) -> None:
        """Ask for a clean end; ``run`` returns soon after."""
        self._stopping = True
        if self._running is not None:
            self._running.stop()

    def _start(self, container: Container) -> None:
        self._started = True
        self._change(container)

    def _change(self, active: Container | None) -> None:
        self.active = active
        # Replaced, because an event cannot be cleared.
        changed, self._changed = self._changed, anyio.Event()
        changed.set()

    def _on_event(self, event: SupervisionEvent) -> None:
        self._restarts = event.restarts
        _log.info(
            "container_lifecycle",
            container=self.index,
            step=event.step.value,
            exit=str(event.exit or ""),
            delay=event.delay,
        )

    # --- callers ---------------------------------------------------------------------------------

    async def wait_started(self) -> None:
        """Return when the container answers; raise the reason if it never will."""
        while self.active is None:
            self._check_ended()
            await self._changed.wait()

    async def wait_ended(self) -> ActorExit:
        """Return when the container was stopped or will not answer any more, with the reason."""
        while self._ended is None:
            await self._changed.wait()
        return self._ended

    async def ends_fenced(self) -> bool:
        """Whether another owner has fenced the container. If nothing has noticed that yet, it ends now."""
        if self.active is not None and self.active.is_fenced:
            await self.wait_ended()
        return self._ended is not None and self._ended.kind is ExitKind.FENCED

    async def call(self, verb: Callable[[Container], Awaitable[T]]) -> T:
        """Run ``verb`` on the active ownership, waiting for one up to the limit."""
        deadline: float | None = None
        while True:
            container = self.active
            if container is None:
                if deadline is None:
                    deadline = anyio.current_time() + self._wait_limit
                await self._wait_until(deadline)
                continue

            try:
                return await verb(container)
            except (Unavailable, ClosedError):
                if self.active is container:
                    raise  # the container is active: what it depends on is unavailable

    async def _wait_until(self, deadline: float) -> None:
        self._check_ended()
        with anyio.CancelScope(deadline=deadline) as scope:
            await self._changed.wait()
        if scope.cancelled_caught:
            raise Unavailable(
                f"container {self.index} is still recovering after {self._wait_limit:g} s: nothing was "
                f"done, try again"
            )

    def _check_ended(self) -> None:
        ended = self._ended
        if ended is None:
            return

        cause = first_leaf(ended.error)
        if ended.kind is ExitKind.CLEAN:
            raise ClosedError("the store is closed")

        if ended.kind is ExitKind.FENCED:
            raise NotOwner(f"container {self.index} is no longer this process's: {cause}") from cause

        if isinstance(cause, TierlogError):
            # One error is raised to many callers, and each would add its own frames to the traceback.
            raise cause.with_traceback(None)

        raise Unavailable(f"container {self.index} stopped for good: {ended}") from cause

    def statistics(self) -> LocalContainerStatistics:
        from .statistics import LocalContainerStatistics

        if self.active is not None:
            return LocalContainerStatistics(self.index, "active", self._restarts, self.active.statistics())

        now = (
            self._ended.kind.value
            if self._ended is not None
            else "recovering"
            if self._restarts
            else "starting"
        )
        return LocalContainerStatistics(self.index, now, self._restarts, None)
