"""The frames of a file, in 8 bytes each: a log may have millions of groups when it is opened."""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence
from typing import overload

from .frames import FRAME_HEADER_BYTES, Frame


class FrameTable(Sequence[Frame]):
    """Frames that follow each other without a gap and are numbered densely. Few of them have a tag or a
    truncation address."""

    __slots__ = ("_bounds", "_first", "_tags_and_addresses")

    def __init__(self, start: int, first: int) -> None:
        """The first frame begins at position ``start`` of the file and has the number ``first``."""
        self._first = first
        self._bounds = array("Q", (start,))
        """Where each frame begins, and where the last one ends."""
        # Not in the array, where they would triple what each frame takes.
        self._tags_and_addresses: dict[int, tuple[int, int]] = {}

    @property
    def end(self) -> int:
        return self._bounds[-1]

    @property
    def next_number(self) -> int:
        return self._first + len(self)

    def append(self, frame: Frame) -> None:
        if frame.tag or frame.truncate_before:
            self._tags_and_addresses[len(self)] = (frame.tag, frame.truncate_before)
        self._bounds.append(frame.payload + frame.size)

    def truncate_before(self) -> int:
        """The newest truncation address in the frames; 0 if there is none."""
        return max((address for _, address in self._tags_and_addresses.values()), default=0)

    def tags(self) -> dict[int, int]:
        """The tags of the frames with one, by number, in order."""
        return {self._first + index: tag for index, (tag, _) in self._tags_and_addresses.items() if tag}

    def __len__(self) -> int:
        return len(self._bounds) - 1

    @overload
    def __getitem__(self, index: int) -> Frame: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[Frame]: ...
    def __getitem__(self, index: int | slice) -> Frame | Sequence[Frame]:
        found = range(len(self))[index]
        return self._frame(found) if isinstance(found, int) else [self._frame(each) for each in found]

    def __iter__(self) -> Iterator[Frame]:
        return map(self._frame, range(len(self)))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, FrameTable) and list(self) == list(other)

    def _frame(self, index: int) -> Frame:
        position = self._bounds[index]
        payload = position + FRAME_HEADER_BYTES
        size = self._bounds[index + 1] - payload
        return Frame(
            position, payload, size, self._first + index, *self._tags_and_addresses.get(index, (0, 0))
        )
