"""Recovers the store after each crash of a scenario and checks the result.

Long-term storage alone must have one consistent state of the container, that of a cut (rule F10). A recovered
store is checked against the oracle, loses power with nothing unsynced kept, and must still be right; then it
flushes, and its chunks must be exactly those its metadata names.

A recovery depends only on the answers to its calls, never on chance or time. This saves work in three places;
each crash is still counted and checked against the oracle:

* Two crashes that leave the same disk and the same oracle are checked once.
* If two disks read the same and differ only in what a power loss would take, one is recovered. On the other
  the recovery's calls are replayed without the store, and each must be answered as before. What the store
  showed is checked against the other's oracle; then the power is lost.
* If two recoveries end with disks that read the same and with the same oracle, the power loss follows once.
"""

from __future__ import annotations

from collections.abc import Hashable
from functools import partial
from random import Random
from typing import Any

import attrs
from msgspec.structs import replace
from simulation.file_layer import OnCall, SimulatedDisk, SimulatedFiles, SimulatedHandle
from simulation.lts_alone import CutNotes, check_alone

from support.crash_enumeration import Instant, Recorder, RecordingFiles, Scenario
from support.crash_world import Ending, Mode, after, check_chunks, live_and_end, opened, stored_objects
from support.fingerprints import fingerprint, seen
from support.oracle import Oracle, View, observe
from support.virtual import run_virtual
from tierlog.actors.store.store import SegmentStore
from tierlog.storage_backends.base.errors import StorageFull
from tierlog.storage_backends.base.files import IoCall, Write


def modes(instant: Instant, randoms: int) -> list[tuple[Mode, int]]:
    """(mode, seed): what the crash keeps of what was not synced."""
    return (
        [("kill", 0)]
        if instant.killed_only
        else [("none", 0), ("all", 0), ("kill", 0), *(("random", seed) for seed in range(randoms))]
    )


def extremes(instant: Instant) -> list[Mode]:
    """The two modes of a second crash: the least and the most that can be left."""
    return ["kill"] if instant.killed_only else ["none", "kill"]


# --- the calls of an owner ----------------------------------------------------------------------


@attrs.frozen
class Answered:
    """A call that reached the disk, and its result or its error."""

    call: IoCall
    answer: object


def carry_out(files: SimulatedFiles, call: IoCall) -> object:
    try:
        return SimulatedFiles._do(files, call)
    except OSError as error:
        return error


class TracedFiles(SimulatedFiles):
    """Notes each call and its answer."""

    def __init__(self, disk: SimulatedDisk, trace: list[Answered], on_call: OnCall | None = None) -> None:
        super().__init__(disk, on_call, interleave=False)
        self._trace = trace

    def _sibling(self) -> TracedFiles:
        return TracedFiles(self.disk, self._trace)

    def _do(self, call: IoCall) -> Any:
        # The caller may write something else into its buffers later.
        noted = replace(call, buffers=(b"".join(call.buffers),)) if isinstance(call, Write) else call
        answer = carry_out(self, call)
        self._trace.append(Answered(noted, answer))
        if isinstance(answer, OSError):
            raise answer
        return answer


def repeat(trace: list[Answered], disk: SimulatedDisk) -> None:
    """Carry out the same calls on another disk; a call that is answered in another way fails."""
    files, handles = SimulatedFiles(disk), dict[object, SimulatedHandle]()
    for noted in trace:
        call: Any = noted.call
        if hasattr(call, "handle"):
            call = replace(call, handle=handles[call.handle])
        answer = carry_out(files, call)
        if isinstance(answer, SimulatedHandle):
            handles[noted.answer] = answer
        assert _comparable(answer) == _comparable(noted.answer), (
            f"{call}: {answer!r} instead of {noted.answer!r}"
        )


def _comparable(answer: object) -> object:
    match answer:
        case OSError(errno=number):
            return type(answer), number
        case SimulatedHandle(path=path):
            return SimulatedHandle, path
        case _:
            return answer


# --- the check ----------------------------------------------------------------------------------


@attrs.define
class Observation:
    """What the first owner after a crash did and saw."""

    trace: list[Answered] = attrs.field(factory=list)
    view: View | None = None
    """None if the disk was too full for it to begin."""
    left: bytes = b""
    """What the disk showed when it ended."""
    cuts: CutNotes = attrs.field(factory=CutNotes)


@attrs.define
class CrashChecker:
    """Crashes instants of a scenario and checks what comes of it."""

    scenario: Scenario
    checked: set[Hashable] = attrs.field(factory=set)
    """What was left by the crashes so far."""
    checked_second: set[Hashable] = attrs.field(factory=set)
    """The same of the crashes of recoveries."""
    observations: dict[Hashable, Observation] = attrs.field(factory=dict)
    """Observations by what the first owner found, and whose state it asked for."""
    settled: set[Hashable] = attrs.field(factory=set)
    """What the last owners found so far."""
    booted: set[Hashable] = attrs.field(factory=set)
    """What long-term storage alone had so far."""
    crashes: int = 0
    crashes_of_recoveries: int = 0
    briefly: bool = False
    """With one owner after the crash instead of two."""

    def crash(self, instant: Instant, mode: Mode, random: Random) -> None:
        disk, oracle = after(instant.disk, mode, random), instant.oracle.after_crash()
        self.crashes += 1
        self._boot(disk, instant.cuts)
        left = fingerprint(disk), oracle.known()
        if left in self.checked:
            return

        if self.scenario.twice and not self.briefly:
            self._crash_the_recovery(disk, oracle, instant.cuts)
        cuts = instant.cuts
        if not self.briefly:
            disk, cuts = self._recover(disk, oracle, cuts)
        self._settle(disk, oracle, cuts)
        self.checked.add(left)

    def _boot(self, disk: SimulatedDisk, cuts: CutNotes) -> None:
        """From long-term storage alone."""
        contents = stored_objects(disk)
        key = frozenset(contents.items()), len(cuts.cuts)
        if key not in self.booted:
            run_virtual(partial(check_alone, 1, contents, cuts), 0)
            self.booted.add(key)

    def _recover(
        self, found: SimulatedDisk, oracle: Oracle, cuts: CutNotes
    ) -> tuple[SimulatedDisk, CutNotes]:
        """The first owner after the crash looks, then loses power: nothing that it saw may depend on what
        only the page cache held."""
        disk = found.copy()
        if oracle.has_repeatable():
            # What it sends again depends on the oracle.
            observation = self._observe(disk, oracle)
            return after(disk, "none", disk.random), cuts.and_of(observation.cuts)

        key = seen(found), frozenset(oracle.writers.items())
        known = self.observations.get(key)
        if known is None:
            self.observations[key] = known = self._observe(disk, oracle)
        else:
            repeat(known.trace, disk)
            assert seen(disk) == known.left
            if known.view is not None:
                oracle.check(known.view)
        return after(disk, "none", disk.random), cuts.and_of(known.cuts)

    def _observe(self, disk: SimulatedDisk, oracle: Oracle) -> Observation:
        observation, ending = Observation(), Ending()

        async def body(store: SegmentStore) -> None:
            observation.view = await observe(store, oracle.writers)
            oracle.check(observation.view)
            await oracle.repeat_latest(store)

        async def life() -> None:
            try:
                await live_and_end(
                    TracedFiles(disk, observation.trace, ending), 101, ending, body, self.scenario.limits
                )
            except StorageFull:
                # On a full disk an owner may refuse to begin; it has changed nothing that counts.
                assert self.scenario.capacity is not None

        with observation.cuts.noting():
            run_virtual(life, 0)
        observation.left = seen(disk)
        return observation

    def _settle(self, disk: SimulatedDisk, oracle: Oracle, cuts: CutNotes) -> None:
        disk.capacity = None  # an operator frees space on a full disk at some time
        key = seen(disk), oracle.known()
        if key in self.settled:
            return

        async def life() -> None:
            async with opened(SimulatedFiles(disk, interleave=False), 102, self.scenario.limits) as store:
                oracle.check(await observe(store, oracle.writers))
                await self.scenario.settle(store, oracle)
                await check_chunks(store, disk)
                oracle.check(await observe(store, oracle.writers))

        with (noted := cuts.and_of()).noting():
            run_virtual(life, 0)
        self._boot(disk, noted)
        self.settled.add(key)

    def _crash_the_recovery(self, found: SimulatedDisk, oracle: Oracle, cuts: CutNotes) -> None:
        recorder = self._record_recovery(found.copy(), oracle, cuts)
        inner = CrashChecker(self.scenario, self.checked_second, settled=self.settled, briefly=True)
        for instant in recorder.instants:
            for mode in extremes(instant):
                try:
                    inner.crash(instant, mode, Random(0))
                except BaseException as error:
                    error.add_note(
                        f"the recovery crashed too, at its call {instant.name} ({instant.call}), mode {mode}"
                    )
                    raise
        self.crashes_of_recoveries += inner.crashes

    def _record_recovery(self, disk: SimulatedDisk, oracle: Oracle, cuts: CutNotes) -> Recorder:
        recorder = Recorder(oracle.after_crash(), cuts=cuts.and_of())

        async def life() -> None:
            async with opened(RecordingFiles(disk, recorder), 100, self.scenario.limits):
                pass

        with recorder.cuts.noting():
            run_virtual(life, 0)
        recorder.end(disk)
        return recorder
