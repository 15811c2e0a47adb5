"""Admission: disk, memory and failing segments, each with its own gate (rules C6, W6, F4)."""

from __future__ import annotations

from typing import Any

import anyio
import attrs
import pytest

from support.container_parts import NAME, Parts, append
from support.container_world import virtual_time
from tierlog.actors.container.admission import Admission, AdmissionOptions
from tierlog.storage_backends.base.errors import StorageFull, Throttled, TierlogError

pytestmark = [pytest.mark.anyio, virtual_time]

OPTIONS = AdmissionOptions(
    soft_bytes=100, hard_bytes=200, segment_bytes=50, delay_max=2.0, space_interval=1.0
)


@attrs.define
class Log:
    room: bool = True
    room_after_look: bool = False
    checks: int = 0

    def has_room(self, size: int) -> bool:
        return self.room

    async def check_space(self) -> None:
        self.checks += 1
        self.room = self.room_after_look


@attrs.define
class Writer:
    failing: dict[int, TierlogError] = attrs.field(factory=dict)
    requested: int = 0
    progress: anyio.Event = attrs.field(factory=anyio.Event)

    def request_cycle(self) -> None:
        self.requested += 1


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
    gates.writer.failing[gates.parts.segment().sid] = StorageFull("its safe size is 100")
    with pytest.raises(StorageFull, match="200 bytes wait to be flushed.*its safe size is 100"):
        await gates.admission.admit(NAME, 10)

    gates.writer.failing.clear()
    with pytest.raises(Throttled):
        await gates.admission.admit(NAME, 10)


@pytest.mark.parametrize("pinned", [150, 200])
async def test_full_memory_requests_a_flush_cycle(pinned: int) -> None:
    """Many small segments fill memory before any of them is due by size or age."""
    gates = Gates()
    gates.pin(pinned)
    with anyio.move_on_after(5):
        try:
            await gates.admission.admit(NAME, 10)
        except Throttled:
            assert pinned == 200

    assert gates.writer.requested == 1


async def test_a_full_disk_refuses_appends_before_anything_is_written() -> None:
    """W6."""
    gates = Gates(log=Log(room=False))
    with pytest.raises(StorageFull, match="free space, truncate or delete"):
        await gates.admission.admit(NAME, 10)

    assert gates.admission.statistics().refused_full == 1


async def test_a_full_disk_is_checked_again_periodically() -> None:
    """W6: refused appends write nothing, so nobody else would notice that space was freed."""
    gates = Gates(log=Log(room=False))
    for _ in range(3):
        with pytest.raises(StorageFull):
            await gates.admission.admit(NAME, 10)
    assert gates.log.checks == 1

    gates.log.room_after_look = True
    await anyio.sleep(1.0)
    await gates.admission.admit(NAME, 10)
    assert gates.log.checks == 2


async def test_without_pressure_an_append_does_not_suspend() -> None:
    gates = Gates()
    with anyio.CancelScope() as scope:
        scope.cancel()
        await gates.admission.admit(NAME, 10)

    assert not scope.cancelled_caught
