"""A group being built: the operations and the answers that become durable together.

Answers without an operation wait for the group too (rule C1); a group without operations is answered once the
groups before it are durable.
"""

from __future__ import annotations

from typing import Any

from ...journal.group_payload import PayloadBuilder
from ...storage_backends.base.errors import TierlogError
from ..kernel.event_source import Answer
from ..kernel.reply import fail_all


class Group(PayloadBuilder):
    __slots__ = ("errors", "group_answers", "links", "reads", "replies", "tag", "truncate_before", "values")

    def __init__(self, first_sequence: int) -> None:
        super().__init__(first_sequence)
        self.replies: list[Answer] = []
        self.values: list[Any] = []
        """The answers to ``replies``. Two lists: a pair for each append would be one more object each."""
        self.reads: list[tuple[Answer, Any]] = []
        """Answers to requests that change nothing."""
        self.group_answers: list[tuple[Answer, Any]] = []
        """Resolved with (the group's number, value)."""
        self.errors: list[tuple[Answer, TierlogError]] = []
        self.links: list[object] = []
        """The spans of traced appends."""
        self.tag = 0
        self.truncate_before = 0

    @property
    def is_empty(self) -> bool:
        return not (self.operations or self.replies or self.reads or self.errors or self.group_answers)

    def answer(self, number: int) -> None:
        """The group is durable as ``number``: resolve every answer."""
        for reply, value in zip(self.replies, self.values, strict=True):
            reply.resolve(value)

        for reply, value in self.reads:
            reply.resolve(value)

        for reply, value in self.group_answers:
            reply.resolve((number, value))

        for reply, error in self.errors:
            reply.fail(error)

    def fail(self, error: BaseException, unchanged: BaseException) -> None:
        """The group may not be durable: ``error`` for requests that change something, ``unchanged`` for those
        that are safe to repeat."""
        fail_all((*self.replies, *(reply for reply, _ in self.group_answers)), error)
        fail_all((reply for reply, _ in (*self.reads, *self.errors)), unchanged)
