"""The graceful end of a process's containers: within a budget everything is flushed, so that the next owner
has nothing to do again (rule F9).

Each container flushes as ``flush()`` does, all at the same time, and then ends with a checkpoint in which its
segments are cold. One that is being recovered is waited for. What is not flushed when the budget ends, or
because long-term storage fails, stays in the log, where the next owner finds it; the report lists it. It is
made when the containers have ended, because calls that had begun before the end may be accepted during it."""

from __future__ import annotations

from collections.abc import Sequence

import anyio
import attrs

from ...storage_backends.base.errors import NotOwner, TierlogError, Unavailable
from ...storage_backends.base.values import Value
from ..chunk_io.actor import StorageActor
from ..container.container import Container
from ..container.local_container import LocalContainer
from ..telemetry.logging import get_logger

_log = get_logger("store")

_FLUSHES_MAX = 3
"""Of one container, for calls that were accepted during the one before."""
_TRIES_MAX = 3
"""Flushes of one container, if long-term storage or its breaker refuses changes. When a pause of the breaker
is over, all containers try, and it lets one pass: the others try again once that has succeeded (S7)."""


@attrs.frozen(eq=False, repr=False)
class LeftInLog(Value):
    """What a container leaves to its next owner."""

    container: int
    segments: int | None
    """Segments that long-term storage lacks something of; None if the container was not open, so that it is
    not known."""
    bytes: int | None
    """Unflushed bytes; None likewise."""
    reason: str


@attrs.frozen(eq=False, repr=False)
class EndReport(Value):
    """How a graceful end went."""

    seconds: float
    left: tuple[LeftInLog, ...] = ()
    """Empty if everything was flushed."""


class GracefulEnd:
    def __init__(self, containers: Sequence[LocalContainer], chunks: StorageActor, budget: float) -> None:
        """``budget``: seconds that all flushes may take."""
        self._containers = containers
        self._chunks = chunks
        self._budget = budget
        self._begun = anyio.current_time()
        self._reasons: dict[int, str] = {}
        self._owners: dict[int, Container] = {}
        self._seconds = 0.0

    async def flush(self, *, serves: bool = False) -> None:
        """Flush the containers; not at all if long-term storage fails again and again and refuses changes for
        a while. ``serves``: clients call meanwhile, and go on."""
        is_refused = bool(self._chunks.retry_in())
        refused = (
            "long-term storage does not answer" if is_refused else f"the budget of {self._budget:g} s ended"
        )
        self._reasons = {each.index: refused for each in self._containers}
        if not is_refused:
            # Shielded: an app that was cancelled ends here too. The budget is what bounds it.
            with anyio.move_on_after(self._budget, shield=True):
                async with anyio.create_task_group() as tasks:
                    for container in self._containers:
                        tasks.start_soon(self._flush, container, 1 if serves else _FLUSHES_MAX)
        for container in self._containers:
            if (owner := container.active) is not None and owner.is_fenced:
                self._reasons.pop(container.index, None)
            elif owner is not None:
                self._owners[container.index] = owner
        self._seconds = anyio.current_time() - self._begun

    async def _flush(self, container: LocalContainer, times: int) -> None:
        async def flush(owner: Container) -> None:
            for _ in range(times):
                await owner.flush_before_end()
                if owner.unflushed() == (0, 0):
                    break
            self._owners[container.index] = owner

        try:
            for left in reversed(range(_TRIES_MAX)):
                try:
                    await container.call(flush)
                    break
                except Unavailable:
                    if not left:
                        raise
                    await self._await_change()
        except NotOwner:
            self._reasons.pop(container.index)  # its log is another owner's, who flushes it
        except TierlogError as error:
            self._reasons[container.index] = str(error)
        else:
            self._reasons.pop(container.index)

    async def _await_change(self) -> None:
        """Wait until long-term storage takes changes, or may be tried again."""
        taken = anyio.Event()
        with self._chunks.notifying(taken.set), anyio.move_on_after(self._chunks.retry_in()):
            await taken.wait()

    def report(self) -> EndReport:
        """What is left now, which is logged too."""
        left = tuple(
            each for container in self._containers if (each := self._left(container.index)) is not None
        )
        report = EndReport(self._seconds, left)
        for each in left:
            _log.warning("ended_unflushed", **attrs.asdict(each))
        # A host that never had a container has nothing to say.
        if self._containers and not left:
            _log.info("ended_flushed", containers=len(self._containers), seconds=round(report.seconds, 3))
        return report

    def _left(self, index: int) -> LeftInLog | None:
        reason, owner = self._reasons.get(index), self._owners.get(index)
        if owner is None:
            return None if reason is None else LeftInLog(index, None, None, reason)

        segments, size = owner.unflushed()
        # An operation without bytes too: the last checkpoint may not have it.
        is_behind = owner.state.client_sequence > owner.state.checkpoint_sequence
        if reason is not None or is_behind:
            # Created segments and rows have no bytes, and wait to be published.
            segments = max(segments, owner.state.unpublished_segments)
        if reason is None:
            reason = "it was accepted during the end"
        return LeftInLog(index, segments, size, reason) if segments or size or is_behind else None
