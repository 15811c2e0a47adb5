"""A tail, made of long polls: where it is, what it gives, when it is over. Pure; both clients share it.

Owns: the position, and the cut into blocks of at most the caller's size. Does not own: asking.

Long polls and not one endless stream: each has a deadline, so a peer that is gone is noticed, and each goes
where the container is by then.
"""

from __future__ import annotations

from collections.abc import Iterator

from .requests import PollResult

POLL_SECONDS = 20.0
"""How long a server may keep a poll without bytes."""


class TailCursor:
    def __init__(self, offset: int, block_size: int) -> None:
        self.position = offset
        self._block_size = block_size
        self.is_over = False

    def take(self, polled: PollResult) -> Iterator[bytes]:
        """The blocks of one answer. The position moves when a block is taken."""
        self.is_over = polled.sealed
        for start in range(0, len(polled.block), self._block_size):
            block = polled.block[start : start + self._block_size]
            self.position += len(block)
            yield block
