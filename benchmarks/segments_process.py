"""A process of its own for the benchmarks of many segments: opens a folder, appends to its first segment,
then to cold ones, and prints what that took as a JSON object."""

from __future__ import annotations

import gc
import json
import os
import random
import sys
import time
from typing import Any

import anyio

import tierlog
from tierlog.actors.settings.configuration import SegmentsConfig

DATA = bytes(100)


def name_of(number: int) -> str:
    return f"bench/segment-{number:07d}"


async def main(folder: str, segments: int, active_max: int, appends: int) -> dict[str, Any]:
    config = tierlog.StoreConfig(segments=SegmentsConfig(active_max=active_max))
    begin, processor = time.perf_counter(), time.process_time()
    async with tierlog.open_store(folder, containers=1, config=config) as store:
        await store.append(name_of(0), DATA)
        found = {"seconds": time.perf_counter() - begin, "processor_seconds": time.process_time() - processor}
        gc.collect()
        container = statistics_of(store)
        found |= {
            "memory": _resident_bytes(),
            "segments": container.segments,
            "active": container.active_segments,
            "checkpoint_bytes": container.checkpoints.last_bytes,
        }
        if appends:
            found |= await _append(store, segments, appends)
        return found


async def _append(store: tierlog.SegmentStore, segments: int, appends: int) -> dict[str, Any]:
    """Latencies of appends to cold segments, each of which is followed by a second one, and the reads of
    runs that the first ones took."""
    cold: list[float] = []
    warm: list[float] = []
    before = statistics_of(store)
    # Those of an earlier process are still in memory.
    dice = random.Random()
    for _ in range(10 * appends):
        if len(cold) == appends:
            break
        name = name_of(dice.randrange(segments))
        loaded = statistics_of(store).loader.loaded
        first = await _time(store, name)
        if statistics_of(store).loader.loaded > loaded:
            cold.append(first)
            warm.append(await _time(store, name))
    after = statistics_of(store)
    return {"cold": cold, "warm": warm, "reads": _reads(after) - _reads(before)}


async def _time(store: tierlog.SegmentStore, name: str) -> float:
    begin = time.perf_counter()
    await store.append(name, DATA)
    return time.perf_counter() - begin


def _resident_bytes() -> int:
    with open("/proc/self/statm", encoding="ascii") as stream:
        return int(stream.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def _reads(container: Any) -> int:
    copies = container.table.copies
    return int(copies.local_reads + copies.remote_reads)


def statistics_of(store: tierlog.SegmentStore) -> Any:
    return store.statistics().containers[0].current


if __name__ == "__main__":
    backend, _, variant = sys.argv[5].partition("+")
    options = {"use_uvloop": True} if variant else {}
    segments, active_max, appends = map(int, sys.argv[2:5])
    found = anyio.run(
        main, sys.argv[1], segments, active_max, appends, backend=backend, backend_options=options
    )
    print(json.dumps(found))
