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

Layout: ``magic u32, version u8 2, name of the files' segment text, name of the importing segment text, CRC32C
u32``. Version 1, which has no checksum, is the first name, a zero byte and the second name, in UTF-8.
"""

from __future__ import annotations

from collections.abc import Iterable
from hashlib import blake2b
from typing import NamedTuple

from ...storage_backends.base.checksum import Buffer, crc32c
from ...storage_backends.base.chunk_storage import ChunkStorage
from ...storage_backends.base.codec import DecodeError, Decoder, Encoder
from ...storage_backends.base.errors import ChunkExists, DataCorruption, InvalidArgument
from ..kernel.task_groups import work_through
from .header import segment_of_file

CLAIMS_PREFIX = "_system/imports/"
_WORKERS = 8
_BYTES_MAX = 1 << 14
_HEAD = b"TLFC\2"
"""Magic and version. No version 1 begins like this: names have no control characters."""


class FileClaim(NamedTuple):
    segment: str
    """Whose files are claimed."""
    importer: str
    """The segment that they became part of."""
    is_checked: bool = True
    """Whether a checksum covers it: not in version 1."""

    def encode(self) -> bytes:
        out = Encoder().raw(_HEAD).text(self.segment).text(self.importer)
        body = out.finish()
        return body + crc32c(body).to_bytes(4, "big")

    @classmethod
    def decode(cls, data: Buffer) -> FileClaim:
        """Raises ``DecodeError`` for anything but a whole claim. One of version 1 may be damaged all the
        same."""
        view = memoryview(data)
        if view[: len(_HEAD)] != _HEAD:
            return cls._without_checksum(bytes(view))

        if crc32c(view[:-4]) != int.from_bytes(view[-4:], "big"):
            raise DecodeError(f"a claim of {len(view)} bytes is damaged")

        fields = Decoder(view[len(_HEAD) : -4])
        claim = cls(fields.text(), fields.text())
        fields.finish()
        return claim

    @classmethod
    def _without_checksum(cls, data: bytes) -> FileClaim:
        try:
            segment, importer = data.decode().split("\0")
        except ValueError as error:
            raise DecodeError(f"a claim of {len(data)} bytes is damaged, or of a newer version") from error
        return cls(segment, importer, is_checked=False)


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
    file = file_claim_name(segment)
    try:
        await chunks.create_with_content(file, [FileClaim(segment, name).encode()])
    except ChunkExists:
        # It may be our own, of an import that a crash ended.
        found = await _read(chunks, file, segment)
        # Without a checksum, a flipped bit may name another segment, and another's claim may look like ours.
        if not found.is_checked and await _read(chunks, file, segment) != found:
            raise _damaged(file, segment) from None
        if found.importer != name:
            raise InvalidArgument(
                f"{name!r} cannot be imported: the files of {segment!r} were imported as part of "
                f"{found.importer!r} (if that segment is gone for good, delete {file} and import again)"
            ) from None


async def _read(chunks: ChunkStorage, file: str, segment: str) -> FileClaim:
    try:
        found = FileClaim.decode(await chunks.read(file, 0, _BYTES_MAX))
    except DecodeError as error:
        raise _damaged(file, segment) from error

    if found.segment != segment or not found.importer:
        raise _damaged(file, segment)
    return found


def _damaged(file: str, segment: str) -> DataCorruption:
    return DataCorruption(f"the claim of the files of {segment!r} is damaged", file=file)
