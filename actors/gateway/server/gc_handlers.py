"""What operators ask of the garbage collector of a container, and what they order (PDP-53)."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Annotated

from msgspec import Meta

from ....storage_backends.base.errors import DataCorruption, InvalidArgument, NotOwner, Throttled
from ...container.garbage_report import report_of
from ...gc.tasks import TASKS_SHOWN_MAX, GcTask, queue_name
from ..wire import paths
from ..wire.bodies import GcDone, GcOrder, GcQueue, GcTaskBody
from ..wire.errors import NoSuchContainer
from ..wire.paths import query_number
from .admin_handlers import checked_container
from .call import Call
from .endpoint import BODY_ERRORS, Parameter, endpoint

if TYPE_CHECKING:
    from ...container.container import Container


@endpoint(
    "GET",
    f"{paths.CONTAINERS}/{{container}}/gc",
    "gc-queue",
    NoSuchContainer,
    NotOwner,
    Throttled,
    DataCorruption,
    parameters=(
        Parameter("limit", Annotated[int, Meta(ge=1, le=TASKS_SHOWN_MAX)], "The most tasks of each queue."),
    ),
    help="The tasks.",
)
async def gc_queue(call: Call) -> GcQueue:
    """The tasks of the container's garbage collector, and those that failed."""
    limit = query_number(call.query(), "limit", TASKS_SHOWN_MAX)
    if not 1 <= limit <= TASKS_SHOWN_MAX:
        raise InvalidArgument(f"limit is 1 to {TASKS_SHOWN_MAX}, not {limit}")

    report = await call.server.store.on_container(
        checked_container(call), lambda container: report_of(container, limit)
    )
    return GcQueue(
        container=report.container,
        queue=report.queue,
        failed_queue=report.failed_queue,
        queued=report.queued,
        unpublished=report.unpublished,
        steps=report.steps,
        failed=report.failed,
        paused=report.paused,
        unconfirmed=report.unconfirmed,
        tasks=_task_bodies(report.tasks),
        failed_tasks=_task_bodies(report.failed_tasks),
    )


def _task_bodies(tasks: Iterable[GcTask]) -> list[GcTaskBody]:
    return [GcTaskBody(each.kind, each.name, each.state.value, each.seconds, each.error) for each in tasks]


@endpoint(
    "POST",
    f"{paths.CONTAINERS}/{{container}}/gc-order",
    "gc-order",
    NoSuchContainer,
    NotOwner,
    Throttled,
    *BODY_ERRORS,
    help="Done.",
)
async def gc_order(call: Call, body: GcOrder) -> GcDone:
    """Retry or purge what failed repeatedly; pause deletions until the container is opened again; resume."""

    async def order(container: Container) -> GcDone:
        collector, names = container.collector, 0
        match body.action:
            case "retry":
                names = collector.retry_failed()
            case "purge":
                names = collector.purge_failed()
            case "pause":
                collector.pause()
            case "resume":
                collector.resume()
        return GcDone(queue_name(container.index), names, collector.is_paused)

    return await call.server.store.on_container(checked_container(call), order)
