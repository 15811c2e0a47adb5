"""A model test: segments are byte strings, and any sequence of operations, aborts, faults and takeovers agrees with them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import anyio
import attrs
import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from support.chunked import Owner, Tier2
from tierlog.storage_backends.base.errors import OutcomeUnknown, StorageFull, Unavailable
from tierlog.storage_backends.chunked.core import ChunkedOptions
from tierlog.testing.faulty_chunk_storage import Fault, FaultKind, nth

IDS = st.sampled_from([1, 2, 3])
DATA = st.binary(max_size=12)
FAULTS = (
    st.none()
    | st.none()
    | st.tuples(st.integers(1, 3), st.sampled_from([FaultKind.BEFORE, FaultKind.AFTER, FaultKind.LOST, FaultKind.FULL, FaultKind.PARTIAL]))
)


@attrs.define
class Model:
    data: bytes = b""
    start: int = 0
    sealed: bool = False


def run(act: Callable[[], Awaitable[object]]) -> None:
    anyio.run(act)


class Segments(RuleBasedStateMachine):
    append = True

    def __init__(self) -> None:
        super().__init__()
        self.tier2 = Tier2(append=self.append, options=ChunkedOptions(index_spacing=3))
        self.models: dict[int, Model] = {}
        self.epoch = 0
        self.take_over()

    @rule()
    def take_over(self) -> None:
        """A new owner; the old one's chunks get late bytes."""
        self.epoch += 1
        self.owner: Owner = anyio.run(self.tier2.owner, self.epoch)
        for chunk in self.tier2.chunks.chunks.values():
            chunk.data += b"zombie"

    @rule(
        sid=IDS,
        data=DATA,
        more=DATA,
        rolling_size=st.integers(1, 9),
        end=st.sampled_from(["commit", "commit", "abort", "seal"]),
        fault=FAULTS,
    )
    def write(self, sid: int, data: bytes, more: bytes, rolling_size: int, end: str, fault: tuple[int, FaultKind] | None) -> None:
        model = self.models.get(sid, Model())
        if model.sealed:
            return

        async def act() -> bool:
            length = len(model.data)
            with self.owner.storage.begin(sid, create=True, rolling_size=rolling_size) as txn:
                await self.owner.storage.write(txn, length, [data])
                await self.owner.storage.write(txn, length + len(data), [more])
                if end == "seal":
                    await self.owner.storage.seal(txn)
                if end != "abort":
                    await txn.commit()
            return end != "abort"

        if self.attempt(act, fault):
            self.models[sid] = Model(model.data + data + more, model.start, end == "seal")

    def attempt(self, act: Callable[[], Awaitable[bool]], fault: tuple[int, FaultKind] | None) -> bool:
        """Whether ``act`` committed; a fault means that it did not."""
        done = False

        async def attempt() -> None:
            nonlocal done
            self.owner.chunks.script = fault and nth(fault[0], Fault(fault[1], keep=2), "write", "create_with_content")
            try:
                done = await act()
            except (Unavailable, OutcomeUnknown, StorageFull):
                done = False
            self.owner.chunks.script = None

        run(attempt)
        return done

    @precondition(lambda self: self.models)
    @rule(data=st.data())
    def truncate(self, data: st.DataObject) -> None:
        sid = data.draw(st.sampled_from(sorted(self.models)))
        offset = data.draw(st.integers(0, len(self.models[sid].data)))
        run(lambda: self.owner.truncate(offset, sid))
        self.models[sid].start = max(self.models[sid].start, offset)

    @precondition(lambda self: len(self.models) > 1)
    @rule(data=st.data())
    def concat(self, data: st.DataObject) -> None:
        targets = [sid for sid, model in self.models.items() if not model.sealed]
        sources = [sid for sid, model in self.models.items() if not model.start]
        pairs = [(target, source) for target in targets for source in sources if source != target]
        if not pairs:
            return

        target, source = data.draw(st.sampled_from(pairs))

        if not self.models[source].sealed:
            run(lambda: self.owner.write(len(self.models[source].data), sid=source, seal=True))
        run(lambda: self.owner.concat(source, target))
        self.models[target].data += self.models.pop(source).data

    @precondition(lambda self: self.models)
    @rule(data=st.data())
    def delete(self, data: st.DataObject) -> None:
        sid = data.draw(st.sampled_from(sorted(self.models)))
        run(lambda: self.owner.delete(sid))
        del self.models[sid]

    @rule()
    def collect(self) -> None:
        """Delete what was released, as the collector does."""
        for name in self.tier2.sink.released:
            self.tier2.chunks.chunks.pop(name, None)

    @invariant()
    def agrees(self) -> None:
        async def check() -> None:
            assert await self.owner.storage.list() == sorted(self.models)
            for sid, model in self.models.items():
                info = await self.owner.storage.info(sid)
                assert (info.length, info.start_offset, info.sealed) == (len(model.data), model.start, model.sealed)
                assert await self.owner.content(sid) == model.data[model.start :]

        run(check)
        assert set(self.tier2.names()) <= {*self.tier2.referenced(), *self.tier2.sink.released}
        assert not set(self.tier2.sink.released) & set(self.tier2.referenced())


class SegmentsWithoutAppend(Segments):
    append = False


SETTINGS = settings(max_examples=60, stateful_step_count=30, deadline=None, suppress_health_check=[HealthCheck.too_slow])


@pytest.mark.parametrize("machine", [Segments, SegmentsWithoutAppend], ids=["append", "no-append"])
def test_segments_behave_like_byte_strings(machine: type[Segments]) -> None:
    case = machine.TestCase
    case.settings = SETTINGS
    case().runTest()
