"""What the garbage collector of an owner has to do, for operators (PDP-53)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..gc.tasks import GcReport, deferred_tasks

if TYPE_CHECKING:
    from .container import Container


async def report_of(container: Container, limit: int) -> GcReport:
    """The tasks of an owner, at most ``limit`` of each queue shown."""
    work = await container.storage.deferred_work()
    collector = container.collector
    statistics, record = collector.statistics(), container.confirmation.unconfirmed
    tasks = deferred_tasks(work[:limit])
    return GcReport(
        container=container.index,
        queued=statistics.queued,
        unpublished=statistics.unpublished,
        steps=len(work),
        failed=statistics.retry_later,
        paused=collector.is_paused,
        unconfirmed="" if record is None else record.explanation,
        tasks=(*tasks, *collector.tasks(limit - len(tasks))),
        failed_tasks=tuple(collector.failed_tasks(limit)),
    )
