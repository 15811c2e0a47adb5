"""Concurrent appends travel together, in order, and each gets its own outcome: also when callers leave and
batches come back."""

from __future__ import annotations

import json
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import anyio
import pytest

import tierlog
from support.http_server import until
from support.patience import scaled
from support.scripted_server import (
    Act,
    Answer,
    Fault,
    Received,
    json_answer,
    one_container,
    problem,
    scripted,
)
from support.short_deadlines import hurried_client
from tierlog import OutcomeUnknown, OutOfOrder, Throttled, TierlogError
from tierlog.actors.gateway.client import appends, coalescer
from tierlog.actors.gateway.wire.batch import BatchDecoder, BatchItem

pytestmark = [pytest.mark.anyio, pytest.mark.one_loop]


def items_of(received: Received) -> list[BatchItem]:
    return BatchDecoder().feed(received.body)


class Server:
    """A script that applies what it is sent, one request after the other, and can be made to wait or to
    fail."""

    def __init__(self) -> None:
        self.applied: list[tuple[str, bytes]] = []
        self.batches: list[list[bytes]] = []
        self.gate = threading.Event()
        self.gate.set()
        self.arrived = threading.Semaphore(0)
        self.lock = threading.Lock()
        self.refuse: Callable[[BatchItem], TierlogError | None] = lambda item: None
        self.acts: list[Act] = []
        """Instead of answers, for the first requests."""

    def __call__(self, received: Received) -> Act:
        if not received.path.endswith(("/batch", "/append")):
            return json_answer({})

        items = (
            items_of(received)
            if received.path == "/v1/batch"
            else [BatchItem(received.path.split("/")[3], received.body)]
        )
        self.arrived.release()
        self.gate.wait(30)
        with self.lock:
            self.batches.append([bytes(item.data) for item in items])
            if self.acts:
                return self.acts.pop(0)
            return self._answer(received, [self._apply(item) for item in items])

    def _apply(self, item: BatchItem) -> int | TierlogError:
        error = self.refuse(item)
        if error is not None:
            return error
        self.applied.append((item.name, bytes(item.data)))
        return len(self.applied) - 1

    def _answer(self, received: Received, outcomes: list[int | TierlogError]) -> Answer:
        if received.path != "/v1/batch":
            [outcome] = outcomes
            return problem(outcome) if isinstance(outcome, TierlogError) else json_answer({"offset": outcome})

        return json_answer(
            {
                "results": [
                    json.loads(problem(each).body) if isinstance(each, TierlogError) else each
                    for each in outcomes
                ]
            }
        )

    async def has_one(self) -> None:
        """Return when a request arrived."""
        await anyio.to_thread.run_sync(self.arrived.acquire)


async def append_all(client: tierlog.Client, data: list[bytes], name: str = "s") -> list[object]:
    """Concurrently, in this order; their outcomes."""
    outcomes: list[object] = [None] * len(data)

    async def append(index: int) -> None:
        try:
            outcomes[index] = await client.append(name, data[index])
        except TierlogError as error:
            outcomes[index] = error

    async with anyio.create_task_group() as tasks:
        for index in range(len(data)):
            tasks.start_soon(append, index)
    return outcomes


@asynccontextmanager
async def one_in_flight(server: Server) -> AsyncIterator[tuple[tierlog.Client, anyio.abc.TaskGroup]]:
    """A client whose append ``first`` is answered when the body ends, and tasks for others."""
    server.gate.clear()
    with scripted(server) as http:
        async with tierlog.connect(http.url) as client, anyio.create_task_group() as tasks:
            tasks.start_soon(client.append, "s", b"first")
            await server.has_one()
            yield client, tasks
            server.gate.set()


def numbered(count: int) -> list[bytes]:
    return [b"%d" % number for number in range(count)]


async def test_appends_that_are_ready_together_go_in_one_request() -> None:
    server = Server()
    with scripted(server) as http:
        async with tierlog.connect(http.url) as client:
            outcomes = await append_all(client, numbered(200))

    assert len(server.batches) == 1
    assert dict(zip(outcomes, numbered(200), strict=True)) == dict(enumerate(server.batches[0]))


async def test_appends_gather_while_a_request_is_under_way_and_keep_their_order() -> None:
    server = Server()
    async with one_in_flight(server) as (client, tasks):
        for waiting, data in enumerate(numbered(50), 2):
            tasks.start_soon(client.append, "s", data)
            await until(lambda: client.statistics().appends_waiting == waiting)  # noqa: B023 - at once

    assert server.batches == [[b"first"], numbered(50)]


async def test_a_slow_container_holds_up_no_other() -> None:
    server = Server()
    with scripted(server) as http:
        http.map = one_container(16)
        async with tierlog.connect(http.url) as client, anyio.create_task_group() as tasks:
            other = next(
                name for name in map(str, range(100)) if client.container_of(name) != client.container_of("s")
            )
            server.gate.clear()
            tasks.start_soon(client.append, "s", b"slow")
            await server.has_one()
            tasks.start_soon(client.append, other, b"quick")
            await server.has_one()
            server.gate.set()

    assert sorted(server.batches) == [[b"quick"], [b"slow"]]


async def test_a_large_append_is_sent_alone_and_in_order() -> None:
    server = Server()
    server.gate.clear()
    large = bytes(coalescer.ALONE_BYTES + 1)
    with scripted(server) as http:
        async with tierlog.connect(http.url) as client, anyio.create_task_group() as tasks:
            tasks.start_soon(client.append, "s", b"first")
            await server.has_one()
            for data in (b"before", large, b"after"):
                tasks.start_soon(client.append, "s", data)
                await anyio.wait_all_tasks_blocked()
            server.gate.set()

    assert server.batches == [[b"first"], [b"before"], [large], [b"after"]]
    assert http.paths == ["/v1/batch", "/v1/batch", "/v1/segments/s/append", "/v1/batch"]


async def test_batches_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(coalescer, "BATCH_ITEMS", 7)
    monkeypatch.setattr(coalescer, "BATCH_BYTES", 100)
    server = Server()
    with scripted(server) as http:
        async with tierlog.connect(http.url) as client:
            await append_all(client, [b"x"] * 20)
            await append_all(client, [bytes(60)] * 5)

    assert [len(batch) for batch in server.batches] == [7, 7, 6, 2, 2, 1]


async def test_appends_beyond_a_full_queue_wait_in_order(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(coalescer, "QUEUE_ITEMS", 3)
    server = Server()
    async with one_in_flight(server) as (client, tasks):
        scopes = []
        for data in numbered(10):
            scope = anyio.CancelScope()
            scopes.append(scope)

            async def append(data: bytes = data, scope: anyio.CancelScope = scope) -> None:
                with scope:
                    await client.append("s", data)

            tasks.start_soon(append)
            await anyio.wait_all_tasks_blocked()
        scopes[5].cancel()
        await anyio.wait_all_tasks_blocked()

    assert b"".join(data for _, data in server.applied) == b"first012346789"


async def test_a_queue_that_stays_full_is_backpressure(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(coalescer, "QUEUE_ITEMS", 1)
    monkeypatch.setattr(appends, "IN_FLIGHT_MAX", 0)
    server = Server()
    with scripted(server) as http:
        async with hurried_client(tierlog.connect, http.url, 0.1) as client:
            outcomes = await append_all(client, numbered(3))

    assert sorted(type(outcome).__name__ for outcome in outcomes) == ["Throttled", "Throttled", "Unavailable"]
    assert server.batches == []


async def test_room_that_cancelled_callers_leave_is_given_to_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(coalescer, "QUEUE_ITEMS", 3)
    server = Server()
    async with one_in_flight(server) as (client, tasks):
        scope = anyio.CancelScope()

        async def leave() -> None:
            with scope:
                await client.append_each([BatchItem("s", b"left")] * 6)

        tasks.start_soon(leave)
        await anyio.wait_all_tasks_blocked()
        scope.cancel()
        await anyio.wait_all_tasks_blocked()
        tasks.start_soon(client.append, "s", b"last")
        await anyio.wait_all_tasks_blocked()

    assert [data for _, data in server.applied] == [b"first", b"last"]


async def test_the_end_of_a_client_ends_callers_that_wait_for_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(coalescer, "QUEUE_ITEMS", 1)
    monkeypatch.setattr(appends, "IN_FLIGHT_MAX", 0)
    outcomes: list[object] = []
    clients: list[tierlog.Client] = []
    end = anyio.CancelScope()
    with scripted(Server()) as http:

        async def hold() -> None:
            with end:
                async with tierlog.connect(http.url) as client:
                    clients.append(client)
                    await anyio.sleep_forever()

        async def append() -> None:
            outcomes.extend(await append_all(clients[0], numbered(3)))

        async def append_each() -> None:
            outcomes.extend(await clients[0].append_each([BatchItem("s", data) for data in numbered(3)]))

        with anyio.fail_after(scaled(5)):
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(hold)
                await until(lambda: bool(clients))
                tasks.start_soon(append)
                await anyio.wait_all_tasks_blocked()
                tasks.start_soon(append_each)
                await anyio.wait_all_tasks_blocked()
                end.cancel()

    assert [(type(outcome), "was closed meanwhile" in str(outcome)) for outcome in outcomes] == 6 * [
        (tierlog.Unavailable, True)
    ]


# --- outcomes -----------------------------------------------------------------------------------


async def test_each_append_of_a_batch_gets_its_own_outcome() -> None:
    server = Server()
    server.refuse = lambda item: tierlog.SegmentSealed("sealed", segment="s") if item.data == b"2" else None
    with scripted(server) as http:
        async with tierlog.connect(http.url) as client:
            outcomes = await append_all(client, numbered(4))

    assert [type(outcome) for outcome in outcomes] == [int, int, tierlog.SegmentSealed, int]
    assert [sorted(batch) for batch in server.batches] == [numbered(4)]


async def test_a_batch_that_is_refused_whole_is_split() -> None:
    """A server may take less at once than this client sends, or one of the appends may be too large for
    it."""
    server = Server()
    server.acts = [problem(tierlog.InvalidArgument("too large"))]
    server.refuse = lambda item: tierlog.InvalidArgument("too large") if item.data == b"1" else None
    with scripted(server) as http:
        async with tierlog.connect(http.url) as client:
            outcomes = await append_all(client, numbered(3))

    assert [type(outcome) for outcome in outcomes] == [int, tierlog.InvalidArgument, int]
    assert [len(batch) for batch in server.batches] == [3, 1, 1, 1]


async def test_throttled_appends_are_resent_before_later_ones() -> None:
    server = Server()
    server.gate.clear()
    busy = True

    def refuse(item: BatchItem) -> TierlogError | None:
        nonlocal busy
        if item.data == b"first" and busy:
            busy = False
            return Throttled("slow down")
        return None

    server.refuse = refuse
    with scripted(server) as http:
        async with tierlog.connect(http.url) as client, anyio.create_task_group() as tasks:
            tasks.start_soon(client.append, "s", b"first")
            await server.has_one()
            tasks.start_soon(client.append, "s", b"second")
            await anyio.wait_all_tasks_blocked()
            server.gate.set()

    assert [data for _, data in server.applied] == [b"first", b"second"]


async def test_a_writers_next_append_is_resent_with_the_one_before_it() -> None:
    """Refused as out of order only because its predecessor has to be sent again, which the caller cannot
    know."""
    server = Server()
    refusals: list[TierlogError] = [Throttled("slow down"), OutOfOrder("x", segment="s", last_event_number=0)]
    server.refuse = lambda item: refusals.pop(0) if refusals else None
    with scripted(server) as http:
        async with tierlog.connect(http.url) as client, anyio.create_task_group() as tasks:
            for number in (1, 2):

                async def append(number: int = number) -> None:
                    await client.append("s", b"%d" % number, writer_id="w", event_number=number)

                tasks.start_soon(append)

    assert len(server.applied) == 2
    assert server.batches[0] == server.batches[1]


async def test_a_writers_own_out_of_order_is_raised() -> None:
    server = Server()
    server.refuse = lambda item: OutOfOrder("x", segment="s", last_event_number=0)
    with scripted(server) as http:
        async with tierlog.connect(http.url) as client:
            with pytest.raises(OutOfOrder):
                await client.append("s", b"x", writer_id="w", event_number=5)


async def test_a_lost_batch_is_resolved_item_by_item() -> None:
    server = Server()
    server.acts = [Fault.RESET]
    with scripted(server) as http:
        async with tierlog.connect(http.url) as client:
            outcomes: dict[str, object] = {}

            async def append(key: str, **named: object) -> None:
                try:
                    outcomes[key] = await client.append("s", key.encode(), **named)  # type: ignore[call-overload]
                except TierlogError as error:
                    outcomes[key] = type(error)

            async with anyio.create_task_group() as tasks:
                tasks.start_soon(append, "plain")
                tasks.start_soon(lambda: append("numbered", writer_id="w", event_number=1))
                tasks.start_soon(lambda: append("conditional", expected_offset=9))

    assert outcomes["plain"] is OutcomeUnknown
    assert {type(outcomes["numbered"]), type(outcomes["conditional"])} == {int}
    assert sorted(data for _, data in server.applied) == [b"conditional", b"numbered"]


async def test_append_each_returns_one_outcome_per_append() -> None:
    server = Server()
    server.refuse = lambda item: tierlog.SegmentSealed("x") if item.data == b"2" else None
    given = [BatchItem("s", b"1"), BatchItem("", b"bad name"), BatchItem("s", b"2"), BatchItem("s", b"3")]
    with scripted(server) as http:
        async with tierlog.connect(http.url) as client:
            outcomes = await client.append_each(given)
            assert await client.append_each([]) == []
        with tierlog.connect_sync(http.url) as plain:
            again = plain.append_each(given)
            assert plain.append_each([]) == []

    assert [type(each) for each in outcomes] == [int, tierlog.InvalidArgument, tierlog.SegmentSealed, int]
    assert [type(each) for each in again] == [type(each) for each in outcomes]
    assert server.batches == [[b"1", b"2", b"3"]] * 2


async def test_append_each_refuses_invalid_items() -> None:
    server = Server()
    with scripted(server) as http:
        async with tierlog.connect(http.url) as client:
            with pytest.raises(tierlog.InvalidArgument, match="takes items such as tierlog.BatchItem, not 1"):
                await client.append_each([BatchItem("s", b"1"), 1])  # type: ignore[list-item]
            with pytest.raises(
                tierlog.InvalidArgument, match="appends are an iterable of items, not NoneType"
            ):
                await client.append_each(None)  # type: ignore[arg-type]

    assert server.batches == []


# --- leaving ------------------------------------------------------------------------------------


async def test_a6_a_cancelled_append_does_not_affect_the_others_of_its_batch() -> None:
    server = Server()
    server.gate.clear()
    outcomes: list[int | None] = []
    with scripted(server) as http:
        async with tierlog.connect(http.url) as client, anyio.create_task_group() as tasks:
            cancelled = anyio.CancelScope()

            async def leaves() -> None:
                with cancelled:
                    await client.append("s", b"leaves")

            async def stays() -> None:
                outcomes.append(await client.append("s", b"stays"))

            tasks.start_soon(leaves)
            tasks.start_soon(stays)
            await server.has_one()
            cancelled.cancel()
            await anyio.wait_all_tasks_blocked()
            server.gate.set()

    assert len(outcomes) == 1
    assert sorted(data for _, data in server.applied) == [b"leaves", b"stays"]


async def test_a6_an_unsent_append_of_a_cancelled_caller_is_never_sent() -> None:
    server = Server()
    async with one_in_flight(server) as (client, tasks):
        with anyio.move_on_after(0.01):
            await client.append("s", b"never")
        tasks.start_soon(client.append, "s", b"last")
        await anyio.wait_all_tasks_blocked()

    assert [data for _, data in server.applied] == [b"first", b"last"]


@pytest.mark.parametrize("turns", range(8))
async def test_a6_a_call_cancelled_anywhere_leaves_the_client_usable(turns: int) -> None:
    server = Server()
    with scripted(server) as http:
        async with tierlog.connect(http.url) as client:
            for verb in (lambda: client.append("s", b"x"), lambda: client.delete_segment("s"), client.flush):
                async with anyio.create_task_group() as tasks:
                    tasks.start_soon(verb)
                    for _ in range(turns):
                        await anyio.lowlevel.checkpoint()
                    tasks.cancel_scope.cancel()
            with anyio.fail_after(scaled(20)):
                assert isinstance(await client.append("s", b"y"), int)
                assert client.statistics().appends_waiting == 0


async def test_the_end_of_the_body_waits_for_appends_of_others() -> None:
    server = Server()
    server.gate.clear()
    outcomes: list[int | None] = []
    with scripted(server) as http:
        async with anyio.create_task_group() as tasks:
            async with tierlog.connect(http.url) as client:

                async def append() -> None:
                    outcomes.append(await client.append("s", b"x"))

                tasks.start_soon(append)
                await server.has_one()
                server.gate.set()
            assert outcomes == [0]

        with pytest.raises(tierlog.ClosedError):
            await client.append("s", b"y")


async def test_the_end_of_the_body_finishes_numbered_appends_through_a_lost_connection() -> None:
    """The client refreshes the container map and sends them again, as before the end."""
    server = Server()
    server.gate.clear()
    server.acts = [Fault.RESET]
    outcomes: list[int | None] = []
    with scripted(server) as http:
        async with anyio.create_task_group() as tasks:

            async def fail_the_request_once_the_client_drains() -> None:
                await anyio.wait_all_tasks_blocked()
                server.gate.set()

            async with tierlog.connect(http.url) as client:

                async def append() -> None:
                    outcomes.append(await client.append("s", b"x", writer_id="w", event_number=1))

                tasks.start_soon(append)
                await server.has_one()
                tasks.start_soon(fail_the_request_once_the_client_drains)
    assert outcomes == [0]
    assert len(server.batches) == 2


async def test_the_end_of_the_body_finishes_numbered_appends_through_a_failover() -> None:
    """The owner is frozen, and the map names another one once the body has ended."""
    new = Server()
    outcomes: list[int | None] = []
    with (
        scripted(lambda received: Fault.SILENCE) as frozen,
        scripted(new) as owner,
        scripted(lambda received: Answer(500)) as supervisor,
    ):
        supervisor.map = one_container(1, frozen.url, 1)
        async with (
            anyio.create_task_group() as tasks,
            tierlog.connect(supervisor.url, map_refresh=0.02) as client,
        ):

            async def append() -> None:
                outcomes.append(await client.append("s", b"x", writer_id="w", event_number=1))

            tasks.start_soon(append)
            await anyio.wait_all_tasks_blocked()
            supervisor.map = one_container(1, owner.url, 2)
        frozen.release()
    assert outcomes == [0]


async def test_a_failing_body_fails_its_waiters() -> None:
    server = Server()
    server.gate.clear()
    reported: list[TierlogError] = []
    with scripted(server) as http:
        async with anyio.create_task_group() as tasks:
            with pytest.raises(ZeroDivisionError):
                async with tierlog.connect(http.url) as client:

                    async def append() -> None:
                        try:
                            await client.append("s", b"x")
                        except TierlogError as error:
                            reported.append(error)

                    tasks.start_soon(append)
                    await server.has_one()
                    raise ZeroDivisionError
            server.gate.set()

    assert [type(error) for error in reported] == [OutcomeUnknown]


async def test_a_frozen_owner_is_abandoned_when_the_map_names_another() -> None:
    """It would never answer; its container was opened elsewhere."""
    new = Server()
    with (
        scripted(lambda received: Fault.SILENCE) as frozen,
        scripted(new) as owner,
        scripted(lambda received: Answer(500)) as supervisor,
    ):
        supervisor.map = one_container(1, frozen.url, 1)
        async with tierlog.connect(supervisor.url, map_refresh=0.02) as client:
            supervisor.map = one_container(1, owner.url, 2)
            with anyio.fail_after(scaled(20)):
                assert await client.append("s", b"x", writer_id="w", event_number=1) == 0
        frozen.release()


async def test_h21_a_frozen_owner_is_abandoned_if_it_is_the_address_in_use_too() -> None:
    with scripted(lambda received: Fault.SILENCE) as frozen, scripted(Server()) as owner:
        frozen.map = one_container(1, frozen.url, 1)
        owner.map = one_container(1, owner.url, 2)
        async with tierlog.connect([frozen.url, owner.url], map_refresh=0.02) as client:
            frozen.map = None  # it does not answer for the map either
            with anyio.fail_after(scaled(20)):
                assert await client.append("s", b"x", writer_id="w", event_number=1) == 0
        frozen.release()


async def test_a_plain_append_to_a_frozen_owner_has_an_unknown_outcome() -> None:
    with (
        scripted(lambda received: Fault.SILENCE) as frozen,
        scripted(Server()) as owner,
        scripted(lambda received: Answer(500)) as supervisor,
    ):
        supervisor.map = one_container(1, frozen.url, 1)
        async with tierlog.connect(supervisor.url, map_refresh=0.02) as client:

            async def move() -> None:
                await until(lambda: frozen.received)
                supervisor.map = one_container(1, owner.url, 2)

            async with anyio.create_task_group() as tasks:
                tasks.start_soon(move)
                with pytest.raises(OutcomeUnknown):
                    await client.append("s", b"x")
        frozen.release()
