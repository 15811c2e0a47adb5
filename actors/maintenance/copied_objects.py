"""The objects of a copy, one at a time: each is whole in the place, and verified there (rule P7).

Owns: how an object is created, goes on, and is replaced. Does not own: which ones a backup needs, and in
which order they are copied (``backup_copy.py``).

What a crash or a cancellation leaves, and what the next call does with it:

- of an object that is created, or appended to, any prefix of the new bytes: it appends the rest, and verifies
  all of it;
- of one that is replaced, the old bytes or the new ones: it verifies them;
- pieces below ``_system/copying/``: it removes them."""

from __future__ import annotations

import hashlib
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import aclosing, contextmanager, suppress

import attrs

from ...storage_backends.base.chunk_storage import ChunkRange, ChunkStorage
from ...storage_backends.base.errors import (
    BadChunkOffset,
    ChunkExists,
    ChunkNotFound,
    DataCorruption,
    StorageFull,
    StoreMismatch,
    Unavailable,
)
from ..legacy_rolling.importing import Progress

_PIECE_BYTES = 32 << 20
"""Of each worker, in memory."""
_PARTS = "_system/copying/"
FindDamage = Callable[[ChunkStorage], Awaitable[DataCorruption | None]]
"""What is wrong with an object in a storage, all of it read."""
FindBadByte = Callable[[int, bytes], int | None]
"""Where the bytes that an object should have from an offset on, a multiple of 32 MiB, are wrong; None if they
are right."""
PutRanges = Callable[[str, Sequence[ChunkRange]], Awaitable[int]]
"""``concat`` or ``replace``."""


@attrs.define(eq=False, repr=False)
class Totals:
    objects: int = 0
    bytes: int = 0
    copied_objects: int = 0
    copied_bytes: int = 0
    unread_objects: int = 0


@attrs.frozen(eq=False, repr=False)
class Needed:
    """An object that the backup needs."""

    name: str
    length: int
    find_damage: FindDamage
    find_bad_byte: FindBadByte | None = None


@attrs.frozen(eq=False, repr=False)
class Known:
    """What a record in the place says of an object there."""

    length: int
    find_damage: FindDamage
    """By the checksums that this record has."""


class CopiedObjects:
    def __init__(
        self, source: ChunkStorage, target: ChunkStorage, backup: str, progress: Progress, *, rereads: bool
    ) -> None:
        """``rereads``: nothing that is there counts as verified."""
        self._source = source
        self._target = target
        self._parts = f"{_PARTS}{backup}/"
        self._progress = progress
        self._rereads = rereads
        self.totals = Totals()

    async def copy(self, needed: Needed, known: Known | None = None) -> None:
        """Have the object there with all of its bytes. ``known``: a record there names it."""
        totals, length = self.totals, needed.length
        totals.objects, totals.bytes = totals.objects + 1, totals.bytes + length
        # Without a total: it grows while rows are read.
        self._progress(0, length)
        there = await self._length(needed.name)
        if there is None or there < length:
            with _writing(needed.name):
                await self._extend(needed, there, known)
        else:
            self._progress(length, 0)
            if known is not None and known.length >= length and not self._rereads:
                totals.unread_objects += 1
                return
        copied = max(0, length - (there or 0))
        # Twice: nothing that is right is replaced because a read went wrong.
        if await needed.find_damage(self._target) is not None and (
            damage := await needed.find_damage(self._target)
        ):
            with _writing(needed.name):
                await self._replace(needed, damage, known)
            copied = length
        totals.copied_objects += copied > 0
        totals.copied_bytes += copied

    async def put(
        self,
        name: str,
        content: Sequence[bytes],
        read: Callable[[], Awaitable[object]] | None = None,
    ) -> None:
        """Create an object that is never changed. With ``read``, which raises ``DataCorruption`` if what is
        there is damaged, that is replaced. Raises ``DataCorruption`` if there is another one."""
        try:
            await self._target.create_with_content(name, content)
            return
        except ChunkExists:
            data = b"".join(content)
            try:
                if await self._target.read(name, 0, len(data) + 1) == data:
                    return
            except ChunkNotFound as error:
                raise _no_file(name) from error
        try:
            if read is not None and self._rereads:
                await read()
        except DataCorruption:
            part = await self._put_part(name, 0, data)
            await self._target.replace(name, [part])
            await self._target.delete(part.name)
            return
        raise DataCorruption(
            "there is another object of this name: copy the backup to another place", file=name
        )

    async def remove_parts(self) -> None:
        """Remove the pieces that calls left which were killed, also calls that copied other backups."""
        async with aclosing(self._target.list(_PARTS)) as infos:
            async for info in infos:
                with suppress(ChunkNotFound):
                    await self._target.delete(info.name)

    async def _extend(self, needed: Needed, there: int | None, known: Known | None) -> None:
        if there is None:
            await self._create(needed)
            return

        # Other backups may need what is there: nothing worse takes its place.
        await self._check_source(needed)
        if self._target.capabilities.append:
            await self._append(needed, there)
        else:
            await self._check_history(needed.name, known)
            await self._put_parts(needed, self._target.replace)

    async def _check_history(self, name: str, known: Known | None) -> None:
        """What is right there is not replaced by what another history has under its name: one may have begun
        in a clone of everything, which nothing else tells apart."""
        # Twice: it has been read before, and a read may go wrong.
        if known is None or any([await known.find_damage(self._source) is None for _ in range(2)]):
            return
        if await known.find_damage(self._target) is None:
            raise StoreMismatch(
                f"{name} there is sound, and has other bytes than the store's: a clone of this store went on "
                f"by itself, and its backups are there. Copy to another place"
            )

    async def _replace(self, needed: Needed, damage: DataCorruption, known: Known | None) -> None:
        """Copy the object again: a call that was cut short left it, a read went wrong, or it was damaged
        since. If the source is damaged, it stays as it is: other backups may need a part of it."""
        await self._check_source(needed)
        await self._check_history(needed.name, known)
        if (await self._length(needed.name) or 0) > needed.length:
            raise DataCorruption(
                f"{damage.reason}; it is not replaced, because it has more bytes than this backup needs, "
                f"which a later one may need: copy that one first",
                file=needed.name,
                offset=damage.offset,
            )
        await self._put_parts(needed, self._target.replace)
        if (left := await needed.find_damage(self._target)) is not None:
            raise left

    async def _check_source(self, needed: Needed) -> None:
        if (damage := await needed.find_damage(self._source)) is not None:
            raise damage

    async def _length(self, name: str) -> int | None:
        try:
            return (await self._target.info(name)).length
        except ChunkNotFound as error:
            if error.is_taken:
                raise _no_file(name) from error
            return None

    async def _read(self, name: str, offset: int, size: int) -> bytes:
        try:
            data = await self._source.read(name, offset, size)
        except ChunkNotFound as error:
            raise DataCorruption("an object that the backup needs is missing", file=name) from error
        if len(data) < size:
            raise DataCorruption(
                "an object that the backup needs is too short", file=name, offset=offset + len(data)
            )
        self._progress(size, 0)
        return data

    async def _create(self, needed: Needed) -> None:
        if self._target.capabilities.append:
            await self._target.create(needed.name)
            await self._append(needed, 0)
        elif needed.length <= _PIECE_BYTES:
            data = await self._read(needed.name, 0, needed.length)
            await self._target.create_with_content(needed.name, [data])
        else:
            await self._put_parts(needed, self._target.concat)

    async def _append(self, needed: Needed, there: int) -> None:
        for offset in range(there, needed.length, _PIECE_BYTES):
            data = await self._read(needed.name, offset, min(_PIECE_BYTES, needed.length - offset))
            await self._target.write(needed.name, offset, [data])

    async def _put_parts(self, needed: Needed, put: PutRanges) -> None:
        """Create or replace the object in one step, from pieces of which no more than one is in memory. They
        are right before they take the place of what an earlier backup needs."""
        name, parts = needed.name, list[ChunkRange]()
        for offset in range(0, needed.length, _PIECE_BYTES):
            data = await self._read(name, offset, min(_PIECE_BYTES, needed.length - offset))
            bad = None if needed.find_bad_byte is None else needed.find_bad_byte(offset, data)
            if bad is not None:
                raise DataCorruption(
                    "the bytes of a block do not match their checksum", file=name, offset=bad
                )
            parts.append(await self._put_part(name, offset, data))
        await put(name, parts)
        for part in parts:
            await self._target.delete(part.name)

    async def _put_part(self, name: str, offset: int, data: bytes) -> ChunkRange:
        # A name may be as long as names can be, and no two objects' pieces may meet.
        digest = hashlib.sha256(name.encode()).hexdigest()
        part = f"{self._parts}{digest}-{offset:016x}"
        with suppress(ChunkNotFound):
            await self._target.delete(part)  # left by a call that was killed
        await self._target.create_with_content(part, [data])
        return ChunkRange(part, 0, len(data))


def _no_file(name: str) -> DataCorruption:
    return DataCorruption(
        "what has this name where the backup is copied to is no regular file: remove it", file=name
    )


@contextmanager
def _writing(name: str) -> Iterator[None]:
    """Say what an error of the storage that is copied to means."""
    try:
        yield
    except StorageFull as error:
        raise StorageFull(
            f"no room for {name} where the backup is copied to: free space there and run the command again, "
            f"which goes on with what is missing"
        ) from error
    except (ChunkExists, ChunkNotFound, BadChunkOffset) as error:
        raise Unavailable(
            f"{name} changed where the backup is copied to, so another process is copying into that place: "
            f"wait until it has ended, then run the command again"
        ) from error
