"""Where S3 requests run: aiobotocore needs asyncio, the store runs on any loop.

On asyncio (uvloop too) a request is a plain await in the caller's own task. On trio an asyncio loop runs in a
thread, and each request crosses there and back once.

Cancellation: a request whose caller is cancelled is cancelled too, and has ended when the caller continues,
so nothing keeps running unattended. ``close`` ends what is left and joins the thread.
"""

from __future__ import annotations

import asyncio
import sys
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Coroutine
from contextvars import Context
from importlib import import_module
from importlib.util import find_spec
from typing import Any, TypeVar

import anyio
import anyio.lowlevel
import anyio.to_thread

T = TypeVar("T")
Call = Callable[[], Coroutine[Any, Any, T]]


class RequestLoop(ABC):
    """Runs requests on an asyncio loop. Opened once, closed once."""

    @abstractmethod
    async def open(self) -> None: ...

    @abstractmethod
    async def run(self, call: Call[T]) -> T:
        """Await ``call()`` on that loop and return its result."""

    @abstractmethod
    async def close(self) -> None: ...


def request_loop() -> RequestLoop:
    """The right one for the event loop of the running task."""
    trio = sys.modules.get("trio")
    return ThreadLoop(trio) if trio is not None and trio.lowlevel.in_trio_run() else CallersLoop()


class CallersLoop(RequestLoop):
    """The caller's own loop, which is asyncio."""

    async def open(self) -> None:
        return

    async def run(self, call: Call[T]) -> T:
        return await call()

    async def close(self) -> None:
        return


class ThreadLoop(RequestLoop):
    """An asyncio loop in a thread, for callers on trio."""

    def __init__(self, trio: Any) -> None:
        self._trio = trio
        self._loop = (
            import_module("uvloop").new_event_loop() if find_spec("uvloop") else asyncio.new_event_loop()
        )
        self._ended = asyncio.Event()
        # A daemon, so that a store that was not closed does not keep the process alive.
        self._thread = threading.Thread(target=self._serve, name="tierlog-s3", daemon=True)

    async def open(self) -> None:
        self._thread.start()

    async def run(self, call: Call[T]) -> T:
        # On the other loop it would race with its own cancellation.
        await anyio.lowlevel.checkpoint_if_cancelled()
        crossing = _Crossing(call, self._trio.lowlevel.current_trio_token(), self._trio.RunFinishedError)
        self._call_over(crossing.start)
        try:
            await crossing.done.wait()
        except anyio.get_cancelled_exc_class():
            self._call_over(crossing.cancel)
            with anyio.CancelScope(shield=True):
                await crossing.done.wait()
            raise
        result: T = crossing.result()
        return result

    async def close(self) -> None:
        self._call_over(self._ended.set)
        with anyio.CancelScope(shield=True):
            await anyio.to_thread.run_sync(self._thread.join)

    def _call_over(self, callback: Callable[[], object]) -> None:
        # An empty context: in the caller's, sniffio would report trio there.
        self._loop.call_soon_threadsafe(callback, context=Context())

    def _serve(self) -> None:
        with asyncio.Runner(loop_factory=lambda: self._loop) as runner:
            runner.run(self._wait_ended())

    async def _wait_ended(self) -> None:
        await self._ended.wait()


class _Crossing:
    """One request on its way there and back. Only ``done`` and ``result`` are used outside the asyncio
    thread."""

    def __init__(self, call: Call[Any], token: Any, run_finished: type[Exception]) -> None:
        self.done = anyio.Event()
        self._call = call
        self._token = token
        self._run_finished = run_finished
        self._task: asyncio.Task[Any] | None = None

    def start(self) -> None:
        self._task = asyncio.get_running_loop().create_task(self._call())
        self._task.add_done_callback(self._finish)

    def cancel(self) -> None:
        assert self._task is not None, "callbacks run in the order in which they were given"
        self._task.cancel()

    def result(self) -> Any:
        assert self._task is not None
        return self._task.result()

    def _finish(self, task: asyncio.Task[Any]) -> None:
        if not task.cancelled():
            task.exception()  # Retrieved, so that asyncio does not report it if nothing waits any more.
        try:
            self._token.run_sync_soon(self.done.set)
        except self._run_finished:
            return  # The whole trio run has ended.
