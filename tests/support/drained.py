"""Garbage drained to the end: what long-term storage has is what is referenced, and nothing else.

In virtual time. Tests that drain at every step find what a deletion takes too much, which tests that end
before the collector runs never see."""

from __future__ import annotations

import anyio
from simulation.records import broken_records

from support.container_world import ContainerWorld, Owner, referenced_chunks
from support.table_rows import RUNS
from tierlog.journal.manifest.chain import journal_prefix
from tierlog.journal.manifest.store_record import STORE_RECORD

TICK = "tick"
"""A segment whose appends make cycles complete."""
_PAUSE = 5.0
"""Seconds: more than the delay of the collector."""


async def drain(world: ContainerWorld, owner: Owner, *, pause: float = _PAUSE) -> None:
    """Complete cycles until the collector has deleted all that it may, and check what is left. Sources of a
    merge wait for the cycle after it, in which another merge may be due: no run waits for two."""
    left = []
    for _ in range(2):
        await owner.store.append(TICK, b".")
        await owner.store.flush()
        await anyio.sleep(pause)
        left.append(_unnamed_runs(world, owner))
    assert not left[0] & left[1]
    check_storage(world, owner)


def check_storage(world: ContainerWorld, owner: Owner) -> None:
    """Whatever is in long-term storage is needed, and whatever is needed is there."""
    assert not list(broken_records(owner.container))
    names = set(world.memory.chunks)
    assert world.chunk_names == referenced_chunks(owner.container)
    elements = {name for name in names if name.startswith(journal_prefix(0))}
    assert 2 <= len(elements) <= 3
    runs = {name for name in names if name.startswith(RUNS)}
    assert {run.name for run in owner.container.state.table.runs} <= runs
    assert names == world.chunk_names | elements | runs | {STORE_RECORD}


def _unnamed_runs(world: ContainerWorld, owner: Owner) -> set[str]:
    """The runs in long-term storage that no element names that may exist."""
    stored = {name for name in world.memory.chunks if name.startswith(RUNS)}
    return stored - set(owner.container.state.manifest.runs_among(stored))
