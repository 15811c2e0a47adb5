"""A model test: whatever the layout and whatever happens meanwhile, what readers get through the read-ahead
are the segment's bytes.

A case is a list of steps. Reads run as tasks, so that truncations, concats, defrags, a delete, the collector,
and failing, short and slow requests to the chunk storage fall into the middle of them and of the windows that
they began.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import anyio
import anyio.abc
import attrs
import pytest
from anyio.lowlevel import checkpoint
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from support.chunked import OTHER, SID, Owner, Tier2
from tierlog.actors.read.read_ahead import ReadAhead, ReadAheadBudget, ReadAheadOptions
from tierlog.storage_backends.base.errors import (
    DataCorruption,
    SegmentNotFound,
    SegmentTruncated,
    Unavailable,
)
from tierlog.storage_backends.segments.options import ChunkedOptions

OPTIONS = ReadAheadOptions(block_bytes=4, window_bytes=16, ahead_bytes=32, streams=6, idle=60.0)
READERS = 3
ROUNDS_TO_SETTLE = 10_000
"""Turns of the event loop; nothing waits for time. (On asyncio ``wait_all_tasks_blocked`` does not see a
wake-up that is on its way.)"""


@attrs.define
class Reader:
    offset: int = 0
    is_busy: bool = False


class Case:
    """One segment, its model, its readers, and what they found wrong."""

    def __init__(self, owner: Owner, content: bytes) -> None:
        self.owner = owner
        self.content = content
        self.start = 0
        self.is_deleted = False
        self.readers = [Reader() for _ in range(READERS)]
        self.budget = ReadAheadBudget(limit_bytes=64, fetches_max=3)
        self.ahead = ReadAhead(owner.storage.read, OPTIONS, self.budget)
        self.failures: list[str] = []
        self.go_on = anyio.Event()
        self.had_fault = False
        self.is_changing = False
        self.sources = 0
        self._read_chunk = owner.chunks.read
        owner.chunks.read = self._read_with_faults  # type: ignore[method-assign]

    async def _read_with_faults(self, name: str, offset: int, size: int) -> bytes:
        failure = self.failures.pop() if self.failures and not self.is_changing else ""
        await checkpoint()
        if failure == "slow":
            await self.go_on.wait()
        if failure == "fail":
            raise Unavailable("scripted")

        data = await self._read_chunk(name, offset, size)
        return data[:-1] if failure == "short" else data

    async def read(self, reader: Reader, size: int, times: int) -> None:
        """Up to ``times`` reads in sequence."""
        try:
            for _ in range(times):
                reader.offset = max(
                    reader.offset, self.start
                )  # who may not read is refused before he comes here
                limit = len(self.content)
                if reader.offset == limit or self.is_deleted:
                    break

                data = await self.ahead.read(SID, reader.offset, min(size, limit - reader.offset), limit)
                assert 0 < len(data) <= size
                assert data == self.content[reader.offset : reader.offset + len(data)]
                reader.offset += len(data)
        except SegmentTruncated:
            assert reader.offset < self.start
        except SegmentNotFound:
            assert self.is_deleted
        except (Unavailable, DataCorruption):
            assert self.had_fault, "nothing went wrong that could explain it"
        finally:
            reader.is_busy = False

    async def settle(self) -> None:
        """Let every reader come to the end of its reads, and every window to its end."""
        self.go_on.set()
        for _ in range(ROUNDS_TO_SETTLE):
            if not any(reader.is_busy for reader in self.readers) and not self.budget.fetching:
                break
            await checkpoint()
        assert not any(reader.is_busy for reader in self.readers), "a reader hangs"
        assert not self.budget.fetching, "a window hangs"
        self.go_on = anyio.Event()

    async def truncate(self, share: float) -> None:
        self.start = max(self.start, int(share * len(self.content)))
        await self.owner.truncate(self.start)

    async def concat(self, data: bytes) -> None:
        self.sources += 1
        await self.owner.write(0, data, sid=OTHER + self.sources, rolling_size=3, seal=True)
        await self.owner.concat(OTHER + self.sources)
        self.content += data

    @contextmanager
    def _changing(self) -> Iterator[None]:
        """Changes of the layout read chunks too; the failures are for the readers."""
        self.is_changing = True
        yield
        self.is_changing = False

    async def defrag(self) -> None:
        with self._changing():
            await self.owner.storage.defrag(SID)

    async def delete(self) -> None:
        self.is_deleted = True
        await self.owner.delete()

    async def collect(self) -> None:
        """What a flush cycle and the collector do after the changes."""
        with self._changing():
            await self.owner.run_deferred()
        for name in self.owner.tier2.sink.released:
            self.owner.tier2.chunks.chunks.pop(name, None)


Step = tuple[str, int, int]
STEPS = st.lists(
    st.tuples(
        st.sampled_from(
            ["read"] * 6 + ["jump", "truncate", "concat", "defrag", "collect", "settle", "settle", "yield"]
        ),
        st.integers(0, 99),
        st.integers(1, 30),
    )
    | st.tuples(st.sampled_from(["fail", "short", "slow"]), st.just(0), st.just(0)),
    max_size=40,
)


async def play(append: bool, pieces: list[tuple[bytes, int]], steps: list[Step], deletes: bool) -> None:
    owner = await Tier2(append=append, options=ChunkedOptions(index_spacing=5)).owner()
    content = b""
    for data, rolling_size in pieces:
        await owner.write(len(content), data, rolling_size=rolling_size if not content else None)
        content += data
    case = Case(owner, content)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(case.ahead.run)
        await anyio.wait_all_tasks_blocked()
        for step in steps:
            await take(case, step, tasks)
        if deletes:
            await case.delete()
            await case.collect()
        case.failures.clear()
        await case.settle()

        if not deletes:
            await read_everything(case)
        tasks.cancel_scope.cancel()

    assert (case.budget.held_bytes, case.budget.fetching, case.budget.streams) == (0, 0, 0)


async def take(case: Case, step: Step, tasks: anyio.abc.TaskGroup) -> None:
    verb, number, size = step
    reader = case.readers[number % READERS]
    if verb == "read" and not reader.is_busy:
        reader.is_busy = True
        tasks.start_soon(case.read, reader, size, 1 + number // READERS % 6)
    elif verb == "jump" and not reader.is_busy:
        reader.offset = number * len(case.content) // 100
    elif verb == "truncate" and number % 4 == 0:
        await case.truncate(number / 100)
    elif verb == "concat" and number % 4 == 0:
        await case.concat(bytes(range(size)))
    elif verb == "defrag":
        await case.defrag()
    elif verb == "collect":
        await case.collect()
    elif verb == "settle":
        await case.settle()
    elif verb == "yield":
        await checkpoint()
    elif verb in {"fail", "short", "slow"}:
        case.failures.append(verb)
        case.had_fault = True


async def read_everything(case: Case) -> None:
    """A reader that begins at the start gets all of it, with nothing in its way any more."""
    found, limit = b"", len(case.content)
    while case.start + len(found) < limit:
        found += await case.ahead.read(SID, case.start + len(found), 7, limit)
    assert found == case.content[case.start :]
    assert await case.owner.content() == found


@pytest.mark.parametrize("append", [True, False], ids=["append", "no-append"])
@pytest.mark.parametrize("backend", ["asyncio", "trio"])
@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    pieces=st.lists(
        st.tuples(st.binary(min_size=1, max_size=40), st.integers(1, 12)), min_size=1, max_size=6
    ),
    steps=STEPS,
    deletes=st.booleans(),
)
def test_readers_get_the_segments_bytes_under_random_changes(
    backend: str, append: bool, pieces: list[tuple[bytes, int]], steps: list[Step], deletes: bool
) -> None:
    anyio.run(play, append, pieces, steps, deletes, backend=backend)
