"""No store is made inside another one, or around one: whoever deletes the outer one would delete the inner
one too. A store that exists is opened wherever it is.

For inside, each place above is asked. For around, what is below the place is listed, which is nothing as a
rule; only so much is looked at that a bucket with many other objects delays nobody for long. The sweep, and
what a move says to delete, keep to the names that a store gives:
a nesting that was not found costs no data.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from contextlib import aclosing
from typing import TYPE_CHECKING

import anyio

from ...journal.coordination.contract import IDENTITY
from ...journal.log.repetition import Repetition
from ...journal.manifest.store_record import MIGRATION_RECORD, STORE_RECORD
from ...storage_backends.base.errors import DataCorruption, InvalidArgument, StoreMismatch
from ...storage_backends.base.files import Files
from ...storage_backends.base.object_store import ObjectStore
from ...storage_backends.base.world import World
from ...storage_backends.chunks.s3_location import S3Location, parse_location
from ..folder.chunk_location import ChunkLocation, s3_options
from ..folder.identity import decode
from ..folder.paths import refuse_inside_folders, run_program

if TYPE_CHECKING:
    from ...storage_backends.chunks.s3_objects import S3Objects

PATIENCE, DELAYS = 30.0, (0.02, 1.0)
"""Seconds for which an opening repeats a request, and between two of them."""
IDENTITY_BYTES = 256
"""More than an identity has."""
CHUNKS = "lts/"
"""Below the prefix of a store in a bucket."""
KEYS_MAX = 100_000
"""The most objects below a place that are looked at."""
Find = Callable[[str], Awaitable[bytes | None]]
"""The start of what has that key or path; None if there is nothing, or it may not be read."""


def is_identity(data: bytes | None) -> bool:
    try:
        return data is not None and bool(decode(data, IDENTITY))
    except StoreMismatch:  # of a newer version
        return True
    except DataCorruption:
        return False


async def refuse_inside(path: str, find: Find, shown: Callable[[str], str]) -> None:
    """Raises ``InvalidArgument`` if a store, or the long-term storage of one, is above ``path``, whose parts
    have slashes between them. ``shown`` makes a place of the path of the other one."""
    names = [name for name in path.split("/") if name]
    for count in range(len(names)):
        above = "".join(f"{name}/" for name in names[:count])
        found = ""
        if is_identity(await find(above + IDENTITY)):
            found = "store"
        elif await find(above + STORE_RECORD) is not None:
            found = "long-term storage"
        elif await find(f"{above}{CHUNKS}{MIGRATION_RECORD}") or await find(above + MIGRATION_RECORD):
            # Which is deleted as a whole if the move is given up.
            found = "target of a move"
        if found:
            raise InvalidArgument(
                f"{shown(path)} is inside the {found} {shown(above)}: name that one, or a place outside of it"
            )


async def refuse_around(keys: Iterable[str], find: Find, shown: Callable[[str], str]) -> None:
    """Raises ``InvalidArgument`` if one of ``keys``, of what is below the path of a new store, is the
    identity of another one, or the record of its long-term storage."""
    for key in keys:
        if key.endswith(f"/{STORE_RECORD}"):
            other = key.removesuffix(STORE_RECORD)
        elif key.endswith(f"/{IDENTITY}") and is_identity(await find(key)):
            other = key.removesuffix(IDENTITY)
        else:
            continue
        raise InvalidArgument(
            f"{shown('')} is around another store, {shown(other)}: name that one, or another place"
        )


async def refuse_around_bucket(
    objects: ObjectStore, world: World, shown: Callable[[str], str], own: str = ""
) -> None:
    """``refuse_around`` for the first ``KEYS_MAX`` of ``objects``, except for the key ``own``."""
    repeat = Repetition(world, PATIENCE, DELAYS)

    async def find(key: str) -> bytes | None:
        found = await repeat(lambda: objects.get(key, IDENTITY_BYTES))
        return found and found.data

    async def find_keys() -> list[str]:
        count, keys = 0, list[str]()
        async with aclosing(objects.list("")) as listed:
            async for each in listed:
                count += 1
                if each.key.endswith((f"/{IDENTITY}", f"/{STORE_RECORD}")) and each.key != own:
                    keys.append(each.key)
                if count == KEYS_MAX:
                    break
        return keys

    # A store before its parts.
    await refuse_around(sorted(await repeat(find_keys), key=len), find, shown)


async def refuse_inside_bucket(objects: S3Objects, place: S3Location, world: World) -> None:
    repeat = Repetition(world, PATIENCE, DELAYS)

    async def find(key: str) -> bytes | None:
        return await repeat(lambda: objects.find_elsewhere(key, IDENTITY_BYTES))

    await refuse_inside(place.prefix, find, lambda path: str(S3Location(place.bucket, path)))


async def refuse_nested_chunks(location: ChunkLocation, files: Files, world: World) -> None:
    """Raises ``InvalidArgument`` if the chunks of a new store, which are not in its folder, would be inside
    another one, or around one."""
    if not location.is_bucket:
        await run_program(files, refuse_inside_folders(location.chunks), location.chunks)
        return

    # Imported for the stores that need it: its client takes long.
    from ...storage_backends.chunks.s3_objects import S3Objects

    place = parse_location(location.chunks)
    objects = S3Objects(place, s3_options(location))
    await objects.open()
    try:
        await refuse_inside_bucket(objects, place, world)
        await refuse_around_bucket(
            objects, world, lambda key: str(S3Location(place.bucket, place.prefix + key))
        )
    finally:
        with anyio.CancelScope(shield=True):
            await objects.close()
