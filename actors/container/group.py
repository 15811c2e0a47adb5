"""A group being built: the operations, answers and bytes that become durable together.

Owns: the encoding of operations into one payload and the answers that wait for it. Does not own: when a group is closed (``pipeline.py``).
Answers without an operation wait for the group too (rule C1): an empty group is answered once the groups before it are durable.
"""

from __future__ import annotations

from typing import Any

from ...journal.operations.append import Append
from ...journal.operations.vocabulary import Operation, encode_append_head, encode_group_head, encode_operation
from ...storage_backends.base.checksum import Buffer
from ...storage_backends.base.errors import TierlogError
from ..core.reply import Reply


class Group:
    __slots__ = ("answers", "errors", "group_answers", "operations", "parts", "size", "tag", "truncate_before")

    def __init__(self, first_sequence: int) -> None:
        self.parts: list[Buffer] = [encode_group_head(first_sequence)]
        self.size = 8
        self.operations: list[Operation] = []
        self.answers: list[tuple[Reply[Any], Any]] = []
        self.group_answers: list[tuple[Reply[Any], Any]] = []
        """Answered with (the group's number, extra) instead of a value."""
        self.errors: list[tuple[Reply[Any], TierlogError]] = []
        self.tag = 0
        self.truncate_before = 0

    @property
    def is_empty(self) -> bool:
        return not (self.operations or self.answers or self.errors or self.group_answers)

    def add(self, op: Operation) -> None:
        """Encode ``op`` at the group's end; an append's data is referenced, not copied."""
        self.operations.append(op)
        parts = self.parts
        if type(op) is Append:
            data = op.data
            head = encode_append_head(op, len(data))
            parts.append(head)
            parts.append(data)
            self.size += len(head) + len(data)
        else:
            encoded = encode_operation(op)
            parts.append(encoded)
            self.size += len(encoded)

    def answer(self, number: int) -> None:
        """Everything in the group is durable: tell everybody."""
        for reply, value in self.answers:
            reply.resolve(value)

        for reply, extra in self.group_answers:
            reply.resolve((number, extra))

        for reply, error in self.errors:
            reply.fail(error)

    def fail(self, error: BaseException) -> None:
        """The group's fate is not known to be good: operations and answers that depend on them fail alike."""
        for reply, _ in (*self.answers, *self.group_answers, *self.errors):
            reply.fail(error)
