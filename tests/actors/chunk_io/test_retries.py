"""What is tried again, and what surfaces once (rules A12 and S3)."""

from __future__ import annotations

import math
from random import Random
from typing import Any

import pytest

from support.scripted_chunks import ScriptedChunks
from tierlog.actors.chunk_io.calls import (
    CONCAT,
    CREATE,
    CREATE_WITH_CONTENT,
    DELETE,
    EXISTS,
    INFO,
    LIST,
    READ,
    USED_SPACE,
    VERBS,
    WRITE,
    ChunkCall,
    Retry,
)
from tierlog.actors.chunk_io.retries import Attempts, Next, next_step
from tierlog.actors.kernel.backoff import Backoff
from tierlog.storage_backends.base.chunk_storage import ChunkRange
from tierlog.storage_backends.base.errors import (
    ChunkExists,
    ChunkNotFound,
    OutcomeUnknown,
    StorageFull,
    TierlogError,
    Unavailable,
)
from tierlog.storage_backends.chunks.memory import MemoryChunkStorage
from tierlog.testing.faulty_chunk_storage import Fault, FaultKind

pytestmark = pytest.mark.anyio

DOWN = Fault(FaultKind.BEFORE)
LOST = Fault(FaultKind.AFTER)
NOT_SENT = Fault(FaultKind.LOST)
ERRORS = {FaultKind.BEFORE: Unavailable, FaultKind.AFTER: OutcomeUnknown, FaultKind.LOST: OutcomeUnknown}
CREATION = ChunkCall(CREATE_WITH_CONTENT, "c/1", ([b"abc", b"def"],))


class Trial:
    """Attempts over scripted chunks; ``seen`` is what the breaker would see."""

    def __init__(self, limit: int = 3) -> None:
        self.chunks = ScriptedChunks()
        self.seen: list[BaseException | None] = []
        self.attempts = Attempts(
            self.chunks,
            limit,
            Backoff(first=0, maximum=0),
            Random(1),
            lambda _, error: self.seen.append(error),
        )

    async def carry_out(self, call: ChunkCall[Any]) -> Any:
        await self.chunks.memory.open()
        return await self.attempts.perform(call, lambda: True)


@pytest.mark.parametrize("unsure", [False, True])
@pytest.mark.parametrize("retry", list(Retry))
@pytest.mark.parametrize("kind", [Unavailable, OutcomeUnknown, ChunkExists, ChunkNotFound, StorageFull])
def test_the_whole_table(retry: Retry, kind: type[TierlogError], unsure: bool) -> None:
    failure: dict[tuple[type[TierlogError], Retry], Next] = {
        (Unavailable, Retry.REPEAT): Next.REPEAT,
        (Unavailable, Retry.DELETE): Next.REPEAT,
        (Unavailable, Retry.CREATE): Next.REPEAT,
        (OutcomeUnknown, Retry.REPEAT): Next.REPEAT,
        (OutcomeUnknown, Retry.DELETE): Next.REPEAT,
        (OutcomeUnknown, Retry.CREATE): Next.READ_BACK,
    }
    after_doubt: dict[tuple[type[TierlogError], Retry], Next] = {
        (ChunkExists, Retry.CREATE): Next.READ_BACK,
        (ChunkNotFound, Retry.DELETE): Next.DONE,
    }
    expected = (
        failure.get((kind, retry)) or (after_doubt.get((kind, retry)) if unsure else None) or Next.RAISE
    )
    assert next_step(retry, kind("failed"), unsure, reads_are_durable=True) is expected

    creation_in_doubt = (kind, retry) == (OutcomeUnknown, Retry.CREATE)
    assert next_step(retry, kind("failed"), unsure, reads_are_durable=False) is (
        Next.RAISE if creation_in_doubt else expected
    )


async def test_bytes_in_the_page_cache_do_not_make_a_creation_durable() -> None:
    """A simulated power loss took a chunk that had been read back after its folder's sync failed: the log was
    truncated by then."""
    trial = Trial()
    trial.chunks.memory = trial.chunks.inner = MemoryChunkStorage(reads_are_durable=False)
    trial.chunks.plan("create_with_content", LOST)
    with pytest.raises(OutcomeUnknown):
        await trial.carry_out(ChunkCall(CREATE_WITH_CONTENT, "a", ((b"x",),)))

    assert trial.attempts.statistics().read_backs == 0


def test_only_safe_calls_are_repeated() -> None:
    once = {verb.name for verb in VERBS if verb.retry is Retry.NEVER}
    assert once == {"create", "write", "concat", "set_read_only", "delete_many"}
    assert {verb.name for verb in VERBS if verb.mutates} == once | {"create_with_content", "delete"}


@pytest.mark.parametrize("fault", [DOWN, LOST, NOT_SENT], ids=["down", "lost", "not-sent"])
@pytest.mark.parametrize(
    ("verb", "call"),
    [
        ("exists", ChunkCall(EXISTS, "a")),
        ("info", ChunkCall(INFO, "a")),
        ("read", ChunkCall(READ, "a", (0, 9))),
        ("list", ChunkCall(LIST, "", ("", 10, math.inf))),
        ("used_space", ChunkCall(USED_SPACE, "")),
    ],
)
async def test_reads_are_repeated(verb: str, call: ChunkCall[Any], fault: Fault) -> None:
    trial = Trial()
    await trial.chunks.memory.open()
    await trial.chunks.memory.create_with_content("a", [b"x"])
    trial.chunks.plan(verb, fault, fault)
    assert await trial.carry_out(call)
    assert trial.chunks.count(verb) == 3
    assert [type(error) for error in trial.seen] == [ERRORS[fault.kind]] * 2 + [type(None)]


async def test_attempts_are_limited() -> None:
    trial = Trial(limit=3)
    trial.chunks.plan("read", *[DOWN] * 5)
    with pytest.raises(Unavailable):
        await trial.carry_out(ChunkCall(READ, "a", (0, 1)))
    assert trial.chunks.count("read") == 3
    assert trial.attempts.statistics().retries == 2


async def test_answers_are_never_repeated() -> None:
    trial = Trial()
    with pytest.raises(ChunkNotFound):
        await trial.carry_out(ChunkCall(READ, "absent", (0, 1)))
    assert trial.chunks.count("read") == 1


@pytest.mark.parametrize("fault", [DOWN, LOST], ids=["down", "lost"])
@pytest.mark.parametrize(
    ("verb", "call"),
    [
        ("write", ChunkCall(WRITE, "a", (1, [b"y"]))),
        ("concat", ChunkCall(CONCAT, "b", ([ChunkRange("a", 0, 1)],))),
        ("create", ChunkCall(CREATE, "b")),
    ],
    ids=["write", "concat", "create"],
)
async def test_write_and_concat_surface_once(verb: str, call: ChunkCall[Any], fault: Fault) -> None:
    trial = Trial()
    await trial.chunks.memory.open()
    await trial.chunks.memory.create_with_content("a", [b"x"])
    trial.chunks.plan(verb, fault)
    with pytest.raises(ERRORS[fault.kind]):
        await trial.carry_out(call)
    assert trial.chunks.count(verb) == 1


async def test_a_lost_reply_of_a_create_is_read_back_and_is_success() -> None:
    trial = Trial()
    trial.chunks.plan("create_with_content", LOST)
    assert await trial.carry_out(CREATION) == 6
    assert trial.chunks.count("create_with_content") == 1
    assert trial.attempts.statistics().read_backs == 1


async def test_a_create_that_never_arrived_is_repeated() -> None:
    trial = Trial()
    trial.chunks.plan("create_with_content", NOT_SENT, DOWN)
    assert await trial.carry_out(CREATION) == 6
    assert trial.chunks.count("create_with_content") == 3


async def test_an_empty_create_is_read_back_too() -> None:
    trial = Trial()
    trial.chunks.plan("create_with_content", LOST)
    assert await trial.carry_out(ChunkCall(CREATE_WITH_CONTENT, "c/1", ([],))) == 0


@pytest.mark.parametrize("content", [b"abcdeX", b"abcdefg", b""], ids=["other bytes", "longer", "empty"])
async def test_a_foreign_chunk_is_not_taken_for_ours(content: bytes) -> None:
    trial = Trial()
    await trial.chunks.memory.open()
    await trial.chunks.memory.create_with_content("c/1", [content])
    trial.chunks.plan("create_with_content", NOT_SENT)
    with pytest.raises(ChunkExists, match="other content"):
        await trial.carry_out(CREATION)


async def test_an_existing_chunk_without_doubt_is_a_plain_conflict() -> None:
    """The same bytes do not make it ours: no attempt of ours can have made it."""
    trial = Trial()
    await trial.chunks.memory.open()
    await trial.chunks.memory.create_with_content("c/1", CREATION.arguments[0])
    trial.chunks.plan("create_with_content", DOWN)
    with pytest.raises(ChunkExists):
        await trial.carry_out(CREATION)
    assert trial.attempts.statistics().read_backs == 0


async def test_a_read_back_that_fails_is_retried_with_the_create() -> None:
    trial = Trial()
    trial.chunks.plan("create_with_content", LOST)
    trial.chunks.plan("read", DOWN)
    assert await trial.carry_out(CREATION) == 6
    assert trial.attempts.statistics().read_backs == 2


async def test_an_unknown_outcome_stays_unknown_when_the_storage_goes_down() -> None:
    """The last error says that nothing happened, an earlier one that something may have: the operation's
    outcome is unknown."""
    trial = Trial()
    trial.chunks.plan("create_with_content", LOST, DOWN, DOWN)
    trial.chunks.plan("read", DOWN)
    with pytest.raises(OutcomeUnknown, match="the outcome of an attempt is unknown"):
        await trial.carry_out(CREATION)


async def test_a_delete_found_done_is_success() -> None:
    trial = Trial()
    await trial.chunks.memory.open()
    await trial.chunks.memory.create_with_content("a", [b"x"])
    trial.chunks.plan("delete", LOST)
    await trial.carry_out(ChunkCall(DELETE, "a"))
    assert trial.chunks.count("delete") == 2


async def test_a_delete_of_a_missing_chunk_is_an_answer() -> None:
    trial = Trial()
    trial.chunks.plan("delete", DOWN)
    with pytest.raises(ChunkNotFound):
        await trial.carry_out(ChunkCall(DELETE, "a"))


async def test_without_waiters_nothing_is_retried() -> None:
    trial = Trial()
    trial.chunks.plan("read", DOWN)
    with pytest.raises(Unavailable):
        await trial.attempts.perform(ChunkCall(READ, "a", (0, 1)), lambda: False)
    assert trial.chunks.count("read") == 1
    assert repr(trial.attempts) == "<Attempts 0 retries, 0 read back>"
