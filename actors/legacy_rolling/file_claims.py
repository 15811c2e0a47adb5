"""Marks: which segment has imported the data files of which segment of the legacy layout, across containers
(rule S14).

Owns: the marks' names, their content, and the claim. Does not own: when it is made (``older.py``: the bytes
were read, nothing is committed yet). The legacy layout's software joins two segments by writing the target's
header and then deleting the source's. If it ended in between, both headers name the source's files, and the
two names may belong to different containers, whose records know nothing of each other. Imported twice, a file
would be deleted with the one segment and missing in the other.

So an import first makes a mark for each segment whose files it takes, conditionally: ``_system/imports/<hash
of that name>``. Who comes second finds it and is refused. A mark of the same name's own is no obstacle, so an
import that a crash ended goes on. Marks stay, as the record ``o:`` does: the files of a segment that was
imported are never free again. Cancellation and crash: marks too many, of this name.

Layout: the name of the files' segment, a zero byte, the name of the segment that takes them; UTF-8.
"""

from __future__ import annotations

from collections.abc import Iterable
from hashlib import blake2b

from ...storage_backends.base.chunk_storage import ChunkStorage
from ...storage_backends.base.errors import ChunkExists, DataCorruption, InvalidArgument
from ..kernel.task_groups import work_through
from .header import segment_of_file

MARKS = "_system/imports/"
_WORKERS = 8
_BYTES_MAX = 1 << 14


def mark_name(segment: str) -> str:
    """A hash, because one segment's name may be another's folder."""
    return f"{MARKS}{blake2b(segment.encode(), digest_size=16).hexdigest()}"


async def claim_files(chunks: ChunkStorage, name: str, files: Iterable[str]) -> None:
    """Return once ``files`` are those of the segment ``name``, and of no other for ever. ``InvalidArgument``
    if another one has them."""

    async def claim(segment: str) -> None:
        await _claim(chunks, name, segment)

    await work_through(sorted({segment_of_file(file) for file in files}), _WORKERS, claim)


async def _claim(chunks: ChunkStorage, name: str, segment: str) -> None:
    mark = mark_name(segment)
    try:
        await chunks.create_with_content(mark, [f"{segment}\0{name}".encode()])
    except ChunkExists:
        _judge(await chunks.read(mark, 0, _BYTES_MAX), mark, name, segment)


def _judge(found: bytes, mark: str, name: str, segment: str) -> None:
    about, _, taker = found.decode(errors="replace").partition("\0")
    if about != segment or not taker:
        raise DataCorruption(f"the mark of who imported the files of {segment!r} is damaged", file=mark)
    if taker != name:
        raise InvalidArgument(
            f"{name!r} cannot be imported: the files of {segment!r} were imported as part of {taker!r} "
            f"(if that is wrong for good, delete {mark} and import again)"
        )
