"""The graceful end of a process's containers: within a budget everything is flushed, so that the next owner
has nothing to do again (rule F9).

Each container flushes as ``flush()`` does, all at the same time, and then ends with a checkpoint in which its
segments are cold. What is not flushed when the budget ends, or because long-term storage fails, stays in the
log, where the next owner finds it; the report lists it."""

from __future__ import annotations

from collections.abc import Sequence

import anyio
import attrs

from ...storage_backends.base.errors import TierlogError
from ...storage_backends.base.values import Value
from ..container.container import Container
from ..telemetry.logging import get_logger

_log = get_logger("store")


@attrs.frozen(eq=False, repr=False)
class LeftInLog(Value):
    """What a container leaves to its next owner."""

    container: int
    segments: int
    """Segments that long-term storage lacks something of."""
    bytes: int
    """Unflushed bytes."""
    reason: str


@attrs.frozen(eq=False, repr=False)
class EndReport(Value):
    """How a graceful end went."""

    seconds: float
    left: tuple[LeftInLog, ...] = ()
    """Empty if everything was flushed."""


async def flush_before_end(containers: Sequence[Container], budget: float, retry_in: float) -> EndReport:
    """Flush ``containers`` for ``budget`` seconds at most; not at all if long-term storage fails again and
    again and refuses changes for ``retry_in`` seconds."""
    begun = anyio.current_time()
    reasons: dict[int, str] = {}

    async def flush(container: Container) -> None:
        try:
            await container.flush_before_end()
        except TierlogError as error:
            reasons[container.index] = str(error)
        else:
            del reasons[container.index]

    refused = "long-term storage does not answer" if retry_in else f"the budget of {budget:g} s ended"
    reasons |= {container.index: refused for container in containers}
    if not retry_in:
        # Shielded: an app that was cancelled ends here too. The budget is what bounds it.
        with anyio.move_on_after(budget, shield=True):
            async with anyio.create_task_group() as tasks:
                for container in containers:
                    tasks.start_soon(flush, container)

    left = tuple(
        LeftInLog(container.index, *container.unflushed(), reason)
        for container in containers
        if (reason := reasons.get(container.index)) is not None
    )
    report = EndReport(anyio.current_time() - begun, left)
    for each in left:
        _log.warning("ended_unflushed", **attrs.asdict(each))
    if not left:
        _log.info("ended_flushed", containers=len(containers), seconds=round(report.seconds, 3))
    return report
