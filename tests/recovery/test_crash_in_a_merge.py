"""A crash in the middle of a merge of sorted runs: a local file that no element names is removed, and no
object in long-term storage is ever replaced (rules J3, M2, M6, M11)."""

from __future__ import annotations

import anyio
import pytest
from msgspec.structs import replace

from support.container_world import OPTIONS, ContainerWorld, until
from support.table_rows import RUNS
from support.table_runs import NAMES, check, files_of_runs, fill, known_files, runs_of
from tierlog.journal.manifest.chain import journal_prefix
from tierlog.testing.faulty_chunk_storage import Call, Fault, FaultKind

pytestmark = pytest.mark.anyio


def is_merged(name: str) -> bool:
    return name.startswith(RUNS) and name.endswith("-0000")


class StandsStill:
    """The merge stands still at the put of its run, or at the creation of its element."""

    def __init__(self, place: str) -> None:
        self._place = place
        self._is_put = False
        self.is_reached = anyio.Event()

    def __call__(self, call: Call) -> Fault | None:
        if call.verb != "create_with_content":
            return None
        self._is_put |= is_merged(call.name)
        is_there = is_merged(call.name) if self._place == "put" else call.name.startswith(journal_prefix(0))
        if not (self._is_put and is_there):
            return None

        self.is_reached.set()
        return Fault(FaultKind.HANG)


@pytest.mark.parametrize("place", ["put", "element"])
async def test_a_merge_that_ends_in_a_crash_is_completed_or_made_again_under_other_names(place: str) -> None:
    """It is completed if its element was recorded: then its runs are not read from long-term storage."""
    world = ContainerWorld(replace(OPTIONS, merge_fan_out=3))
    world.chunks.script = point = StandsStill(place)
    async with anyio.create_task_group() as tasks:
        owner = await world.start(tasks)
        for name in NAMES[:2]:
            await fill(owner, name)
        tasks.start_soon(fill, owner, NAMES[2])
        await point.is_reached.wait()
        await anyio.wait_all_tasks_blocked()
        merged = {path for path in files_of_runs(world, owner) if path.endswith(".run")} - known_files(owner)
        assert len(merged) == 1
        await owner.crash()
        world.chunks.script = None
    before = {name: bytes(chunk.data) for name, chunk in world.memory.chunks.items()}
    del world.chunks.calls[:]
    async with world.owner() as owner:
        is_left = bool(merged & files_of_runs(world, owner))
        await until(lambda: len(runs_of(owner)) == 1)
        assert is_left == (place == "element")
        assert (runs_of(owner)[0] in before) == (place == "element")
        if place == "element":
            assert not [call for call in world.chunks.calls if call.verb == "read" and is_merged(call.name)]
        assert files_of_runs(world, owner) >= known_files(owner)
        await check(owner, *NAMES[:3])
        for name, chunk in world.memory.chunks.items():
            assert before.get(name, bytes(chunk.data)) == bytes(chunk.data), "put once"
