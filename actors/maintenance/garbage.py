"""The garbage collection of a store, for operators: its tasks and what nothing refers to (PDP-53).

An owner has its tasks in memory. Of a folder, or of one that another process has open, the tasks are those of
the next owner: the deferred work and the released files in records, and the objects in long-term storage that
nothing refers to."""

from __future__ import annotations

from ...storage_backends.segments.records import DEFERRED_WORK_PREFIX, RELEASED_PREFIX, DeferredWorkRecord
from ...storage_backends.segments.records.deferred_work import is_of_newer_kind
from ...storage_backends.segments.transaction import decode_record
from ..gc.tasks import GcReport, GcTask, TaskState, deferred_tasks, kind_of
from ..store.read_only import ContainerView, StoreView
from ..store.views import ContainerSnapshot, on_snapshot
from .report import find_unconfirmed, unreferenced_names


async def report_of(view: StoreView, container: ContainerView, limit: int) -> GcReport:
    """What the next owner of the container will have to do. Lists its part of long-term storage. Raises
    ``StoreMismatch`` as ``garbage_of``."""
    record = await find_unconfirmed(view, container)
    work, released = await on_snapshot(container, _tasks_in_records)
    found = {*await unreferenced_names(view, container), *released}
    state = TaskState.LISTING if record is None else TaskState.CONFIRMATION
    tasks = [*deferred_tasks(work), *(GcTask(kind_of(name), name, state) for name in sorted(found))]
    return GcReport(
        container=container.index,
        queued=len(found),
        unpublished=0,
        steps=len(work),
        failed=0,
        paused=False,
        unconfirmed="" if record is None else record.explanation,
        tasks=tuple(tasks[:limit]),
        failed_tasks=(),
    )


async def _tasks_in_records(snapshot: ContainerSnapshot) -> tuple[list[DeferredWorkRecord], list[str]]:
    """The deferred work, and the names of released files."""
    records = await snapshot.metadata.records(DEFERRED_WORK_PREFIX)
    work = [
        decode_record(DeferredWorkRecord, key, value)
        for key, (_, value) in records.items()
        if not is_of_newer_kind(value)
    ]
    keys = await snapshot.metadata.scan(RELEASED_PREFIX)
    return work, [key.removeprefix(RELEASED_PREFIX) for key in keys]
