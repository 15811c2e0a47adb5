"""The event loop of one simulated host's server: what its connections ask asyncio for, in virtual time.

The server's connections are protocols of asyncio, and the simulator runs on trio. So the modules of the
server get ``AsyncioNames`` in place of asyncio, of which they use little: events, futures, timers, tasks.
Nothing of a host happens while its process stands still, and nothing at all once that is dead.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Coroutine, Generator, Iterator
from contextlib import ExitStack, contextmanager
from contextvars import Context, ContextVar
from types import ModuleType
from typing import Any
from unittest import mock

import anyio.abc
import attrs
import trio

from tierlog.actors.gateway.client import coalescer, sessions
from tierlog.actors.gateway.client import session as client_session
from tierlog.actors.gateway.server import (
    connection,
    connections,
    exchange,
    fan_out,
    session,
    session_call,
    write_side,
)
from tierlog.actors.gateway.wire import session as wire_session
from tierlog.actors.kernel import byte_connection

from ..fleets.network import Agenda
from ..gates import Gate, Killed
from ..invariants import Broken
from ..loop import carry_out
from .watched import WatchedConnection, WatchedSession

_STANDING_STILL = 0.05
"""Seconds after which a process that stands still is looked at again."""
_running: ContextVar[HostLoop] = ContextVar("the loop of the host whose code runs")


class Timer:
    """A call that may be cancelled before it is made."""

    def __init__(self, act: Callable[[], object]) -> None:
        self._act: Callable[[], object] | None = act

    def cancel(self) -> None:
        self._act = None

    def __call__(self) -> None:
        act, self._act = self._act, None
        if act is not None:
            act()


class HostTask:
    """A request that is answered. Its place in a set is the same in every run."""

    def __init__(self, number: int) -> None:
        self._number = number
        self._scope = trio.CancelScope()
        self._callbacks: list[Callable[[Any], object]] = []

    def __hash__(self) -> int:
        return self._number

    def __eq__(self, other: object) -> bool:
        return self is other

    def add_done_callback(self, callback: Callable[[Any], object]) -> None:
        self._callbacks.append(callback)

    def cancel(self) -> None:
        self._scope.cancel()

    async def run(self, gate: Gate, work: Coroutine[Any, Any, None]) -> None:
        try:
            with self._scope:
                await gate.guard(work)
        except Killed:
            pass  # the process ends all of its tasks
        finally:
            work.close()
            for callback in self._callbacks:
                callback(self)


class Future:
    """``asyncio.Future`` of nothing, which one task awaits."""

    def __init__(self) -> None:
        self._event = trio.Event()

    def done(self) -> bool:
        return self._event.is_set()

    def set_result(self, result: None) -> None:
        self._event.set()

    def __await__(self) -> Generator[Any, Any, None]:
        return self._event.wait().__await__()


class HostLoop:
    """``tasks``: those of the host's process."""

    def __init__(self, agenda: Agenda, gate: Gate, tasks: anyio.abc.TaskGroup) -> None:
        self._agenda = agenda
        self.gate = gate
        self._tasks = tasks
        self._numbers = itertools.count()
        self.is_closed = False
        """Its host accepts no connection any more."""

    def time(self) -> float:
        return trio.current_time()

    def call_later(self, seconds: float, act: Callable[..., object], *arguments: object) -> Timer:
        timer = Timer(lambda: act(*arguments))
        self._agenda.after(seconds, lambda: self._turn(timer))
        return timer

    def call_soon(self, act: Callable[..., object], *arguments: object) -> Timer:
        return self.call_later(0.0, act, *arguments)

    def create_task(self, work: Coroutine[Any, Any, None], *, context: Context | None = None) -> HostTask:
        """``context`` is for logs, which nobody reads here."""
        task = HostTask(next(self._numbers))
        self._tasks.start_soon(self._run, task, work)
        return task

    def create_future(self) -> Future:
        return Future()

    async def _run(self, task: HostTask, work: Coroutine[Any, Any, None]) -> None:
        self.enter()
        await task.run(self.gate, work)

    def _turn(self, timer: Timer) -> None:
        if not self.gate.alive:
            return
        if self.gate.frozen:
            self._agenda.after(_STANDING_STILL, lambda: self._turn(timer))
        else:
            carry_out(lambda: self.run(timer))

    def enter(self) -> None:
        """The task that calls this is the host's from now on."""
        _running.set(self)

    def run(self, act: Callable[[], object]) -> None:
        """A step of this host, now."""
        token = _running.set(self)
        try:
            act()
        except Broken:
            raise
        except Exception as error:
            # asyncio would log it, and end the connection.
            raise Broken(f"it does not hold that a server's callback raises nothing\n{error!r}") from error
        finally:
            _running.reset(token)


class _Client:
    """In place of the gate of a host."""

    alive, frozen = True, False


def client_loop(agenda: Agenda) -> HostLoop:
    """That of a client, whose process is never killed and does not stand still. It has no tasks."""
    return HostLoop(agenda, _Client(), None)  # type: ignore[arg-type]


class Event:
    """``asyncio.Event``."""

    def __init__(self) -> None:
        self._event = trio.Event()

    def is_set(self) -> bool:
        return self._event.is_set()

    def set(self) -> None:
        self._event.set()

    def clear(self) -> None:
        if self._event.is_set():
            self._event = trio.Event()

    async def wait(self) -> bool:
        # Without a checkpoint, as asyncio's.
        if not self._event.is_set():
            await self._event.wait()
        return True


class AsyncioNames:
    """What the modules of the server use of asyncio when they run."""

    Event = Event

    @staticmethod
    def get_running_loop() -> HostLoop:
        return _running.get()


class SelectNames:
    """What they use of ``select``: whether a socket has bytes that were not read."""

    POLLIN = 1

    class poll:  # noqa: N801 - a name of the library
        def register(self, end: Any, events: int) -> None:
            self._end = end

        def poll(self, milliseconds: int) -> bool:
            return bool(self._end.has_unread)


@attrs.frozen
class _ErrorLog:
    """The log of a module that has logged a bug of the server."""

    original: Any

    def error(self, event: str, exc_info: BaseException | None = None, **details: object) -> None:
        def fail() -> None:
            raise Broken(f"it does not hold that a server meets no bug\n{exc_info!r}") from exc_info

        carry_out(fail)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.original, name)


WINDOW, PIECE = 4096, 1024
"""Bytes of a window and of a frame in these worlds: a few events fill them."""
_SMALL: dict[ModuleType, dict[str, Any]] = {
    wire_session: {"BODY_WINDOW": WINDOW, "PIECE_BYTES": PIECE, "WINDOW_MIN": PIECE},
    client_session: {
        "BODY_WINDOW": WINDOW,
        "PIECE_BYTES": PIECE,
        "CALL_WINDOW": 2 * WINDOW,
        "STREAM_WINDOW": PIECE,
        "LARGE_BYTES": 700,
    },
    session_call: {"BODY_WINDOW": WINDOW, "PIECE_BYTES": PIECE, "COPIED_MAX": 500},
    session: {"IDLE_SECONDS": 5.0, "UNREAD_CALLS": 3, "FRAME_SECONDS": 10.0},
    write_side: {"WRITE_DELAY": 10.0},
    connections: {"READ_BYTES": 8192},
    fan_out: {"_PIECE": 700},
    coalescer: {"ALONE_BYTES": 2500, "BATCH_BYTES": 6000},
    sessions: {"REFUSED_SECONDS": 5.0},
}


@contextmanager
def simulated_server() -> Iterator[None]:
    """Servers run in loops of simulated hosts, and what bounds bytes is small."""
    with ExitStack() as stack:
        for module in (byte_connection, connection, connections, exchange, session, session_call, write_side):
            stack.enter_context(mock.patch.object(module, "asyncio", AsyncioNames))
        stack.enter_context(mock.patch.object(connection, "select", SelectNames))
        for module in (exchange, fan_out):
            stack.enter_context(mock.patch.object(module, "_log", _ErrorLog(module._log)))
        stack.enter_context(mock.patch.object(sessions, "ClientSession", WatchedSession))
        stack.enter_context(mock.patch.object(connection, "SessionConnection", WatchedConnection))
        for module, values in _SMALL.items():
            stack.enter_context(mock.patch.multiple(module, **values))
        yield
