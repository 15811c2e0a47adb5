"""What the garbage collector of a container has to do, as operators see it (PDP-53). Pure."""

from __future__ import annotations

from collections.abc import Iterable
from enum import Enum

from msgspec import Struct

from ...storage_backends.segments.records import DeferredWorkRecord
from .rules import Garbage, is_run, parse_chunk_name

TASKS_SHOWN_MAX = 1000


def queue_name(container: int) -> str:
    """What people call the container's tasks."""
    return f"GC_queue_{container}"


def failed_queue_name(container: int) -> str:
    """What people call the container's tasks that failed repeatedly."""
    return f"GC_failed_queue_{container}"


class TaskState(Enum):
    STEPS = "steps"
    """Deferred work (rule S11): flush cycles do its steps, which release chunks."""
    DELAY = "delay"
    """Its delay, or the pause after a failure, is not over."""
    ELEMENT = "element"
    """The newest element names it (rule G6)."""
    CONFIRMATION = "confirmation"
    """The container is unconfirmed (rule G4)."""
    LISTING = "listing"
    """The next owner finds it, in a listing or by its record."""
    FAILED = "failed"
    """Its deletion failed repeatedly; it is tried again ever more rarely (rule G2)."""


class GcTask(Struct, frozen=True):
    kind: str
    """``delete chunk``, ``delete run`` or ``delete file``, or a kind of deferred work."""
    name: str
    """The object, or the id of the segment."""
    state: TaskState
    seconds: float = 0.0
    """Seconds until it is tried, as far as that is known."""
    error: str = ""


class GcReport(Struct, frozen=True):
    """The tasks of one container."""

    container: int
    queued: int
    """Names that wait for their deletion."""
    unpublished: int
    """How many of them wait for an element (rule G6)."""
    steps: int
    """Items of deferred work."""
    failed: int
    paused: bool
    unconfirmed: str
    """Why the container deletes nothing that it does not know; empty if it is confirmed (rule G4)."""
    tasks: tuple[GcTask, ...]
    """Some of them, failed ones not included."""
    failed_tasks: tuple[GcTask, ...]

    @property
    def queue(self) -> str:
        return queue_name(self.container)

    @property
    def failed_queue(self) -> str:
        return failed_queue_name(self.container)


def task_of(garbage: Garbage, state: TaskState, now: float) -> GcTask:
    seconds = max(0.0, garbage.due - now) if state is TaskState.DELAY else 0.0
    return GcTask(kind_of(garbage.name), garbage.name, state, round(seconds, 3), garbage.error)


def kind_of(name: str) -> str:
    if is_run(name):
        return "delete run"
    return "delete file" if parse_chunk_name(name) is None else "delete chunk"


def deferred_tasks(found: Iterable[DeferredWorkRecord]) -> list[GcTask]:
    return [
        GcTask(
            "delete segment" if work.kind.name == "DELETE" else work.kind.name.lower(),
            f"{work.segment:016x}",
            TaskState.STEPS,
        )
        for work in found
    ]
