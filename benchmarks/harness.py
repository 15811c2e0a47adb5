"""What all benchmarks share: their declaration, measurement in pairs, and results.

A single figure means little on a shared machine. So each round measures the reference and then the store,
each round has one ratio, and the reported ratio is their median: a slow minute of the machine slows both
halves of a round. The first round warms up and does not count; ``--quick``, whose figures mean nothing, does
only that one."""

from __future__ import annotations

import gc
import os
import statistics
import sys
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any, Literal

import attrs

import tierlog

ROUNDS = 7


class BenchmarkError(Exception):
    """The benchmark did not do its work, so it has no figure."""


@attrs.frozen
class Pair:
    """One round: the store's figure and the reference's, in the benchmark's unit."""

    value: float
    reference: float


@attrs.frozen
class Result:
    """One line of the report; the field names are those of ``--json``."""

    name: str
    value: float
    """The median of the store's figures."""
    unit: str
    reference: float
    """The median of the reference's figures, in the same unit."""
    ratio: float
    """The median of the rounds' value / reference."""
    goal: float
    lower_is_better: bool
    goal_of: Literal["ratio", "value"]
    """Whether the goal is for the ratio or the value."""

    @property
    def is_met(self) -> bool:
        compared = self.ratio if self.goal_of == "ratio" else self.value
        return compared <= self.goal if self.lower_is_better else compared >= self.goal


@attrs.frozen
class Setting:
    """The choices of the command line, and the folder for data."""

    folder: str
    quick: bool
    backend: str
    progress: Callable[[str], None]
    megabytes: int | None = None
    """The data size of bulk benchmarks, in place of their own."""
    segments: int | None = None
    """How many segments the benchmarks of very many have, in place of their own number."""

    def megabytes_of(self, full: int, quick: int) -> int:
        return self.size(full, quick) if self.megabytes is None else self.megabytes

    def size(self, full: int, quick: int) -> int:
        """How much to do."""
        return quick if self.quick else full

    def fresh(self, name: str) -> str:
        """A new, empty folder."""
        return tempfile.mkdtemp(prefix=f"{name}-", dir=self.folder)

    def shared(self, name: str) -> str:
        """A path that all benchmarks of a run share: the first that needs what is there makes it."""
        return f"{os.path.dirname(self.folder)}/{name}"


@attrs.frozen
class Benchmark:
    name: str
    summary: str
    """One line for the table and ``--list``."""
    detail: str
    """What is compared with what, and what is not measured."""
    unit: str
    goal: float
    run: Callable[[Setting], Awaitable[Sequence[Pair]]]
    lower_is_better: bool = False
    goal_of: Literal["ratio", "value"] = "ratio"
    missing: Callable[[], str] = str
    """Why it cannot run here; empty if it can."""

    def result(self, pairs: Sequence[Pair]) -> Result:
        if not pairs or any(pair.value <= 0 or pair.reference <= 0 for pair in pairs):
            raise BenchmarkError(f"{self.name} measured nothing: {pairs}")

        return Result(
            self.name,
            statistics.median(pair.value for pair in pairs),
            self.unit,
            statistics.median(pair.reference for pair in pairs),
            statistics.median(pair.value / pair.reference for pair in pairs),
            self.goal,
            self.lower_is_better,
            self.goal_of,
        )


Measure = Callable[[], Awaitable[float]]


async def alternate(setting: Setting, value: Measure, reference: Measure, rounds: int = ROUNDS) -> list[Pair]:
    """Measure reference and value in turns; the first round, number 0, is not counted."""
    pairs: list[Pair] = []
    count, first = setting.size(rounds, 1), setting.size(0, 1)
    for number in range(first, count + 1):
        setting.progress(f"round {number} of {count}" if number else "warming up")
        gc.collect()
        measured_reference = await reference()
        gc.collect()
        pairs.append(Pair(await value(), measured_reference))

    return pairs[1 - first :]


@asynccontextmanager
async def store_in(
    folder: str, *, config: tierlog.StoreConfig | None = None
) -> AsyncIterator[tierlog.SegmentStore]:
    async with tierlog.open_store(folder, containers=1, config=config) as store:
        yield store


@attrs.frozen
class Written:
    """One acked append, to be checked later."""

    segment: str
    offset: int
    data: bytes


async def verify(store: tierlog.SegmentStore, samples: Sequence[Written]) -> None:
    """Read samples back. Raises ``BenchmarkError`` if one is missing."""
    if not samples:
        raise BenchmarkError("no append was acked")

    for sample in samples:
        found = bytearray()
        while len(found) < len(sample.data):
            block = await store.read(
                sample.segment, sample.offset + len(found), len(sample.data) - len(found)
            )
            if not block:
                break
            found += block
        if found != sample.data:
            raise BenchmarkError(f"{sample.segment} at {sample.offset} does not hold what was acked there")


async def verify_length(store: tierlog.SegmentStore, segment: str, expected: int) -> None:
    length = (await store.segment_info(segment)).length
    if length != expected:
        raise BenchmarkError(f"{segment} is {length} bytes long after appends of {expected}")


class NoGarbage:
    """A ``GarbageSink`` that collects nothing: the chunks are dropped with their storage."""

    async def track(self, names: Sequence[str]) -> None: ...
    def keep(self, names: Sequence[str]) -> None: ...
    def release(self, names: Sequence[str]) -> None: ...
    def doubt(self, names: Sequence[str]) -> None: ...


def payloads(size: int, count: int = 64) -> list[bytes]:
    """Different random blocks, so that a mix-up is detected and nothing can be compressed."""
    return [os.urandom(size) for _ in range(count)]


def quantile(values: Sequence[float], share: float) -> float:
    return sorted(values)[min(len(values) - 1, int(len(values) * share))]


def is_interactive() -> bool:
    return sys.stderr.isatty()


def event_class() -> Any:
    """The running event loop's own event: the reference must not pay for anyio."""
    import sniffio

    if sniffio.current_async_library() == "trio":
        import trio

        return trio.Event

    import asyncio

    return asyncio.Event
