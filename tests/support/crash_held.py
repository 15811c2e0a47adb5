"""The crash scenarios of segments that are held back: the flush of one does not reach the cut, and the others
are published without it and its closure, over checkpoints and owners (rule F10).

Whether long-term storage alone has the state of a cut, with closures whole or absent, is checked after every
crash of every scenario (``crash_checker.py``)."""

from __future__ import annotations

import errno
from typing import Any

import anyio
import attrs
import pytest
from simulation.file_layer import Fault, OnCall, Pause, SimulatedFiles
from simulation.gates import path_of
from simulation.model_calls import Append, Seal
from simulation.model_transactions import Begin, Commit, Stage

from support.crash_enumeration import Scenario
from support.crash_scripts import Flush, alone, append, create, events, merge, set_attribute
from support.crash_tables import ChangeRows, CreateTable
from support.crash_tier2 import NO_DEFRAG, Tier2Limits
from support.crash_world import container
from support.oracle import Unseen
from tierlog.actors.store.store import SegmentStore
from tierlog.journal.log.local import LocalLog
from tierlog.storage_backends.base.errors import TierlogError
from tierlog.storage_backends.base.files import IoCall, ListFolder
from tierlog.storage_backends.base.transactions import LEASE_DEFAULT, StagedPart
from tierlog.storage_backends.segments.options import ChunkedOptions


@attrs.define
class Obstacle:
    """An ``on_call`` hook: calls about the chunks of one segment fail, or hang."""

    folder: str
    hangs: bool
    inner: OnCall | None
    removed: anyio.Event = attrs.field(factory=anyio.Event)

    def __call__(self, index: int, call: IoCall) -> Fault | None:
        fault = None if self.inner is None else self.inner(index, call)
        is_free = self.removed.is_set() or isinstance(call, ListFolder)
        if fault is not None or is_free or self.folder not in f"{path_of(call)}/":
            return fault
        if self.hangs:
            return Pause(self.removed)
        raise OSError(errno.EIO, "the chunks of this segment cannot be written")


def _files(store: SegmentStore) -> SimulatedFiles:
    log = container(store).log
    assert isinstance(log, LocalLog)
    assert isinstance(log._files, SimulatedFiles)
    return log._files._root


@attrs.frozen
class Obstruct(Unseen):
    """From now on no chunk of the segment is written."""

    name: str
    hangs: bool = False

    async def send(self, store: SegmentStore) -> Any:
        files, sid = _files(store), container(store).state.segments.sid_of(self.name)
        files.on_call = Obstacle(f"/{sid:016x}/", self.hangs, files.on_call)


class Clear(Unseen):
    """The segment's chunks are written again."""

    async def send(self, store: SegmentStore) -> Any:
        files = _files(store)
        assert isinstance(files.on_call, Obstacle)
        files.on_call.removed.set()


class WriteCheckpoint(Unseen):
    async def send(self, store: SegmentStore) -> Any:
        await container(store)._components.checkpointer.checkpoint()


@attrs.frozen
class HoldBack(Unseen):
    """A flush that does not reach the cut of the segment; waits until a cycle is published without it."""

    name: str

    async def send(self, store: SegmentStore) -> Any:
        state = container(store).state
        before, sid = state.manifest.runs.rows_to, state.segments.sid_of(self.name)
        with anyio.move_on_after(5.0):  # of one that hangs
            with pytest.raises(TierlogError):
                await store.flush()
        with anyio.fail_after(60.0):
            while state.manifest.runs.rows_to == before or sid not in state.manifest.runs.held:
                await anyio.sleep(0.1)


_PART = StagedPart("a/s#txn.t0.p0", 60)

_BASE = alone(
    create("a/s"),
    append("a/s", "old", 70),
    create("a/s#1"),
    append("a/s#1", "part", 40),
    create("a/t"),
    CreateTable("a/r"),
    Flush(),
)
_FIRST = alone(
    Obstruct("a/s"),
    append("a/s", "new", 50),
    Seal("a/s#1"),
    merge("a/s", "a/s#1", batch=1),
    create("a/s#1"),
    append("a/s#1", "reborn", 30),
    Begin("a/s", "t0", None, LEASE_DEFAULT),
    Stage("a/s", "t0", "p0"),
    append(_PART.name, "staged", _PART.length),
    Commit("a/s", "t0", (_PART,), None),
    Append("a/t", events("beside", 30), "w", 1),
    ChangeRows("a/r", {"a": 1}, "w", 1),
    HoldBack("a/s"),
    WriteCheckpoint(),
    append("a/t", "last", 30),
    killed=True,
)
_LIMITS = Tier2Limits(chunked=ChunkedOptions(defrag=NO_DEFRAG))

HELD_BACK = Scenario(
    rules="F10, F3, F4, R3: one segment cannot be flushed; with what is merged into it, staged for it, and "
    "had a name with these, it is held back, and the others are published.",
    before=[_BASE],
    sessions=[_FIRST],
    limits=_LIMITS,
    reaches=[
        (
            "Begin 2 > Logged MergeSegments > Logged CommitTransaction > Logged CycleComplete > "
            "Link */runs/* > Logged ElementCreated > Logged CheckpointClosures > Logged CheckpointEnd > "
            "Logged Append"
        )
    ],
)
HELD_OVER = Scenario(
    rules="F10, F7, C7, R3: the next owner has the closures of what was held back from a checkpoint, holds "
    "it back again while a call hangs, and then publishes it as one.",
    before=[_BASE, _FIRST],
    sessions=[
        alone(
            Obstruct("a/s", hangs=True),
            append("a/s", "on", 20),
            set_attribute("a/t", "epoch", 7),
            ChangeRows("a/r", {"a": None, "b": 2}, "w", 2),
            HoldBack("a/s"),
            Clear(),
            Flush(),
        )
    ],
    limits=_LIMITS,
    reaches=[
        (
            "Begin 3 > Logged CycleComplete > Link */runs/* > Logged ElementCreated > "
            "Link */lts/containers/0000/0000000100000001/* > Logged CommitMetadata > Logged CycleComplete > "
            "Link */runs/* > Logged ElementCreated"
        )
    ],
)
HELD_SCENARIOS = {"held-back": HELD_BACK, "held-over": HELD_OVER}
