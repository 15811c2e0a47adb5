"""Chunk storages that each break one promise of the contract; the conformance suite must catch them.

``Right`` is the same wrapper without a fault.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterator, Sequence
from contextlib import aclosing
from typing import Any

import anyio
import anyio.lowlevel

from tierlog.storage_backends.base.checksum import Buffer
from tierlog.storage_backends.base.chunk_storage import Capabilities, ChunkInfo, ChunkRange
from tierlog.storage_backends.base.errors import (
    BadChunkOffset,
    ChunkError,
    ChunkExists,
    ChunkNotFound,
    TierlogError,
    Unavailable,
)
from tierlog.storage_backends.chunks.memory import MemoryChunk, MemoryChunkState, MemoryChunkStorage
from tierlog.testing.faulty_chunk_storage import FaultyChunkStorage


class Right(FaultyChunkStorage):
    """All of the contract, through a wrapper without faults. ``memory`` is what lies below it."""

    def __init__(self, state: MemoryChunkState) -> None:
        self.memory = MemoryChunkStorage(state, delete_many=True)
        super().__init__(self.memory)

    async def all_of(self, prefix: str, after: str = "") -> list[ChunkInfo]:
        async with aclosing(super().list(prefix, after)) as infos:
            return [info async for info in infos]

    def chunk(self, name: str) -> MemoryChunk:
        chunk: MemoryChunk = self.memory.state.chunks[name]
        return chunk

    def has(self, name: str) -> bool:
        return name in self.memory.state.chunks


class IgnoresTheOffsetOfReads(Right):
    async def read(self, name: str, offset: int, size: int) -> bytes:
        data = await super().read(name, 0, offset + size)
        return data[:size]


class ReadsTooMuch(Right):
    async def read(self, name: str, offset: int, size: int) -> bytes:
        return await super().read(name, offset, size + 1 if size else 0)


class ReadsShortInTheMiddle(Right):
    async def read(self, name: str, offset: int, size: int) -> bytes:
        return await super().read(name, offset, min(size, 1 << 20))


class FailsPastTheEnd(Right):
    async def read(self, name: str, offset: int, size: int) -> bytes:
        length = (await self.info(name)).length
        if offset > length:
            raise BadChunkOffset("past the end", chunk=name, expected=length, given=offset)
        return await super().read(name, offset, size)


class ReadsMissingChunksAsEmpty(Right):
    async def read(self, name: str, offset: int, size: int) -> bytes:
        try:
            return await super().read(name, offset, size)
        except ChunkNotFound:
            return b""


class AnswersEmptyReadsBlindly(Right):
    async def read(self, name: str, offset: int, size: int) -> bytes:
        if size == 0 and self.memory._is_open:
            return b""
        return await super().read(name, offset, size)


class GivesAwayItsMemory(Right):
    async def read(self, name: str, offset: int, size: int) -> bytes:
        return bytearray(await super().read(name, offset, size))  # type: ignore[return-value]


class OverwritesAtCreation(Right):
    async def create_with_content(self, name: str, data: Sequence[Buffer]) -> int:
        if self.has(name):
            await self.delete(name)
        return await super().create_with_content(name, data)


class TakesTheSameContentTwice(Right):
    async def create_with_content(self, name: str, data: Sequence[Buffer]) -> int:
        try:
            return await super().create_with_content(name, data)
        except ChunkExists:
            if self.chunk(name).data != b"".join(data):
                raise
            return len(self.chunk(name).data)


class CreatesAnythingTwice(Right):
    async def create(self, name: str) -> None:
        try:
            await super().create(name)
        except ChunkExists:
            return


class ChecksTheNameAndThenCreates(Right):
    async def create_with_content(self, name: str, data: Sequence[Buffer]) -> int:
        if self.has(name) or not self.memory._is_open:
            return await super().create_with_content(name, data)
        whole = bytearray(b"".join(data))
        await anyio.lowlevel.checkpoint()
        self.memory.state.chunks[name] = MemoryChunk(whole)
        return len(whole)


class KeepsTheCallersBuffer(Right):
    async def create_with_content(self, name: str, data: Sequence[Buffer]) -> int:
        size = await super().create_with_content(name, data)
        if len(data) == 1 and isinstance(data[0], bytearray):
            self.chunk(name).data = data[0]
        return size


class AppearsBitByBit(Right):
    async def create_with_content(self, name: str, data: Sequence[Buffer]) -> int:
        whole = (
            b"".join(data)
            if isinstance(data, list) and all(isinstance(each, bytes) for each in data)
            else b""
        )
        if len(whole) < 1 << 20:
            return await super().create_with_content(name, data)
        await super().create_with_content(name, [whole[:1000]])
        await anyio.lowlevel.checkpoint()
        return await super().write(name, 1000, [whole[1000:]])


class AnswersTheWrongSize(Right):
    async def create_with_content(self, name: str, data: Sequence[Buffer]) -> int:
        await super().create_with_content(name, data)
        return len(data)


class WritesAnywhere(Right):
    async def write(self, name: str, offset: int, data: Sequence[Buffer]) -> int:
        length = len(self.chunk(name).data) if self.has(name) and offset >= 0 else offset
        return await super().write(name, length, data)


class WritesMakeTheirChunk(Right):
    async def write(self, name: str, offset: int, data: Sequence[Buffer]) -> int:
        if self.memory._is_open and offset == 0 and name == "a/missing":
            await self.create(name)
        return await super().write(name, offset, data)


class IgnoresReadOnly(Right):
    async def set_read_only(self, name: str, read_only: bool) -> None:
        await super().set_read_only(name, False)


class StaysReadOnly(Right):
    async def set_read_only(self, name: str, read_only: bool) -> None:
        await super().set_read_only(name, True)


class KeepsReadOnlyChunks(Right):
    async def delete(self, name: str) -> None:
        if self.has(name) and self.chunk(name).read_only:
            raise Unavailable("it is read-only")
        await super().delete(name)


class DeletesWhatIsMissing(Right):
    async def delete(self, name: str) -> None:
        try:
            await super().delete(name)
        except ChunkNotFound:
            return


class DeletesTheFolder(Right):
    async def delete(self, name: str) -> None:
        await super().delete(name)
        for other in [each for each in self.memory.state.chunks if each.startswith(name)]:
            del self.memory.state.chunks[other]


class ConcatConsumesItsSources(Right):
    async def concat(self, name: str, ranges: Sequence[ChunkRange]) -> int:
        size = await super().concat(name, ranges)
        for source in {part.name for part in ranges[1:]} - {ranges[0].name}:
            await self.delete(source)
        return size


class ConcatTakesWholeChunks(Right):
    async def concat(self, name: str, ranges: Sequence[ChunkRange]) -> int:
        whole = [
            ChunkRange(part.name, 0, len(self.chunk(part.name).data)) if self.has(part.name) else part
            for part in ranges
        ]
        return await super().concat(name, whole if all(part.length > 0 for part in ranges) else ranges)


class ConcatCutsAtTheEnd(Right):
    async def concat(self, name: str, ranges: Sequence[ChunkRange]) -> int:
        def cut(part: ChunkRange) -> ChunkRange:
            length = len(self.chunk(part.name).data) if self.has(part.name) else 0
            return (
                ChunkRange(part.name, part.offset, max(min(part.length, length - part.offset), 0))
                if part.length > 0
                else part
            )

        return await super().concat(name, [cut(part) for part in ranges])


class ConcatReplacesItsTarget(Right):
    async def concat(self, name: str, ranges: Sequence[ChunkRange]) -> int:
        if self.has(name):
            joined = b"".join(
                bytes(self.chunk(part.name).data[part.offset :][: part.length]) for part in ranges
            )
            self.chunk(name).data = bytearray(joined)
            return len(joined)
        return await super().concat(name, ranges)


class ConcatTakesNoRange(Right):
    async def concat(self, name: str, ranges: Sequence[ChunkRange]) -> int:
        return await super().concat(name, ranges) if ranges else await self.create_with_content(name, [])


class ConcatIsTornByAnError(Right):
    async def concat(self, name: str, ranges: Sequence[ChunkRange]) -> int:
        try:
            return await super().concat(name, ranges)
        except ChunkNotFound:
            await self.create_with_content(name, [b"half"])
            raise


class ConcatDropsRepeatedSources(Right):
    async def concat(self, name: str, ranges: Sequence[ChunkRange]) -> int:
        return await super().concat(name, list(dict.fromkeys(ranges)))


class NormalizesNames(Right):
    async def read(self, name: str, offset: int, size: int) -> bytes:
        return await super().read(name.replace("//", "/").removesuffix("/"), offset, size)


class DecodesNames(Right):
    async def exists(self, name: str) -> bool:
        return await super().exists(name.replace("%2F", "/").replace("%2e%2e/", ""))


class FoldsCase(Right):
    async def create_with_content(self, name: str, data: Sequence[Buffer]) -> int:
        return await super().create_with_content(name.lower(), data)


class StripsNewlines(Right):
    async def info(self, name: str) -> ChunkInfo:
        return await super().info(name.rstrip("\n"))


class RefusesLegacyNames(Right):
    async def create_with_content(self, name: str, data: Sequence[Buffer]) -> int:
        if "$" in name:
            raise Unavailable("what is this?")
        return await super().create_with_content(name, data)


class CallsFoldersChunks(Right):
    async def exists(self, name: str) -> bool:
        found = await super().exists(name)
        return found or any(other.startswith(f"{name}/") for other in self.memory.state.chunks)


class RaisesForeignErrors(Right):
    async def info(self, name: str) -> ChunkInfo:
        try:
            return await super().info(name)
        except ChunkNotFound as error:
            raise FileNotFoundError(name) from error


class NamesTheWrongChunk(Right):
    async def delete(self, name: str) -> None:
        try:
            await super().delete(name)
        except ChunkError as error:
            error.chunk = "another"
            raise


class ServesWhileClosed(Right):
    async def exists(self, name: str) -> bool:
        return self.has(name) if not self.memory._is_open else await super().exists(name)


class ClosesOnce(Right):
    closed = 0

    async def close(self) -> None:
        await super().close()
        self.closed += 1
        if self.closed > 1 and not self.memory._is_open:
            raise Unavailable("it is closed already")


class ForgetsWhenItIsClosed(Right):
    async def close(self) -> None:
        if self.memory._is_open:
            self.memory.state.chunks.clear()
        await super().close()


class RemembersWhatWasThere(Right):
    def __init__(self, state: MemoryChunkState) -> None:
        super().__init__(state)
        self.known: dict[str, ChunkInfo] = {}

    async def info(self, name: str) -> ChunkInfo:
        info = await super().info(name) if name not in self.known else self.known[name]
        return self.known.setdefault(name, info)


class CountsNothing(Right):
    def statistics(self) -> Any:
        return MemoryChunkStorage().statistics()


class MeasuresNothing(Right):
    async def used_space(self) -> int:
        return 0 * await super().used_space()


class AdmitsNothing(Right):
    def admit(self, name: str) -> None:
        raise Unavailable("never")


class TurnsAwayTheSecondCaller(Right):
    busy = False

    async def read(self, name: str, offset: int, size: int) -> bytes:
        if self.busy:
            raise Unavailable("one at a time")
        self.busy = True
        try:
            return await super().read(name, offset, size)
        finally:
            self.busy = False


class LosesASlotWhenCancelled(Right):
    slots = 20

    async def read(self, name: str, offset: int, size: int) -> bytes:
        if self.slots == 0:
            raise Unavailable("no place is free")
        self.slots -= 1
        try:
            data = await super().read(name, offset, size)
        except TierlogError:
            self.slots += 1
            raise
        self.slots += 1
        return data


class TearsCancelledCreations(Right):
    async def create_with_content(self, name: str, data: Sequence[Buffer]) -> int:
        try:
            return await super().create_with_content(name, data)
        except anyio.get_cancelled_exc_class():
            self.memory.state.chunks[name] = MemoryChunk(bytearray(b"torn"))
            raise


class TearsCancelledDeletes(Right):
    async def delete(self, name: str) -> None:
        try:
            await super().delete(name)
        except anyio.get_cancelled_exc_class():
            self.chunk(name).data.clear()
            raise


class Lying(Right):
    """A flag that does not say what the storage does."""

    claimed: Capabilities

    @property
    def capabilities(self) -> Capabilities:
        return self.claimed


class HidesAppend(Lying):
    claimed = Capabilities(append=False, concat=True, delete_many=True)


class HidesConcat(Lying):
    claimed = Capabilities(append=True, concat=False, delete_many=True)


class Promising(Right):
    """Less than it says: what lies below lacks something."""

    def __init__(self, state: MemoryChunkState) -> None:
        super().__init__(state)
        self.promised = self.memory.capabilities

    @property
    def capabilities(self) -> Capabilities:
        return self.promised


class PromisesAppend(Promising):
    def __init__(self, state: MemoryChunkState) -> None:
        super().__init__(state)
        self.inner = self.memory = MemoryChunkStorage(state, append=False, delete_many=True)


class PromisesConcat(Promising):
    def __init__(self, state: MemoryChunkState) -> None:
        super().__init__(state)
        self.inner = self.memory = MemoryChunkStorage(state, concat=False, delete_many=True)


class HidesDeleteMany(Lying):
    claimed = Capabilities(append=True, concat=True)


class PromisesDeleteMany(Promising):
    def __init__(self, state: MemoryChunkState) -> None:
        super().__init__(state)
        self.inner = self.memory = MemoryChunkStorage(state)


class DeletesTheFirstOnly(Right):
    async def delete_many(self, names: Sequence[str]) -> Sequence[str]:
        return await super().delete_many(names[:1])


class ReportsNothingMissing(Right):
    async def delete_many(self, names: Sequence[str]) -> Sequence[str]:
        await super().delete_many(names)
        return []


class ChangesItsMind(Right):
    @property
    def capabilities(self) -> Capabilities:
        return Capabilities(append=True, concat=True, reads_are_durable=self.memory._is_open)


def wrong_storages(kind: type[Right] = Right) -> Iterator[type[Right]]:
    for each in kind.__subclasses__():
        yield from wrong_storages(each)
        if each not in (Lying, Promising):
            yield each


# --- lists and sweeps ---------------------------------------------------------------------------


class ListsUnsorted(Right):
    async def list(self, prefix: str, after: str = "") -> AsyncGenerator[ChunkInfo, None]:
        for info in reversed(await self.all_of(prefix, after)):
            yield info


class ListsFoldersFirst(Right):
    async def list(self, prefix: str, after: str = "") -> AsyncGenerator[ChunkInfo, None]:
        for info in sorted(await self.all_of(prefix, after), key=lambda info: info.name.split("/")):
            yield info


class ListsWholeFoldersOnly(Right):
    async def list(self, prefix: str, after: str = "") -> AsyncGenerator[ChunkInfo, None]:
        for info in await self.all_of(prefix, after):
            if info.name == prefix or not prefix or info.name.startswith(prefix.rstrip("/") + "/"):
                yield info


class ListsOnePage(Right):
    async def list(self, prefix: str, after: str = "") -> AsyncGenerator[ChunkInfo, None]:
        for info in (await self.all_of(prefix, after))[:100]:
            yield info


class ListsFromTheBeginning(Right):
    async def list(self, prefix: str, after: str = "") -> AsyncGenerator[ChunkInfo, None]:
        for info in await self.all_of(prefix):
            yield info


class ListsTheLastNameAgain(Right):
    async def list(self, prefix: str, after: str = "") -> AsyncGenerator[ChunkInfo, None]:
        if after and after.startswith(prefix) and self.has(after):
            yield await self.info(after)
        for info in await self.all_of(prefix, after):
            yield info


class ListsNothingAfterDeletedNames(Right):
    async def list(self, prefix: str, after: str = "") -> AsyncGenerator[ChunkInfo, None]:
        for info in await self.all_of(prefix, after) if not after or self.has(after) else []:
            yield info


class ListsAfterAnything(Right):
    async def list(self, prefix: str, after: str = "") -> AsyncGenerator[ChunkInfo, None]:
        for info in await self.all_of(prefix):
            if info.name > after:
                yield info


class SweepsChunks(Right):
    async def sweep(self) -> None:
        self.memory.state.chunks.popitem()


class ListsNoLengths(Right):
    async def list(self, prefix: str, after: str = "") -> AsyncGenerator[ChunkInfo, None]:
        for info in await self.all_of(prefix, after):
            yield ChunkInfo(info.name, 0)
