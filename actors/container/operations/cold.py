"""Cold segments: those whose names and images only the runs have (rule M4). What needs one is decided once it
is loaded; idle ones are unloaded."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

from ....journal.operations.load_segment import LoadSegment, UnloadSegments
from ....journal.operations.segment_image import sid_of_image
from ...kernel.slices import in_slices
from ...kernel.task_groups import work_through
from ..requests import Request
from ..segment_rows import loaded
from .handlers import Decision, OperationHandler, RequestHandler

if TYPE_CHECKING:
    from ..publish import Publisher
    from ..state import ContainerState

_UNLOAD_STEP = 128
"""Segments that one request unloads."""
_UNLOADS = 4
"""Requests at a time. One at a time would unload fewer segments in each group of the log than clients create
there."""


class UnloadRequest(Request):
    """Internal: unload those of the segments ``sids`` that are idle and clean. Answered with None."""

    __slots__ = ("sids",)

    def __init__(self, sids: Sequence[int]) -> None:
        self.sids = sids


async def unload(ask: Callable[[Request, int], Awaitable[Any]], sids: Iterable[int]) -> None:
    """Unload those of the segments ``sids`` that are idle and clean, by ``ask(request, size)``."""
    await work_through(
        in_slices(sids, _UNLOAD_STEP), _UNLOADS, lambda part: ask(UnloadRequest(part), 8 * len(part))
    )


def _decide_unload(state: ContainerState, request: UnloadRequest) -> Decision:
    sids = tuple(
        sid
        for sid in dict.fromkeys(request.sids)
        if (segment := state.segments.by_id.get(sid)) is not None and state.can_unload(segment)
    )
    return (UnloadSegments(sids) if sids else None), None


def _apply_load(state: ContainerState, op: LoadSegment) -> None:
    state.load_segment(loaded(op), op.record_version, op.record)


def _publish_load(publisher: Publisher, op: LoadSegment, group: int) -> None:
    segment = publisher.segments.get(sid_of_image(op.image))
    # Deleted in the same group, or flushed: then its end was published.
    if segment is not None:
        publisher.cache.open_segment(segment.sid, segment.flushed)


def _apply_unload(state: ContainerState, op: UnloadSegments) -> None:
    for sid in op.sids:
        state.unload_segment(sid)


def _publish_unload(publisher: Publisher, op: UnloadSegments, group: int) -> None:
    for sid in op.sids:
        publisher.cache.drop_segment(sid)


HANDLERS = (
    RequestHandler(UnloadRequest, _decide_unload),
    OperationHandler(LoadSegment, _apply_load, _publish_load),
    OperationHandler(UnloadSegments, _apply_unload, _publish_unload),
)
