"""File claims: which segment has imported the data files of which legacy segment, across containers (rule
S14).

Legacy software joins two segments by writing the target's header and then deleting the source's. If it ended
in between, both headers name the source's files, and the two names may be in different containers, whose
metadata are separate. Imported twice, a file would be deleted with one segment and missing in the other.

So an import, after it has read the files and before it commits, creates a claim for each segment whose files
it takes, conditionally: ``_system/imports/<hash of that name>``. The second import finds it and is refused. A
claim of the same name is not an obstacle, so an import that a crash ended can be repeated. Claims stay, as
the ``o:`` record does: the files of an imported segment are never free again. Cancellation and crash leave
unused claims of the name.

Layout: the name of the files' segment, a zero byte, the name of the importing segment; UTF-8.
"""

from __future__ import annotations

from collections.abc import Iterable
from hashlib import blake2b

from ...storage_backends.base.chunk_storage import ChunkStorage
from ...storage_backends.base.errors import ChunkExists, DataCorruption, InvalidArgument
from ..kernel.task_groups import work_through
from .header import segment_of_file

CLAIMS_PREFIX = "_system/imports/"
_WORKERS = 8
_BYTES_MAX = 1 << 14


def file_claim_name(segment: str) -> str:
    """A hash, because one segment's name may be another's folder."""
    return f"{CLAIMS_PREFIX}{blake2b(segment.encode(), digest_size=16).hexdigest()}"


async def claim_files(chunks: ChunkStorage, name: str, files: Iterable[str]) -> None:
    """Claim ``files`` for the segment ``name``, forever. Raises ``InvalidArgument`` if another segment has
    one."""

    async def claim(segment: str) -> None:
        await _claim(chunks, name, segment)

    await work_through(sorted({segment_of_file(file) for file in files}), _WORKERS, claim)


async def _claim(chunks: ChunkStorage, name: str, segment: str) -> None:
    claim = file_claim_name(segment)
    try:
        await chunks.create_with_content(claim, [f"{segment}\0{name}".encode()])
    except ChunkExists:
        # It may be our own, of an import that a crash ended.
        _check(await chunks.read(claim, 0, _BYTES_MAX), claim, name, segment)


def _check(found: bytes, claim: str, name: str, segment: str) -> None:
    about, _, importer = found.decode(errors="replace").partition("\0")
    if about != segment or not importer:
        raise DataCorruption(f"the claim of the files of {segment!r} is damaged", file=claim)
    if importer != name:
        raise InvalidArgument(
            f"{name!r} cannot be imported: the files of {segment!r} were imported as part of {importer!r} "
            f"(if that segment is gone for good, delete {claim} and import again)"
        )
