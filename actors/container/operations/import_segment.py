"""Import: a segment made of chunks that are in long-term storage already (rules S14 and S17).

Records that are too many for one operation are committed in pieces before it; the import then completes them.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

import attrs

from ....journal.operations.import_segment import ImportSegment
from ....journal.operations.segment_image import SegmentImage, SegmentStatus
from ....storage_backends.base.errors import InvalidArgument, SegmentExists, Unavailable
from ....storage_backends.segments.chain import Chain
from ....storage_backends.segments.records import (
    DEFERRED_WORK_PREFIX,
    DeferredWorkKind,
    DeferredWorkRecord,
    ImportedRecord,
    Record,
    chunk_key,
    imported_key,
    released_key,
)
from ..requests import Request
from ..segments import SegmentState
from ..transaction_table import refuse_staged
from .handlers import OperationHandler, RequestHandler

if TYPE_CHECKING:
    from ..publish import Publisher
    from ..state import ContainerState


@attrs.define(eq=False)
class ImportRequest(Request):
    """Internal: make the image's segment out of existing chunks. Answered with its id."""

    image: SegmentImage
    """Its id is ignored: the decision assigns one, unless ``adopted`` is given."""
    chain: Chain
    spacing: int
    """Bytes between index records."""
    is_legacy: bool = True
    """The segment comes from the legacy layout, and its name is never looked up there again."""
    adopted: int = 0
    """The id for which all records but the segment's own were committed before; 0 if there are none."""

    @classmethod
    def of_chain(cls, name: str, chain: Chain, spacing: int) -> ImportRequest:
        """The import of a segment of which nothing but its chunks is known."""
        live = SegmentStatus.LIVE
        image = SegmentImage(
            0, live, chain.sealed, chain.length, chain.start_offset, chain.rolling_size, name, (), (), (), ()
        )
        return cls(image, chain, spacing)


def decide_import(state: ContainerState, request: ImportRequest) -> tuple[ImportSegment, int]:
    name = request.image.name
    refuse_staged(name, "only its transaction creates it")
    check_name_free(state, name, is_legacy=request.is_legacy)
    if request.adopted:
        sid = request.adopted
        made = _last_records(state, request)
    else:
        check_files_free(state, name, (chunk.name for _, chunk in request.chain.chunks))
        sid = state.next_segment_id()
        made = request.chain.records(sid, state.epoch, request.spacing)
    records = [(record.key, record.encode()) for record in made]
    if request.is_legacy:
        # S14: this record outlives the segment, so that the header file, which stays, cannot bring the name
        # back.
        records.append((imported_key(name), ImportedRecord(sid).encode()))

    return ImportSegment(request.image._replace(sid=sid), tuple(records)), sid


def _last_records(state: ContainerState, request: ImportRequest) -> list[Record]:
    """What completes the records that were committed before: the segment's own, and an empty record of
    deferred work in place of the one that would remove them."""
    done = DeferredWorkRecord(DeferredWorkKind.ADOPT, request.adopted, owner_epoch=state.epoch)
    entry = state.metadata.get(done.key)
    if entry is None or DeferredWorkRecord.decode(entry[1]).chunks != len(request.chain.chunks):
        raise Unavailable(
            f"the records of {request.image.name!r} were removed before its import was complete: try again"
        )

    return [request.chain.segment_record(request.adopted, state.epoch), done]


def check_name_free(state: ContainerState, name: str, *, is_legacy: bool = True) -> None:
    """``SegmentExists``; ``InvalidArgument`` if the legacy segment was imported or exported before."""
    if state.segments.sid_of(name) is not None:
        raise SegmentExists(f"segment {name!r} exists already; nothing was imported", segment=name)
    if is_legacy and imported_key(name) in state.metadata:
        raise InvalidArgument(
            f"{name!r} was imported or exported before, and has been deleted or merged since: its files are "
            f"not a segment any more"
        )


def check_files_free(state: ContainerState, name: str, files: Iterable[str]) -> None:
    """``InvalidArgument`` if a segment has one of the files, or garbage collection will delete it (rule S19);
    ``Unavailable`` while an unfinished import is being removed."""
    for file in files:
        if chunk_key(file) in state.metadata:
            if file in _first_adopted_chunks(state):
                raise Unavailable(f"an unfinished import of {name!r} is being removed: try again")
            raise InvalidArgument(f"{name!r} cannot be imported: {file} belongs to another segment already")
        if released_key(file) in state.metadata:
            raise InvalidArgument(
                f"{name!r} cannot be imported: {file} was part of a segment that no longer needs it, and is "
                f"about to be deleted (rule S19)"
            )


def _first_adopted_chunks(state: ContainerState) -> set[str]:
    """The first remaining chunk of each unfinished import, which is the first that a repeated import
    finds."""
    suffix = f":{DeferredWorkKind.ADOPT.name.lower()}"
    return {
        DeferredWorkRecord.decode(value).chunk
        for key, (_, value) in state.metadata.items()
        if key.startswith(DEFERRED_WORK_PREFIX) and key.endswith(suffix)
    }


def _apply(state: ContainerState, op: ImportSegment) -> None:
    state.count_segment_id(op.image.sid)
    for key, value in op.records:
        state.metadata[key] = (state.sequence, value)
    segment = SegmentState.from_image(op.image)
    # An image is of a durable state, and this one is not durable yet (C1).
    segment.durable_length = -1
    segment.touched = state.sequence
    # Before it is added, because the table asks whether it is clean.
    state.load_record(segment)
    state.segments.add(segment)


def _publish(publisher: Publisher, op: ImportSegment, group: int) -> None:
    segment = publisher.by_id[op.image.sid]
    segment.durable_length = op.image.length
    publisher.cache.open_segment(segment.sid, segment.flushed)


HANDLERS = (RequestHandler(ImportRequest, decide_import), OperationHandler(ImportSegment, _apply, _publish))
