"""A storage actor over scripted chunks, with a client, for tests."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from random import Random
from typing import Any

import anyio
import pytest
from msgspec.structs import replace
from trio.testing import MockClock

from support.scripted_chunks import ScriptedChunks
from tierlog.actors.chunk_io.actor import StorageActor
from tierlog.actors.chunk_io.client import StorageClient
from tierlog.actors.chunk_io.options import StorageOptions
from tierlog.actors.kernel.backoff import Backoff
from tierlog.actors.kernel.exits import ActorExit
from tierlog.storage_backends.base.errors import TierlogError
from tierlog.testing.faulty_chunk_storage import Fault, FaultKind

virtual_time = pytest.mark.parametrize(
    "anyio_backend", [("trio", {"clock": MockClock(autojump_threshold=0)})], ids=["trio-virtual"]
)

OPTIONS = StorageOptions(
    attempts=3, backoff=Backoff(first=0, maximum=0), breaker_failures=2, breaker_interval=5
)
DOWN = Fault(FaultKind.BEFORE)


class Stage:
    """An actor over scripted chunks, and a client."""

    def __init__(self, **changes: Any) -> None:
        self.chunks = ScriptedChunks()
        self.actor = StorageActor(self.chunks, replace(OPTIONS, **changes), Random(1))
        self.client = StorageClient(self.actor)
        self.errors: list[BaseException] = []
        self.ended: ActorExit | None = None

    async def run(self, *, task_status: Any = anyio.TASK_STATUS_IGNORED) -> None:
        self.ended = await self.actor.run(task_status=task_status)

    async def keep_error(self, ask: Callable[[], Awaitable[object]]) -> None:
        try:
            await ask()
        except TierlogError as error:
            self.errors.append(error)


@asynccontextmanager
async def stage(**changes: Any) -> AsyncIterator[Stage]:
    """A running actor; it is stopped at the end if the test did not."""
    play = Stage(**changes)
    async with anyio.create_task_group() as tasks:
        await tasks.start(play.run)
        yield play
        play.actor.stop()
