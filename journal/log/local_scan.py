"""Reads a WAL file in windows: the scan that finds where its valid frames end (rule W2), and the search
behind that. However long the file is, memory holds one window, or one frame that is larger."""

from __future__ import annotations

import enum

from msgspec import Struct

from ...storage_backends.base.files import FileHandle, FindData, Program, Read
from .frame_table import FrameTable
from .frames import FRAME_HEADER_BYTES, FRAME_MAGIC_BYTES, Frame, decode_frame, frame_end

WINDOW_BYTES = 4 << 20


class Ending(enum.Enum):
    CLEAN = "nothing follows the last valid frame"
    TORN = (
        "no valid frame is in what follows the last one: a torn group, or the zeros of a file made "
        "longer ahead of its groups"
    )
    CORRUPT = "a valid frame follows an invalid one"


class Scan(Struct, frozen=True):
    frames: FrameTable
    ending: Ending

    @property
    def end(self) -> int:
        """The position just behind the last valid frame."""
        return self.frames.end


class FrameRun(Struct, frozen=True, eq=False):
    """What the frames of a file must be like to count."""

    start: int
    first_number: int
    epoch: int
    salt: int
    first_salt: int
    """The salt of the first frame: ``relog_salt`` in an opener's file, otherwise as ``salt``."""


class Window:
    """A part of an open file of ``size`` bytes."""

    def __init__(self, handle: FileHandle, size: int) -> None:
        self.size = size
        self.start = 0
        self.data = b""
        self.view = memoryview(b"")
        self._handle = handle

    @property
    def end(self) -> int:
        return self.start + len(self.data)

    def load(self, position: int, size: int) -> Program[None]:
        """Move the window so that it has ``size`` bytes from ``position`` on, or all up to the end of the
        file."""
        if self.start <= position and min(position + size, self.size) <= self.end:
            return

        wanted = min(max(size, WINDOW_BYTES), max(0, self.size - position))
        self._show((yield Read(self._handle, position, wanted)), position)
        if len(self.data) < wanted:
            self.size = self.end  # its owner trimmed it meanwhile

    def skip_hole(self, position: int) -> Program[int]:
        """The next position behind the window, from ``position`` on, with anything but zeros."""
        # Only behind the window: asking for a hole is a system call, and the window's bytes are here already.
        if position < self.start or position + FRAME_HEADER_BYTES > self.end:
            position = yield FindData(self._handle, position)
        return position

    def cut(self, end: int) -> None:
        """Ignore what is behind ``end``."""
        self.size = min(self.size, end)
        if self.end > end:
            self._show(self.data[: max(0, end - self.start)], self.start)

    def _show(self, data: bytes, start: int) -> None:
        self.data, self.view, self.start = data, memoryview(data), start

    def load_frame(self, position: int, salt: int, epoch: int) -> Program[None]:
        """Move the window so that it has the whole frame at ``position``, if its header is valid."""
        yield from self.load(position, FRAME_HEADER_BYTES)
        end = frame_end(self.view, position - self.start, position, salt, epoch)
        if end is not None and end <= self.size:
            yield from self.load(position, end - position)


def scan(window: Window, run: FrameRun, end: int) -> Program[Scan]:
    """Walk the frames of a file up to ``end``; they must be numbered densely."""
    window.cut(end)
    frames = FrameTable(run.start, run.first_number)
    position, salt = run.start, run.first_salt
    while True:
        yield from window.load_frame(position, salt, run.epoch)
        known = len(frames)
        # A valid frame with another number ends the run too. ``find_frame`` then finds it, which is
        # corruption: numbers are dense (W2).
        while (
            frame := decode_frame(window.view, position - window.start, position, salt, run.epoch)
        ) is not None and frame.number == frames.next_number:
            frames.append(frame)
            position, salt = frame.payload + frame.size, run.salt
        if len(frames) == known:
            break

    if position >= end:
        return Scan(frames, Ending.CLEAN)
    # W2: a valid frame behind an invalid one means that the invalid one was once durable.
    found = yield from find_frame(window, position, run)
    return Scan(frames, Ending.TORN if found is None else Ending.CORRUPT)


def find_frame(window: Window, position: int, run: FrameRun) -> Program[Frame | None]:
    """The first valid frame at or behind ``position``, at any byte. Holes cost no time: no frame begins in
    one, because its first byte is not zero."""
    while True:
        position = yield from window.skip_hole(position)
        if position + FRAME_HEADER_BYTES > window.size:
            return None

        yield from window.load(position, FRAME_HEADER_BYTES)
        data, view, start = window.data, window.view, window.start
        found = data.find(FRAME_MAGIC_BYTES, position - start)
        # Without a step for each header that is not valid: a file that is written over has thousands of its
        # earlier life (W13).
        while (
            0 <= found <= len(data) - FRAME_HEADER_BYTES
            and frame_end(view, found, start + found, run.salt, run.epoch) is None
        ):
            found = data.find(FRAME_MAGIC_BYTES, found + 1)
        if found < 0:
            # The magic may lie across the end of the window.
            position = max(position + 1, window.end - len(FRAME_MAGIC_BYTES) + 1)
            continue

        position = window.start + found
        # With the salt of later frames: a re-logged first frame counts only with its header, so behind a
        # broken one it proves nothing (W4).
        yield from window.load_frame(position, run.salt, run.epoch)
        frame = decode_frame(window.view, position - window.start, position, run.salt, run.epoch)
        if frame is not None:
            return frame
        # Not behind its payload: the header is not valid, so neither is the length that it names.
        position += 1
