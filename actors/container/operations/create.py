"""Create: a new, empty segment, or table (rule C2)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from ....journal.operations.create_segment import CreateSegment
from ....journal.operations.update_table import CreateTable
from ....storage_backends.base.arguments import ROLLING_SIZE_MIN
from ....storage_backends.base.errors import SegmentExists
from ....storage_backends.base.transactions import is_staged
from ..requests import Request
from ..segments import SegmentState
from ..transaction_table import refuse_staged
from .handlers import Decision, OperationHandler, RequestHandler

if TYPE_CHECKING:
    from ..publish import Publisher
    from ..state import ContainerState


class CreateRequest(Request):
    """Answered with None."""

    __slots__ = ("is_table", "name", "rolling_size")

    def __init__(self, name: str, rolling_size: int, *, is_table: bool = False) -> None:
        self.name = name
        self.rolling_size = rolling_size
        self.is_table = is_table

    def named(self) -> Sequence[str]:
        return (self.name,)

    def takes_room(self, state: ContainerState) -> bool:
        return state.segments.sid_of(self.name) is None


def _decide(state: ContainerState, request: CreateRequest) -> Decision:
    refuse_staged(request.name, "stage_segment makes those")
    if state.has_name(request.name):
        # Which kind it is may be in the runs only.
        wanted = "a table" if request.is_table else "not a table"
        raise SegmentExists(
            f"segment {request.name!r} exists already: choose another name, or, if it is {wanted}, use it "
            f"with exist_ok=True (--exist-ok)",
            segment=request.name,
        )

    # C2: the id is used up only when it is applied, because decisions change nothing.
    sid = state.next_segment_id()
    if request.is_table:
        return CreateTable(sid, request.name), None
    return CreateSegment(sid, request.name, request.rolling_size), None


def _apply(state: ContainerState, op: CreateSegment) -> None:
    state.count_segment_id(op.sid)
    state.add_segment(SegmentState(op.sid, op.name, op.rolling_size))
    if is_staged(op.name):
        target = state.transactions.stage(op.name, op.sid)
        state.closures.note(state.sequence, op.sid, target)


def _apply_table(state: ContainerState, op: CreateTable) -> None:
    state.count_segment_id(op.sid)
    state.add_segment(SegmentState(op.sid, op.name, ROLLING_SIZE_MIN, is_table=True))


def _publish(publisher: Publisher, op: CreateSegment | CreateTable, group: int) -> None:
    # It was -1, and readers waited: from here on the segment exists for them (C1).
    publisher.by_id[op.sid].durable_length = 0
    publisher.cache.open_segment(op.sid, 0)


HANDLERS = (
    RequestHandler(CreateRequest, _decide),
    OperationHandler(CreateSegment, _apply, _publish, from_client=True),
    OperationHandler(CreateTable, _apply_table, _publish, from_client=True),
)
