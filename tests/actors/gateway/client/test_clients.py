"""What clients are: the store's verbs, sound in forks and threads, over real servers; calls that go to all
hosts."""

from __future__ import annotations

import inspect
import os
import signal
import threading
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import anyio
import pytest

import tierlog
from support.patience import scaled
from support.scripted_server import Answer, Received, json_answer, scripted
from support.service import service
from tierlog import Client, ClosedError, SegmentStore, SyncClient
from tierlog.actors.gateway.client import requests
from tierlog.actors.gateway.client.requests import Call
from tierlog.actors.gateway.wire import paths
from tierlog.actors.gateway.wire.bodies import ContainerAssignment, ContainerMap
from tierlog.storage_backends.base.backups import BackupStep, StepAnswer, StepKind
from tierlog.storage_backends.base.list_pages import SEGMENTS
from tierlog.storage_backends.base.names import container_of

pytestmark = pytest.mark.anyio

NOT_OF_A_CLIENT = {"mark_closed", "on_container", "read_or_watch", "read_view", "take_backup_step"}
"""The store's own business with ``open_store``, with tools, and with a server."""
PLAIN_NAMES = {"aclose": "close"}
"""Of the synchronous client."""

Append = Callable[[], Awaitable[int | None]]


def verbs(kind: type) -> dict[str, Callable[..., Any]]:
    return {
        name: value
        for name in dir(kind)
        if not name.startswith("_") and callable(value := getattr(kind, name))
    }


def test_every_public_method_of_both_clients_is_documented() -> None:
    for kind in (Client, SyncClient):
        assert [name for name, method in verbs(kind).items() if not inspect.getdoc(method)] == []
    assert inspect.getdoc(SyncClient.append) == inspect.getdoc(Client.append)


def shape(verb: Callable[..., Any]) -> list[tuple[str, object, object]]:
    """Names, kinds and defaults of the parameters."""
    return [
        (parameter.name, parameter.kind, parameter.default)
        for parameter in inspect.signature(verb).parameters.values()
    ]


@pytest.mark.parametrize("kind", [Client, SyncClient])
def test_clients_have_the_stores_verbs_with_the_same_arguments(kind: type) -> None:
    names = PLAIN_NAMES if kind is SyncClient else {}
    wanted = {
        names.get(name, name): shape(verb)
        for name, verb in verbs(SegmentStore).items()
        if name not in NOT_OF_A_CLIENT
    }
    found = {name: shape(verb) for name, verb in verbs(kind).items() if name in wanted}

    assert found == wanted


def test_clients_return_what_the_store_returns() -> None:
    for name in verbs(SegmentStore).keys() - NOT_OF_A_CLIENT - {"statistics"}:
        store, client, plain = (
            inspect.signature(verbs(kind)[name]).return_annotation
            for kind, name in (
                (SegmentStore, name),
                (Client, name),
                (SyncClient, PLAIN_NAMES.get(name, name)),
            )
        )

        assert client == store, name
        expected = store.replace("AsyncGenerator[bytes, None]", "Iterator[bytes]")
        assert plain == ("SyncTable" if expected == "Table" else expected), name
    assert {PLAIN_NAMES.get(name, name) for name in verbs(Client)} - {"open"} <= set(verbs(SyncClient))


async def test_an_append_above_the_limit_is_refused_before_it_is_sent(tmp_path: Path) -> None:
    huge = bytes((8 << 20) + 1)
    with service(tmp_path / "data") as url, tierlog.connect_sync(url) as plain:
        plain.create_segment("s")
        for kind in range(3):
            async with tierlog.connect(url) as client:
                attempts: list[Append] = [
                    lambda: client.append("s", huge),
                    lambda: client.append("s", memoryview(huge)),
                    lambda: client.append_many("s", [huge]),
                ]
                before = client.statistics()
                with pytest.raises(tierlog.TooLarge, match="holds at most 8388608 bytes.*: split it"):
                    await attempts[kind]()
                after = client.statistics()
                assert after.batches == before.batches
                assert after.requests - before.requests == after.map_refreshes - before.map_refreshes == 1
        with pytest.raises(tierlog.TooLarge, match="split it"):
            plain.append("s", huge)


LARGE = 300 << 10
"""Bytes of an append that travels in a request of its own."""


def limited(bytes_max: int) -> ContainerMap:
    return ContainerMap(1, (ContainerAssignment(0, None, None),), bytes_max)


def offset_of(received: Received) -> Answer:
    return json_answer({"offset": 7})


async def test_a_limit_that_was_raised_since_refuses_nothing() -> None:
    with scripted(offset_of) as server:
        for kind in range(3):
            server.map = limited(LARGE - 1)
            async with tierlog.connect(server.url) as client:
                server.map = limited(LARGE)
                appends: list[Append] = [
                    lambda: client.append("s", bytes(LARGE)),
                    lambda: client.append("s", bytearray(LARGE)),
                    lambda: client.append_many("s", iter([bytes(LARGE)])),
                ]

                assert await appends[kind]() == 7
                assert client.append_bytes_max == LARGE
        server.map = limited(LARGE - 1)
        async with tierlog.connect(server.url) as client:
            server.map = limited(LARGE)

            assert await client.append_each([_Append("s", bytes(LARGE))]) == [7]


def test_a_limit_that_was_raised_since_refuses_nothing_in_threads() -> None:
    with scripted(offset_of) as server:
        for kind in range(3):
            server.map = limited(LARGE - 1)
            with tierlog.connect_sync(server.url) as plain:
                server.map = limited(LARGE)
                appends: list[Callable[[], object]] = [
                    lambda: plain.append("s", bytes(LARGE)),
                    lambda: plain.append_many("s", iter([bytes(LARGE)])),
                    lambda: plain.append_each([_Append("s", bytes(LARGE))])[0],
                ]

                assert appends[kind]() == 7


async def test_refusals_at_one_time_share_one_request_for_the_limit() -> None:
    with scripted(offset_of) as server:
        server.map = limited(LARGE - 1)
        refused: list[tierlog.TooLarge] = []
        async with tierlog.connect(server.url) as client:
            before = server.map_requests

            async def append() -> None:
                with pytest.raises(tierlog.TooLarge, match=f"at most {LARGE - 1} bytes") as found:
                    await client.append("s", bytes(LARGE))
                refused.append(found.value)

            async with anyio.create_task_group() as tasks:
                for _ in range(50):
                    tasks.start_soon(append)

        assert (len(refused), server.map_requests - before, server.received) == (50, 1, [])


async def test_refusals_ask_for_the_limit_once_per_map_refresh() -> None:
    with scripted(offset_of) as server:
        server.map = limited(LARGE - 1)
        async with tierlog.connect(server.url, map_refresh=3600) as client:
            before = server.map_requests
            for _ in range(3):
                with pytest.raises(tierlog.TooLarge):
                    await client.append("s", bytes(LARGE))
                [refused] = await client.append_each([_Append("s", bytes(LARGE))])
                assert isinstance(refused, tierlog.TooLarge)

            assert server.map_requests - before == 1

        async with tierlog.connect(server.url, map_refresh=1e-6) as client:
            with pytest.raises(tierlog.TooLarge):
                await client.append("s", bytes(LARGE))
            server.map = limited(LARGE)
            await anyio.sleep(0.001)

            assert await client.append("s", bytes(LARGE)) == 7


def test_refusals_in_threads_ask_for_the_limit_twice_a_second() -> None:
    with scripted(offset_of) as server:
        server.map = limited(LARGE - 1)
        with tierlog.connect_sync(server.url) as plain:
            before, began = server.map_requests, time.monotonic()
            for _ in range(50):
                with pytest.raises(tierlog.TooLarge):
                    plain.append("s", bytes(LARGE))

            assert server.map_requests - before <= 1 + (time.monotonic() - began) / 0.5


async def test_the_known_limit_refuses_while_no_server_answers() -> None:
    with scripted(offset_of) as server:
        server.map = limited(LARGE - 1)
        async with tierlog.connect(server.url) as client:
            with tierlog.connect_sync(server.url) as plain:
                server.stop()
                with pytest.raises(tierlog.TooLarge):
                    await client.append("s", bytes(LARGE))
                with pytest.raises(tierlog.TooLarge):
                    plain.append("s", bytes(LARGE))


async def test_an_append_that_no_server_takes_is_refused_without_a_request() -> None:
    with scripted(offset_of) as server:
        async with tierlog.connect(server.url) as client:
            before = server.map_requests
            with pytest.raises(tierlog.TooLarge):
                await client.append("s", memoryview(bytes((32 << 20) + 1)))

            assert server.map_requests == before


async def test_sources_that_no_merge_takes_are_refused_as_the_store_refuses_them(tmp_path: Path) -> None:
    wrong = [[], ["s#1", "s#1"], ["s#1"] * 65_536]
    refusals = []
    async with tierlog.open_store(tmp_path / "store") as store:
        for sources in wrong:
            with pytest.raises(tierlog.InvalidArgument, match="takes 1 to 65535 different") as of_store:
                await store.merge_segments("s", sources)
            refusals.append(str(of_store.value))
    with service(tmp_path / "data") as url:
        async with tierlog.connect(url) as client:
            for sources, refusal in zip(wrong, refusals, strict=True):
                with pytest.raises(tierlog.InvalidArgument) as refused:
                    await client.merge_segments("s", sources)
                assert str(refused.value) == refusal


async def test_an_append_above_the_servers_limit_is_refused_as_the_store_refuses_it(tmp_path: Path) -> None:
    large = bytes((8 << 20) + 1)
    async with tierlog.open_store(tmp_path / "store") as store:
        await store.create_segment("s")
        with pytest.raises(tierlog.TooLarge) as of_store:
            await store.append("s", large)
    with service(tmp_path / "data") as url:
        async with tierlog.connect(url) as client:
            await client.create_segment("s")
            attempts: list[Append] = [
                lambda: client.append("s", large),
                lambda: client.append_many("s", [large[1:], b"x"]),
            ]
            for append in attempts:
                with pytest.raises(tierlog.TooLarge) as refused:
                    await append()
                assert str(refused.value) == str(of_store.value)
                assert isinstance(refused.value, tierlog.InvalidArgument)


async def test_a_forked_child_is_refused_its_parents_client(tmp_path: Path) -> None:
    with service(tmp_path / "data") as url, tierlog.connect_sync(url) as plain:
        plain.create_segment("s")
        async with tierlog.connect(url) as client:
            child = os.fork()
            if not child:
                os._exit(_refusals(client, plain))

            assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 6
            assert await client.append("s", b"abc") == 0
            assert plain.append("s", b"d") == 3


async def test_a_client_is_refused_the_event_loop_of_another_thread(tmp_path: Path) -> None:
    with service(tmp_path / "data") as url:
        opening = tierlog.connect(url)
        async with opening as client:
            await client.create_segment("s")
            await client.append("s", b"abc")
            blocks = client.tail("s")
            assert await anext(blocks) == b"abc"

            async def use() -> None:
                for call in (
                    client.append("s", b"x"),
                    client.health(),
                    anext(blocks),
                    opening.__aexit__(None, None, None),
                ):
                    with pytest.raises(ClosedError, match="belongs to the event loop of another thread"):
                        await call

            with anyio.fail_after(scaled(30)):
                await anyio.to_thread.run_sync(lambda: anyio.run(use), abandon_on_cancel=True)
            assert await client.append("s", b"d") == 3
            assert await anext(blocks) == b"d"
            await blocks.aclose()


def _refusals(client: Client, plain: SyncClient) -> int:
    refused = 0
    for call in (client.append("s", b"x"), client.read("s", 0, 1), client.flush(), client.list_segments()):
        try:
            call.send(None)
        except ClosedError:
            refused += 1
    for verb in (lambda: plain.append("s", b"x"), lambda: plain.read("s", 0, 1)):
        try:
            verb()
        except ClosedError:
            refused += 1
    return refused


def test_the_plain_client_does_what_the_store_does(tmp_path: Path) -> None:
    with service(tmp_path / "data") as url, tierlog.connect_sync(url) as store:
        store.create_segment("app/events#1")
        assert store.append("app/events#1", b"hello ") == 0
        assert store.append_many("app/events#1", [b"wor", b"ld"], writer_id="w", first_event_number=4) == 6
        assert store.append_many("app/events#1", [b"wor", b"ld"], writer_id="w", first_event_number=4) == 6
        assert store.append("app/events#1", b"!", writer_id="w", event_number=6, expected_offset=11) == 11
        assert store.last_event_number("app/events#1", "w") == 6
        updates = [tierlog.AttributeUpdate("a", 1), tierlog.AttributeUpdate(bytes(16), 2)]
        assert store.update_attributes("app/events#1", updates) == {"a": 1, bytes(16): 2}
        assert store.list_attributes("app/events#1") == tierlog.AttributePage({"a": 1}, None)
        assert store.list_attributes("app/events#1", b"") == tierlog.AttributePage({bytes(16): 2}, None)
        assert store.seal_segment("app/events#1") == 12
        store.create_segment("app/events")
        assert store.merge_segments("app/events", ["app/events#1"]) == 0
        store.truncate_segment("app/events", 6)
        assert store.read("app/events", 6, 100) == b"world!"
        assert store.expire_writers("app/events", ["w"]) == 0
        store.flush()
        assert store.seal_segment("app/events") == 12
        assert list(store.tail("app/events", 6, block_size=4)) == [b"worl", b"d!"]
        assert store.list_segments() == ["app/events"]
        assert store.page_of_segments("app/", limit=1).names == ["app/events"]
        assert (store.segment_info("app/events").length, store.health().ready) == (12, True)
        assert b"tierlog_client_requests" in store.metrics()
        with pytest.raises(tierlog.SegmentTruncated) as caught:
            store.read("app/events", 5, 1)
        assert caught.value.start_offset == 6
        store.delete_segment("app/events")
        assert store.list_segments() == []

    with pytest.raises(ClosedError):
        store.list_segments()


def test_the_plain_client_makes_lists_and_removes_backups(tmp_path: Path) -> None:
    with service(tmp_path / "data") as url, tierlog.connect_sync(url) as store:
        store.create_segment("app/events")
        store.append("app/events", b"hello")
        store.backup("monday")
        with pytest.raises(tierlog.BackupExists, match="already a backup 'monday'"):
            store.backup("monday")
        [backup] = store.backups()
        assert (backup.name, backup.problem) == ("monday", "")
        store.remove_backup("monday")
        assert store.backups() == []
        with pytest.raises(tierlog.BackupNotFound):
            store.remove_backup("monday")
        with pytest.raises(tierlog.InvalidArgument, match="name"):
            store.backup("a/b")


async def test_the_client_makes_lists_and_removes_backups(tmp_path: Path) -> None:
    with service(tmp_path / "data") as url:
        async with tierlog.connect(url) as store:
            await store.create_segment("app/events")
            await store.append("app/events", b"hello")
            await store.backup("monday")
            with pytest.raises(tierlog.BackupExists):
                await store.backup("monday")
            assert [backup.name for backup in await store.backups()] == ["monday"]
            await store.remove_backup("monday")
            with pytest.raises(tierlog.BackupNotFound):
                await store.remove_backup("monday")


async def test_p3_a_cancelled_backup_leaves_its_name_free(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scope, take = anyio.CancelScope(), requests.take_backup_step

    def cancelled_at_the_record(step: BackupStep) -> Call[StepAnswer]:
        if step.kind is StepKind.PUT:
            scope.cancel()
        return take(step)

    with service(tmp_path / "data") as url:
        async with tierlog.connect(url) as store:
            with monkeypatch.context() as patch, scope:
                patch.setattr(requests, "take_backup_step", cancelled_at_the_record)
                await store.backup("monday")
            assert scope.cancelled_caught
            await store.backup("monday")
            assert [(backup.name, backup.problem) for backup in await store.backups()] == [("monday", "")]


def test_p3_an_interrupted_backup_leaves_its_name_free(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    take = requests.take_backup_step

    def interrupted_at_the_record(step: BackupStep) -> Call[StepAnswer]:
        if step.kind is StepKind.PUT:
            os.kill(os.getpid(), signal.SIGINT)
            # The interrupt arrives here before the record is sent: else the backup might be whole.
            while not store._loop._loop._wanted:
                time.sleep(0.001)
            store._loop._loop._work()
        return take(step)

    with service(tmp_path / "data") as url, tierlog.connect_sync(url) as store:
        with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
            patch.setattr(requests, "take_backup_step", interrupted_at_the_record)
            store.backup("monday")
        store.backup("monday")


def test_many_threads_share_one_plain_client(tmp_path: Path) -> None:
    with service(tmp_path / "data") as url, tierlog.connect_sync(url) as store:
        store.create_segment("s")
        offsets: list[int | None] = []

        def work(number: int) -> None:
            offsets.extend([store.append("s", b"%d" % number) for _ in range(10)])

        threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

        assert sorted(offset for offset in offsets if offset is not None) == list(range(80))
        assert sorted(store.read("s", 0, 100)) == sorted(b"01234567" * 10)


async def test_tails_and_appends_of_many_tasks(tmp_path: Path) -> None:
    with service(tmp_path / "data", containers=4) as url:
        async with tierlog.connect(url) as client:
            names = [f"s{number}" for number in range(6)]
            seen: dict[str, bytes] = {}

            async def follow(name: str) -> None:
                seen[name] = b"".join([block async for block in client.tail(name)])

            for name in names:
                await client.create_segment(name)
            async with anyio.create_task_group() as tasks:
                for name in names:
                    tasks.start_soon(follow, name)
                for number in range(20):
                    await client.append_each([_Append(name, b"%d;" % number) for name in names])
                for name in names:
                    await client.seal_segment(name)

            assert seen == {name: b"".join(b"%d;" % number for number in range(20)) for name in names}
            assert b"tierlog_client_requests" in client.metrics()


def test_bytes_end_a_poll(tmp_path: Path) -> None:
    with service(tmp_path / "data") as url, tierlog.connect_sync(url) as store:
        store.create_segment("s")
        found: list[bytes] = []
        waiter = threading.Thread(target=lambda: found.append(store.poll("s", 0, 20.0).block))
        waiter.start()
        store.append("s", b"x")
        waiter.join(15.0)

        assert found == [b"x"]


async def test_a_poll_is_bounded_and_reports_the_end_of_the_segment(tmp_path: Path) -> None:
    with service(tmp_path / "data") as url:
        async with tierlog.connect(url) as client:
            await client.create_segment("s")

            assert not (await client.poll("s", 0, 0.01)).sealed
            await client.seal_segment("s")
            assert (await client.poll("s", 0, 20.0)).sealed
            with pytest.raises(tierlog.InvalidArgument, match="from 0 to 60 seconds"):
                await client.poll("s", 0, 60.5)


class _Append:
    writer, first_event, count = b"", 0, 0
    previous_event = expected_offset = history = None

    def __init__(self, name: str, data: bytes) -> None:
        self.name, self.data = name, data


# --- all hosts ----------------------------------------------------------------------------------

NAMES = [f"app/{number}" for number in range(12)]
ALL = {container: [name for name in NAMES if container_of(name, 2) == container] for container in (0, 1)}


def host_of(*containers: int) -> Callable[[Received], Answer]:
    """Answers with the names of these containers."""
    return lambda received: json_answer(
        {"segments": sorted(name for container in containers for name in ALL[container])}
    )


def placed(one: str, two: str, epoch: int = 1) -> ContainerMap:
    return ContainerMap(1, (ContainerAssignment(0, one, epoch), ContainerAssignment(1, two, epoch)))


async def test_names_of_all_hosts_are_listed_once() -> None:
    """A host that still lists a container of another's is not believed about it."""
    with (
        scripted(host_of(0)) as one,
        scripted(host_of(0, 1)) as two,
        scripted(lambda received: Answer(500)) as supervisor,
    ):
        supervisor.map = placed(one.url, two.url)
        async with tierlog.connect(supervisor.url) as client:
            assert await client.list_segments("app/") == sorted(NAMES)
        assert (len(one.received), len(two.received)) == (1, 1)


def paging_host_of(*containers: int) -> Callable[[Received], Answer]:
    """Answers with pages of the names of these containers."""
    names = sorted(name for container in containers for name in ALL[container])

    def answer(received: Received) -> Answer:
        query = received.path.partition("?")[2].encode()
        asked = paths.query_page(SEGMENTS, paths.parse_query(query, ["prefix", "token", "limit"]))
        shown, token = asked.page([([name for name in names if name >= asked.start], None)], str)
        return json_answer({"segments": shown, "token": token})

    return answer


@pytest.mark.parametrize("limit", [1, 5, 12])
async def test_h20_pages_of_hosts_become_one_page(limit: int) -> None:
    """In the order of names, whichever hosts the containers are on."""
    with (
        scripted(paging_host_of(0)) as one,
        scripted(paging_host_of(0, 1)) as two,
        scripted(lambda received: Answer(500)) as supervisor,
    ):
        supervisor.map = placed(one.url, two.url)
        async with tierlog.connect(supervisor.url) as client:
            found: list[str] = []
            token: str | None = None
            while True:
                page = await client.page_of_segments("app/", token=token, limit=limit)
                assert len(page.names) <= limit
                found += page.names
                if (token := page.token) is None:
                    break
                supervisor.map = placed(two.url, one.url, 2)
                one.script, two.script = paging_host_of(1), paging_host_of(0)
        assert found == sorted(NAMES)


async def test_a_list_is_repeated_when_a_container_moved_meanwhile() -> None:
    """The host that was asked first had it later."""
    with (
        scripted(host_of(0)) as one,
        scripted(host_of(1)) as two,
        scripted(lambda received: Answer(500)) as supervisor,
    ):
        supervisor.map = placed(one.url, two.url)

        def moves(received: Received) -> Answer:
            supervisor.map = placed(one.url, one.url, 2)
            one.script = host_of(0, 1)
            return json_answer({"segments": []})

        two.script = moves
        async with tierlog.connect(supervisor.url) as client:
            assert await client.list_segments() == sorted(NAMES)


async def test_a_list_continues_with_the_successor_of_a_lost_host() -> None:
    with (
        scripted(host_of(0)) as one,
        scripted(host_of(1)) as two,
        scripted(lambda received: Answer(500)) as supervisor,
    ):
        supervisor.map = placed(one.url, two.url)
        async with tierlog.connect(supervisor.url) as client:
            two.stop()
            supervisor.map = placed(one.url, one.url, 2)
            one.script = host_of(0, 1)
            assert await client.list_segments() == sorted(NAMES)


async def test_a_flush_reaches_every_host() -> None:
    with (
        scripted(lambda received: json_answer({})) as one,
        scripted(lambda received: json_answer({})) as two,
        scripted(lambda received: Answer(500)) as supervisor,
    ):
        supervisor.map = placed(one.url, two.url)
        async with tierlog.connect(supervisor.url) as client:
            await client.flush()
        assert (one.paths, two.paths) == (["/v1/flush"], ["/v1/flush"])
