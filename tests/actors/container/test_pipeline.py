"""The pipeline: nothing is answered before it is durable, and no failure is answered as success."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from random import Random
from typing import Any

import anyio
import anyio.lowlevel
import pytest

from support.container_parts import NAME, ROLLING, append, by_writer
from support.pipeline import PipelineWorld
from tierlog.actors.container.operations.create import CreateRequest
from tierlog.actors.container.operations.queries import InfoRequest, WaitDurableRequest
from tierlog.actors.container.operations.seal import SealRequest
from tierlog.actors.container.operations.writers import LastEventRequest
from tierlog.actors.container.pipeline import PipelineOptions
from tierlog.actors.container.requests import LogRequest, Request, SnapshotRequest
from tierlog.actors.kernel.event_source import Answer
from tierlog.actors.kernel.mailbox import Lane
from tierlog.actors.kernel.reply import Reply
from tierlog.actors.kernel.slices import SLICE
from tierlog.journal.manifest.element import SEGMENTS
from tierlog.journal.operations.append import Append
from tierlog.journal.operations.barrier import Barrier
from tierlog.journal.operations.checkpoint import CheckpointBegin
from tierlog.storage_backends.base.errors import (
    DataCorruption,
    NotOwner,
    OutcomeUnknown,
    SegmentExists,
    SegmentNotFound,
    TierlogError,
    Unavailable,
)
from tierlog.storage_backends.sorted_runs.rows import Row
from tierlog.storage_backends.sorted_runs.run_list import RunList

pytestmark = pytest.mark.anyio


async def outcome(reply: Answer) -> Any:
    """The answer, or the error's type."""
    try:
        return await reply.wait()
    except TierlogError as error:
        return type(error)


def _no_span(
    name: str, attributes: Mapping[str, object], links: Sequence[object] = ()
) -> AbstractContextManager[None]:
    return nullcontext()


async def created(world: PipelineWorld) -> None:
    await world.ask(CreateRequest(NAME, ROLLING))


async def test_an_answer_comes_when_its_group_is_durable() -> None:
    """C1."""
    async with PipelineWorld().running() as world:
        await created(world)
        world.log.hold()
        reply = world.post(append(NAME, b"abc"))
        await anyio.wait_all_tasks_blocked()
        segment = world.parts.segment()
        assert not reply.done
        assert (segment.length, segment.durable_length) == (3, 0)

        world.log.gate.set()
        assert await reply.wait() == 0
        assert segment.durable_length == 3


async def test_c1_every_answer_waits_for_its_dependencies() -> None:
    """C1: also duplicates, refusals and info."""
    async with PipelineWorld().running() as world:
        await created(world)
        world.log.hold()
        first = world.post(by_writer(b"a", 1))
        await anyio.wait_all_tasks_blocked()
        later = [
            world.post(by_writer(b"a", 1)),
            world.post(by_writer(b"c", 3)),
            world.post(append(NAME, b"x", expected_offset=0)),
            world.post(CreateRequest(NAME, ROLLING)),
            world.post(InfoRequest(NAME)),
            world.post(LastEventRequest(NAME, b"w")),
            world.post(InfoRequest("no/such")),
            world.post(WaitDurableRequest(), lane=Lane.INTERNAL),
        ]
        await anyio.wait_all_tasks_blocked()
        assert not any(reply.done for reply in later)

        world.log.gate.set()
        assert await first.wait() == 0
        assert (await later[4].wait()).length == 1
        assert [await outcome(later[place]) for place in (0, 3, 5, 6, 7)] == [
            0,
            SegmentExists,
            1,
            SegmentNotFound,
            None,
        ]


async def test_a_failed_group_gives_no_answers() -> None:
    """The duplicate of an append that never became durable must not be acked."""
    async with PipelineWorld().running() as world:
        await created(world)
        world.log.hold()
        world.log.error = Unavailable("disk gone")
        first = world.post(by_writer(b"a", 1))
        await anyio.wait_all_tasks_blocked()
        waiting = [
            world.post(by_writer(b"a", 1)),
            world.post(by_writer(b"c", 3)),
            world.post(append(NAME, b"x")),
            world.post(InfoRequest(NAME)),
            world.post(LogRequest(Barrier()), lane=Lane.INTERNAL),
        ]
        await anyio.wait_all_tasks_blocked()
        world.log.gate.set()
        await world.ended.wait()

        assert [await outcome(reply) for reply in (first, *waiting)] == [
            OutcomeUnknown,
            Unavailable,
            Unavailable,
            OutcomeUnknown,
            Unavailable,
            OutcomeUnknown,
        ]
        assert isinstance(world.error, Unavailable)
        assert world.parts.segment().durable_length == 0
        for reply in (first, waiting[0]):
            with pytest.raises((OutcomeUnknown, Unavailable), match=r"durable \(disk gone\): "):
                await reply.wait()


async def test_l10_b10_an_answer_whose_owner_cannot_be_confirmed_is_refused_and_appends_go_on() -> None:
    """A duplicate too: its caller learns nothing that another owner may have changed."""
    async with PipelineWorld().running() as world:
        await created(world)
        assert await world.ask(by_writer(b"a", 1)) == 0
        world.log.silence = Unavailable("nobody answers")
        requests = (
            by_writer(b"a", 1),
            by_writer(b"c", 3),
            append(NAME, b"x", expected_offset=0),
            InfoRequest(NAME),
            WaitDurableRequest(),
        )
        replies = [world.post(request) for request in requests]
        for reply in replies:
            with pytest.raises(Unavailable, match="another owner is not known .nobody answers.: repeat"):
                await reply.wait()

        # Their owner is confirmed by the append that is in their group.
        replies = [world.post(request) for request in (*requests, by_writer(b"b", 2))]
        assert [await outcome(reply) for reply in (replies[0], replies[-1])] == [0, 1]
        world.log.silence = None
        assert (await world.ask(InfoRequest(NAME))).length == 2
        assert world.error is None


async def test_c1_a_refusal_without_confirmation_waits_for_the_groups_before_it_and_fails_with_them() -> None:
    async with PipelineWorld().running() as world:
        await created(world)
        world.log.silence = Unavailable("nobody answers")
        world.log.hold()
        first = world.post(by_writer(b"a", 1))
        await anyio.wait_all_tasks_blocked()
        duplicate = world.post(by_writer(b"a", 1))
        await anyio.wait_all_tasks_blocked()
        assert not duplicate.done
        world.log.error = OutcomeUnknown("the ledger is lost")
        world.log.gate.set()
        await world.ended.wait()
        assert [await outcome(reply) for reply in (first, duplicate)] == [OutcomeUnknown, Unavailable]
        assert isinstance(world.error, OutcomeUnknown)


@pytest.mark.parametrize("error", [NotOwner("fenced"), DataCorruption("the record is gone")])
async def test_w12_what_the_confirmation_shows_ends_the_container(error: TierlogError) -> None:
    async with PipelineWorld().running() as world:
        await created(world)
        world.log.silence = error
        with pytest.raises(Unavailable):
            await world.ask(InfoRequest(NAME))
        await world.ended.wait()
        assert world.error is error


async def test_w6_a_log_that_has_ended_ends_the_container_although_it_is_just_unavailable() -> None:
    async with PipelineWorld().running() as world:
        await created(world)
        world.log._life.failed(OutcomeUnknown("the ledger is lost"))
        with pytest.raises(Unavailable, match="the container stopped"):
            await world.ask(InfoRequest(NAME))
        await world.ended.wait()
        assert isinstance(world.error, Unavailable)


async def test_requests_that_arrive_together_share_a_group() -> None:
    async with PipelineWorld().running() as world:
        await created(world)
        replies = [world.post(append(NAME, bytes([number]))) for number in range(50)]
        assert [await reply.wait() for reply in replies] == list(range(50))

        assert len(world.groups()) == 2
        assert world.groups()[1][0] == 2, "sequences are dense over groups"
        assert world.pipeline.statistics().operations == 51


@pytest.mark.parametrize("seed", range(12))
async def test_appends_of_a_batch_have_the_effects_that_they_have_one_by_one(seed: int) -> None:
    """Appends without a writer and an expected offset are decided together, as far as they follow each other;
    with a span hook each append is decided alone."""
    random, names = Random(seed), [f"app/{letter}" for letter in "abc"]

    def requests() -> Iterator[Request]:
        known: list[str] = []
        for _ in range(80):
            name, data = random.choice([*names, "app/missing"]), bytes(random.randrange(4))
            kind = random.choices(
                ("plain", "again", "writer", "offset", "seal", "create", "info"), (30, 30, 6, 6, 1, 6, 4)
            )[0]
            if kind == "again" and known:
                yield append(known[-1], data)
                continue
            known.append(name)
            if kind == "writer":
                yield by_writer(data, random.randrange(3), name=name)
            elif kind == "offset":
                yield append(name, data, expected_offset=random.randrange(6))
            elif kind == "seal":
                yield SealRequest(name)
            elif kind == "create":
                yield CreateRequest(name, ROLLING)
            elif kind == "info":
                yield InfoRequest(name)
            else:
                yield append(name, data)

    def state_of(world: PipelineWorld) -> object:
        state = world.parts.state
        segments = [
            (each.sid, each.length, each.sealed, each.touched) for each in state.segments.by_id.values()
        ]
        return (
            state.sequence,
            state.client_sequence,
            segments,
            [op for _, ops in world.groups() for op in ops],
        )

    async with PipelineWorld().running() as together, PipelineWorld(span=_no_span).running() as alone:
        for world in (together, alone):
            for name in names[:2]:
                await world.ask(CreateRequest(name, ROLLING))
        together.log.hold()
        replies = [together.post(request) for request in requests()]
        await anyio.wait_all_tasks_blocked()
        together.log.gate.set()
        found = [await outcome(reply) for reply in replies]
        random.seed(seed)
        expected = [await outcome(alone.post(request)) for request in requests()]

        assert found == expected
        assert state_of(together) == state_of(alone)
        assert len(together.groups()) == 3, "one group has them all"


async def test_damage_under_one_cold_segment_refuses_its_append_alone() -> None:
    """C5: the lookup of its name may meet a damaged block, and changes nothing."""

    def find_cached(runs: RunList, key: bytes) -> tuple[bool, Row | None]:
        raise DataCorruption("a damaged block")

    async with PipelineWorld().running() as world:
        await created(world)
        world.parts.state.table.use(RunList(schema=SEGMENTS, rows_to=0, records_to=0))
        world.parts.state.find_cached = find_cached
        world.log.hold()
        replies = [world.post(append(name, b"abc")) for name in (NAME, "app/cold", NAME)]
        await anyio.wait_all_tasks_blocked()
        world.log.gate.set()

        assert [await outcome(reply) for reply in replies] == [0, DataCorruption, 3]
        assert not world.pipeline.poisoned


async def test_the_next_group_is_built_while_one_is_written() -> None:
    async with PipelineWorld().running() as world:
        await created(world)
        world.log.hold()
        for number in range(5):
            world.post(append(NAME, bytes([number])))
            await anyio.wait_all_tasks_blocked()
        world.log.gate.set()
        await world.ask(WaitDurableRequest())

        assert [len(ops) for _, ops in world.groups()] == [1, 1, 4]


async def test_callers_that_append_again_at_once_share_a_group_with_those_that_waited() -> None:
    """Otherwise they would take turns, each group with a part of them."""
    async with PipelineWorld().running() as world:
        await created(world)
        world.log.hold()

        async def append_twice() -> None:
            for _ in range(2):
                await world.ask(append(NAME, b"x"))

        async with anyio.create_task_group() as tasks:
            for _ in range(3):
                tasks.start_soon(append_twice)
            await anyio.wait_all_tasks_blocked()
            tasks.start_soon(append_twice)
            await anyio.wait_all_tasks_blocked()
            world.log.gate.set()

        # The second appends of the three joined the first one of the fourth.
        assert [len(ops) for _, ops in world.groups()] == [1, 3, 4, 1]


async def test_a_full_group_holds_the_next_batch_back() -> None:
    """Memory stays bounded while the disk is slow: what comes next waits in the mailbox, where its bounds
    count."""
    async with PipelineWorld(PipelineOptions(group_bytes=1000)).running() as world:
        await created(world)
        world.log.hold()
        replies = []
        for _ in range(8):
            replies.append(world.post(append(NAME, bytes(600)), 600))
            await anyio.wait_all_tasks_blocked()

        assert len(world.mailbox) == 5
        world.log.gate.set()
        assert [await reply.wait() for reply in replies] == [600 * number for number in range(8)]
        assert all(len(ops) <= 2 for _, ops in world.groups())


async def test_an_append_larger_than_a_group_is_a_group_of_its_own() -> None:
    async with PipelineWorld(PipelineOptions(group_bytes=1000)).running() as world:
        await created(world)
        assert await world.ask(append(NAME, bytes(5000)), 5000) == 0
        assert await world.ask(append(NAME, b"x"), 1) == 5000


async def test_internal_requests_are_answered_with_their_group() -> None:
    async with PipelineWorld().running() as world:
        await created(world)

        assert await world.ask_internal(LogRequest(Barrier(), tag=7, truncate_before=1), 0) == (2, None)
        info = world.service._states["c"].groups[-1].info
        assert (info.tag, info.truncate_before) == (7, 1)


async def test_a_snapshot_is_fixed_where_its_begin_is_logged() -> None:
    """C7: everything before the begin is in it, nothing after it."""
    async with PipelineWorld().running() as world:
        await created(world)
        number, snapshot = await world.ask_internal(SnapshotRequest(5), 0)

        first, ops = world.groups()[-1]
        assert number == len(world.groups())
        assert ops == [CheckpointBegin(5)]
        assert snapshot.sequence == first
        assert world.parts.state.snapshot is snapshot


async def test_a_failure_while_publishing_poisons_the_container() -> None:
    async with PipelineWorld().running() as world:
        await created(world)
        world.parts.segment().durable_length = 99
        reply = world.post(append(NAME, b"x"))
        await world.ended.wait()

        assert world.pipeline.poisoned
        assert isinstance(world.error, ValueError)
        assert await outcome(reply) is OutcomeUnknown


async def published_in_part(world: PipelineWorld, slices: int = 4) -> list[Reply[Any]]:
    """One large group of appends, of which some slices are published and none is answered."""
    await created(world)
    world.log.hold()
    first = world.post(append(NAME, b"x"))
    await anyio.wait_all_tasks_blocked()
    replies = [world.post(append(NAME, b"x")) for _ in range(slices * SLICE)]
    await anyio.wait_all_tasks_blocked()
    world.log.gate.set()
    await first.wait()
    while world.parts.segment().durable_length == 1:
        await anyio.lowlevel.checkpoint()
    assert world.parts.segment().durable_length < 1 + slices * SLICE
    assert len(world.groups()) == 3
    return replies


async def test_a_large_group_is_published_in_slices_and_answered_in_order() -> None:
    """What is visible is durable (C1); what is answered is visible."""
    async with PipelineWorld().running() as world:
        replies = await published_in_part(world)
        assert not any(reply.done for reply in replies)

        assert await replies[0].wait() == 1
        assert world.parts.segment().durable_length == 1 + 4 * SLICE
        assert not replies[-1].done
        assert await replies[-1].wait() == 4 * SLICE
        assert world.published == 3, "once for each group"


async def test_c5_after_a_failure_between_two_slices_nothing_more_is_published_or_answered() -> None:
    async with PipelineWorld().running() as world:
        # Many: until the request is taken, slices go on.
        replies = await published_in_part(world, slices=8)
        world.post(Request())
        await world.ended.wait()

        assert world.pipeline.poisoned
        assert world.parts.segment().durable_length < 1 + 8 * SLICE
        assert {await outcome(reply) for reply in replies} == {OutcomeUnknown}


async def test_a_cancellation_between_two_slices_poisons_nothing() -> None:
    """What is not published is durable: to the next owner it is like all that the log has."""
    async with PipelineWorld().running() as world:
        replies = await published_in_part(world)
        world.scope.cancel()
        await world.ended.wait()

        assert not world.pipeline.poisoned
        assert {await outcome(reply) for reply in replies} == {OutcomeUnknown}


async def test_c5_a_failure_in_a_later_slice_poisons_the_container() -> None:
    async with PipelineWorld().running() as world:
        replies = await published_in_part(world)
        world.parts.segment().durable_length = 1 << 40
        await world.ended.wait()

        assert world.pipeline.poisoned
        assert isinstance(world.error, ValueError)
        assert {await outcome(reply) for reply in replies} == {OutcomeUnknown}


async def test_after_a_cancellation_the_outcome_is_unknown() -> None:
    async with PipelineWorld().running() as world:
        await created(world)
        world.log.hold()
        reply = world.post(append(NAME, b"abc"))
        await anyio.wait_all_tasks_blocked()
        world.scope.cancel()
        await world.ended.wait()

        assert await outcome(reply) is OutcomeUnknown


async def test_a_hook_is_called_after_each_group() -> None:
    async with PipelineWorld().running() as world:
        await created(world)
        await world.ask(append(NAME, b"x"))
        before = world.published
        await world.ask(InfoRequest(NAME))

        assert before == 2
        assert world.published == 2, "an answer without an operation logs nothing"


async def test_refusals_are_counted_and_log_nothing() -> None:
    async with PipelineWorld().running() as world:
        assert await outcome(world.post(append("no/such", b"x"))) is SegmentNotFound

        assert world.pipeline.statistics().refused == 1
        assert world.groups() == []


async def test_an_unknown_request_poisons_the_container() -> None:
    async with PipelineWorld().running() as world:
        reply = world.post(Request())
        await world.ended.wait()

        assert isinstance(world.error, TypeError)
        assert await outcome(reply) is OutcomeUnknown
        assert world.groups() == []


async def test_the_data_of_an_append_is_what_was_logged() -> None:
    async with PipelineWorld().running() as world:
        await created(world)
        await world.ask(by_writer(b"abc", 5, 7))

        assert world.groups()[1] == (2, [Append(world.parts.segment().sid, 0, b"abc", b"w", 5, 3)])
