"""A crash at every I/O call of a scenario and inside every one: what such a scenario is, how it is lived,
which crashes it has.

A scenario is data (``crash_scenarios.py``). It is lived once. Each I/O call that changes what a crash may
leave gives *instants*: the world just before the call, and, for a write or a chain of new folders, the world
after each part of it. Whether a call changes the disk is not guessed but measured, so none can be forgotten.
Every instant is then crashed in every mode that it has, and checked (``crash_checker.py``).
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Sequence
from fnmatch import fnmatchcase
from functools import partial
from random import Random
from typing import Any

import anyio
import attrs
from simulation.disk import SECTOR
from simulation.file_layer import SimulatedDisk, SimulatedFiles
from simulation.lts_alone import CutNotes

from support.crash_scripts import Session, play
from support.crash_world import (
    SMALL,
    Ending,
    Freezer,
    Limits,
    describe,
    image_within,
    live_and_end,
    missing_folders,
    opened,
)
from support.fingerprints import fingerprint
from support.oracle import Oracle, observe
from tierlog.actors.store.store import SegmentStore
from tierlog.journal.group_payload import decode_group
from tierlog.journal.log.frames import FRAME_HEADER_BYTES
from tierlog.storage_backends.base.errors import TierlogError
from tierlog.storage_backends.base.files import IoCall, MakeFolder, Write


async def flushed(store: SegmentStore, oracle: Oracle) -> None:
    await store.flush()


@attrs.frozen(kw_only=True)
class Scenario:
    rules: str
    """One line: which rules it exercises, and how."""
    sessions: Sequence[Session]
    """Lived one after the other, with a crash at every call of them."""
    before: Sequence[Session] = ()
    """What was on the disk already: lived without crashes."""
    zombie: Session | None = None
    """An owner that freezes during this session, and resumes when the first of ``sessions`` was played by its
    successor."""
    freezes_at: str = ""
    """The calls at which the zombie freezes: a pattern."""
    limits: Limits = SMALL
    capacity: int | None = None
    """The capacity of the disk, in bytes."""
    twice: bool = False
    """Whether each recovery is crashed at every call as well."""
    settle: Callable[[SegmentStore, Oracle], Awaitable[None]] = flushed
    """What the last owner after a crash does, and checks, before the chunks are compared with their
    records."""
    reaches: Sequence[str] = ()
    """What must have happened: each a chain ``pattern > pattern``, of events that come in this order (see
    ``Recorder.events``)."""


# --- what a crash can leave ---------------------------------------------------------------------


@attrs.frozen
class Instant:
    """The world before state-changing call ``number`` of a life, or when the first ``done`` of its bytes or
    folders are there."""

    number: int
    done: int
    call: str
    disk: SimulatedDisk
    oracle: Oracle
    cuts: CutNotes
    """What long-term storage alone may show."""
    killed_only: bool = False
    """A write that ends in the middle of a sector: a dying process may leave it, a power loss does not."""

    @property
    def name(self) -> str:
        return f"{self.number}+{self.done}" if self.done else str(self.number)


def partial_effects(disk: SimulatedDisk, call: IoCall, *, every_byte: bool) -> Iterator[tuple[int, bool]]:
    """How far a crash may leave ``call``, between nothing and all: (bytes or folders, whether only the end of
    a process leaves that)."""
    match call:
        case Write(offset=offset, buffers=buffers):
            size = sum(map(len, buffers))
            boundaries = sector_boundaries(offset, size)
            sample: Sequence[int] = (
                range(1, size) if every_byte else (1, FRAME_HEADER_BYTES, size // 2, size - 1)
            )
            if call.handle.path.endswith("/register"):
                # It is changed in place, and relies on this: the page cache takes what lies in one sector
                # whole, or not at all (wal.md).
                sample = ()
            yield from (
                (done, done not in boundaries) for done in sorted({*boundaries, *sample}) if 0 < done < size
            )
        case MakeFolder(path):
            yield from ((done, False) for done in range(1, len(missing_folders(disk, path))))
        case _:
            pass


def sector_boundaries(offset: int, size: int) -> list[int]:
    """Where inside a write of ``size`` bytes at ``offset`` a sector ends."""
    return list(range(SECTOR - offset % SECTOR, size, SECTOR))


# --- living a scenario --------------------------------------------------------------------------


@attrs.frozen
class DiskSnapshot:
    """A disk as it was before a call."""

    disk: SimulatedDisk
    copy: SimulatedDisk
    print: bytes


@attrs.define
class Recorder:
    """What happens in a life, and the instants at which it may end."""

    oracle: Oracle
    every_byte: bool = False
    instants: list[Instant] = attrs.field(factory=list)
    cuts: CutNotes = attrs.field(factory=CutNotes)
    events: list[str] = attrs.field(factory=list)
    """In order: each state-changing call as ``Verb path``, each operation as ``Logged Kind`` before the write
    that logs it, and what processes do: ``Begin n``, ``Freeze n``, ``Resume n``, ``Refused``."""
    calls: int = 0
    _snapshot: DiskSnapshot | None = None

    def perform(self, files: RecordingFiles, call: IoCall) -> Any:
        before = self._before(files.disk)
        try:
            return files.perform(call)
        finally:
            if before.print != fingerprint(files.disk):
                self._snapshot = None
                self._note(before.copy, call)

    def _before(self, disk: SimulatedDisk) -> DiskSnapshot:
        """The last snapshot, if nothing has changed since: every change of the disk passes here."""
        if self._snapshot is None or self._snapshot.disk is not disk:
            self._snapshot = DiskSnapshot(disk, disk.copy(), fingerprint(disk))
        return self._snapshot

    def _note(self, before: SimulatedDisk, call: IoCall) -> None:
        oracle, cuts = self.oracle.after_crash(), self.cuts.and_of()
        self.events += [*logged(call), describe(call)]
        for done, killed_only in [(0, False), *partial_effects(before, call, every_byte=self.every_byte)]:
            image = image_within(before, call, done)
            self.instants.append(Instant(self.calls, done, describe(call), image, oracle, cuts, killed_only))
        self.calls += 1

    def end(self, disk: SimulatedDisk) -> None:
        self.instants.append(
            Instant(self.calls, 0, "the end", disk.copy(), self.oracle.after_crash(), self.cuts.and_of())
        )


def logged(call: IoCall) -> list[str]:
    """The operations that ``call`` writes to the log, if it does."""
    if not isinstance(call, Write) or not call.handle.path.endswith(".wal"):
        return []

    data, kind = b"".join(call.buffers), "Logged"
    if data.startswith(b"TLWH"):
        # A header, and in an opener's file the last group of the one before.
        data, kind = data[12 + int.from_bytes(data[8:12], "big") + 4 :], "Relogged"
    return (
        [f"{kind} {type(op).__name__}" for op in decode_group(memoryview(data)[FRAME_HEADER_BYTES:])[1]]
        if data
        else []
    )


class RecordingFiles(SimulatedFiles):
    """Reports each effect to a recorder when it happens."""

    def __init__(self, disk: SimulatedDisk, recorder: Recorder, freezer: Freezer | None = None) -> None:
        super().__init__(disk, freezer)
        self._recorder = recorder

    def _sibling(self) -> RecordingFiles:
        return RecordingFiles(self.disk, self._recorder)

    def _do(self, call: IoCall) -> Any:
        return self._recorder.perform(self, call)

    def perform(self, call: IoCall) -> Any:
        return super()._do(call)


@attrs.define
class Life:
    """A scenario being lived: ``schedule`` is the seed of the scheduler, and here of what an unclean end
    keeps."""

    scenario: Scenario
    recorder: Recorder
    disk: SimulatedDisk
    process: int = 0

    async def live(self) -> None:
        muted = Recorder(self.recorder.oracle)
        for session in self.scenario.before:
            await self._session(session, muted)
        sessions = list(self.scenario.sessions)
        if self.scenario.zombie is not None:
            await self._beside_a_zombie(self.scenario.zombie, sessions.pop(0))
        for session in sessions:
            await self._session(session, self.recorder)
        self.recorder.end(self.disk)

    def _begin(self, recorder: Recorder) -> int:
        self.process += 1
        recorder.events.append(f"Begin {self.process}")
        return self.process

    async def _session(self, session: Session, recorder: Recorder) -> None:
        files, process, ending = RecordingFiles(self.disk, recorder), self._begin(recorder), Ending()
        body = partial(play, session, recorder.oracle)
        if session.killed:
            files.on_call = ending
            await live_and_end(files, process, ending, body, self.scenario.limits)
            self.disk = self.disk.copy()
        else:
            async with opened(files, process, self.scenario.limits) as store:
                await body(store)

    async def _beside_a_zombie(self, old: Session, new: Session) -> None:
        oracle, freezer, ended = self.recorder.oracle, Freezer(), anyio.Event()
        first = self._begin(self.recorder)

        async def zombie() -> None:
            try:
                async with opened(
                    RecordingFiles(self.disk, self.recorder, freezer), first, self.scenario.limits
                ) as store:
                    freezer.wanted = lambda index, call: fnmatchcase(describe(call), self.scenario.freezes_at)
                    await play(old, oracle, store)
            except* TierlogError:
                self.recorder.events.append(f"Fenced {first}")
            ended.set()

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(zombie)
            await freezer.frozen.wait()
            async with opened(
                RecordingFiles(self.disk, self.recorder), self._begin(self.recorder), self.scenario.limits
            ) as store:
                oracle.check(await observe(store, oracle.writers))
                await oracle.repeat_latest(store)
                await play(new, oracle, store)
                self.recorder.events.append(f"Resume {first}")
                freezer.resume.set()
                await ended.wait()
                oracle.check(await observe(store, oracle.writers))


async def live(scenario: Scenario, schedule: int, *, every_byte: bool = False) -> Recorder:
    """Live the scenario; the recorder has everything that follows from it."""
    recorder = Recorder(Oracle(), every_byte)
    with recorder.cuts.noting():
        await Life(scenario, recorder, SimulatedDisk(Random(schedule), scenario.capacity)).live()
    return recorder


# --- what a scenario claims ---------------------------------------------------------------------


def missing(events: Sequence[str], claim: str) -> str:
    """The first pattern of ``claim`` that no event fits in its turn; nothing if all were reached."""
    position = 0
    for pattern in claim.split(" > "):
        found = next(
            (index for index in range(position, len(events)) if fnmatchcase(events[index], pattern)), None
        )
        if found is None:
            return pattern

        position = found + 1
    return ""
