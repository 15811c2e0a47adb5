"""What a container can be asked: one small mutable message per verb, with its reply slot.

Owns: the messages. Does not own: their meaning (``decisions.py``) nor their transport (the mailbox).
They are plain slotted classes because appends are the hot path: about 0.3 us each to make.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ...journal.operations.operation import Operation
from ...storage_backends.base.checksum import Buffer
from ...storage_backends.base.segments import AttributeUpdate
from ..kernel.one_shot import Answer


class Request:
    """The base: every request carries the slot of its answer, which ``Container.ask`` puts in."""

    __slots__ = ("reply",)
    reply: Answer


class AppendRequest(Request):
    __slots__ = (
        "data",
        "event_count",
        "expected_offset",
        "first_event",
        "name",
        "previous_event",
        "size",
        "writer",
    )

    def __init__(
        self,
        name: str,
        data: Buffer,
        size: int,
        writer: bytes = b"",
        first_event: int = 0,
        event_count: int = 0,
        previous_event: int | None = None,
        expected_offset: int | None = None,
    ) -> None:
        self.name = name
        self.data = data
        self.size = size
        self.writer = writer
        self.first_event = first_event
        self.event_count = event_count
        self.previous_event = previous_event
        self.expected_offset = expected_offset


class TracedAppendRequest(AppendRequest):
    """An append with a span, to which its group's span is linked."""

    __slots__ = ("span",)

    def __init__(self, append: AppendRequest, span: object) -> None:
        super().__init__(
            append.name,
            append.data,
            append.size,
            append.writer,
            append.first_event,
            append.event_count,
            append.previous_event,
            append.expected_offset,
        )
        self.span = span


class CreateRequest(Request):
    __slots__ = ("name", "rolling_size")

    def __init__(self, name: str, rolling_size: int) -> None:
        self.name = name
        self.rolling_size = rolling_size


class NameRequest(Request):
    """A verb that needs nothing but a segment's name."""

    __slots__ = ("name",)

    def __init__(self, name: str) -> None:
        self.name = name


class SealRequest(NameRequest):
    __slots__ = ()


class DeleteRequest(NameRequest):
    __slots__ = ()


class InfoRequest(NameRequest):
    __slots__ = ()


class TruncateRequest(Request):
    __slots__ = ("name", "offset")

    def __init__(self, name: str, offset: int) -> None:
        self.name = name
        self.offset = offset


class AttributesRequest(Request):
    __slots__ = ("name", "updates")

    def __init__(self, name: str, updates: Sequence[AttributeUpdate]) -> None:
        self.name = name
        self.updates = updates


class MergeRequest(Request):
    __slots__ = ("sources", "target", "updates")

    def __init__(self, target: str, sources: Sequence[str], updates: Sequence[AttributeUpdate]) -> None:
        self.target = target
        self.sources = sources
        self.updates = updates


class ExpireWritersRequest(Request):
    __slots__ = ("name", "writers")

    def __init__(self, name: str, writers: Sequence[bytes]) -> None:
        self.name = name
        self.writers = writers


class WriterRequest(Request):
    __slots__ = ("name", "writer")

    def __init__(self, name: str, writer: bytes) -> None:
        self.name = name
        self.writer = writer


class ListRequest(Request):
    __slots__ = ("prefix",)

    def __init__(self, prefix: str) -> None:
        self.prefix = prefix


class WaitDurableRequest(Request):
    """Answered once everything before it is durable: a negative answer that was found outside the pipeline
    waits for it (rule C1)."""

    __slots__ = ()


class CommitMetadataRequest(Request):
    """Internal: one metadata transaction."""

    __slots__ = ("expected", "writes")

    def __init__(self, expected: Mapping[str, int], writes: Mapping[str, bytes | None]) -> None:
        self.expected = expected
        self.writes = writes


class LogRequest(Request):
    """Internal: log one operation as it is; answered with the number of its group."""

    __slots__ = ("op", "tag", "truncate_before")

    def __init__(self, op: Operation, *, tag: int = 0, truncate_before: int = 0) -> None:
        self.op = op
        self.tag = tag
        self.truncate_before = truncate_before


class SnapshotRequest(Request):
    """Internal: begin a checkpoint; answered with (snapshot, number of the group that holds its begin)."""

    __slots__ = ("checkpoint",)

    def __init__(self, checkpoint: int) -> None:
        self.checkpoint = checkpoint
