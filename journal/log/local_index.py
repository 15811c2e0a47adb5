"""Where the durable groups of a local log are: an index of windows, in memory.

A window is a run of at most ``INDEXED_GROUPS`` whole groups in one file, of about ``INDEXED_BYTES``; a larger
group is a window of its own. It is read at once and checked frame by frame, so that no byte is given whose
CRC was not verified. The index has two numbers per window, whatever the groups' sizes.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right

from msgspec import Struct, field

from ...storage_backends.base.codec import DecodeError
from ...storage_backends.base.errors import DataCorruption
from .contract import GroupPayload
from .frames import FRAME_HEADER_BYTES, FileId, decode_frame, decode_header, file_salt, relog_salt
from .local_layout import wal_name

INDEXED_BYTES = 1 << 20
INDEXED_GROUPS = 512
"""Each costs the step of the event loop that checks the window a few microseconds, however small it is."""


class LogWindow(Struct, frozen=True, eq=False):
    """The groups from ``first`` to before ``next``, in the bytes ``start .. end`` of a file. The first window
    of a file begins with its header."""

    file: FileId
    first: int
    next: int
    start: int
    end: int


class _IndexedFile(Struct, eq=False):
    file: FileId
    next: int
    end: int
    numbers: array[int] = field(default_factory=lambda: array("Q"))
    starts: array[int] = field(default_factory=lambda: array("Q"))


class GroupIndex:
    def __init__(self) -> None:
        self._files: list[_IndexedFile] = []
        """The files that hold groups, in order."""
        self._newest = 0
        """The first group of the newest window."""

    def add(self, file: FileId, number: int, start: int, end: int) -> None:
        """Group ``number`` is durable in the bytes ``start .. end`` of ``file``. Groups come in order."""
        last = self._files[-1] if self._files else None
        # Identity first: all groups of a file bring the same object, and to compare fields costs two calls.
        if last is None or (last.file is not file and last.file != file):
            last = _IndexedFile(file, number, end)
            self._files.append(last)
            # The header belongs to the first window: a re-logged frame is salted with its CRC (W4), and it
            # shows whether the file is still the one that was indexed.
            start = 0
        if (
            not last.numbers
            or number - last.numbers[-1] >= INDEXED_GROUPS
            or end - last.starts[-1] > INDEXED_BYTES
        ):
            last.numbers.append(number)
            last.starts.append(start)
            self._newest = number
        last.next, last.end = number + 1, end

    def window_of(self, number: int) -> int:
        """The first group of the window that holds group ``number``, which is durable."""
        # Called for each group when it is published, which is always in the newest window.
        return self._newest if number >= self._newest else self.find(number).first

    def find(self, number: int) -> LogWindow:
        at = bisect_right(self._files, number, key=lambda each: each.numbers[0]) - 1
        if at < 0 or number >= self._files[at].next:
            raise DataCorruption(f"group {number} is not in the log", file=f"group {number}")

        indexed = self._files[at]
        window = bisect_right(indexed.numbers, number) - 1
        is_last = window + 1 == len(indexed.numbers)
        return LogWindow(
            indexed.file,
            indexed.numbers[window],
            indexed.next if is_last else indexed.numbers[window + 1],
            indexed.starts[window],
            indexed.end if is_last else indexed.starts[window + 1],
        )

    def drop_before(self, number: int) -> None:
        """Forget the files whose groups are all below ``number``."""
        while self._files and self._files[0].next <= number:
            del self._files[0]


def window_payloads(window: LogWindow, data: bytes, path: str, *, log_id: bytes) -> list[GroupPayload]:
    """The groups of a window, of which ``data`` are the bytes. Raises ``DataCorruption`` (file, offset) if
    they are not those that were written."""
    view = memoryview(data)
    salt = first_salt = file_salt(log_id, window.file)
    position = window.start
    if not position:
        try:
            header, position = decode_header(data, path)
        except DecodeError as error:
            raise DataCorruption(f"the file's start is damaged: {error}", file=path, offset=0) from error

        if header.file != window.file:
            raise DataCorruption(f"this file is {wal_name(header.file)}, renamed", file=path, offset=0)
        if header.relogged:
            first_salt = relog_salt(salt, data[:position])
    found: list[GroupPayload] = []
    for number in range(window.first, window.next):
        at = position - window.start
        frame = decode_frame(view, at, position, salt if found else first_salt, window.file.epoch)
        if frame is None or frame.number != number:
            raise DataCorruption(f"group {number} is damaged", file=path, offset=position)

        position = frame.payload + frame.size
        found.append((number, view[at + FRAME_HEADER_BYTES : position - window.start]))
    return found
