"""The loads of chaos_lts_only.py: any state that may be recovered is accepted, and every other one found."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any, cast

import pytest

import tierlog
from chaos_parts.events import event_bytes
from chaos_parts.ledger import Writer
from chaos_parts.lts_loads import Events, Load, Merges, Rows, Transactions, compare_events
from chaos_parts.processes import RunError

pytestmark = pytest.mark.anyio
STEPS = 23


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[tierlog.Client]:
    """A store of one process has the verbs of a client."""
    async with tierlog.open_store(tmp_path / "data", containers=1) as made:
        yield cast("tierlog.Client", made)


def events(name: str) -> Events:
    return Events(name, Writer("w0", name, 0, numbered=True))


async def taken(store: tierlog.Client, load: Load, steps: int = STEPS) -> Load:
    await load.create(store)
    for number in range(steps):
        await load.step(store, number)
    load.sent = load.acked = steps
    load.mark()
    load.note_flushed()
    return load


Make = Callable[[str], Load]
KINDS: list[Make] = [events, Merges, Transactions, Rows]


@pytest.mark.parametrize("kind", KINDS)
async def test_what_was_flushed_is_accepted_and_gone_on_from(store: tierlog.Client, kind: Make) -> None:
    load = await taken(store, kind("s"))
    assert await load.check(store) == 0

    load.sent, load.acked = STEPS + 9, STEPS + 8  # acked and lost
    assert await load.check(store) == 8
    assert (load.sent, load.acked, load.flushed) == (STEPS, STEPS, STEPS)

    for number in range(STEPS, STEPS + 5):
        await load.step(store, number)
    load.sent, load.acked = STEPS + 5, STEPS + 4
    assert await load.check(store) == 0
    assert load.flushed == STEPS + 5


@pytest.mark.parametrize("kind", KINDS)
async def test_what_was_flushed_and_is_missing_is_found(store: tierlog.Client, kind: Make) -> None:
    load = await taken(store, kind("s"))
    load.sent = load.acked = load.flushed = STEPS + 1

    with pytest.raises(RunError, match=f"s: {STEPS} steps are there; {STEPS + 1} were flushed"):
        await load.check(store)


@pytest.mark.parametrize("kind", KINDS)
async def test_what_was_never_sent_is_found(store: tierlog.Client, kind: Make) -> None:
    load = await taken(store, kind("s"))
    load.sent = load.acked = load.flushed = STEPS - 1

    with pytest.raises(RunError, match=f"s: {STEPS} steps are there; .* {STEPS - 1} sent"):
        await load.check(store)


async def test_a_merge_and_a_transaction_that_were_begun_are_completed(store: tierlog.Client) -> None:
    merges = await taken(store, Merges("m"))
    await store.create_segment(f"m#a-{STEPS}")
    await store.append(f"m#a-{STEPS}", cast("Merges", merges).parts(STEPS)[0][:7])
    transactions = await taken(store, Transactions("t"), 5)
    await store.begin_transaction("t", "run-000005", token=tierlog.TransactionToken("t", 5))
    staged = await store.stage_segment("t", "run-000005", "a")
    await store.append(staged, cast("Transactions", transactions).parts(5)[0][:7])

    for load in (merges, transactions):
        load.sent = load.acked + 1
        assert await load.check(store) == 0
        load.sent = load.acked + 1
        await load.step(store, load.acked)
        assert await load.check(store) == 0
    assert (merges.acked, transactions.acked) == (STEPS + 1, 6)


Damage = Callable[[Any], Awaitable[object]]


def append(name: str, data: bytes) -> Damage:
    return lambda store: store.append(name, data)


async def leave_a_source(store: Any) -> None:
    await store.create_segment(f"s#a-{STEPS - 1}")


async def count_one_more(store: Any) -> None:
    await store.update_attributes("s", [tierlog.AttributeUpdate("merged", STEPS + 1)])


async def begin_a_later_one(store: Any) -> None:
    await store.begin_transaction("s", f"run-{STEPS + 1:06d}")


async def change_a_row(store: Any) -> None:
    await store.table("s").put(b"0000", b"other")


@pytest.mark.parametrize(
    "kind, damage, says",
    [
        (Merges, append("s", b"x"), "it has .* bytes, and"),
        (Merges, leave_a_source, "is there, and 23 merges"),
        (Merges, count_one_more, "23 merges are there, and its attribute says 24"),
        (Transactions, append("s", b"x"), "it has .* bytes, and"),
        (Transactions, begin_a_later_one, "after 23 transactions it knows"),
        (Rows, change_a_row, r"after 23 updates these rows differ: \[b'0000'\]"),
    ],
)
async def test_a_state_that_never_was_is_found(
    store: tierlog.Client, kind: Make, damage: Damage, says: str
) -> None:
    load = await taken(store, kind("s"))
    await damage(store)

    with pytest.raises(RunError, match=says):
        await load.check(store)


async def test_a_target_that_begins_elsewhere_is_found(store: tierlog.Client) -> None:
    merges = await taken(store, Merges("s"))
    start = (await store.segment_info("s")).start_offset
    await store.truncate_segment("s", start + 1)

    with pytest.raises(RunError, match=f"it begins at {start + 1} after {STEPS} steps"):
        await merges.check(store)


async def test_events_above_the_number_of_their_writer_are_found(store: tierlog.Client) -> None:
    load = cast("Events", await taken(store, events("s")))
    assert await load.check(store) == 0
    assert await compare_events(store, "s", [load._writer]) == (await store.segment_info("s")).length

    await load.send_again(store)  # adds nothing
    await store.append("s", event_bytes("w0", STEPS))
    with pytest.raises(RunError, match=f"event {STEPS} of w0 was never sent"):
        await compare_events(store, "s", [load._writer])
