"""The messages that a container's mailbox carries: the base, and the two that the pipeline logs itself.

Each verb's request is in its module in ``operations/``. Requests are plain slotted classes: appends are the
hot path, and one takes about 0.3 us to make."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from ...journal.operations.operation import Operation
from ..kernel.event_source import Answer

if TYPE_CHECKING:
    from .state import ContainerState


WORK_CHARGE = 4 << 10
"""Bytes for which a request counts in the mailbox, at least, times its ``work``: the pipeline's steps, which
take bytes, then have a ``work`` of about a thousand."""


class Request:
    """The base. ``Container.ask`` sets ``reply``."""

    __slots__ = ("reply",)
    reply: Answer
    is_read = False
    """It is about one segment, and logs nothing. If that is cold, the request gets ``NotLoaded``, and its
    caller looks the segment up (rule M4)."""
    deletes = False
    """It frees long-term storage, which may be what has no room: it brings a segment into memory when other
    requests are refused for that (rule M5)."""
    size: int = 0
    """Bytes of memory for its data while it waits, about."""
    work = 1
    """How many rows or attributes are decided and applied for it, about."""

    def named(self) -> Sequence[str]:
        """The segments that the request is about, by name: a later one that shares a name must not overtake
        it (rule C4)."""
        return ()

    def needed(self) -> Sequence[str]:
        """The segments that it brings into memory, by name, unless they are there. None of them for what
        relieves memory, which is not refused for the lack of it (rule M5)."""
        return () if self.is_read else self.named()

    def takes_room(self, state: ContainerState) -> bool:
        """Whether it logs something that stays: on a full disk it is refused, as an append is (rule W6)."""
        return False


class NameRequest(Request):
    """A verb whose only argument is a segment's name."""

    __slots__ = ("name",)

    def __init__(self, name: str) -> None:
        self.name = name

    def named(self) -> Sequence[str]:
        return (self.name,)


class LogRequest(Request):
    """Internal: log one operation as it is. Answered with (number of its group, None)."""

    __slots__ = ("op", "tag", "truncate_before")

    def __init__(self, op: Operation, *, tag: int = 0, truncate_before: int = 0) -> None:
        self.op = op
        self.tag = tag
        self.truncate_before = truncate_before


class SnapshotRequest(Request):
    """Internal: begin a checkpoint. Answered with (number of the group that holds its begin, snapshot)."""

    __slots__ = ("checkpoint",)

    def __init__(self, checkpoint: int) -> None:
        self.checkpoint = checkpoint
