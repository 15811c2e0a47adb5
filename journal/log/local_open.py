"""The opening of a local log: become the owner, read, seal, re-log (rules W1 and W4); and ``inspect``.

    list, raise the register (W1)     from here on no older owner passes its check
    read the register, list, read     every acked group is there; the last may be only in the page cache
    begin the new file (W4)           seals everything before the last group and repeats that group; synced
    check the register                if it differs, a later opener makes all of this ineffective
    write the watermark, synced (W3)  from now on this file may not be missing
    unlink files that no seal names   they have length 0 for every later owner; spares too (W13)
    trim files behind their seals     no later owner reads more of them (W9)

Crash: before the new file is durable the older files decide; from then on the new file does. Nothing is
returned before the check.
"""

from __future__ import annotations

import posixpath
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from typing import TypeVar

from msgspec import Struct

from ...storage_backends.base.errors import DataCorruption, StorageFull, StoreMismatch
from ...storage_backends.base.files import (
    Close,
    FileHandle,
    ListFolder,
    Program,
    Sync,
    Write,
    with_folder,
)
from ..registers.local import (
    Raised,
    Raising,
    RegisterImage,
    Watermark,
    confirm_epoch,
    encode_watermark,
    locked,
    open_register,
    raise_locked,
    raise_new,
    read_register,
    slot_offset,
)
from .frames import FileId, Seal
from .local_history import HISTORY_START, History, HistoryReader, Part, list_lengths, list_wal_files
from .local_layout import LogLayout, moved_folders, parse_spare_names, parse_wal_names
from .local_rolling import unlink_spares
from .local_writer import (
    CurrentFile,
    LogContext,
    Room,
    begin_file,
    measure_room,
    trim_sealed,
    unlink_files,
)

# A live owner rolls after 64 MiB by default, and a frozen opener trims once, so a reader is rarely overtaken
# even once. The last attempt reports any damage.
_READINGS_MAX = 5

T = TypeVar("T")


class TakenOver(Struct, frozen=True, eq=False):
    """The log as its new owner found and left it."""

    current: CurrentFile
    parts: Sequence[Part]
    room: Room


class Opened(Struct, frozen=True, eq=False):
    epoch: int
    history_epoch: int
    history: History
    register: FileHandle
    owned: TakenOver


class Inspected(Struct, frozen=True, eq=False):
    epoch: int
    history: History


def open_log(context: LogContext, above: int, after: Collection[int] | None) -> Program[Opened]:
    """The whole opening. Raises ``NotOwner`` if a later opener was faster, or if the epoch before it is not
    in ``after``."""
    layout = context.layout

    def begin() -> Program[Raised]:
        names = yield from list_wal_files(layout)
        # A seal names only epochs below its own file's, so the names cover the seals (W1).
        named = max((file.epoch for file in names), default=0)

        def raising(register: FileHandle) -> Program[tuple[int, int]]:
            return raise_locked(
                register,
                context.log_id,
                max(named, above),
                owner=context.owner,
                expected=after,
                tried=context.own_epochs,
            )

        register, before, epoch = yield from _raise_register(context, names, raising)
        return register, max(before, named), epoch

    register, before, epoch = yield from with_folder(layout.folder, begin)

    def read() -> Program[tuple[History, Sequence[str]]]:
        image = yield from read_register(register, context.log_id)
        # Again: up to the raise the owner before this one may have rolled or truncated (W1). The watermarks
        # are read before it, so that the files can only be longer than they state (W3).
        names = list((yield from list_lengths(layout)))
        reader = HistoryReader(layout, context.log_id, image.watermarks)
        return (yield from reader.read(parse_wal_names(names))), names

    try:
        history, found = yield from _read_unchanged(read)
    except DataCorruption:
        # An opener that was faster raised the register before it trimmed or removed what is missing here.
        yield from confirm_epoch(register, context.log_id, epoch, context.owner)
        raise
    owned = yield from take_over(context, register, epoch, history, found)
    return Opened(epoch, before, history, register, owned)


def take_over(
    context: LogContext, register: FileHandle, epoch: int, history: History, names: Sequence[str]
) -> Program[TakenOver]:
    """W4: seal, re-log, check. ``names``: what is in the folder. When it returns, ``history`` is durable
    under ``epoch`` and no older owner can add to it."""
    parts = history.sealed_parts()
    last = history.last
    first_group = history.next_group if last is None else last.number
    start = (context, FileId(epoch, 1), first_group, history.truncate_before, parts, last)
    try:
        current = yield from begin_file(*start)
    except StorageFull:
        # The owner that took over since then, if any, is spared a change of the files that it reads.
        yield from confirm_epoch(register, context.log_id, epoch, context.owner)
        yield from _make_room(context, history, names, epoch)
        current = yield from begin_file(*start, scarce=True)
    # Only now: an opener that raises the register after this check finds the new file, durable, when it
    # lists.
    yield from confirm_epoch(register, context.log_id, epoch, context.owner)
    yield from note_watermark(context, register, current, history.next_group - 1)
    yield Sync(register)
    # W5: ``names`` were listed after the raise, so they have every file with a group that an older owner
    # acked.
    yield from _unlink_unnamed(context, names, parts, epoch)
    yield from _unlink_spares(context, names, epoch)
    yield from trim_sealed(context.layout, _untrimmed(history, parts))
    return TakenOver(current, parts, (yield from measure_room(context, current)))


def note_watermark(
    context: LogContext, register: FileHandle, current: CurrentFile, last_group: int, clean: bool = False
) -> Program[None]:
    """W3: record that ``current`` is durable up to its position. The caller decides whether to sync the
    record."""
    watermark = Watermark(current.file.epoch, current.file.sequence, current.position, last_group, clean)
    yield Write(register, slot_offset(watermark.epoch), (encode_watermark(context.log_id, watermark),))


def inspect_log(context: LogContext) -> Program[Inspected]:
    """Read the log without writing or locking. If a live owner rolls or truncates it meanwhile, it is read
    again."""

    def read() -> Program[Inspected]:
        image, names = yield from list_state(context)
        if image is None:
            if names:
                raise _missing_register(context, names)
            image = RegisterImage(0, {})
        history = yield from HistoryReader(context.layout, context.log_id, image.watermarks).read(names)
        return Inspected(image.epoch, history)

    return (yield from _read_unchanged(read))


def holds_nothing(context: LogContext) -> Program[bool]:
    """Whether the log has no group, and never had one. Reads no more than a log without groups has."""
    image, names = yield from list_state(context)
    if image is not None and any(mark.last_group >= HISTORY_START for mark in image.watermarks.values()):
        return False
    return not names or (yield from inspect_log(context)).history.last is None


def find_moved(folder: str) -> Program[Sequence[str]]:
    """The folders to which recoveries moved what was in ``folder``."""
    entries = yield ListFolder(posixpath.dirname(folder), others=True)
    return moved_folders(folder, (entry.name for entry in entries if entry.is_folder))


def fence_log(folder: str, log_id: bytes) -> Program[None]:
    """W1: raise the register of a log that nobody is to own any more, if there is one that can be read. Its
    live owner, if any, acks nothing more."""
    register = None
    with suppress(NotADirectoryError):  # Whoever reads the log says what it is.
        register = yield from open_register(LogLayout(folder).register, write=True)
    if register is None:
        return
    try:
        with suppress(DataCorruption, StoreMismatch):
            yield from locked(register, lambda handle: raise_locked(handle, log_id, 0))
    finally:
        yield Close(register)


def list_state(context: LogContext) -> Program[tuple[RegisterImage | None, list[FileId]]]:
    """The register first, then the names: see ``local_history.py`` for the order."""
    register = yield from open_register(context.layout.register, write=False)
    image = None
    if register is not None:
        try:
            image = yield from read_register(register, context.log_id)
        finally:
            yield Close(register)
    try:
        names = yield from list_wal_files(context.layout)
    except FileNotFoundError:
        # This log was never opened.
        names = []
    return image, names


# --- steps --------------------------------------------------------------------------------------


def _read_unchanged(read: Callable[[], Program[T]]) -> Program[T]:
    """W1: the result of ``read``, or the corruption that it finds twice. A single finding may come from files
    that changed while they were read: a live owner truncates, and an earlier opener on a full disk, which was
    frozen, trims or removes what had no effect (W6)."""
    found = None
    for _ in range(_READINGS_MAX - 1):
        try:
            return (yield from read())
        except DataCorruption as error:
            if str(error) == found:
                raise
            found = str(error)
    return (yield from read())


def _raise_register(context: LogContext, names: Sequence[FileId], raising: Raising) -> Program[Raised]:
    layout = context.layout
    if not names:
        raised = yield from raise_new(layout.folder, layout.register, context.log_id, raising)
        context.handles.append(raised[0])
        return raised
    register = yield from open_register(layout.register, write=True)
    if register is None:
        raise _missing_register(context, names)
    # Before the raise, whose failure must not leak it (W7).
    context.handles.append(register)
    return register, *(yield from locked(register, raising))


def _missing_register(context: LogContext, names: Sequence[FileId]) -> DataCorruption:
    """W1: without the register it is unknown which epochs were fenced."""
    return DataCorruption(
        f"the register is missing beside {len(names)} WAL files", file=context.layout.register, offset=0
    )


def _make_room(context: LogContext, history: History, names: Sequence[str], epoch: int) -> Program[None]:
    """W6: free what earlier owners allocated and no later owner reads, before this one's file is durable.

    A file above the newest that counts never took effect: its owner was fenced before its check (W1). Behind
    the last group of the newest, a fenced owner may still write one, which it never acks. So a program that
    is frozen here takes nothing from anyone later.
    """
    newest = history.files[-1] if history.files else None
    yield from _unlink_spares(context, names, epoch)
    yield from unlink_files(
        context.layout,
        [
            file
            for file in parse_wal_names(names)
            if file.epoch < epoch and (newest is None or newest.file < file)
        ],
    )
    if newest is not None:
        yield from trim_sealed(context.layout, [Seal(newest.file, newest.end)])


def _untrimmed(history: History, parts: Sequence[Part]) -> list[Seal]:
    """The seals of files with bytes behind their end."""
    lengths = {wal.file: wal.length for wal in history.files}
    return [part.seal for part in parts if lengths[part.seal.file] > part.seal.end]


def _unlink_spares(context: LogContext, names: Sequence[str], epoch: int) -> Program[None]:
    """W13: an older owner, fenced and still in a write, may write to its spare. So nobody else uses it."""
    yield from unlink_spares(
        context.layout, [file for file in parse_spare_names(names) if file.epoch < epoch]
    )


def _unlink_unnamed(
    context: LogContext, names: Sequence[str], parts: Sequence[Part], epoch: int
) -> Program[None]:
    """W5: the new header has given these older files length 0, and its truncation address is durable under
    our epoch.

    The register was checked after that, so no later owner has read an older header. Files of later epochs are
    never touched.
    """
    named = [part.seal.file for part in parts]
    yield from unlink_files(
        context.layout,
        [file for file in parse_wal_names(names) if file.epoch < epoch and file not in named],
    )
