"""Each kind of fault does what it says, to the call that it was planned for, and healing ends them all."""

from __future__ import annotations

import errno
import inspect
import math
from collections.abc import Awaitable, Callable
from random import Random
from typing import Concatenate, ParamSpec

import anyio
import pytest
from simulation.bucket import SharedBucket, SimulatedObjects
from simulation.disk import SimulatedDisk
from simulation.faults import (
    KINDS,
    ChunkFaults,
    Fault,
    Faults,
    FileFaults,
    Kind,
    LogServiceFaults,
    Nth,
    Target,
    Window,
)
from simulation.gates import Gate, GatedFiles, Killed
from simulation.ledgers import SharedLedgers, SimulatedLedgers
from simulation.loop import run_virtual
from simulation.services import ServiceChunks, ServiceLog
from simulation.settings import Latency
from simulation.trace import Trace

from tierlog.journal.log.memory import MemoryLogService
from tierlog.storage_backends.base.errors import OutcomeUnknown, StorageFull, TierlogError, Unavailable
from tierlog.storage_backends.base.files import Close, Open, Program, Read, Sync, SyncFolder, Write
from tierlog.storage_backends.base.ledger_service import Quorum
from tierlog.storage_backends.chunks.memory import MemoryChunkStorage
from tierlog.testing.faulty_chunk_storage import FaultyChunkStorage

DATA = b"x" * 1000
P = ParamSpec("P")


class Bench:
    """One process's gate, files, log and chunks, without a store."""

    def __init__(self) -> None:
        self.trace = Trace()
        self.gate = Gate("p1", self.trace, Random(1), Latency())
        self.faults = Faults(self.trace, Random(2), self.strike)
        self.disk = SimulatedDisk(Random(3))
        self.files = GatedFiles(self.disk, self.gate, FileFaults(self.faults, 1, self.gate))
        self.service = MemoryLogService()
        chunk_faults = ChunkFaults(self.faults, 1, self.gate)
        self.memory = MemoryChunkStorage()
        self.chunks = ServiceChunks(
            FaultyChunkStorage(self.memory, chunk_faults.script, hang=chunk_faults.hang), self.gate
        )
        self.bucket = SharedBucket(self.memory.state)
        self.objects = SimulatedObjects(self.bucket, 1, self.gate, self.faults)
        self.shared_ledgers = SharedLedgers()
        self.ledgers = SimulatedLedgers(self.shared_ledgers, 1, self.gate, self.faults)
        self.struck: list[tuple[Kind, int]] = []

    def strike(self, kind: Kind, process: int) -> None:
        self.struck.append((kind, process))
        if kind is Kind.FREEZE:
            self.gate.freeze()
        else:
            self.gate.kill()

    def log(self) -> ServiceLog:
        return ServiceLog(self.service.log("0"), "0", self.gate, LogServiceFaults(self.faults, 1, self.gate))

    async def groups(self) -> int:
        return len((await self.service.log("0").inspect()).groups)

    def add(self, target: Target, kind: Kind, **more: object) -> None:
        self.faults.add(Fault(target, kind, **more))  # type: ignore[arg-type]


def on_a_bench(story: Callable[Concatenate[Bench, P], Awaitable[None]]) -> Callable[P, None]:
    """A test that runs in virtual time, on a bench of its own."""

    def test(*arguments: P.args, **named: P.kwargs) -> None:
        run_virtual(lambda: story(Bench(), *arguments, **named), 0)

    signature = inspect.signature(story)
    test.__signature__ = signature.replace(parameters=list(signature.parameters.values())[1:])  # type: ignore[attr-defined]
    return test


def put(path: str) -> Program[None]:
    handle = yield Open(path, write=True, create=True)
    yield Write(handle, 0, [DATA])
    yield Sync(handle)
    yield SyncFolder("/")


def test_an_error_of_what_follows_a_fault_is_not_taken_for_one_of_the_store() -> None:
    def fail(process: int) -> None:
        raise LookupError("in the act")

    async def story() -> None:
        bench = Bench()
        bench.add(Target.FILES, Kind.BEFORE, then=fail)
        with pytest.raises(OSError, match="simulated"):
            await bench.files.run(put("/a"))

    with pytest.raises(LookupError, match="in the act"):
        run_virtual(story, 0)


# --- files --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "verb", "cached", "durable"),
    [
        (Kind.BEFORE, "Open", None, None),
        (Kind.AFTER, "Open", 0, None),
        (Kind.BEFORE, "Write", 0, None),
        (Kind.PARTIAL, "Write", 300, None),
        (Kind.AFTER, "Write", 1000, None),
        (Kind.FULL, "Write", 0, None),
        (Kind.AFTER, "Sync", 1000, None),
        (Kind.AFTER, "SyncFolder", 1000, 1000),
    ],
)
@on_a_bench
async def test_a_file_call_fails_before_after_or_in_the_middle(
    bench: Bench, kind: Kind, verb: str, cached: int | None, durable: int | None
) -> None:
    bench.add(Target.FILES, kind, verbs=(verb,), keep=300)
    with pytest.raises(OSError, match="simulated") as caught:
        await bench.files.run(put("/a"))
    assert caught.value.errno == (errno.ENOSPC if kind is Kind.FULL else errno.EIO)
    assert bench.faults.met == {f"files {kind}": 1}
    assert _length(bench.disk) == cached
    assert _length(bench.disk.crash("none")) == durable


def _length(disk: SimulatedDisk) -> int | None:
    return len(disk.content("/a")) if disk.exists("/a") else None


@on_a_bench
async def test_a_failed_open_leaves_no_handle(bench: Bench) -> None:
    bench.add(Target.FILES, Kind.AFTER, verbs=("Open",))
    with pytest.raises(OSError, match="simulated"):
        await bench.files.run(put("/a"))
    assert bench.files.open_handles == 0


@on_a_bench
async def test_a_failed_sync_loses_what_it_should_have_saved(bench: Bench) -> None:
    bench.add(Target.FILES, Kind.BEFORE, verbs=("Sync",))
    with pytest.raises(OSError, match="simulated"):
        await bench.files.run(put("/a"))

    def again() -> Program[None]:
        handle = yield Open("/a", write=True)
        yield Sync(handle)
        yield SyncFolder("/")

    await bench.files.run(again())
    assert bench.disk.crash("all").content("/a") != DATA


@on_a_bench
async def test_a_failed_sync_of_a_folder_loses_names(bench: Bench) -> None:
    bench.add(Target.FILES, Kind.BEFORE, verbs=("SyncFolder",))
    names = [f"/{number}" for number in range(20)]

    def make() -> Program[None]:
        for name in names:
            yield Close((yield Open(name, write=True, create=True)))
        yield SyncFolder("/")

    def again() -> Program[None]:
        yield SyncFolder("/")

    with pytest.raises(OSError, match="simulated"):
        await bench.files.run(make())
    await bench.files.run(again())
    assert len(bench.disk.crash("all").files_below("/")) < len(names)


@on_a_bench
async def test_a_stalled_call_continues_after_its_time(bench: Bench) -> None:
    bench.add(Target.FILES, Kind.STALL, verbs=("Write",), seconds=7.0)
    await bench.files.run(put("/a"))
    assert anyio.current_time() == pytest.approx(7)
    assert bench.disk.content("/a") == DATA


# --- the log service ----------------------------------------------------------------------------


@pytest.mark.parametrize(("kind", "arrived"), [(Kind.BEFORE, 0), (Kind.AFTER, 1)])
@on_a_bench
async def test_a_log_append_without_an_answer_breaks_the_log_for_its_owner(
    bench: Bench, kind: Kind, arrived: int
) -> None:
    log = bench.log()
    await log.open()
    bench.add(Target.LOG, kind, verbs=("append",))
    with pytest.raises(Unavailable, match="simulated"):
        await log.append([b"group"])
    for call in (log.append([b"more"]), log.truncate()):
        with pytest.raises(Unavailable, match="open it again"):
            await call
    with pytest.raises(Unavailable):
        log.check_owner()
    await log.close()
    assert await bench.groups() == arrived


@pytest.mark.parametrize(("seconds", "arrived"), [(5.0, 1), (math.inf, 0)])
@on_a_bench
async def test_a_stalled_log_call_comes_late_or_fails_when_the_faults_are_cleared(
    bench: Bench, seconds: float, arrived: int
) -> None:
    log = bench.log()
    await log.open()
    bench.add(Target.LOG, Kind.STALL, seconds=seconds)
    failures: list[TierlogError] = []

    async def append() -> None:
        try:
            await log.append([b"group"])
        except Unavailable as error:
            failures.append(error)

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(append)
        await anyio.sleep(3)
        assert await bench.groups() == 0
        await anyio.sleep(3)
        bench.faults.clear()
    assert (await bench.groups(), len(failures)) == (arrived, 1 - arrived)


@on_a_bench
async def test_a_cancelled_log_append_breaks_the_log(bench: Bench) -> None:
    log = bench.log()
    await log.open()
    bench.add(Target.LOG, Kind.STALL)
    with anyio.move_on_after(1):
        await log.append([b"group"])
    with pytest.raises(Unavailable):
        await log.append([b"more"])


# --- chunks -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "error", "length"),
    [
        (Kind.BEFORE, Unavailable, 3),
        (Kind.AFTER, OutcomeUnknown, 1003),
        (Kind.LOST, OutcomeUnknown, 3),
        (Kind.PARTIAL, OutcomeUnknown, 303),
        (Kind.FULL, StorageFull, 3),
    ],
)
@on_a_bench
async def test_a_chunk_write_fails(bench: Bench, kind: Kind, error: type[TierlogError], length: int) -> None:
    await bench.chunks.open()
    await bench.chunks.create_with_content("a", [b"abc"])
    bench.add(Target.CHUNKS, kind, keep=300, verbs=("write",))
    with pytest.raises(error):
        await bench.chunks.write("a", 3, [DATA])
    assert len(bench.memory.state.chunks["a"].data) == length
    assert await bench.chunks.write("a", length, [b"d"]) == length + 1


@on_a_bench
async def test_a_chunk_is_read_with_a_flipped_bit_once(bench: Bench) -> None:
    await bench.chunks.open()
    await bench.chunks.create_with_content("a", [b"abc"])
    bench.add(Target.CHUNKS, Kind.FLIP, bit=8)
    assert [await bench.chunks.read("a", 0, 9) for _ in range(2)] == [b"acc", b"abc"]


@on_a_bench
async def test_a_list_is_stale(bench: Bench) -> None:
    await bench.chunks.open()
    bench.add(Target.CHUNKS, Kind.STALE_LIST)
    await bench.chunks.create_with_content("a", [b"abc"])
    assert [[info.name async for info in bench.chunks.list("")] for _ in range(2)] == [[], ["a"]]


@on_a_bench
async def test_a_hanging_chunk_call_has_no_effect_and_fails_when_the_faults_are_cleared(bench: Bench) -> None:
    await bench.chunks.open()
    bench.add(Target.CHUNKS, Kind.STALL)

    async def create() -> None:
        with pytest.raises(OutcomeUnknown):
            await bench.chunks.create_with_content("a", [b"abc"])

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(create)
        await anyio.sleep(100)
        bench.faults.clear()
    assert not bench.memory.state.chunks


# --- objects ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "error", "soon", "late"),
    [
        (Kind.BEFORE, Unavailable, False, False),
        (Kind.AFTER, OutcomeUnknown, True, True),
        (Kind.LOST, OutcomeUnknown, False, False),
        (Kind.LATE, OutcomeUnknown, False, True),
    ],
)
@on_a_bench
async def test_a_put_without_an_answer_took_effect_or_takes_it_later_or_never(
    bench: Bench, kind: Kind, error: type[TierlogError], soon: bool, late: bool
) -> None:
    bench.add(Target.OBJECTS, kind, seconds=5.0, verbs=("put",))
    with pytest.raises(error):
        await bench.objects.put("a", [b"abc"])
    assert ("a" in bench.bucket.objects) is soon
    await anyio.sleep(5)
    assert ("a" in bench.bucket.objects) is late


@on_a_bench
async def test_of_a_repeated_put_the_second_answer_arrives(bench: Bench) -> None:
    bench.add(Target.OBJECTS, Kind.REPEATED)
    assert await bench.objects.put("a", [b"abc"]) is None
    assert bench.bucket.objects == {"a": b"abc"}


@on_a_bench
async def test_a_put_that_is_carried_out_again_finds_what_others_did_meanwhile(bench: Bench) -> None:
    bench.add(Target.OBJECTS, Kind.AGAIN, seconds=5.0)
    assert await bench.objects.put("a", [b"abc"])
    await bench.objects.delete("a")
    await anyio.sleep(5)
    assert bench.bucket.objects == {"a": b"abc"}


@pytest.mark.parametrize("end", ["kill", "freeze", "cancel"])
@on_a_bench
async def test_a_request_on_its_way_arrives_whatever_becomes_of_its_sender(bench: Bench, end: str) -> None:
    bench.gate.latency = Latency(log=8.0, share=1.0)
    ended: list[str] = []

    async def put() -> None:
        try:
            await bench.objects.put("a", [b"abc"])
        except Killed:
            ended.append("kill")

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(put)
        while not bench.bucket._coming:
            await anyio.sleep(0.01)
        match end:
            case "kill":
                bench.gate.kill()
            case "freeze":
                bench.gate.freeze()
            case _:
                tasks.cancel_scope.cancel()
        if end != "cancel":
            await anyio.sleep(20)
            bench.gate.resume()
    assert ("a" in bench.bucket.objects) is (end != "cancel")
    await anyio.sleep(20)
    assert "a" in bench.bucket.objects
    assert ended == (["kill"] if end == "kill" else [])


@on_a_bench
async def test_a_list_of_the_bucket_comes_in_pages_and_has_the_chunks(bench: Bench) -> None:
    await bench.chunks.open()
    await bench.chunks.create_with_content("b", [b"abc"])
    for number in range(7):
        await bench.objects.put(f"a/{number}", [b"abc"])
    bench.add(Target.OBJECTS, Kind.BEFORE, trigger=Nth(2), verbs=("list",))
    with pytest.raises(Unavailable):
        [each async for each in bench.objects.list("a/")]
    assert [each.key async for each in bench.objects.list("a/")] == [f"a/{number}" for number in range(7)]
    assert [each.key async for each in bench.objects.list("lts/")] == ["lts/b"]


@on_a_bench
async def test_a_slow_request_arrives_after_its_seconds(bench: Bench) -> None:
    bench.add(Target.OBJECTS, Kind.STALL, seconds=5.0)
    assert await bench.objects.put("a", [b"abc"])
    assert anyio.current_time() == 5


# --- strikes ------------------------------------------------------------------------------------


async def _act(bench: Bench, target: Target) -> None:
    if target is Target.FILES:
        await bench.files.run(put("/a"))
    elif target is Target.LOG:
        await bench.log().open()
    elif target is Target.OBJECTS:
        await bench.objects.put("a", [b"abc"])
    elif target is Target.LEDGERS:
        await bench.ledgers.create_ledger(Quorum(1, 1, 1), {})
    else:
        await bench.chunks.open()
        await bench.chunks.create_with_content("a", [b"abc"])


def _has_happened(bench: Bench, target: Target) -> bool:
    if target is Target.FILES:
        return bench.disk.exists("/a")
    if target is Target.LOG:
        return bool(bench.service.log("0")._state.epoch)
    if target is Target.OBJECTS:
        return bool(bench.bucket.objects)
    if target is Target.LEDGERS:
        return bool(bench.shared_ledgers.cluster.ledgers)
    return bool(bench.memory.state.chunks)


@pytest.mark.parametrize("target", list(Target))
@pytest.mark.parametrize("kind", [Kind.KILL, Kind.POWER])
@on_a_bench
async def test_a_strike_comes_before_the_effect(bench: Bench, target: Target, kind: Kind) -> None:
    bench.add(target, kind)
    with pytest.raises(Killed):
        await _act(bench, target)
    assert bench.struck == [(kind, 1)]
    assert not _has_happened(bench, target)


@pytest.mark.parametrize("target", list(Target))
@on_a_bench
async def test_a_freeze_delays_the_effect_until_the_process_resumes(bench: Bench, target: Target) -> None:
    bench.add(target, Kind.FREEZE)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(_act, bench, target)
        await anyio.sleep(1000)
        assert not _has_happened(bench, target)
        bench.gate.resume()
    assert _has_happened(bench, target)


@pytest.mark.parametrize("target", list(Target))
@on_a_bench
async def test_a_stalled_call_of_a_killed_process_ends(bench: Bench, target: Target) -> None:
    bench.add(target, Kind.STALL)

    async def act() -> None:
        with pytest.raises(Killed):
            await _act(bench, target)

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(act)
        await anyio.sleep(10)
        bench.gate.kill()
    assert not _has_happened(bench, target)


# --- triggers -----------------------------------------------------------------------------------


@on_a_bench
async def test_the_nth_matching_call_is_met_once(bench: Bench) -> None:
    bench.add(Target.CHUNKS, Kind.BEFORE, trigger=Nth(2), verbs=("read",), part="log", process=1)
    calls = [
        (1, "read", "log/a"),
        (1, "write", "log/a"),
        (2, "read", "log/a"),
        (1, "read", "b"),
        (1, "read", "log/b"),
        (1, "read", "log/c"),
    ]
    met = [bench.faults.next(Target.CHUNKS, *call) is not None for call in calls]
    assert met == [False, False, False, False, True, False]
    assert bench.faults.next(Target.LOG, 1, "read", "log/a") is None


@on_a_bench
async def test_a_window_meets_its_share_of_the_calls_and_ends(bench: Bench) -> None:
    bench.add(Target.LOG, Kind.BEFORE, trigger=Window(10, 0.3))
    met = [bench.faults.next(Target.LOG, 1, "append", "0") is not None for _ in range(1000)]
    assert 200 < sum(met) < 400
    await anyio.sleep(10)
    assert bench.faults.next(Target.LOG, 1, "append", "0") is None


@on_a_bench
async def test_cleared_faults_are_not_met(bench: Bench) -> None:
    bench.add(Target.FILES, Kind.BEFORE, trigger=Window(1e9, 1.0))
    bench.faults.clear()
    await bench.files.run(put("/a"))

    def read() -> Program[bytes]:
        return (yield Read((yield Open("/a")), 0, 2000))  # type: ignore[no-any-return]

    assert await bench.files.run(read()) == DATA


@on_a_bench
async def test_faults_a_target_cannot_have_are_refused(bench: Bench) -> None:
    for target in Target:
        for kind in Kind:
            if (target, kind) in KINDS:
                bench.add(target, kind)
            else:
                with pytest.raises(ValueError, match="cannot suffer"):
                    bench.add(target, kind)
