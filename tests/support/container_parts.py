"""A container's state without its actors: requests are decided and applied, and published when a test says
so."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import attrs
import pytest

from tierlog.actors.container.operations import DECIDE
from tierlog.actors.container.operations.append import AppendRequest
from tierlog.actors.container.operations.create import CreateRequest
from tierlog.actors.container.operations.handlers import Decision
from tierlog.actors.container.operations.metadata import CommitMetadataRequest
from tierlog.actors.container.publish import Listeners, Publisher
from tierlog.actors.container.requests import Request
from tierlog.actors.container.segments import SegmentState
from tierlog.actors.container.state import ContainerState
from tierlog.actors.read.tail_cache import TailCache
from tierlog.actors.read.unflushed import UnflushedBytes
from tierlog.journal.log.memory import MemoryLogService
from tierlog.journal.operations.operation import Operation
from tierlog.storage_backends.base.errors import TierlogError
from tierlog.storage_backends.segments.records.segment import SegmentRecord, segment_key
from tierlog.storage_backends.sorted_runs.memtable import version_of

NAME = "app/events"
ROLLING = 1 << 20


def append(name: str, data: bytes, **fields: Any) -> AppendRequest:
    return AppendRequest(name, data, **fields)


def by_writer(
    data: bytes, first: int, last: int | None = None, *, writer: bytes = b"w", name: str = NAME, **fields: Any
) -> AppendRequest:
    """Events ``first`` to ``last`` of a writer in one append."""
    return append(
        name,
        data,
        writer=writer,
        first_event=first,
        event_count=(first if last is None else last) - first + 1,
        **fields,
    )


def record_of(segment: SegmentState, **changes: Any) -> dict[str, bytes]:
    """The metadata write that says that all of ``segment`` is in long-term storage."""
    fields = {
        "length": segment.length,
        "start_offset": segment.start_offset,
        "sealed": segment.sealed,
        "owner_epoch": 1,
    } | changes
    return {segment_key(segment.sid): SegmentRecord(segment.sid, **fields).encode()}


@attrs.define
class Parts:
    cache: TailCache = attrs.field(factory=lambda: TailCache(1 << 30, None))
    state: ContainerState = attrs.field(init=False)
    due: list[int] = attrs.field(factory=list)
    due_bytes: int = 1 << 30
    group: int = 0
    publisher: Publisher = attrs.field(init=False)
    unflushed: UnflushedBytes = attrs.field(init=False)
    """The cache spills nothing, so its log stays closed."""

    def __attrs_post_init__(self) -> None:
        self.state = ContainerState(epoch=1)
        self.unflushed = UnflushedBytes(self.cache, MemoryLogService().log("unread"))
        listeners = Listeners(segment_due=self.due.append)
        self.publisher = Publisher(self.state, self.cache, due_bytes=self.due_bytes, listeners=listeners)

    def decide(self, request: Request) -> Any:
        """The answer; the operation, if there is one, is applied and not published."""
        return self._apply(request)[1]

    def _apply(self, request: Request) -> tuple[list[Operation], Any]:
        ops, answer = self.operations(request)
        for op in ops:
            self.state.apply(op)
        return ops, answer

    def operations(self, request: Request) -> tuple[list[Operation], Any]:
        """What the request would log, and its answer."""
        decision: Decision = DECIDE[type(request)](self.state, request)
        op, answer = decision
        return op if isinstance(op, list) else [] if op is None else [op], answer

    def do(self, *requests: Request) -> Any:
        """Decide, apply and publish as one group; the last answer."""
        decided = [self._apply(request) for request in requests]
        self.publish(*(op for ops, _ in decided for op in ops))
        return decided[-1][1]

    def log(self, *ops: Operation) -> None:
        """Apply and publish operations as one group."""
        for op in ops:
            self.state.apply(op)
        self.publish(*ops)

    def publish(self, *ops: Operation) -> int:
        self.group += 1
        self.publisher.publish(ops, self.group)
        return self.group

    def create(self, *names: str) -> SegmentState:
        for name in names or (NAME,):
            self.do(CreateRequest(name, ROLLING))

        return self.segment(names[-1] if names else NAME)

    def segment(self, name: str = NAME) -> SegmentState:
        segment = self.state.segments.find(name)
        assert segment is not None
        return segment

    def flush(self, name: str = NAME, **changes: Any) -> SegmentState:
        """Long-term storage's record of the segment says what its state says, or ``changes``."""
        segment = self.segment(name)
        self.commit(record_of(segment, **changes))
        return segment

    def commit(self, writes: Mapping[str, bytes | None]) -> Any:
        expected = {key: version_of(self.state.find_record(key)) for key in writes}
        return self.do(CommitMetadataRequest(expected, writes))

    def content(self, sid: int) -> bytes:
        return b"".join(self.cache.slices(sid, 0, 1 << 30))


def refused(parts: Parts, request: Request, error: type[TierlogError]) -> Any:
    """The error of a refused request, which must leave the state as it was."""
    before = parts.state.sequence, [segment.image() for segment in parts.state.segments.by_id.values()]
    with pytest.raises(error) as raised:
        parts.decide(request)

    assert (
        parts.state.sequence,
        [segment.image() for segment in parts.state.segments.by_id.values()],
    ) == before
    assert type(raised.value) is error
    return raised.value
