"""Cached blocks as local files: their names, their format, and the programs that read, write and list them
(rules K1 to K4).

Block k of a chunk is its bytes ``k * 1 MiB .. (k + 1) * 1 MiB``, or a beginning of them. It is the file
``<shard>/<name with '+' for '/'>.<k in hexadecimal>`` in the cache's folder, where the shard is two
hexadecimal digits of the name's checksum: a folder stays small, and all blocks of a chunk are in one.

Format: the bytes, then their CRC32C (u32, big-endian), which begins with that of ``1 <name> <k>``, so that a
file is not taken for another one's. Nothing is synced: after a crash a file may hold anything, and what does
not match is no block. A block appears under its name by a rename, so concurrent writers of one name, which
write the same bytes, do not meet.
"""

from __future__ import annotations

import errno
import struct
from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import NamedTuple

import attrs

from ..base.checksum import Buffer, crc32c, crc32c_of
from ..base.files import (
    Close,
    FileHandle,
    FreeSpace,
    IsShared,
    ListFolder,
    MakeFolder,
    Open,
    Program,
    Read,
    Rename,
    Size,
    Touch,
    Unlink,
    Write,
)

BLOCK = 1 << 20
"""As of the checksums that readers verify (rule S5): they read whole blocks."""
TEMPORARY = ".tmp-"
_SHARDS = tuple(f"{number:02x}" for number in range(256))
_CRC = struct.Struct(">I")
_FILE_NAME_MAX = 255
_REPLACED_BY_NONE = (errno.EISDIR, errno.ENOTEMPTY, errno.EEXIST)
"""The errors of a rename to the name of a folder."""


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
    """Empty for a temporary file."""
    size: int
    modified: float


@attrs.frozen(eq=False, repr=False)
class Found:
    """What the cache has of a range, from its beginning on."""

    parts: Sequence[Buffer]
    size: int
    damaged: int = 0
    """Files that held something else, or could not be read."""


class NoRoom(OSError):
    """The disk has less room than is left to others."""


def file_name(chunk: str, index: int) -> str:
    return f"{chunk.replace('/', '+')}.{index:x}"


def has_file_name(chunk: str, end: int) -> bool:
    """Whether the blocks of the chunk up to its byte ``end`` have names that a file can have."""
    return len(file_name(chunk, end // BLOCK)) <= _FILE_NAME_MAX


def shard_of(chunk: str) -> str:
    return _SHARDS[crc32c(chunk.encode()) & 0xFF]


def chunk_of(file: str) -> str:
    """The chunk of a file's name; empty if it is none of a block."""
    name, _, index = file.rpartition(".")
    with suppress(ValueError):
        if file_name(name, int(index, 16)) == file:
            return name.replace("+", "/")
    return ""


def blocks_of(offset: int, data: Sequence[Buffer]) -> Iterator[Block]:
    """The blocks whose beginnings are in ``data``, which is a chunk's from ``offset`` on. Nothing is
    copied."""
    index, skip = -(-offset // BLOCK), -offset % BLOCK
    pieces: list[Buffer] = []
    room = BLOCK
    for buffer in data:
        view = memoryview(buffer)[skip:]
        skip -= min(skip, len(buffer))
        while len(view) >= room:
            yield Block(index, [*pieces, view[:room]])
            view, pieces, room, index = view[room:], [], BLOCK, index + 1
        if len(view):
            pieces.append(view)
            room -= len(view)
    if pieces:
        yield Block(index, pieces)


def _checksum(chunk: str, index: int, pieces: Sequence[Buffer]) -> bytes:
    return _CRC.pack(crc32c_of(pieces, crc32c(f"1 {chunk} {index:x}".encode())))


# --- reading ------------------------------------------------------------------------------------


def read_blocks(folder: str, chunk: str, offset: int, size: int) -> Program[Found]:
    """The bytes of a range up to the first block that lacks some of them. Files that hold something else are
    removed (rule K2)."""
    shard, end = f"{folder}/{shard_of(chunk)}", offset + size
    parts: list[Buffer] = []
    at = offset
    while at < end:
        index = at // BLOCK
        path = f"{shard}/{file_name(chunk, index)}"
        start, stop = at - index * BLOCK, min(BLOCK, end - index * BLOCK)
        try:
            data = yield from _read_block(path, chunk, index)
        except (FileNotFoundError, NotADirectoryError):
            break
        except OSError:
            return Found(parts, at - offset, 1)
        if data is None:
            with suppress(OSError):
                yield Unlink(path)
            return Found(parts, at - offset, 1)
        if len(data) < stop:
            break
        parts.append(data if stop - start == len(data) else memoryview(data)[start:stop])
        at = index * BLOCK + stop
    return Found(parts, at - offset)


def _read_block(path: str, chunk: str, index: int) -> Program[bytes | None]:
    """The bytes of one block; None if the file does not hold them."""
    handle: FileHandle = yield Open(path)
    try:
        length = (yield Size(handle)) - _CRC.size
        if not 0 < length <= BLOCK:
            return None
        data: bytes = yield Read(handle, 0, length)
        stored = yield Read(handle, length, _CRC.size)
        if stored != _checksum(chunk, index, [data]):
            return None
        with suppress(OSError):  # It may be another user's, or read-only.
            yield Touch(handle)
    finally:
        yield Close(handle)
    return data


# --- writing ------------------------------------------------------------------------------------


def write_blocks(
    folder: str, chunk: str, blocks: Sequence[Block], temporary: str, spare: int
) -> Program[tuple[int, int]]:
    """Write the blocks, each by way of the name ``temporary``. Returns (bytes of files, blocks that could not
    be named). Raises ``NoRoom`` unless ``spare`` bytes are free besides them."""
    try:
        return (yield from _write_blocks(folder, chunk, blocks, temporary, spare))
    except FileNotFoundError:  # K4: somebody removed the folder, or there never was one
        yield MakeFolder(folder)
        yield MakeFolder(f"{folder}/{shard_of(chunk)}")
        return (yield from _write_blocks(folder, chunk, blocks, temporary, spare))


def _write_blocks(
    folder: str, chunk: str, blocks: Sequence[Block], temporary: str, spare: int
) -> Program[tuple[int, int]]:
    shard = f"{folder}/{shard_of(chunk)}"
    wanted = spare + sum(block.size for block in blocks)
    free = yield FreeSpace(folder)
    if free < wanted:
        raise NoRoom(errno.ENOSPC, f"{free} bytes are free, and {spare} are left to the log", folder)

    written = unnamed = 0
    for block in blocks:
        path = f"{shard}/{file_name(chunk, block.number)}"
        try:
            yield from _write_block(path, f"{shard}/{TEMPORARY}{temporary}", chunk, block)
        except OSError as error:
            if error.errno not in _REPLACED_BY_NONE:
                raise
            unnamed += 1
        else:
            written += block.size + _CRC.size
    return written, unnamed


def _write_block(path: str, temporary: str, chunk: str, block: Block) -> Program[None]:
    handle: FileHandle = yield Open(temporary, write=True, create=True)
    try:
        try:
            yield Write(handle, 0, [*block.pieces, _checksum(chunk, block.number, block.pieces)], bulk=True)
        finally:
            yield Close(handle)
        yield Rename(temporary, path)
    except OSError:
        with suppress(OSError):
            yield Unlink(temporary)
        raise


# --- the folder ---------------------------------------------------------------------------------


def prepare_folder(folder: str) -> Program[bool]:
    """Make the folder. Returns whether others may write to it."""
    yield MakeFolder(folder)
    is_shared: bool = yield IsShared(folder)
    return is_shared


def free_space(folder: str) -> Program[int]:
    free: int = yield FreeSpace(folder)
    return free


def list_shards(folder: str) -> Program[list[str]]:
    """The shards that exist."""
    try:
        entries = yield ListFolder(folder)
    except FileNotFoundError:
        return []

    return [entry.name for entry in entries if entry.is_folder and entry.name in _SHARDS]


def list_shard(folder: str, shard: str) -> Program[list[CachedFile]]:
    """The blocks and temporary files in one shard. What has no name of theirs is somebody else's."""
    try:
        entries = yield ListFolder(f"{folder}/{shard}")
    except (FileNotFoundError, NotADirectoryError):
        return []

    return [
        CachedFile(f"{folder}/{shard}/{entry.name}", chunk, entry.size, entry.modified)
        for entry in entries
        if not entry.is_folder and ((chunk := chunk_of(entry.name)) or entry.name.startswith(TEMPORARY))
    ]


def remove_files(paths: Sequence[str]) -> Program[int]:
    """Remove files, and return how many were there. What cannot be removed is left."""
    removed = 0
    for path in paths:
        with suppress(OSError):
            yield Unlink(path)
            removed += 1
    return removed


def remove_chunk(folder: str, chunk: str) -> Program[int]:
    """Remove all blocks of a chunk."""
    files = yield from list_shard(folder, shard_of(chunk))
    return (yield from remove_files([file.path for file in files if file.chunk == chunk]))
