"""What a local log's files hold: which files count, where each ends, and whether acked bytes are missing. It
writes nothing, so ``inspect`` uses it too.

The newest file with a valid header (and a valid re-logged frame, if it has one) decides: its seal set names
every older file that counts and its exact end (W4); any other older file has length 0. A newer file with a
broken header comes from an open or a roll that never took effect, unless a valid frame or a watermark proves
otherwise. The newest file ends at its last valid frame; the watermark of its epoch is the least that it must
reach (W3). Reading goes backwards and stops at the newest truncation address; files below it may be missing
(W5).

The register is read before the folder is listed, and the folder before the files, so that a writer that goes
on meanwhile can only have made the files longer than the watermark requires.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NoReturn, TypeVar, overload

from msgspec import Struct

from ...storage_backends.base.codec import DecodeError
from ...storage_backends.base.errors import DataCorruption, StoreMismatch
from ...storage_backends.base.files import (
    Close,
    FileHandle,
    FolderEntry,
    ListFolder,
    Open,
    Program,
    Read,
    Size,
)
from ..registers.local import Watermark
from .contract import GroupInfo
from .frame_table import FrameTable
from .frames import (
    FRAME_HEADER_BYTES,
    FileHeader,
    FileId,
    Frame,
    Seal,
    decode_frame,
    decode_header,
    file_salt,
    header_size,
    relog_salt,
)
from .local_index import INDEXED_BYTES, INDEXED_GROUPS
from .local_layout import LogLayout, parse_wal_names, wal_name
from .local_scan import Ending, FrameRun, Window, find_frame, scan

T = TypeVar("T")

HISTORY_START = 1
"""The number of a log's first group."""


class WalFile(Struct, frozen=True, eq=False):
    """A file that counts, with its frames."""

    header: FileHeader
    frames: FrameTable
    length: int
    """The length of the file in bytes; behind ``end`` it is free space, a torn tail, or what a later owner
    does not need."""
    first_salt: int
    """The salt of the first frame (see ``FrameRun``)."""

    @property
    def file(self) -> FileId:
        return self.header.file

    @property
    def end(self) -> int:
        return self.frames.end

    @property
    def next_number(self) -> int:
        return self.frames.next_number

    @property
    def truncate_before(self) -> int:
        """The newest truncation address in header and frames."""
        return max(self.header.truncate_before, self.frames.truncate_before())


class LastGroup(Struct, frozen=True, eq=False):
    number: int
    tag: int
    truncate_before: int
    payload: bytes


class Part(Struct, frozen=True, eq=False):
    """A sealed file that later owners need: its seal and the number of its first group."""

    seal: Seal
    first_group: int


class History(Struct, frozen=True, eq=False):
    """The content of the log that an opener takes over."""

    files: Sequence[WalFile]
    """The files with groups from ``truncate_before`` on, oldest first."""
    truncate_before: int
    """The newest truncation address; 0 if the log was never truncated."""
    last: LastGroup | None
    next_group: int

    def groups(self, *, last_epoch: int | None = None) -> Sequence[GroupInfo]:
        """From the truncation address on. ``last_epoch``: the epoch under which the last group was logged
        again."""
        return _Groups(self, last_epoch)

    def tags(self) -> Mapping[int, int]:
        """The tags of the groups with one, by number, from the truncation address on."""
        found = (item for wal in self.files for item in wal.frames.tags().items())
        return {number: tag for number, tag in found if number >= self.truncate_before}

    def sealed_parts(self) -> tuple[Part, ...]:
        """W4: the seal set of an opener: each file up to the last group, without the files that have no other
        group.

        A file with only the last group may never have become durable, so a seal must not require it.
        """
        parts = []
        for wal in self.files:
            kept = len(wal.frames)
            if self.last is not None:
                kept = min(kept, self.last.number - wal.header.first_group)
            if kept > 0:
                last = wal.frames[kept - 1]
                parts.append(Part(Seal(wal.file, last.payload + last.size), wal.header.first_group))
        return tuple(parts)


class _Groups(Sequence[GroupInfo]):
    """The groups of a history, made when they are looked at: there may be millions."""

    def __init__(self, history: History, last_epoch: int | None) -> None:
        self._files = history.files
        self._last_epoch = last_epoch
        first = history.files[0].header.first_group if history.files else history.next_group
        self._numbers = range(max(first, history.truncate_before), history.next_group)

    def __len__(self) -> int:
        return len(self._numbers)

    @overload
    def __getitem__(self, index: int) -> GroupInfo: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[GroupInfo]: ...
    def __getitem__(self, index: int | slice) -> GroupInfo | Sequence[GroupInfo]:
        found = self._numbers[index]
        return self._info(found) if isinstance(found, int) else [self._info(number) for number in found]

    def _info(self, number: int) -> GroupInfo:
        at = bisect_right(self._files, number, key=lambda wal: wal.header.first_group) - 1
        wal = self._files[at]
        frame = wal.frames[number - wal.header.first_group]
        epoch = wal.file.epoch
        if self._last_epoch is not None and number == self._numbers[-1]:
            epoch = self._last_epoch
        return GroupInfo(number, epoch, frame.tag, frame.size, frame.truncate_before)


class _Content(Struct, frozen=True, eq=False):
    """A WAL file that is being read. It has a header if that is valid and, in an opener's file, followed by
    the re-logged frame."""

    path: str
    window: Window
    header: FileHeader | None
    run: FrameRun


def read_range(path: str, start: int, end: int) -> Program[bytes | None]:
    """A part of a file; None if it does not exist."""
    try:
        handle: FileHandle = yield Open(path)
    except FileNotFoundError:
        return None
    try:
        data: bytes = yield Read(handle, start, end - start)
    finally:
        yield Close(handle)
    return data


def list_lengths(layout: LogLayout) -> Program[dict[str, int]]:
    """The names in the log's folder, and how long the files are."""
    entries: Sequence[FolderEntry] = yield ListFolder(layout.folder)
    return {entry.name: entry.size for entry in entries}


def list_wal_files(layout: LogLayout) -> Program[list[FileId]]:
    return parse_wal_names((yield from list_lengths(layout)))


class HistoryReader:
    """Reads one log's files once. ``read()`` is a program."""

    def __init__(self, layout: LogLayout, log_id: bytes, watermarks: Mapping[int, Watermark]) -> None:
        self._layout = layout
        self._log_id = log_id
        self._watermarks = watermarks

    def read(self, names: Sequence[FileId]) -> Program[History]:
        """The history in the files ``names``, which are in order. Raises ``DataCorruption``, with file and
        offset, if acked bytes may be missing."""
        newest = yield from self._find_newest(names)
        if newest is None:
            self._check_later_epochs(0)
            return History(files=(), truncate_before=0, last=None, next_group=HISTORY_START)

        self._check_later_epochs(newest.file.epoch)
        self._check_watermark(newest)
        return (yield from self._read_sealed(newest))

    # --- one file --------------------------------------------------------------------------------

    def _visit(self, file: FileId, visit: Callable[[_Content], Program[T]]) -> Program[T | None]:
        """What ``visit`` finds in a file while it is open; None if it does not exist."""
        try:
            handle: FileHandle = yield Open(self._layout.wal(file))
        except FileNotFoundError:
            return None
        try:
            content = yield from self._parse(file, Window(handle, (yield Size(handle))))
            return (yield from visit(content))
        finally:
            yield Close(handle)

    def _parse(self, file: FileId, window: Window) -> Program[_Content]:
        path, salt = self._layout.wal(file), file_salt(self._log_id, file)
        # One byte loads a whole window of 4 MiB, in which nearly every header lies.
        yield from window.load(0, 1)
        yield from window.load(0, header_size(window.view))
        try:
            header, start = decode_header(window.view, path)
        except DecodeError:
            return _Content(path, window, None, FrameRun(0, 0, file.epoch, salt, salt))

        # Frames are salted with the log's id: without this check another log's file would pass for a torn
        # one.
        if header.log_id != self._log_id:
            raise StoreMismatch(
                f"{path} belongs to log {header.log_id.hex()}, not to {self._log_id.hex()}: the folders "
                f"were mixed up"
            )
        if header.file != file:
            raise DataCorruption(f"this file is {wal_name(header.file)}, renamed", file=path, offset=0)
        first_salt = relog_salt(salt, bytes(window.view[:start])) if header.relogged else salt
        run = FrameRun(start, header.first_group, file.epoch, salt, first_salt)
        if header.relogged:
            yield from window.load_frame(start, first_salt, file.epoch)
            at = start - window.start
            if decode_frame(window.view, at, start, first_salt, file.epoch) is None:
                # Header and re-logged frame are written together: one without the other is a torn open, which
                # never took effect (W4).
                return _Content(path, window, None, run)
        return _Content(path, window, header, run)

    # --- the newest file -------------------------------------------------------------------------

    def _find_newest(self, names: Sequence[FileId]) -> Program[WalFile | None]:
        # A newer file that never took effect leaves the decision to the one before it (W4).
        for file in reversed(names):
            wal = yield from self._visit(file, self._scan_newest)
            if wal is not None:
                return wal
        return None

    def _scan_newest(self, content: _Content) -> Program[WalFile | None]:
        if content.header is None:
            yield from self._check_never_effective(content)
            return None

        wal, ending = yield from self._scan(content, content.header, content.window.size)
        if ending is Ending.CORRUPT:
            raise DataCorruption(
                "a damaged group is followed by valid ones", file=content.path, offset=wal.end
            )
        return wal

    def _check_never_effective(self, content: _Content) -> Program[None]:
        """A file without a valid start counts as empty. But a group behind it was begun only after the start
        was durable, so it proves damage (W2)."""
        found = yield from find_frame(content.window, 0, content.run)
        if found is not None:
            raise DataCorruption(
                f"the file's start is damaged, but group {found.number} follows",
                file=content.path,
                offset=content.run.start,
            )

    def _scan(self, content: _Content, header: FileHeader, end: int) -> Program[tuple[WalFile, Ending]]:
        length = content.window.size
        found = yield from scan(content.window, content.run, end)
        return WalFile(header, found.frames, length, content.run.first_salt), found.ending

    # --- watermarks ------------------------------------------------------------------------------

    def _check_later_epochs(self, epoch: int) -> None:
        """W3: an epoch with a watermark took effect. If no file of it or of a later one counts, its files are
        missing or damaged."""
        newest = max(self._watermarks, default=0)
        if newest > epoch:
            self._fail_watermark(self._watermarks[newest], 0)

    def _check_watermark(self, wal: WalFile) -> None:
        """W3: the log must reach the watermark of its newest epoch."""
        watermark = self._watermarks.get(wal.file.epoch)
        # A mark of an earlier file of this epoch: the seal of that file is checked, and requires no less.
        if watermark is None or watermark.sequence < wal.file.sequence:
            return
        if watermark.sequence > wal.file.sequence:
            self._fail_watermark(watermark, 0)
        if wal.end < watermark.end or wal.next_number <= watermark.last_group:
            self._fail_watermark(watermark, wal.end)

    def _fail_watermark(self, watermark: Watermark, offset: int) -> NoReturn:
        path = self._layout.wal(FileId(watermark.epoch, watermark.sequence))
        reason = (
            f"the log ends before byte {watermark.end} of this file, up to which it was durable (group "
            f"{watermark.last_group})"
        )
        raise DataCorruption(reason, file=path, offset=offset)

    # --- the sealed files ------------------------------------------------------------------------

    def _read_sealed(self, newest: WalFile) -> Program[History]:
        """Read backwards through the seal set until the truncation address is reached."""
        files = [newest]
        truncate_before = newest.truncate_before
        for seal in reversed(newest.header.seals):
            # Before the next file is opened: one that lies below the address may have been removed (W5).
            if files[0].header.first_group <= max(truncate_before, HISTORY_START):
                break
            wal = yield from self._read_part(seal, files[0])
            files.insert(0, wal)
            truncate_before = max(truncate_before, wal.truncate_before)

        self._check_start(files[0], max(truncate_before, HISTORY_START))
        # The newest file is empty if its owner rolled and ended before the next group.
        holder = next((wal for wal in reversed(files) if wal.frames), None)
        last = None if holder is None else (yield from self._read_last(holder))
        return History(files, truncate_before, last, newest.next_number)

    def _read_part(self, seal: Seal, successor: WalFile) -> Program[WalFile]:
        def read(content: _Content) -> Program[WalFile]:
            if content.header is None:
                raise DataCorruption(
                    "the file's start is damaged", file=content.path, offset=content.run.start
                )
            # Only up to the seal: what follows was written by an owner that was fenced, and never acked (W1,
            # W4).
            wal, _ = yield from self._scan(content, content.header, seal.end)
            self._check_sealed(wal, seal, successor)
            return wal

        found = yield from self._visit(seal.file, read)
        if found is None:
            path = self._layout.wal(seal.file)
            raise DataCorruption("a file above the truncation address is missing", file=path, offset=0)
        return found

    def _check_sealed(self, wal: WalFile, seal: Seal, successor: WalFile) -> None:
        path = self._layout.wal(seal.file)
        if wal.end != seal.end:
            what = "a group is missing" if wal.length < seal.end else "a damaged group"
            raise DataCorruption(
                f"{what} in a file that was sealed at byte {seal.end}", file=path, offset=wal.end
            )
        # A seal fixes where a file ends; the numbers show that no file between them is missing.
        if wal.next_number != successor.header.first_group:
            raise DataCorruption(
                f"group {wal.next_number} is missing: the next file starts with "
                f"{successor.header.first_group}",
                file=path,
                offset=seal.end,
            )

    def _read_last(self, wal: WalFile) -> Program[LastGroup]:
        frame = wal.frames[-1]
        path = self._layout.wal(wal.file)
        data = yield from read_range(path, frame.position, frame.payload + frame.size)
        [(number, payload)] = payloads(wal, [frame], data or b"", path, log_id=self._log_id)
        return LastGroup(number, frame.tag, frame.truncate_before, bytes(payload))

    def _check_start(self, first: WalFile, needed: int) -> None:
        if first.header.first_group > needed:
            path = self._layout.wal(first.file)
            raise DataCorruption(
                f"groups {needed} to {first.header.first_group - 1} are in no file", file=path, offset=0
            )


def windows(wal: WalFile, numbers: range) -> Iterator[Sequence[Frame]]:
    """The frames of the groups ``numbers``, as many at a time as are read at once."""
    batch: list[Frame] = []
    first = wal.header.first_group
    for index in range(max(0, numbers.start - first), min(len(wal.frames), numbers.stop - first)):
        frame = wal.frames[index]
        if len(batch) == INDEXED_GROUPS or (
            batch and frame.payload + frame.size - batch[0].position > INDEXED_BYTES
        ):
            yield batch
            batch = []
        batch.append(frame)
    if batch:
        yield batch


def payloads(
    wal: WalFile, frames: Sequence[Frame], data: bytes, path: str, *, log_id: bytes
) -> list[tuple[int, memoryview]]:
    """(number, payload) of consecutive frames, of which ``data`` are the bytes, each checked again against
    the frame that the scan found."""
    found = []
    view = memoryview(data)
    salt = file_salt(log_id, wal.file)
    start = frames[0].position
    for frame in frames:
        expected_salt = wal.first_salt if frame.number == wal.header.first_group else salt
        at = frame.position - start
        if decode_frame(view, at, frame.position, expected_salt, wal.file.epoch) != frame:
            raise DataCorruption(
                f"group {frame.number} changed since the log was opened", file=path, offset=frame.position
            )
        found.append((frame.number, view[at + FRAME_HEADER_BYTES : at + FRAME_HEADER_BYTES + frame.size]))
    return found
