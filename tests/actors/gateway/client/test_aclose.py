"""``aclose`` of a client, over sessions and over plain HTTP."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AsyncExitStack, aclosing, asynccontextmanager, contextmanager
from pathlib import Path
from threading import Event
from typing import Any

import anyio
import httpx
import pytest

import tierlog
from support.http_server import Wrapped, serving, until
from support.patience import scaled
from support.service import service
from support.stores import CONFIG, make
from tierlog import Client, ClosedError, OutcomeUnknown

pytestmark = pytest.mark.anyio

BOTH = pytest.mark.parametrize("sessions", [True, False])


class Hanging:
    """A service, in a thread, of which some verbs do not answer before they are released."""

    def __init__(self, url: str, reached: Event, release: Callable[[], None]) -> None:
        self.url = url
        self.reached = reached
        self.release = release


@contextmanager
def hanging_service(folder: Path) -> Iterator[Hanging]:
    with (
        anyio.from_thread.start_blocking_portal("asyncio") as portal,
        portal.wrap_async_context_manager(_hanging(folder)) as (url, reached, release),
    ):
        yield Hanging(url, reached, lambda: portal.call(release.set))
        portal.call(release.set)


@asynccontextmanager
async def _hanging(folder: Path) -> AsyncIterator[tuple[str, Event, anyio.Event]]:
    reached, release = Event(), anyio.Event()

    def held(verb: Callable[..., Any]) -> Callable[..., Any]:
        async def hold(*args: Any, **options: Any) -> Any:
            reached.set()
            await release.wait()
            return await verb(*args, **options)

        return hold

    async with tierlog.open_store(folder, containers=1, config=CONFIG) as store:
        await make(store, "s", b"abc")
        names = ("read_view", "append_each", "seal_segment")
        async with serving(Wrapped(store, **{name: held(getattr(store, name)) for name in names})) as served:
            yield f"http://127.0.0.1:{served.port}", reached, release


@BOTH
async def test_a_client_is_entered_in_one_task_and_closed_in_another(tmp_path: Path, sessions: bool) -> None:
    with service(tmp_path) as url:
        stack = AsyncExitStack()
        clients: list[Client] = []

        async def start_up() -> None:
            clients.append(await stack.enter_async_context(tierlog.connect(url, sessions=sessions)))

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(start_up)
        [client] = clients
        await client.create_segment("s")
        await client.append("s", b"abc")
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(stack.aclose)
        with pytest.raises(ClosedError):
            await client.read("s", 0, 10)

        async with aclosing(await tierlog.connect(url, sessions=sessions)) as client:
            assert await client.read("s", 0, 10) == b"abc"
        with pytest.raises(ClosedError, match="its body has ended, or `close` or `aclose` was called"):
            await client.read("s", 0, 10)

        async with await tierlog.connect(url, sessions=sessions) as client:
            assert await client.read("s", 0, 10) == b"abc"
        with pytest.raises(ClosedError):
            await client.read("s", 0, 10)


@BOTH
async def test_calls_in_flight_get_an_error_at_once(tmp_path: Path, sessions: bool) -> None:
    with hanging_service(tmp_path) as server:
        client = await tierlog.connect(server.url, sessions=sessions)
        ended: list[str] = []

        async def read() -> None:
            with pytest.raises(ClosedError):
                await client.read("s", 0, 10)
            ended.append("read")

        async def seal() -> None:
            # It was sent, and may be done.
            with pytest.raises((ClosedError, OutcomeUnknown)):
                await client.seal_segment("s")
            ended.append("seal")

        async def poll() -> None:
            with pytest.raises(ClosedError):
                await client.poll("s", 3, 60)
            ended.append("poll")

        async def tail() -> None:
            async with aclosing(client.tail("s", 3)) as blocks:
                with pytest.raises(ClosedError):
                    await anext(blocks)
            ended.append("tail")

        async with anyio.create_task_group() as tasks:
            for call in (read, seal, poll, tail):
                tasks.start_soon(call)
            await until(lambda: server.reached.is_set() and client.statistics().in_flight == 4)
            with anyio.fail_after(scaled(10)):
                await client.aclose()
                await until(lambda: len(ended) == 4)


class AnswersAtTheEnd(httpx.AsyncBaseTransport):
    """Gives the answer of a tail's poll when ``may_answer`` is set, also to a caller that is cancelled."""

    def __init__(self) -> None:
        self._pool = httpx.AsyncHTTPTransport()
        self.is_asked, self.may_answer = anyio.Event(), anyio.Event()

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        response = await self._pool.handle_async_request(request)
        if not request.url.path.endswith("/tail") or self.may_answer.is_set():
            return response

        self.is_asked.set()
        with anyio.CancelScope(shield=True):
            await self.may_answer.wait()
            body = httpx.ByteStream(await response.aread())
        return httpx.Response(response.status_code, headers=response.headers, stream=body)

    async def aclose(self) -> None:
        await self._pool.aclose()


async def test_a_tail_begins_no_stream_when_its_poll_is_answered_during_the_end(tmp_path: Path) -> None:
    with service(tmp_path) as url:
        pool = AnswersAtTheEnd()
        client = await tierlog.connect(url, transport=lambda: pool)
        await client.create_segment("s")

        async def tail() -> None:
            async with aclosing(client.tail("s")) as blocks:
                with pytest.raises(ClosedError):
                    await anext(blocks)

        with anyio.fail_after(scaled(10)):
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(tail)
                await pool.is_asked.wait()
                tasks.start_soon(client.aclose)
                await anyio.wait_all_tasks_blocked()
                pool.may_answer.set()


@BOTH
async def test_appends_that_wait_are_finished_first(tmp_path: Path, sessions: bool) -> None:
    with hanging_service(tmp_path) as server:
        client = await tierlog.connect(server.url, sessions=sessions)
        offsets: list[int] = []

        async def append() -> None:
            offsets.append(await client.append("s", b"x"))

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(append)
            await until(server.reached.is_set)
            tasks.start_soon(client.aclose)
            await anyio.wait_all_tasks_blocked()
            with pytest.raises(ClosedError):
                await client.append("s", b"y")
            assert offsets == []
            await anyio.to_thread.run_sync(server.release)
        assert offsets == [3]


@BOTH
async def test_a_cancelled_body_finishes_no_appends(tmp_path: Path, sessions: bool) -> None:
    with hanging_service(tmp_path) as server:

        async def append(client: Client) -> None:
            with pytest.raises((ClosedError, OutcomeUnknown)):
                await client.append("s", b"x")

        async with anyio.create_task_group() as tasks:
            with anyio.fail_after(scaled(10)), anyio.CancelScope() as scope:
                async with tierlog.connect(server.url, sessions=sessions) as client:
                    tasks.start_soon(append, client)
                    await until(server.reached.is_set)
                    scope.cancel()
                    await anyio.sleep_forever()
            assert scope.cancelled_caught
