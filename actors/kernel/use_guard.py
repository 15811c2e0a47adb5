"""Refuses the use of a store or a client where it cannot work.

In a forked child its sockets, descriptors and tasks belong to the parent. In another thread than its event
loop's, a call would change state while the loop runs, and wake nobody. That holds for verbs, for the steps of
a generator, and for the end of the ``async with`` body.
"""

from __future__ import annotations

import os
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator
from contextlib import (
    AbstractAsyncContextManager,
    AbstractContextManager,
    asynccontextmanager,
    contextmanager,
)
from functools import wraps
from threading import get_ident
from types import TracebackType
from typing import Any, Generic, NoReturn, ParamSpec, TypeVar
from weakref import WeakSet

from ...storage_backends.base.errors import ClosedError

T = TypeVar("T")
P = ParamSpec("P")


class UseGuard:
    """Remembers where a store or a client was opened. ``any_thread``: it belongs to no event loop."""

    __slots__ = ("__weakref__", "_any_thread", "_what", "thread")

    def __init__(self, what: str, *, any_thread: bool = False) -> None:
        self._what = what
        self._any_thread = any_thread
        self.thread = get_ident()
        """The thread of the event loop; 0, which is no thread, in a forked child. Compared for each append,
        so it is an attribute."""
        _guards.add(self)

    def check(self) -> None:
        """Raises ``ClosedError`` if this is a forked child, or another thread."""
        if self.thread == 0:
            raise ClosedError(
                f"this {self._what} was opened by the parent of this forked process: open one here, after "
                f"the fork"
            )

        if not self._any_thread and self.thread != get_ident():
            raise ClosedError(
                f"this {self._what} belongs to the event loop of another thread: call it there "
                f"(asyncio.run_coroutine_threadsafe, trio.from_thread.run), or use tierlog.connect_sync"
            )


class GuardedGenerator(AsyncGenerator[T, None], Generic[T]):
    """``generator``, refused elsewhere: it could not even clean up there."""

    __slots__ = ("_generator", "_guard")

    def __init__(self, guard: UseGuard, generator: AsyncGenerator[T, None]) -> None:
        self._guard = guard
        self._generator = generator

    async def asend(self, value: None) -> T:
        self._guard.check()
        return await self._generator.asend(value)

    async def athrow(self, *error: Any) -> T:
        self._guard.check()
        return await self._generator.athrow(*error)

    async def aclose(self) -> None:
        self._guard.check()
        await self._generator.aclose()


class _Unentered:
    """Says what to do if a context manager is used as the object that only entering it gives."""

    # A copy is asked for attributes before it has any.
    _usage = "async with"
    _entered = False

    def __init__(self, usage: str) -> None:
        self._usage = usage

    def __getattr__(self, name: str) -> NoReturn:
        raise AttributeError(f"no {name!r} before it is entered: use it as `{self._usage}`")

    def _refuse(self, *_: object) -> NoReturn:
        raise TypeError(f"use it as `{self._usage}`")

    def _begin(self) -> None:
        if self._entered:
            raise ClosedError(f"this was entered before: use another one, as `{self._usage}`")
        self._entered = True

    __await__ = _refuse


class _GuardedContext(_Unentered, AbstractAsyncContextManager[T, bool | None]):
    def __init__(self, what: str, usage: str, context: AbstractAsyncContextManager[T, bool | None]) -> None:
        super().__init__(f"async {usage}")
        self._what = what
        self._context = context

    __enter__ = __exit__ = _Unentered._refuse

    async def __aenter__(self) -> T:
        self._begin()
        # On entry and not in `__init__`: the context may be made in one thread and entered in another.
        self._guard = UseGuard(self._what)
        return await self._context.__aenter__()

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> bool | None:
        self._guard.check()
        return await self._context.__aexit__(kind, error, trace)


def guarded_context(
    what: str,
) -> Callable[[Callable[P, AsyncIterator[T]]], Callable[P, AbstractAsyncContextManager[T, bool | None]]]:
    """As ``asynccontextmanager``; the body can be left only where it was entered."""

    def decorate(
        function: Callable[P, AsyncIterator[T]],
    ) -> Callable[P, AbstractAsyncContextManager[T, bool | None]]:
        make = asynccontextmanager(function)

        @wraps(function)
        def guarded(*args: P.args, **kwargs: P.kwargs) -> AbstractAsyncContextManager[T, bool | None]:
            return _GuardedContext(what, _usage(function, what), make(*args, **kwargs))

        return guarded

    return decorate


class _PlainContext(_Unentered, AbstractContextManager[T, bool | None]):
    def __init__(self, usage: str, context: AbstractContextManager[T, bool | None]) -> None:
        super().__init__(usage)
        self._context = context

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

    __aenter__ = __aexit__ = _Unentered._refuse


def plain_context(
    what: str,
) -> Callable[[Callable[P, Iterator[T]]], Callable[P, AbstractContextManager[T, bool | None]]]:
    """As ``contextmanager``; one that is used without being entered says how to get the ``what``."""

    def decorate(
        function: Callable[P, Iterator[T]],
    ) -> Callable[P, AbstractContextManager[T, bool | None]]:
        make = contextmanager(function)

        @wraps(function)
        def plain(*args: P.args, **kwargs: P.kwargs) -> AbstractContextManager[T, bool | None]:
            return _PlainContext(_usage(function, what), make(*args, **kwargs))

        return plain

    return decorate


def _usage(function: Callable[..., object], what: str) -> str:
    return f"with tierlog.{function.__name__}(...) as {what}"


_guards: WeakSet[UseGuard] = WeakSet()


def _forked() -> None:
    # No lock is needed: a forked child has only the thread that forked.
    for guard in _guards:
        guard.thread = 0


os.register_at_fork(after_in_child=_forked)
