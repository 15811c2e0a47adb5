"""The base of chunk storages: checks before a backend is called, counts, the observer, and errors that nobody
foresaw."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterator, Mapping, Sequence
from contextlib import contextmanager

import anyio
import pytest

from support.container_world import virtual_time
from tierlog.storage_backends.base.checksum import Buffer
from tierlog.storage_backends.base.chunk_storage import Capabilities, ChunkInfo
from tierlog.storage_backends.base.errors import (
    ChunkNotFound,
    ClosedError,
    InvalidArgument,
    OutcomeUnknown,
    Unavailable,
    Unsupported,
)
from tierlog.storage_backends.chunks.base import BaseChunkStorage

pytestmark = pytest.mark.anyio


class Scripted(BaseChunkStorage):
    """Raises ``error`` in whatever it is asked, after ``seconds``."""

    def __init__(self, error: Exception | None = None, seconds: float = 0) -> None:
        super().__init__()
        self.error = error
        self.seconds = seconds
        self.asked: list[str] = []

    @property
    def capabilities(self) -> Capabilities:
        return Capabilities(append=False, concat=False)

    async def _step(self, verb: str) -> None:
        self.asked.append(verb)
        await anyio.sleep(self.seconds)
        if self.error is not None:
            raise self.error

    async def _open(self) -> None:
        self.asked.append("open")

    async def _close(self) -> None:
        await super()._close()
        self.asked.append("close")

    async def _info(self, name: str) -> ChunkInfo:
        await self._step("info")
        return ChunkInfo(name, 3)

    async def _create_with_content(self, name: str, data: Sequence[Buffer]) -> int:
        await self._step("create_with_content")
        return 3

    async def _read(self, name: str, offset: int, size: int) -> bytes:
        await self._step("read")
        return b"abc"

    async def _delete(self, name: str) -> None:
        await self._step("delete")

    async def _set_read_only(self, name: str, read_only: bool) -> None:
        await self._step("set_read_only")

    async def _list(self, prefix: str, after: str) -> AsyncGenerator[ChunkInfo, None]:
        await self._step("list")
        yield ChunkInfo("a", 3)

    async def _used_space(self) -> int:
        await self._step("used_space")
        return 0


async def opened(error: Exception | None = None, seconds: float = 0) -> Scripted:
    storage = Scripted(error, seconds)
    await storage.open()
    storage.asked.clear()
    return storage


async def test_invalid_arguments_never_reach_a_binding() -> None:
    storage = await opened()
    with pytest.raises(InvalidArgument):
        await storage.read("../a", 0, 1)
    with pytest.raises(InvalidArgument):
        await storage.read("a", 0, -1)
    with pytest.raises(InvalidArgument):
        await storage.create_with_content("a", ["text"])  # type: ignore[list-item]
    with pytest.raises(Unsupported):
        await storage.write("a", 0, [b"x"])
    assert [info async for info in storage.list("a//")] == []
    await storage.close()
    with pytest.raises(ClosedError):
        await storage.info("a")

    assert storage.asked == ["close"]


async def test_a_cancelled_owner_closes_the_backend() -> None:
    """As after Ctrl-C: connections were left open, and reported on stderr when the process ended."""
    storage = await opened()
    with anyio.CancelScope() as scope:
        scope.cancel()
        await storage.close()

    assert storage.asked == ["close"]


async def test_openings_at_the_same_time_are_one() -> None:
    storage = Scripted()
    async with anyio.create_task_group() as tasks:
        for _ in range(3):
            tasks.start_soon(storage.open)

    assert storage.asked == ["open"]


async def test_a_foreign_error_is_an_unknown_outcome_of_a_change_and_unavailable_for_a_query() -> None:
    error = RuntimeError("the driver broke")
    storage = await opened(error)
    with pytest.raises(OutcomeUnknown, match="the driver broke") as changed:
        await storage.delete("a")
    with pytest.raises(Unavailable, match="the driver broke"):
        await storage.read("a", 0, 1)
    with pytest.raises(Unavailable):
        [info async for info in storage.list("")]

    assert changed.value.__cause__ is error


@virtual_time
async def test_calls_their_seconds_and_their_errors_are_counted() -> None:
    storage = await opened(seconds=2)
    await storage.read("a", 0, 3)
    [info async for info in storage.list("")]
    storage.error = ChunkNotFound("gone", chunk="a")
    with pytest.raises(ChunkNotFound):
        await storage.read("a", 0, 3)
    with anyio.move_on_after(1):
        await storage.read("a", 0, 3)

    counted = storage.statistics()
    assert (counted.reads, counted.bytes_read) == (1, 3)
    read, listed = counted.verbs["read"], counted.verbs["list"]
    assert (read.calls, read.failures, listed.calls, listed.failures) == (3, 1, 1, 0)
    assert [read.seconds, listed.seconds] == pytest.approx([5, 2])
    assert {code: each.raised for code, each in counted.errors.items() if each.raised} == {
        "chunk-not-found": 1
    }


async def test_an_observer_sees_every_call_and_its_end() -> None:
    observed: list[tuple[str, object]] = []

    @contextmanager
    def observer(name: str, attributes: Mapping[str, object]) -> Iterator[None]:
        observed.append((name, attributes.get("chunk")))
        try:
            yield
        except ChunkNotFound:
            observed.append(("failed", None))
            raise

    storage = await opened()
    storage.observe(observer)
    await storage.read("a", 0, 3)
    storage.error = ChunkNotFound("gone", chunk="b")
    with pytest.raises(ChunkNotFound):
        await storage.delete("b")
    storage.observe(None)
    with pytest.raises(ChunkNotFound):
        await storage.info("c")

    assert observed == [
        ("tierlog.chunk_storage.read", "a"),
        ("tierlog.chunk_storage.delete", "b"),
        ("failed", None),
    ]
