"""The store record is checked once for all containers of a process (rule J10)."""

from __future__ import annotations

import anyio
import pytest

from support.container_world import virtual_time
from tierlog.actors.container.shared_store_record import SharedStoreRecord
from tierlog.journal.manifest.store_record import STORE_RECORD
from tierlog.storage_backends.base.errors import TierlogError
from tierlog.storage_backends.chunks.memory import MemoryChunkState, MemoryChunkStorage
from tierlog.testing.faulty_chunk_storage import Call, Fault, FaultKind, FaultyChunkStorage, every

pytestmark = [pytest.mark.anyio, virtual_time]

STORE = b"S" * 16
SLOW = every(Fault(FaultKind.DELAY, seconds=1))


async def open_chunks(state: MemoryChunkState | None = None) -> FaultyChunkStorage:
    chunks = FaultyChunkStorage(
        MemoryChunkStorage(state or MemoryChunkState()), SLOW, hang=lambda: anyio.sleep(10)
    )
    await chunks.open()
    return chunks


async def answers(record: SharedStoreRecord, chunks: FaultyChunkStorage, count: int) -> list[str]:
    """The answers to containers that open at the same time."""
    found: list[str] = []

    async def begin() -> None:
        try:
            await record.check(chunks)
            await record.ensure(chunks)
        except TierlogError as error:
            found.append(type(error).__name__)
        else:
            found.append("ok")

    async with anyio.create_task_group() as tasks:
        for _ in range(count):
            tasks.start_soon(begin)
    return found


async def test_containers_that_open_at_the_same_time_ask_once() -> None:
    chunks = await open_chunks()
    for _ in range(2):
        assert await answers(SharedStoreRecord(STORE, 4), chunks, 4) == 4 * ["ok"]
    verbs = [call.verb for call in chunks.calls if call.name == STORE_RECORD]
    assert verbs == [*("read", "read", *2 * ("create_with_content",)), *("read", "create_with_content")]


async def test_a_failed_attempt_fails_for_all_and_is_made_again() -> None:
    """Long-term storage that does not answer is asked once, and not by one container after the other."""
    chunks, record = await open_chunks(), SharedStoreRecord(STORE, 4)
    chunks.script = every(Fault(FaultKind.HANG))
    assert await answers(record, chunks, 4) == 4 * ["OutcomeUnknown"]
    assert len(chunks.calls) == 1
    chunks.script = None
    assert await answers(record, chunks, 4) == 4 * ["ok"]


async def test_another_stores_record_refuses_all() -> None:
    state = MemoryChunkState()
    assert await answers(SharedStoreRecord(b"T" * 16, 4), await open_chunks(state), 1) == ["ok"]
    assert await answers(SharedStoreRecord(STORE, 4), await open_chunks(state), 3) == 3 * ["StoreMismatch"]


async def test_a_check_that_had_no_room_is_made_again_by_the_next_container() -> None:
    """J10: it is no proof that creation is conditional."""
    state = MemoryChunkState()
    assert await answers(SharedStoreRecord(STORE, 4), await open_chunks(state), 1) == ["ok"]
    chunks, record = await open_chunks(state), SharedStoreRecord(STORE, 4)
    chunks.script = every(Fault(FaultKind.FULL), "create_with_content")
    assert await answers(record, chunks, 2) == 2 * ["ok"]
    chunks.script = lambda call: overwrite(state, call)
    assert await answers(record, chunks, 1) == ["StoreMismatch"]


def overwrite(state: MemoryChunkState, call: Call) -> None:
    if call.verb == "create_with_content":
        state.chunks.pop(call.name, None)


async def test_a_cancelled_attempt_is_made_again() -> None:
    chunks, record = await open_chunks(), SharedStoreRecord(STORE, 4)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(record.check, chunks)
        await anyio.sleep(0.5)
        tasks.cancel_scope.cancel()
    assert await answers(record, chunks, 1) == ["ok"]
