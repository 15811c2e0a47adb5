"""What the container's own parts log: flush cycles, the chain, re-logged data, barriers and checkpoints.

They arrive as ``LogRequest`` and ``SnapshotRequest``, which the pipeline logs without a decision.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

from ....journal.operations.barrier import Barrier
from ....journal.operations.begin_history import BeginHistory
from ....journal.operations.checkpoint import (
    CheckpointBegin,
    CheckpointCounters,
    CheckpointEnd,
    CheckpointImages,
    CheckpointPart,
    CheckpointPiece,
    CheckpointRows,
)
from ....journal.operations.checkpoint_closures import CheckpointClosures
from ....journal.operations.cycle_complete import CycleComplete
from ....journal.operations.ended_transactions import CheckpointEnds
from ....journal.operations.log_element import (
    CheckpointManifest,
    ElementCreated,
    LogElement,
    LogElementChange,
)
from ....journal.operations.relog_data import RelogData
from .handlers import OperationHandler

if TYPE_CHECKING:
    from ..publish import Publisher
    from ..state import ContainerState


def _apply_history(state: ContainerState, op: BeginHistory) -> None:
    state.begin_history(op.above)


def _apply_cycle(state: ContainerState, op: CycleComplete) -> None:
    state.cycle = op


def _publish_cycle(publisher: Publisher, op: CycleComplete, group: int) -> None:
    publisher.listeners.cycle_completed()


def _apply_element(state: ContainerState, op: LogElement) -> None:
    state.manifest = state.manifest.recorded(op)


def _apply_change(state: ContainerState, op: LogElementChange) -> None:
    state.manifest = state.manifest.recorded(op.made_from(state.manifest.head))


def _apply_created(state: ContainerState, op: ElementCreated) -> None:
    state.know_elements(state.manifest.created(op))


def _publish_created(publisher: Publisher, op: ElementCreated, group: int) -> None:
    publisher.runs_published()


def _apply_relog(state: ContainerState, op: RelogData) -> None:
    if not op.data:
        state.note_newest_segment(op.sid)


def _publish_relog(publisher: Publisher, op: RelogData, group: int) -> None:
    segment = publisher.segments.get(op.sid)
    end = op.offset + len(op.data)
    # Flushed or deleted while these bytes were on their way through the pipeline.
    if segment is None or end <= segment.flushed or op.sid not in publisher.cache:
        return

    publisher.cache.append(op.sid, op.offset, op.data, group)
    # What lies before was re-logged in an earlier piece, whose group is needed as well.
    before = [reference for reference in segment.log_references if reference[0] <= op.offset]
    later = [reference for reference in segment.log_references if reference[0] > end]
    segment.log_references = deque((*before, (end, group), *later))


HANDLERS = (
    OperationHandler(Barrier),
    OperationHandler(BeginHistory, _apply_history),
    OperationHandler(CheckpointBegin),
    OperationHandler(CheckpointPart),
    OperationHandler(CheckpointCounters),
    OperationHandler(CheckpointEnds),
    OperationHandler(CheckpointClosures),
    OperationHandler(CheckpointImages),
    OperationHandler(CheckpointPiece),
    OperationHandler(CheckpointRows),
    OperationHandler(CheckpointEnd),
    OperationHandler(CheckpointManifest),
    OperationHandler(CycleComplete, _apply_cycle, _publish_cycle),
    OperationHandler(LogElement, _apply_element),
    OperationHandler(LogElementChange, _apply_change),
    OperationHandler(ElementCreated, _apply_created, _publish_created),
    OperationHandler(RelogData, _apply_relog, _publish_relog),
)
