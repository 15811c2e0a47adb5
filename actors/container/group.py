"""A group being built: the operations and the answers that become durable together.

Owns: the answers that wait for the group. Does not own: the payload's bytes (``journal/wal``) nor when a
group is closed (``pipeline.py``). Answers without an operation wait for the group too (rule C1): an empty
group is answered once the groups before it are durable.
"""

from __future__ import annotations

from typing import Any

from ...journal.group import PayloadBuilder
from ...storage_backends.base.errors import TierlogError
from ..kernel.one_shot import Answer
from ..kernel.reply import fail_all


class Group(PayloadBuilder):
    __slots__ = ("errors", "group_answers", "links", "looks", "replies", "tag", "truncate_before", "values")

    def __init__(self, first_sequence: int) -> None:
        super().__init__(first_sequence)
        self.replies: list[Answer] = []
        self.values: list[Any] = []
        """What each of ``replies`` is answered with: two lists, because a pair for each append would be one
        more object for each."""
        self.looks: list[tuple[Answer, Any]] = []
        """Answers of requests that change nothing."""
        self.group_answers: list[tuple[Answer, Any]] = []
        """Answered with (the group's number, extra) instead of a value."""
        self.errors: list[tuple[Answer, TierlogError]] = []
        self.links: list[object] = []
        """The spans of the appends in it, where they are traced."""
        self.tag = 0
        self.truncate_before = 0

    @property
    def is_empty(self) -> bool:
        return not (self.operations or self.replies or self.looks or self.errors or self.group_answers)

    def answer(self, number: int) -> None:
        """Everything in the group is durable: tell everybody."""
        for reply, value in zip(self.replies, self.values, strict=True):
            reply.resolve(value)

        for reply, value in self.looks:
            reply.resolve(value)

        for reply, extra in self.group_answers:
            reply.resolve((number, extra))

        for reply, error in self.errors:
            reply.fail(error)

    def fail(self, error: BaseException, unchanged: BaseException) -> None:
        """The group's fate is not known to be good: ``error`` for who changes something, ``unchanged`` for
        who can simply ask again."""
        fail_all((*self.replies, *(reply for reply, _ in self.group_answers)), error)
        fail_all((reply for reply, _ in (*self.looks, *self.errors)), unchanged)
