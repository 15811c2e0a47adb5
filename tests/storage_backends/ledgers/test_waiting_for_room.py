"""How long calls wait for room in the sidecar (rules B11 and B12), in virtual time."""

from __future__ import annotations

import socket
from collections import deque

import anyio
import trio
import trio.testing

from tierlog.storage_backends.base.errors import TierlogError, Unavailable
from tierlog.storage_backends.ledgers.connection import SidecarConnection
from tierlog.storage_backends.ledgers.wire import HANDLE_BYTES, REPLY_HEAD, Operation

PATIENCE, ROOM = 30.0, 100


class SlowSidecar:
    """It answers a read or an append each ``pause`` seconds, of the first ``count``, and anything else at
    once."""

    def __init__(self, pause: float, count: int) -> None:
        ours, theirs = socket.socketpair()
        self.connection = SidecarConnection(ours, PATIENCE, ROOM)
        self._link = trio.socket.from_stdlib_socket(theirs)
        self._pause = pause
        self._count = count
        self.asked: list[Operation] = []
        self._slow: deque[int] = deque()
        self._more = anyio.Event()

    async def run(self) -> None:
        with self._link:
            try:
                async with anyio.create_task_group() as tasks:
                    tasks.start_soon(self.connection.write_all)
                    tasks.start_soon(self.connection.read_all)
                    tasks.start_soon(self.connection.watch_clock, self._stopped)
                    tasks.start_soon(self._answer_slowly)
                    await self._read()
            finally:
                self.connection.end("this process stopped it")

    def _stopped(self) -> None:
        raise AssertionError("it answers")

    async def _read(self) -> None:
        while head := await self._link.recv(9):
            size, number, code = (int.from_bytes(part, "big") for part in (head[:4], head[4:8], head[8:]))
            if size > 5:
                await self._link.recv(size - 5)
            if code == Operation.SESSION:
                await self._reply(number)
            else:
                self.asked.append(Operation(code))
                self._slow.append(number)
                self._more.set()

    async def _answer_slowly(self) -> None:
        for _ in range(self._count):
            while not self._slow:
                self._more = anyio.Event()
                await self._more.wait()
            await anyio.sleep(self._pause)
            await self._reply(self._slow.popleft())

    async def _reply(self, number: int) -> None:
        await self._link.send(REPLY_HEAD.pack(5, number, 0))


async def call_all(sidecar: SlowSidecar, *operations: Operation) -> list[type[TierlogError] | None]:
    """Each with all of the room, one after the other; the error of each. What is sent is sent by then."""
    errors: list[type[TierlogError] | None] = [None] * len(operations)

    async def call(index: int, operation: Operation) -> None:
        try:
            await sidecar.connection.call(operation, bytes(HANDLE_BYTES), taking=ROOM)
        except TierlogError as error:
            errors[index] = type(error)

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(sidecar.run)
        async with anyio.create_task_group() as calls:
            for index, operation in enumerate(operations):
                calls.start_soon(call, index, operation)
        await anyio.sleep(PATIENCE)
        tasks.cancel_scope.cancel()
    return errors


def test_b12_calls_wait_for_room_as_long_as_it_becomes_free() -> None:
    async def main() -> None:
        sidecar = SlowSidecar(pause=PATIENCE / 3, count=20)
        operations = [Operation.READ] * 10 + [Operation.APPEND] * 10
        assert await call_all(sidecar, *operations) == [None] * 20
        assert anyio.current_time() >= 20 * PATIENCE / 3

    trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0.01))


def test_b12_a_read_that_was_given_up_while_it_waited_is_not_sent() -> None:
    """Whoever reads again would wait for all that nobody wants any more, and ever fewer of the reads would be
    of use."""

    async def main() -> None:
        sidecar = SlowSidecar(pause=1.5 * PATIENCE, count=1)
        assert await call_all(sidecar, *[Operation.READ] * 4) == [Unavailable] * 4
        assert sidecar.asked == [Operation.READ]

    trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0.01))
