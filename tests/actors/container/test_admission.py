"""Admission: disk, memory and failing segments, each with its own gate (rules C6, W6, F4)."""

from __future__ import annotations

from typing import Any

import anyio
import attrs
import pytest

from support.container_parts import NAME, Parts, append
from support.container_world import virtual_time
from tierlog.actors.container.admission import Admission, AdmissionOptions
from tierlog.actors.flush.flush_failures import FlushFailures
from tierlog.storage_backends.base.errors import StorageFull, Throttled

pytestmark = [pytest.mark.anyio, virtual_time]

OPTIONS = AdmissionOptions(
    soft_bytes=100, hard_bytes=200, segment_bytes=50, delay_max=2.0, space_interval=1.0
)


class Log:
    """A log with room."""

    def has_room(self, size: int) -> bool:
        return True


@attrs.define
class Writer:
    failures: FlushFailures = attrs.field(factory=lambda: FlushFailures(lambda sid: None))
    progress: anyio.Event = attrs.field(factory=anyio.Event)

    def request_cycle(self) -> None:
        """Nobody flushes here."""


@attrs.define
class Gates:
    parts: Parts = attrs.field(factory=Parts)
    log: Log = attrs.field(factory=Log)
    writer: Writer = attrs.field(factory=Writer)
    admission: Admission = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        log: Any = self.log
        writer: Any = self.writer
        self.admission = Admission(self.parts.state, self.parts.cache, log, writer, OPTIONS)
        self.parts.create(NAME, "other")

    def pin(self, size: int, name: str = NAME) -> None:
        """Append bytes that nobody flushes."""
        self.parts.do(append(name, bytes(size)))

    async def seconds(self, name: str = NAME) -> float:
        """How long an append has to wait."""
        before = anyio.current_time()
        await self.admission.admit(name, 10)
        return anyio.current_time() - before


@pytest.mark.parametrize(("pinned", "seconds"), [(0, 0.0), (99, 0.0), (100, 0.0), (150, 1.0), (199, 1.98)])
async def test_appends_wait_in_proportion_to_unflushed_memory(pinned: int, seconds: float) -> None:
    """C6: between the soft and the hard limit, before the mailbox and never in its drain."""
    gates = Gates()
    gates.pin(pinned)

    assert await gates.seconds() == pytest.approx(seconds)
    assert gates.admission.statistics().delayed == (pinned >= 100)


async def test_a_delay_ends_when_the_writer_makes_progress() -> None:
    gates = Gates()
    gates.pin(150)
    async with anyio.create_task_group() as tasks:

        async def progress() -> None:
            await anyio.sleep(0.25)
            gates.writer.progress.set()

        tasks.start_soon(progress)
        assert await gates.seconds() == pytest.approx(0.25)


async def test_a15_above_the_hard_limit_a_full_long_term_storage_is_named() -> None:
    """Waiting makes no room there, so the append must fail."""
    gates = Gates()
    gates.pin(200)
    gates.writer.failures.failed(gates.parts.segment().sid, StorageFull("its safe size is 100"))
    with pytest.raises(StorageFull, match="200 bytes wait to be flushed.*its safe size is 100"):
        await gates.admission.admit(NAME, 10)

    gates.writer.failures.flushed(gates.parts.segment().sid)
    with pytest.raises(Throttled):
        await gates.admission.admit(NAME, 10)


async def test_without_pressure_an_append_does_not_suspend() -> None:
    gates = Gates()
    with anyio.CancelScope() as scope:
        scope.cancel()
        await gates.admission.admit(NAME, 10)

    assert not scope.cancelled_caught
