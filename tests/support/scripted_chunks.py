"""Chunks in memory that follow a script: the next calls of a verb go wrong, or wait at a gate until a test
opens it."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Awaitable, Callable
from typing import TypeVar

import anyio
import attrs

from tierlog.storage_backends.chunks.memory import MemoryChunkStorage
from tierlog.testing.faulty_chunk_storage import Call, Fault, FaultyChunkStorage

T = TypeVar("T")


@attrs.frozen(eq=False)
class Hang:
    """The call waits for ``release``, then goes on. (A ``FaultKind.HANG`` never returns.)"""

    release: anyio.Event = attrs.field(factory=anyio.Event)


@attrs.frozen
class Crash:
    """The call raises what no backend should."""

    error: BaseException


class ScriptedChunks(FaultyChunkStorage):
    def __init__(self, memory: MemoryChunkStorage | None = None) -> None:
        self.memory = memory or MemoryChunkStorage()
        self._next_of: dict[str, deque[Fault | Hang | Crash]] = defaultdict(deque)
        super().__init__(self.memory, self._pop)

    def plan(self, verb: str, *faults: Fault | Hang | Crash) -> None:
        """The next calls of ``verb`` meet ``faults``, one each."""
        self._next_of[verb].extend(faults)

    @property
    def verbs(self) -> list[str]:
        """The calls so far."""
        return [call.verb for call in self.calls]

    def count(self, verb: str) -> int:
        return self.verbs.count(verb)

    async def open(self) -> None:
        await self._call("open", "", self.memory.open)

    async def close(self) -> None:
        await self._call("close", "", self.memory.close)

    def _pop(self, call: Call) -> Fault | None:
        planned = self._next_of[call.verb]
        if not planned or not isinstance(fault := planned[0], Fault):
            return None

        planned.popleft()
        return fault

    async def _call(
        self,
        verb: str,
        name: str,
        act: Callable[[], Awaitable[T]],
        prefix: Callable[[int], Awaitable[None]] | None = None,
    ) -> T:
        planned = self._next_of[verb]
        special = None if not planned or isinstance(planned[0], Fault) else planned.popleft()

        async def specially() -> T:
            if isinstance(special, Hang):
                await special.release.wait()
            elif isinstance(special, Crash):
                raise special.error
            return await act()

        return await super()._call(verb, name, specially if special else act, prefix)
