"""Import: a segment made of chunks that are in long-term storage already (rules S14 and S17).

Records that are too many for one operation are committed in pieces before it; the import then completes them.
"""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence
from typing import TYPE_CHECKING

import attrs

from ....journal.operations.import_segment import ImportSegment
from ....journal.operations.segment_image import SegmentImage, SegmentStatus
from ....storage_backends.base.errors import InvalidArgument, MetadataConflict, SegmentExists, Unavailable
from ....storage_backends.segments.chain import Chain
from ....storage_backends.segments.records import (
    DEFERRED_WORK_PREFIX,
    DeferredWorkKind,
    DeferredWorkRecord,
    ImportedRecord,
    Record,
    chunk_key,
    deferred_work_key,
    imported_key,
    released_key,
)
from ..requests import Request
from ..segment_rows import name_key
from ..segments import SegmentState
from ..transaction_table import refuse_staged
from .handlers import OperationHandler, RequestHandler
from .metadata import is_as_expected

if TYPE_CHECKING:
    from ..metadata_store import LoggedMetadataStore
    from ..publish import Publisher
    from ..state import ContainerState


@attrs.define(eq=False, repr=False)
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
    expected: Mapping[str, int] = attrs.field(factory=dict)
    seen: int = 0
    """The version of the view that was read, as in ``CommitMetadataRequest`` (rule M9). Answered with None if
    the lookup must be repeated."""

    def named(self) -> Sequence[str]:
        return (self.image.name,)

    @classmethod
    def of_chain(cls, name: str, chain: Chain, spacing: int) -> ImportRequest:
        """The import of a segment of which nothing but its chunks is known."""
        live = SegmentStatus.LIVE
        image = SegmentImage(
            0, live, chain.sealed, chain.length, chain.start_offset, chain.rolling_size, name, (), (), ()
        )
        return cls(image, chain, spacing)


def decide_import(
    state: ContainerState, request: ImportRequest
) -> tuple[ImportSegment, int] | tuple[None, None]:
    name = request.image.name
    refuse_staged(name, "only its transaction creates it")
    check_name_free(state, name)
    try:
        if not is_as_expected(state, request.expected, request.seen):
            return None, None
    except MetadataConflict:
        return None, None  # another lookup finds out why

    made: list[Record]
    if request.adopted:
        sid = request.adopted
        # An empty record of deferred work in place of the one that would remove the others.
        done = DeferredWorkRecord(DeferredWorkKind.ADOPT, sid, owner_epoch=state.epoch)
        made = [request.chain.segment_record(sid, state.epoch), done]
    else:
        sid = state.next_segment_id()
        made = request.chain.records(sid, state.epoch, request.spacing)
    records = [(record.key, record.encode()) for record in made]
    if request.is_legacy:
        # S14: this record outlives the segment, so that the header file, which stays, cannot bring the name
        # back.
        records.append((imported_key(name), ImportedRecord(sid).encode()))

    return ImportSegment(request.image._replace(sid=sid), tuple(records)), sid


async def look_up_import(state: ContainerState, rows: LoggedMetadataStore, request: ImportRequest) -> None:
    """Note in ``request`` what the table holds now. Raises as ``check_free``; ``Unavailable`` also if records
    that were committed before are gone."""
    name, files = request.image.name, [chunk.name for _, chunk in request.chain.chunks]
    if not request.adopted:
        request.seen, request.expected = await check_free(
            state, rows, name, files, is_legacy=request.is_legacy
        )
        return

    check_name_free(state, name)
    work = deferred_work_key(request.adopted, DeferredWorkKind.ADOPT)
    free = [name_key(name).decode()]
    free += [imported_key(name)] if request.is_legacy else []
    request.seen, found = await rows.look_up([work, *free])
    _check_not_found(name, found)
    if work not in found or DeferredWorkRecord.decode(found[work][1]).chunks != len(files):
        raise Unavailable(f"the records of {name!r} were removed before its import was complete: try again")

    request.expected = {**dict.fromkeys(free, 0), work: found[work][0]}


def check_name_free(state: ContainerState, name: str) -> None:
    """Raises ``SegmentExists`` if a segment in memory has the name."""
    if state.segments.in_memory(name) is not None:
        raise _exists(name)


def _exists(name: str) -> SegmentExists:
    return SegmentExists(f"segment {name!r} exists already; nothing was imported", segment=name)


async def check_free(
    state: ContainerState,
    rows: LoggedMetadataStore,
    name: str,
    files: Sequence[str],
    *,
    is_legacy: bool = True,
) -> tuple[int, dict[str, int]]:
    """At which version of the table, and of which keys, it was seen that the segment ``name`` can be made of
    ``files``. Raises ``SegmentExists``; ``InvalidArgument`` if the legacy segment was imported or exported
    before, if a segment has one of the files, or garbage collection will delete it (rule S19);
    ``Unavailable`` while an unfinished import is being removed."""
    check_name_free(state, name)
    keys = [name_key(name).decode()]
    keys += [imported_key(name)] if is_legacy else []
    keys += [key for file in files for key in (chunk_key(file), released_key(file))]
    seen, found = await rows.look_up(keys)
    _check_not_found(name, found)
    for file in files:
        if chunk_key(file) in found:
            if file in await _first_adopted_chunks(rows):
                raise Unavailable(f"an unfinished import of {name!r} is being removed: try again")
            raise InvalidArgument(f"{name!r} cannot be imported: {file} belongs to another segment already")
        if released_key(file) in found:
            raise InvalidArgument(
                f"{name!r} cannot be imported: {file} was part of a segment that no longer needs it, and is "
                f"about to be deleted (rule S19)"
            )
    return seen, dict.fromkeys(keys, 0)


def _check_not_found(name: str, found: Container[str]) -> None:
    if name_key(name).decode() in found:
        raise _exists(name)
    if imported_key(name) in found:
        raise InvalidArgument(
            f"{name!r} was imported or exported before, and has been deleted or merged since: its files are "
            f"not a segment any more"
        )


async def _first_adopted_chunks(rows: LoggedMetadataStore) -> set[str]:
    """The first remaining chunk of each unfinished import, which is the first that a repeated import
    finds."""
    suffix = f":{DeferredWorkKind.ADOPT.name.lower()}"
    work = await rows.records(DEFERRED_WORK_PREFIX)
    return {
        DeferredWorkRecord.decode(value).chunk for key, (_, value) in work.items() if key.endswith(suffix)
    }


def _apply(state: ContainerState, op: ImportSegment) -> None:
    state.count_segment_id(op.image.sid)
    state.closures.note(state.sequence, op.image.sid)
    state.write_records(op.records)
    segment = SegmentState.from_image(op.image)
    # An image is of a durable state, and this one is not durable yet (C1).
    segment.durable_length = -1
    # Before it is added, because the table asks whether it is clean.
    state.load_record(segment)
    state.add_segment(segment)


def _publish(publisher: Publisher, op: ImportSegment, group: int) -> None:
    segment = publisher.by_id[op.image.sid]
    segment.durable_length = op.image.length
    publisher.cache.open_segment(segment.sid, segment.flushed)


HANDLERS = (RequestHandler(ImportRequest, decide_import), OperationHandler(ImportSegment, _apply, _publish))
