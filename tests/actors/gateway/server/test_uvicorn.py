"""What ``HttpConnection`` relies on in uvicorn; ``pyproject.toml`` bounds its version."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Generator
from contextlib import contextmanager
from typing import Any, cast

import anyio
import pytest
import uvicorn
from uvicorn.server import ServerState

pytestmark = pytest.mark.anyio


class Connection(asyncio.Protocol):
    """Registers itself and a task with the server's state, as ``HttpConnection`` does."""

    def __init__(self, *, config: uvicorn.Config, server_state: ServerState, **_: Any) -> None:
        self.config, self.state, self.begun = config, server_state, anyio.Event()
        self.is_shut_down = self.is_task_done = False
        MADE.append(self)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport
        self.state.connections.add(cast(Any, self))
        task = asyncio.get_running_loop().create_task(self.work())
        self.state.tasks.add(task)
        task.add_done_callback(self.state.tasks.discard)
        self.begun.set()

    def connection_lost(self, error: Exception | None) -> None:
        self.state.connections.discard(cast(Any, self))

    def shutdown(self) -> None:
        self.is_shut_down = True
        self.transport.close()

    async def work(self) -> None:
        while not self.is_shut_down:
            await anyio.sleep(0.01)
        await anyio.sleep(0.2)
        self.is_task_done = True


MADE: list[Connection] = []


class Server(uvicorn.Server):
    @contextmanager
    def capture_signals(self) -> Generator[None, None, None]:
        """Signals are pytest's."""
        yield


async def app(scope: Any, receive: Any, send: Any) -> None:
    """No request comes."""


async def test_a_server_runs_the_protocol_of_its_config_and_waits_for_its_tasks() -> None:
    MADE.clear()
    config = uvicorn.Config(app, http=cast(Any, Connection), ws="none", lifespan="off", log_config=None)
    server = Server(config)
    with socket.create_server(("127.0.0.1", 0)) as listener, anyio.fail_after(20):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(server.serve, [listener])
            async with await anyio.connect_tcp(*listener.getsockname()):
                while not MADE:
                    await anyio.sleep(0.01)
                [connection] = MADE
                await connection.begun.wait()
                assert connection.config is config
                assert connection.config.loaded_app is not None
                assert connection.state is server.server_state
                server.should_exit = True
                while not connection.is_shut_down:
                    await anyio.sleep(0.01)

    assert connection.is_task_done, "the server waits for the tasks that its state lists"
    assert not server.server_state.connections
