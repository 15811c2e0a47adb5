"""A group being built: the operations and the answers that become durable together.

Answers without an operation wait for the group too (rule C1); a group without operations is answered once the
groups before it are durable.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from anyio import CancelScope

from ...journal.group_payload import PayloadBuilder
from ...storage_backends.base.errors import TierlogError, Unavailable
from ..kernel.event_source import Answer
from ..kernel.reply import fail_all
from ..kernel.slices import SLICE, in_slices
from .segments import NotLoaded


class Unconfirmed(Unavailable):
    """What precedes the request is durable, and the log's service did not say whether the container has
    another owner by now. Nothing was applied (rule W12)."""


class Group(PayloadBuilder):
    __slots__ = (
        "confirming",
        "errors",
        "group_answers",
        "links",
        "reads",
        "replies",
        "tag",
        "truncate_before",
        "values",
    )

    def __init__(self, first_sequence: int) -> None:
        super().__init__(first_sequence)
        self.replies: list[Answer] = []
        self.values: list[Any] = []
        """The answers to ``replies``. Two lists: a pair for each append would be one more object each."""
        self.reads: list[tuple[Answer, Any]] = []
        """Answers to requests that change nothing."""
        self.group_answers: list[tuple[Answer, Any]] = []
        """Resolved with (the group's number, value)."""
        self.errors: list[tuple[Answer, TierlogError | NotLoaded]] = []
        self.links: list[object] = []
        """The spans of traced appends."""
        self.confirming: CancelScope | None = None
        """While a group that logs nothing waits until the ownership is confirmed."""
        self.tag = 0
        self.truncate_before = 0

    @property
    def is_empty(self) -> bool:
        return not (self.operations or self.replies or self.reads or self.errors or self.group_answers)

    def answer(self, number: int) -> Iterator[None]:
        """The group is durable as ``number``: resolve every answer, in steps of at most ``SLICE``."""
        count = len(self.replies)
        for start in range(0, count, SLICE):
            part = slice(start, start + SLICE)
            for reply, value in zip(self.replies[part], self.values[part], strict=True):
                reply.resolve(value)
            if start + SLICE <= count:
                yield

        if not (self.reads or self.group_answers or self.errors):
            return

        for reads in in_slices(self.reads):
            for reply, value in reads:
                reply.resolve(value)
            if len(reads) == SLICE:
                yield

        for reply, value in self.group_answers:
            reply.resolve((number, value))

        for errors in in_slices(self.errors):
            for reply, error in errors:
                reply.fail(error)
            if len(errors) == SLICE:
                yield

    def refuse(self, error: TierlogError) -> None:
        """Answer all with ``error``. For a group without operations."""
        self.errors = [(reply, error) for reply, _ in (*self.reads, *self.errors)]
        self.reads = []

    def fail(self, error: BaseException, unchanged: BaseException) -> None:
        """The group may not be durable: ``error`` for requests that change something, ``unchanged`` for those
        that are safe to repeat."""
        fail_all((*self.replies, *(reply for reply, _ in self.group_answers)), error)
        fail_all((reply for reply, _ in (*self.reads, *self.errors)), unchanged)
