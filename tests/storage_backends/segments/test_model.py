"""A model test: segments are byte strings, and any sequence of operations, aborts, faults and takeovers
agrees with them.

In memory with and without append, and in files on a disk that loses power at each takeover. Faults come from
the chunk storage and from the record store. At any moment what can be read is what the model says; once the
garbage is collected, storage holds the chunks that the records name and no other.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import attrs
import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from support.chunked import DiskTier2, FailingMetadataStore, MetadataFault, Owner, Tier2
from tierlog.storage_backends.base.errors import ChunkNotFound, OutcomeUnknown, StorageFull, Unavailable
from tierlog.storage_backends.segments.defrag_rules import DefragOptions
from tierlog.storage_backends.segments.options import ChunkedOptions
from tierlog.storage_backends.segments.records import index_key, segment_key
from tierlog.testing.faulty_chunk_storage import Fault, FaultKind, nth

SPACING = 3
CONTAINERS_OF_NAMES = st.sampled_from([0, 1, 2])
DATA = st.binary(max_size=12)
CHUNK_FAULTS = [FaultKind.BEFORE, FaultKind.AFTER, FaultKind.LOST, FaultKind.FULL, FaultKind.PARTIAL]
FAULTS = (
    st.none()
    | st.none()
    | st.tuples(st.integers(1, 3), st.sampled_from(CHUNK_FAULTS))
    | st.sampled_from(MetadataFault)
)
FaultOrNone = tuple[int, FaultKind] | MetadataFault | None
MAKING = ("write", "create_with_content", "concat", "read")


def options(**changes: object) -> ChunkedOptions:
    values: dict[str, object] = {
        "small_max": 8,
        "native_min": 3,
        "growth": 2,
        "relocate_above": 3,
        "relocate_max": 40,
        "loose_chunks": 3,
        **changes,
    }
    defrag = DefragOptions(**values)  # type: ignore[arg-type]  # a test's shorthand
    return ChunkedOptions(index_spacing=SPACING, defrag=defrag, inline_records=2, maintenance_records=4)


@attrs.define
class Model:
    data: bytes = b""
    start: int = 0
    sealed: bool = False


class Segments(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.runner = asyncio.Runner()
        self.tier2 = self.make()
        self.models: dict[int, Model] = {}
        self.epoch = self.newest = 0
        self.take_over()

    def make(self) -> Tier2:
        return Tier2(options=options())

    def teardown(self) -> None:
        """One more owner finds everything. Once its deferred work runs and the garbage is gone, there is
        nothing but what segments need."""
        self.take_over()
        self.run_deferred(None)
        self.take_over()
        self.agrees()
        self.run(self.check_records)
        self.runner.close()

    async def check_records(self) -> None:
        """Every record belongs to a segment, and every multiple of the index spacing inside a chunk has its
        index record."""
        chains = {sid: await self.owner.storage.chunks(sid) for sid in self.models}
        expected = {segment_key(sid) for sid in chains} | {
            record.key for chain in chains.values() for _, record in chain
        }
        for sid, chain in chains.items():
            for start, record in chain:
                multiples = (at for at in range(SPACING, start + record.length, SPACING) if at >= start)
                expected |= {index_key(sid, at) for at in multiples}
        assert {key for key in self.tier2.metadata.entries if not key.endswith(":defrag")} == expected

    def run(self, act: Callable[[], Awaitable[object]]) -> None:
        async def body() -> None:
            await act()

        self.runner.run(body())

    @rule()
    def take_over(self) -> None:
        """A new owner collects what nothing refers to; the old one's chunks get late bytes."""
        self.epoch += 1
        self.metadata = FailingMetadataStore(self.tier2.metadata)

        async def act() -> None:
            self.owner: Owner = await self.tier2.owner(self.epoch, metadata=self.metadata)
            stored = {info.name: info.length async for info in self.owner.chunks.list("")}
            referenced = set(self.tier2.referenced())
            assert referenced <= stored.keys() <= set(self.tier2.sink.tracked)
            for name, length in stored.items():
                if name not in referenced:
                    await self.owner.chunks.delete(name)
                elif self.owner.chunks.capabilities.append:
                    await self.owner.chunks.write(name, length, [b"zombie"])
                else:
                    self.tier2.chunks.chunks[name].data += b"zombie"
            assert {info.name async for info in self.owner.chunks.list("")} == referenced

        self.run(act)

    @rule(
        place=CONTAINERS_OF_NAMES,
        data=DATA,
        more=DATA,
        rolling_size=st.integers(1, 20),
        end=st.sampled_from(["commit", "commit", "abort", "seal"]),
        fault=FAULTS,
    )
    def write(
        self, place: int, data: bytes, more: bytes, rolling_size: int, end: str, fault: FaultOrNone
    ) -> None:
        sid = (
            sorted(self.models)[place] if place < len(self.models) else self.newest + 1
        )  # an id is never used again
        model = self.models.get(sid, Model())
        if model.sealed:
            return

        async def act() -> None:
            length = len(model.data)
            with self.owner.storage.begin(sid, create=True, rolling_size=rolling_size) as txn:
                await self.owner.storage.write(txn, length, [data])
                await self.owner.storage.write(txn, length + len(data), [more])
                if end == "seal":
                    await self.owner.storage.seal(txn)
                if end != "abort":
                    await txn.commit()

        if self.attempt(act, fault):
            self.newest = max(self.newest, sid)
            self.models[sid] = Model(model.data + data + more, model.start, end == "seal")

    def attempt(self, act: Callable[[], Awaitable[object]], fault: FaultOrNone) -> bool:
        """Whether ``act``, which commits once, was applied."""
        self.metadata.fault, self.metadata.applied = (
            (fault, False) if isinstance(fault, MetadataFault) else (None, False)
        )
        self.owner.chunks.script = (
            nth(fault[0], Fault(fault[1], keep=2), *MAKING) if isinstance(fault, tuple) else None
        )

        async def attempt() -> None:
            try:
                await act()
            except (Unavailable, OutcomeUnknown, StorageFull):
                assert fault is not None

        self.run(attempt)
        self.owner.chunks.script = self.metadata.fault = None
        return self.metadata.applied

    @precondition(lambda self: self.models)
    @rule(data=st.data(), fault=FAULTS)
    def truncate(self, data: st.DataObject, fault: FaultOrNone) -> None:
        sid = data.draw(st.sampled_from(sorted(self.models)))
        offset = data.draw(st.integers(0, len(self.models[sid].data)))
        if self.attempt(lambda: self.owner.truncate(offset, sid), fault):
            self.models[sid].start = max(self.models[sid].start, offset)

    @precondition(lambda self: len(self.models) > 1)
    @rule(data=st.data(), fault=FAULTS)
    def concat(self, data: st.DataObject, fault: FaultOrNone) -> None:
        targets = [sid for sid, model in self.models.items() if not model.sealed]
        sources = [sid for sid, model in self.models.items() if not model.start]
        pairs = [(target, source) for target in targets for source in sources if source != target]
        if not pairs:
            return

        target, source = data.draw(st.sampled_from(pairs))

        if not self.models[source].sealed:
            self.run(lambda: self.owner.write(len(self.models[source].data), sid=source, seal=True))
            self.models[source].sealed = True
        if self.attempt(lambda: self.owner.concat(source, target), fault):
            self.models[target].data += self.models.pop(source).data

    @precondition(lambda self: self.models)
    @rule(data=st.data(), fault=FAULTS)
    def delete(self, data: st.DataObject, fault: FaultOrNone) -> None:
        sid = data.draw(st.sampled_from(sorted(self.models)))
        if self.attempt(lambda: self.owner.delete(sid), fault):
            del self.models[sid]

    @precondition(lambda self: self.models)
    @rule(data=st.data(), fault=FAULTS)
    def defrag(self, data: st.DataObject, fault: FaultOrNone) -> None:
        """Whatever becomes of it, the bytes are the same."""
        sid = data.draw(st.sampled_from(sorted(self.models)))
        self.attempt(lambda: self.owner.storage.defrag(sid), fault)

    @precondition(lambda self: self.models)
    @rule(data=st.data(), fault=FAULTS)
    def relocate(self, data: st.DataObject, fault: FaultOrNone) -> None:
        sid = data.draw(st.sampled_from(sorted(self.models)))
        self.attempt(lambda: self.owner.relocate(sid), fault)

    @rule(fault=FAULTS)
    def run_deferred(self, fault: FaultOrNone) -> None:
        """Deferred work, step by step; invisible from outside."""

        async def act() -> None:
            while pending := await self.owner.storage.deferred_work():
                await self.owner.storage.run_deferred(pending[0])

        self.attempt(act, fault)

    @rule(data=st.data(), fault=FAULTS)
    def run_a_deferred_step(self, data: st.DataObject, fault: FaultOrNone) -> None:
        """On any deferred work, in any order."""

        async def act() -> None:
            if pending := await self.owner.storage.deferred_work():
                await self.owner.storage.run_deferred(data.draw(st.sampled_from(list(pending))))

        self.attempt(act, fault)

    @rule()
    def collect(self) -> None:
        """Delete what was released, as the collector does."""

        async def act() -> None:
            for name in self.tier2.sink.released:
                try:
                    await self.owner.chunks.delete(name)
                except ChunkNotFound:
                    continue

        self.run(act)

    @invariant()
    def agrees(self) -> None:
        async def check() -> None:
            assert await self.owner.storage.list() == sorted(self.models)
            for sid, model in self.models.items():
                info = await self.owner.storage.info(sid)
                assert (info.length, info.start_offset, info.sealed) == (
                    len(model.data),
                    model.start,
                    model.sealed,
                )
                assert await self.owner.content(sid) == model.data[model.start :]

        self.run(check)
        assert not set(self.tier2.sink.released) & set(self.tier2.referenced())


class SegmentsWithoutAppend(Segments):
    def make(self) -> Tier2:
        return Tier2(append=False, options=options())


class SegmentsJoinedInline(Segments):
    def make(self) -> Tier2:
        return Tier2(options=options(inline=True))


class SegmentsOnDisk(Segments):
    def make(self) -> Tier2:
        return DiskTier2(options=options())


SETTINGS = settings(stateful_step_count=30, suppress_health_check=[HealthCheck.too_slow])
MACHINES = {
    "append": Segments,
    "no-append": SegmentsWithoutAppend,
    "inline": SegmentsJoinedInline,
    "disk": SegmentsOnDisk,
}


@pytest.mark.parametrize("machine", MACHINES.values(), ids=MACHINES.keys())
def test_segments_behave_like_byte_strings(machine: type[Segments]) -> None:
    case = machine.TestCase
    case.settings = SETTINGS
    case().runTest()
