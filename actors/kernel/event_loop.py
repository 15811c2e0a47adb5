"""Events, a clock, tasks and threads of the event loop that runs, which anyio lacks or has at a higher cost.

``store/opening.py`` and the clients choose them; the library below is given what they chose.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Coroutine
from contextvars import copy_context
from functools import partial
from queue import Empty, SimpleQueue
from threading import Lock, Thread
from typing import Any
from weakref import WeakSet

from .event_source import EventSource


class _FutureEvent(asyncio.Future[None]):
    """A bare asyncio future as an event, at about a fifth of the cost of anyio's event."""

    __slots__ = ()

    def set(self) -> None:
        if not self.done():
            self.set_result(None)

    def wait(self) -> asyncio.Future[None]:
        return self


class _FutureAnswer(asyncio.Future[Any]):
    """An answer that is itself the future that its waiter awaits, which saves an object, an event and a
    coroutine for each append. It has one waiter only, because a cancelled waiter cancels the future."""

    __slots__ = ()

    def resolve(self, value: Any) -> bool:
        if self.done():
            return False

        self.set_result(value)
        return True

    def fail(self, error: BaseException) -> bool:
        if self.done():
            return False

        self.set_exception(error)
        self.exception()  # marks it as retrieved: asyncio logs errors that are never retrieved
        return True

    def wait(self) -> asyncio.Future[Any]:
        return self


_IDLE = 5.0
"""Seconds without a job after which a thread ends."""


class _LaneThread:
    """A thread for one job after the other, at less than half the cost of ``anyio.to_thread``, which gives
    the loop two more turns and looks for a thread each time."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._jobs: SimpleQueue[tuple[Callable[[], Any], asyncio.Future[Any]] | None] = SimpleQueue()
        """None ends the thread, as a pause does."""
        self._lock = Lock()
        """Held to end the thread, and to see whether it has ended."""
        self._is_running = False

    def __call__(self, job: Callable[[], Any]) -> asyncio.Future[Any]:
        future = self._loop.create_future()
        with self._lock:
            self._jobs.put((job, future))
            if not self._is_running:
                # A daemon, as anyio's threads are: a disk that hangs must not keep the process alive.
                Thread(target=self._serve, name="tierlog lane", daemon=True).start()
                self._is_running = True
        return future

    def end(self) -> None:
        """The thread ends after the jobs that it has. A later one starts it again."""
        with self._lock:
            if self._is_running:
                self._jobs.put(None)

    def _serve(self) -> None:
        while True:
            try:
                # In a function of its own: a thread that waits must not keep the last job in memory.
                self._serve_one()
            except Empty:
                with self._lock:
                    if self._jobs.empty():
                        self._is_running = False
                        return

    def _serve_one(self) -> None:
        found = self._jobs.get(timeout=_IDLE)
        if found is None:
            raise Empty
        job, future = found
        value: Any = None
        failure: BaseException | None = None
        try:
            value = job()
        except BaseException as error:  # noqa: BLE001 - the caller gets it
            failure = error
        try:  # ``suppress`` would be three calls more
            self._loop.call_soon_threadsafe(_settle, future, value, failure)
        except RuntimeError:
            return  # The loop has ended, and with it the caller.


def _settle(future: asyncio.Future[Any], value: Any, failure: BaseException | None) -> None:
    if future.done():
        return  # cancelled
    if failure is None:
        future.set_result(value)
    else:
        future.set_exception(failure)


def lane_thread() -> _LaneThread | None:
    """Runs jobs in a thread of its own, for code in the loop that is running; None where anyio's way is the
    cheapest."""
    return None if running_trio() is not None else _LaneThread()


class LaneThreads:
    """The lane threads of one store, which end with it. Otherwise those of many short openings add up."""

    def __init__(self) -> None:
        self._made: WeakSet[_LaneThread] = WeakSet()
        """One whose thread runs is held by that."""

    def make(self) -> _LaneThread | None:
        """As ``lane_thread``."""
        thread = lane_thread()
        if thread is not None:
            self._made.add(thread)
        return thread

    def close(self) -> None:
        """End them all, each after the jobs that it has."""
        for thread in self._made:
            thread.end()


_spawned: set[asyncio.Task[None]] = set()
"""The event loop itself keeps no task alive."""


def spawn(run: Callable[[], Coroutine[Any, Any, None]], at_end: Callable[[], None]) -> None:
    """Run ``run``, which raises nothing, in a task that no task group holds. It is cancelled when the event
    loop ends: by ``asyncio.run``, before it has begun too, or after trio's main task. ``at_end`` is called at
    its end, whether it has begun or not."""
    trio = running_trio()
    if trio is not None:

        async def run_to_end() -> None:
            try:
                await run()
            finally:
                at_end()

        trio.lowlevel.spawn_system_task(run_to_end, context=copy_context())
        return

    def ended(task: asyncio.Task[None]) -> None:
        _spawned.discard(task)
        at_end()

    task = asyncio.get_running_loop().create_task(run())
    _spawned.add(task)
    task.add_done_callback(ended)


def event_source() -> EventSource:
    """Events of the loop that is running."""
    trio = running_trio()
    if trio is not None:
        return EventSource(trio.Event)

    loop = asyncio.get_running_loop()
    return EventSource(partial(_FutureEvent, loop=loop), partial(_FutureAnswer, loop=loop))


def loop_clock() -> Callable[[], float]:
    """``anyio.current_time`` of the loop that is running."""
    trio = running_trio()
    if trio is not None:
        clock: Callable[[], float] = trio.current_time
        return clock

    return asyncio.get_running_loop().time


def running_trio() -> Any:
    """The trio module if trio runs this task, else None. Never imports it."""
    trio = sys.modules.get("trio")
    return trio if trio is not None and trio.lowlevel.in_trio_run() else None
