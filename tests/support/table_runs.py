"""The runs of a container's system table, in long-term storage and on the local disk."""

from __future__ import annotations

from msgspec.structs import replace
from simulation.records import broken_records

from support.container_world import OPTIONS, ContainerWorld, Owner, read_all
from support.stores import make
from support.table_rows import RUNS
from tierlog.storage_backends.sorted_runs.run_files import path_of

UNMERGED = replace(OPTIONS, merge_fan_out=1000)
NAMES = [f"app/{number}" for number in range(12)]


def runs_in(world: ContainerWorld) -> list[str]:
    return sorted(name for name in world.memory.chunks if name.startswith(RUNS))


def runs_of(owner: Owner) -> list[str]:
    return sorted(run.name for run in owner.container.state.table.runs)


async def fill(owner: Owner, *names: str) -> None:
    for name in names:
        await make(owner.store, name, name.encode() * 10)
    await owner.store.flush()


async def check(owner: Owner, *names: str) -> None:
    for name in names:
        assert await read_all(owner.store, name) == name.encode() * 10
    assert not list(broken_records(owner.container))


def files_of_runs(world: ContainerWorld, owner: Owner) -> set[str]:
    return set(world.files.disk.files_below(owner.container.disk.runs.path))


def known_files(owner: Owner) -> set[str]:
    return {path_of(owner.container.disk.runs.path, run) for run in owner.container.state.table.runs}
