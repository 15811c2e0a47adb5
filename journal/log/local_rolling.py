"""How an owner goes on in another file, and the files that it writes over instead of making new ones (rule
W13).

A sync of bytes that go over written ones changes nothing but these bytes: no blocks are allocated, and no
extent becomes a written one, which costs a commit of the file system's journal. An owner keeps one of its
files that a truncation would remove, as its *spare*, and its next roll begins there.

Nobody but the owner of a file's epoch ever writes to it, so an owner that was fenced, and is still in a
write, cannot damage what a later one has. The spare gets the name of a WAL file once its new header is
durable. What is left of its earlier life is never a group: each frame is salted with the epoch and the
sequence of its file, and with its position. Crash: the next owner removes the spare.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ...storage_backends.base.checksum import Buffer
from ...storage_backends.base.errors import StorageFull
from ...storage_backends.base.files import FileHandle, Open, Program, Rename, Sync, SyncFolder, Unlink, Write
from ..registers.local import confirm_epoch
from .frames import FileHeader, FileId, Seal, encode_header, file_salt
from .local_history import Part
from .local_layout import LogLayout
from .local_writer import CurrentFile, LogContext, begin_file, is_full, trim, withdraw

_PAGE_BYTES = 4096
_ZEROS = bytes(_PAGE_BYTES)


def find_spare(needless: Mapping[FileId, int], epoch: int, size: int) -> Seal | None:
    """Of the files that a truncation removes, with their lengths, the one to keep: the newest of this
    ``epoch`` with at least ``size`` bytes. With where it ends."""
    fitting = [file for file, length in needless.items() if file.epoch == epoch and length >= size]
    return Seal(max(fitting), needless[max(fitting)]) if fitting else None


def keep_spare(layout: LogLayout, file: FileId) -> Program[None]:
    """Take the name of a WAL file from ``file``: nobody reads it any more (W5)."""
    yield Rename(layout.wal(file), layout.spare(file))


def unlink_spares(layout: LogLayout, files: Sequence[FileId]) -> Program[None]:
    for file in files:
        try:
            yield Unlink(layout.spare(file))
        except FileNotFoundError:
            continue


def roll(
    context: LogContext,
    current: CurrentFile,
    next_group: int,
    truncate_before: int,
    parts: Sequence[Part],
    spare: Seal | None,
) -> Program[tuple[CurrentFile, FileHandle] | None]:
    """Continue in the spare or a new file. Returns it with a newly opened register, or None if the disk has
    no room.

    None is harmless: the current file still has allocated blocks, it only becomes longer than ``file_size``.
    """
    epoch = current.file.epoch
    file = FileId(epoch, current.file.sequence + 1)
    fresh = None
    try:
        if spare is not None:
            fresh = yield from _begin_spare(context, spare, file, next_group, truncate_before, parts)
        if fresh is None:
            fresh = yield from begin_file(context, file, next_group, truncate_before, parts, None)
    except StorageFull:
        return None  # not even the reserve is left
    except OSError as error:
        if not is_full(error):
            raise
        return None
    # Opened by its name, so that a replaced register file is noticed here (rule W1).
    register: FileHandle = yield Open(context.layout.register, write=True)
    context.handles.append(register)
    yield from confirm_epoch(register, context.log_id, epoch, context.owner)
    # W9: the header that seals this end is durable, and no group follows.
    yield from trim(current.handle, current.position)
    return fresh, register


def _begin_spare(
    context: LogContext,
    spare: Seal,
    file: FileId,
    first_group: int,
    truncate_before: int,
    parts: Sequence[Part],
) -> Program[CurrentFile | None]:
    """Make the spare the WAL file ``file``; return when its start and its name are durable. None if it is
    gone: a newer owner removed it, or this one, because the disk is too full even for that."""
    layout = context.layout
    name, old_name = layout.wal(file), layout.spare(spare.file)
    seals = tuple(part.seal for part in parts)
    start = encode_header(FileHeader(context.log_id, file, first_group, truncate_before, False, seals))
    try:
        handle: FileHandle = yield Open(old_name, write=True, cold=True)
        context.handles.append(handle)
        yield write_over(handle, 0, (start,), len(start), spare.end)
        # Before the name: a WAL file that was written over has a valid start, whatever is lost.
        yield Sync(handle)
        yield Rename(old_name, name)
        yield SyncFolder(layout.folder)
    except FileNotFoundError:
        return None
    except OSError as error:
        if not is_full(error):
            raise
        yield from withdraw(layout, old_name, name)
        return None
    salt = file_salt(context.log_id, file)
    sync = Sync(handle)
    return CurrentFile(
        handle, file, first_group, salt, sync, len(start), spare.end, spare.end, recycled=spare.end
    )


def write_over(handle: FileHandle, offset: int, buffers: Sequence[Buffer], end: int, recycled: int) -> Write:
    """The write of ``offset .. end`` in a file with bytes of its earlier life up to ``recycled``. It goes on
    with zeros up to the end of the page, which the system would otherwise read from the disk first."""
    filler = max(0, min(-end % _PAGE_BYTES, recycled - end))
    return Write(handle, offset, (*buffers, _ZEROS[:filler]), filler=filler)
