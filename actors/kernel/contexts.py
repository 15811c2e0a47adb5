"""The context managers of stores and clients, which are opened and closed from any task of their event loop.

What a store or a client runs is in task groups, and those are left in the task that entered them. So an
**owner task** enters and leaves the whole context, and the caller's tasks tell it to: a start-up hook opens,
a shut-down hook closes, and so do the two halves of a fixture.

Cancellation: of an opening undoes it. The end of a body waits until everything has ended; cancelled, it
finishes no waiting calls. A cancelled ``aclose`` returns at once, and the owner task goes on closing.
What is open when trio's main task ends is closed then; ``asyncio.run`` cancels all tasks, as a crash would.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Generator
from contextlib import (
    AbstractAsyncContextManager,
    AbstractContextManager,
    asynccontextmanager,
)
from functools import wraps
from types import TracebackType
from typing import Any, Generic, NoReturn, ParamSpec, Self, TypeVar

import anyio

from ...storage_backends.base.errors import ClosedError
from ..telemetry.logging import get_logger
from .event_loop import spawn
from .use_guard import UseGuard

_log = get_logger("node")

P = ParamSpec("P")
T = TypeVar("T")


class Closable:
    """What ``owned_context`` opens. Entered itself, it is closed at the end of that body, as by the opening's
    own."""

    _close: Callable[[], Awaitable[None]]
    _leave: Callable[[BaseException | None], Awaitable[None]]

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self._leave(error)

    async def aclose(self) -> None:
        """Close it, from any task of its event loop, and return once everything has ended.

        What was accepted is finished, as at the end of an ``async with`` body. Other calls raise
        ``ClosedError``, also those that wait; a body goes on, and is left as usual. May be called any number
        of times, also by several tasks at once. A call that is cancelled returns at once, and closing goes
        on. If closing fails, each call raises the error, and so does the end of the body.
        """
        await self._close()


C = TypeVar("C", bound=Closable)


class _BodyFailed(Exception):
    """Ends the context as the caller's own error would, which stays in the caller's task."""


class _OwnerTask(Generic[T]):
    """Enters and leaves ``context``."""

    def __init__(self, what: str, context: AbstractAsyncContextManager[T, bool | None]) -> None:
        self._what = what
        self._context = context
        self._value: T | None = None
        self._scope = anyio.CancelScope()
        self._opened, self._closing, self._ended = anyio.Event(), anyio.Event(), anyio.Event()
        self._body_failed = False
        self._failure: BaseException | None = None

    async def open(self) -> T:
        spawn(self._run, self._end)
        try:
            await self._opened.wait()
        except BaseException:
            await self._cancel()
            raise
        if self._failure is not None:
            raise self._failure
        if self._value is None:
            raise ClosedError("the event loop ended during the opening")
        return self._value

    async def close(self) -> None:
        self._closing.set()
        await self._ended.wait()
        if self._failure is not None:
            raise self._failure

    async def leave(self, error: BaseException | None) -> None:
        """At the end of a body that raised ``error``."""
        if not self._closing.is_set():
            self._body_failed = error is not None
        try:
            await self.close()
        except BaseException as failure:
            if not self._ended.is_set():
                await self._cancel()
            # The body's own end raises it again.
            if failure is not error:
                raise

    async def _cancel(self) -> None:
        self._scope.cancel()
        with anyio.CancelScope(shield=True):
            await self._ended.wait()

    async def _run(self) -> None:
        try:
            with self._scope:
                async with self._context as self._value:
                    self._opened.set()
                    await self._closing.wait()
                    if self._body_failed:
                        raise _BodyFailed
        except _BodyFailed:
            pass
        except anyio.get_cancelled_exc_class():
            raise
        except BaseException as error:  # noqa: BLE001 - raised in the tasks that open and close
            self._failure = error
            if self._opened.is_set() and not self._closing.is_set():
                # The body may be long in noticing it.
                _log.error("ended_by_itself", error, what=self._what)

    def _end(self) -> None:
        self._opened.set()
        self._ended.set()


class _Unentered:
    """Says what to do if a context manager is used as the object that only entering it gives."""

    # A copy is asked for attributes before it has any.
    _usage = ""
    _entered = False

    def __init__(self, body: str, value: str) -> None:
        """``body``: a statement that enters it; ``value``: one that opens it without a body."""
        self._usage = f"`{body}` or `{value}`"

    def __getattr__(self, name: str) -> NoReturn:
        raise AttributeError(f"no {name!r} before it is opened: use it as {self._usage}")

    def _refuse(self, *_: object) -> NoReturn:
        raise TypeError(f"use it as {self._usage}")

    def _begin(self) -> None:
        if self._entered:
            raise ClosedError(f"this was opened before: use another one, as {self._usage}")
        self._entered = True


class Opening(_Unentered, AbstractAsyncContextManager[C, None]):
    """``async with`` opens it and closes it, whichever tasks enter and leave; ``await`` opens it, and its
    ``aclose`` closes it."""

    def __init__(self, what: str, call: str, context: AbstractAsyncContextManager[C, bool | None]) -> None:
        super().__init__(f"async with {call} as {what}", f"{what} = await {call}")
        self._what = what
        self._context = context

    __enter__ = __exit__ = _Unentered._refuse

    def __await__(self) -> Generator[Any, Any, C]:
        return self.__aenter__().__await__()

    async def __aenter__(self) -> C:
        self._begin()
        # On entry and not in `__init__`: the context may be made in one thread and entered in another.
        self._guard = UseGuard(self._what)
        self._owner = _OwnerTask(self._what, self._context)
        opened = await self._owner.open()
        opened._close, opened._leave = self._close, self._leave
        return opened

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self._leave(error)

    async def _leave(self, error: BaseException | None) -> None:
        self._guard.check()
        await self._owner.leave(error)

    async def _close(self) -> None:
        self._guard.check()
        await self._owner.close()


def owned_context(what: str) -> Callable[[Callable[P, AsyncIterator[C]]], Callable[P, Opening[C]]]:
    """As ``asynccontextmanager``, entered and left by a task of its own."""

    def decorate(function: Callable[P, AsyncIterator[C]]) -> Callable[P, Opening[C]]:
        make = asynccontextmanager(function)

        @wraps(function)
        def owned(*args: P.args, **kwargs: P.kwargs) -> Opening[C]:
            return Opening(what, f"tierlog.{function.__name__}(...)", make(*args, **kwargs))

        return owned

    return decorate


class PlainContext(_Unentered, AbstractContextManager[T, bool | None]):
    """``context``, which gives ``what``, made by ``call``; used without being opened, it says how."""

    def __init__(self, what: str, call: str, context: AbstractContextManager[T, bool | None]) -> None:
        super().__init__(f"with {call} as {what}", f"{what} = {call}.open()")
        self._context = context

    def open(self) -> T:
        """What the ``with`` body would get, without a body, for the cells of a notebook: its ``close`` closes
        it."""
        return self.__enter__()

    def __enter__(self) -> T:
        self._begin()
        return self._context.__enter__()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> bool | None:
        return self._context.__exit__(kind, error, trace)

    __aenter__ = __aexit__ = __await__ = _Unentered._refuse
