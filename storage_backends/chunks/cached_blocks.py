"""Cached chunks as local files: their names, their format, and the programs that read, write and list them
(rules K1 to K4).

A chunk is cached by block: block k is its bytes ``k * 1 MiB .. (k + 1) * 1 MiB``, or a beginning of them. All
blocks of a chunk are in one sparse file, ``<name with '+' for '/'>.blocks``, so that a range is one read
and a chunk one unlink.

Format: a table of 8,192 entries (u32 length, u32 CRC32C, big-endian; zeros for an absent block), and behind
it each block at its place. The checksum begins with that of ``1 <name> <k>``, so that a file is not taken for
another one's. A block is written before its entry. Nothing is synced: after a crash a file may hold anything,
and what does not match its entry is no block. Concurrent writers of a block write the same bytes.
"""

from __future__ import annotations

import errno
import struct
from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import NamedTuple

import attrs

from ..base.checksum import Buffer, crc32c, crc32c_of
from ..base.chunk_storage import is_chunk_name
from ..base.files import (
    NOT_A_FILE,
    Close,
    FileHandle,
    FreeSpace,
    IsGuarded,
    ListFolder,
    MakeFolder,
    Open,
    Program,
    Read,
    Touch,
    Unlink,
    Write,
)

BLOCK = 1 << 20
"""As of the checksums that readers verify (rule S5): they read whole blocks."""
_ENTRY = struct.Struct(">II")
_BLOCKS_MAX = 8192
_TABLE_BYTES = _BLOCKS_MAX * _ENTRY.size
FILE_OVERHEAD = 8192
"""Bytes of disk blocks, at most, that a small file takes besides its data: a page of the table, and the rest
of the last page."""
_SUFFIX = ".blocks"
_FILE_NAME_MAX = 255


class Block(NamedTuple):
    """A beginning of one block, or all of it."""

    number: int
    pieces: Sequence[Buffer]

    @property
    def size(self) -> int:
        return sum(map(len, self.pieces))


class CachedFile(NamedTuple):
    path: str
    chunk: str
    size: int
    """Bytes of disk blocks."""
    modified: float


@attrs.frozen(eq=False, repr=False)
class Found:
    """What the cache has of a range, from its beginning on."""

    data: Buffer
    is_damaged: bool = False
    """Whether the file held something else, or could not be read."""


class NoRoom(OSError):
    """The disk has less room than is left to others."""


def file_name(chunk: str) -> str:
    return f"{chunk.replace('/', '+')}{_SUFFIX}"


def is_cacheable(chunk: str, end: int) -> bool:
    """Whether a file can have the chunk's name, and its table an entry for the byte before ``end``."""
    return len(chunk) + len(_SUFFIX) <= _FILE_NAME_MAX and end <= _BLOCKS_MAX * BLOCK


def blocks_of(offset: int, data: Sequence[Buffer]) -> Iterator[Block]:
    """The blocks whose beginnings are in ``data``, which is a chunk's from ``offset`` on. Nothing is
    copied."""
    number, skip = -(-offset // BLOCK), -offset % BLOCK
    pieces: list[Buffer] = []
    room = BLOCK
    for buffer in data:
        view = memoryview(buffer)[skip:]
        skip -= min(skip, len(buffer))
        while len(view) >= room:
            yield Block(number, [*pieces, view[:room]])
            view, pieces, room, number = view[room:], [], BLOCK, number + 1
        if len(view):
            pieces.append(view)
            room -= len(view)
    if pieces:
        yield Block(number, pieces)


def _entry(chunk: str, number: int, pieces: Sequence[Buffer]) -> bytes:
    seed = crc32c(f"1 {chunk} {number}".encode())
    return _ENTRY.pack(sum(map(len, pieces)), crc32c_of(pieces, seed))


# --- reading ------------------------------------------------------------------------------------


def read_blocks(folder: str, chunk: str, offset: int, size: int) -> Program[Found]:
    """The bytes of a range up to the first block that lacks some of them. A file that holds something else is
    removed (rule K2)."""
    path = f"{folder}/{file_name(chunk)}"
    try:
        handle: FileHandle = yield Open(path)
        try:
            data = yield from _read_verified(handle, chunk, offset, offset + size)
        finally:
            yield Close(handle)
    except (FileNotFoundError, NotADirectoryError):
        return Found(b"")
    except OSError:
        data = None
    if data is not None:
        return Found(data)

    with suppress(OSError):
        yield Unlink(path)
    return Found(b"", is_damaged=True)


def _read_verified(handle: FileHandle, chunk: str, offset: int, end: int) -> Program[Buffer | None]:
    """The bytes of ``offset .. end`` that the table has, from the first on; None if they do not match it."""
    first, last = offset // BLOCK, -(-end // BLOCK)
    table: bytes = yield Read(handle, first * _ENTRY.size, (last - first) * _ENTRY.size)
    entries = list(_ENTRY.iter_unpack(table[: len(table) // _ENTRY.size * _ENTRY.size]))
    stop = offset
    for number, (length, _) in enumerate(entries, first):
        if length > BLOCK:
            return None
        if length < min(BLOCK, end - number * BLOCK):
            break
        stop = min(end, (number + 1) * BLOCK)
    if stop == offset:
        return b""

    begin, count = first * BLOCK, -(-stop // BLOCK) - first
    ends = (first + count - 1) * BLOCK + entries[count - 1][0]
    data: bytes = yield Read(handle, _TABLE_BYTES + begin, ends - begin)
    view = memoryview(data)
    for index, entry in enumerate(_ENTRY.iter_unpack(table[: count * _ENTRY.size])):
        block = view[index * BLOCK : index * BLOCK + entry[0]]
        if _entry(chunk, first + index, [block]) != _ENTRY.pack(*entry):
            return None
    with suppress(OSError):  # It may be on a disk that is read-only now.
        yield Touch(handle)
    return data if (begin, ends) == (offset, stop) else view[offset - begin : stop - begin]


# --- writing ------------------------------------------------------------------------------------


def write_blocks(folder: str, chunk: str, blocks: Sequence[Block], spare: int) -> Program[int]:
    """Write the blocks, which follow each other. Returns their bytes. Raises ``NoRoom`` unless ``spare``
    bytes are free besides them."""
    size = sum(block.size for block in blocks)
    try:
        free = yield FreeSpace(folder)
    except FileNotFoundError:  # K4: somebody removed it
        yield MakeFolder(folder)
        free = yield FreeSpace(folder)
    if free < size + spare:
        raise NoRoom(errno.ENOSPC, f"{free} bytes are free, of which {spare} are left to the log", folder)

    handle = yield from _open_for_writing(folder, f"{folder}/{file_name(chunk)}")
    try:
        start = _TABLE_BYTES + blocks[0].number * BLOCK
        yield Write(handle, start, [piece for block in blocks for piece in block.pieces], bulk=True)
        table = b"".join(_entry(chunk, block.number, block.pieces) for block in blocks)
        yield Write(handle, blocks[0].number * _ENTRY.size, [table])
    finally:
        yield Close(handle)
    return size


def _open_for_writing(folder: str, path: str) -> Program[FileHandle]:
    handle: FileHandle
    try:
        handle = yield Open(path, write=True)
    except FileNotFoundError:
        try:
            handle = yield Open(path, write=True, create=True)
        except FileExistsError:  # another process was faster
            handle = yield Open(path, write=True)
    return handle


def is_in_the_way(error: OSError) -> bool:
    """Whether something that is no file has the file's name, so that this chunk alone is not cached."""
    return error.errno in NOT_A_FILE


# --- the folder ---------------------------------------------------------------------------------


def prepare_folder(folder: str) -> Program[bool]:
    """Make the folder. Returns whether nobody else can change it."""
    yield MakeFolder(folder)
    is_guarded: bool = yield IsGuarded(folder)
    return is_guarded


def list_files(folder: str) -> Program[tuple[list[CachedFile], int]]:
    """The cached chunks, and the bytes free on the disk. What has another name is somebody else's, and so is
    what has a name that no chunk can have: nobody looks it up."""
    entries = yield ListFolder(folder)
    free = yield FreeSpace(folder)
    files = [
        CachedFile(f"{folder}/{entry.name}", chunk, entry.allocated, entry.modified)
        for entry in entries
        if not entry.is_folder
        and entry.name.endswith(_SUFFIX)
        and is_chunk_name(chunk := entry.name.removesuffix(_SUFFIX).replace("+", "/"))
    ]
    return files, free


def remove_files(paths: Sequence[str]) -> Program[int]:
    """Remove files, and return how many were there. What cannot be removed is left."""
    removed = 0
    for path in paths:
        with suppress(OSError):
            yield Unlink(path)
            removed += 1
    return removed
