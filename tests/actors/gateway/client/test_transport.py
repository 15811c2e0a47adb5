"""One exchange of the async client, with a pool whose connection breaks in the ways that httpx has no name
for."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable

import anyio
import httpx
import pytest

from support.lost_sockets import ask_lost_socket
from tierlog.actors.gateway.client.attempts import Send
from tierlog.actors.gateway.client.container_map import ContainerMapCache
from tierlog.actors.gateway.client.requests import Request, TransportFailure
from tierlog.actors.gateway.client.transport import POLLS_MAX, AsyncTransport

pytestmark = pytest.mark.anyio


def ask_unconnected_socket() -> None:
    raise OSError(errno.ENOTCONN, "Transport endpoint is not connected")


BROKEN = {ask_lost_socket: errno.ECONNRESET, ask_unconnected_socket: errno.ENOTCONN}


class BreakingPool(httpx.AsyncBaseTransport):
    """Breaks before the first byte of the body is asked for, or behind the last one."""

    def __init__(self, breaks: Callable[[], None], *, takes_body: bool) -> None:
        self._breaks = breaks
        self._takes_body = takes_body

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        if self._takes_body:
            assert isinstance(request.stream, httpx.AsyncByteStream)
            assert b"".join([piece async for piece in request.stream]) == b"abc"
        self._breaks()
        raise AssertionError("it breaks")


@pytest.mark.parametrize("takes_body", [False, True])
@pytest.mark.parametrize("breaks", BROKEN)
async def test_a_connection_that_is_reset_before_it_was_used_is_a_lost_exchange(
    breaks: Callable[[], None], takes_body: bool
) -> None:
    transport = AsyncTransport(
        ContainerMapCache("http://h"), lambda: BreakingPool(breaks, takes_body=takes_body)
    )

    lost = await transport.send(Send("http://h", Request("POST", "/v1/segments/s/append", b"abc"), 10.0))

    assert isinstance(lost, TransportFailure)
    assert lost.sent is takes_body, "only an exchange whose body nobody began to send may be repeated freely"
    error = OSError(BROKEN[breaks], os.strerror(BROKEN[breaks]))
    assert lost.reason == f"POST http://h/v1/segments/s/append: the connection broke: {error}"
    assert transport.in_flight == 0
    await transport.aclose()


class ParkingPool(httpx.AsyncBaseTransport):
    """Answers when the test says so."""

    def __init__(self, answers: anyio.Event) -> None:
        self._answers = answers
        self.in_flight = self.in_flight_max = 0
        self.is_closed = False

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        assert not self.is_closed
        self.in_flight += 1
        self.in_flight_max = max(self.in_flight_max, self.in_flight)
        await self._answers.wait()
        self.in_flight -= 1
        return httpx.Response(204, stream=httpx.ByteStream(b""))

    async def aclose(self) -> None:
        assert not self.in_flight
        self.is_closed = True


async def test_polls_of_many_tails_share_no_pool_that_examines_all_of_them_for_each() -> None:
    made: list[ParkingPool] = []
    answers = anyio.Event()

    def make() -> ParkingPool:
        made.append(ParkingPool(answers))
        return made[-1]

    transport = AsyncTransport(ContainerMapCache("http://h"), make)
    poll = Send("http://h", Request("GET", "/v1/segments/s/tail"), 10.0, parks=True)
    count = 5 * POLLS_MAX
    async with anyio.create_task_group() as tasks:
        for _ in range(count):
            tasks.start_soon(transport.send, poll)
        await anyio.wait_all_tasks_blocked()
        assert sorted(pool.in_flight for pool in made if pool.in_flight) == [POLLS_MAX] * 5
        answers.set()

    assert max(pool.in_flight_max for pool in made) == POLLS_MAX
    used = [pool for pool in made if pool.in_flight_max]
    assert [pool.is_closed for pool in used].count(False) == 1, "one stays for the next poll"
    await transport.send(poll)
    assert [pool for pool in made if pool.in_flight_max] == used
    await transport.aclose()
    assert all(pool.is_closed for pool in made)
