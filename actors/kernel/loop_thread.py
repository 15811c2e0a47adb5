"""An event loop in a thread of its own, for callers that have none: it enters an asynchronous context, and
runs the calls of other threads, which wait for them.

Threads hand over what they want in a queue without a lock, and each waits for a reply of its own. So a signal
handler or a finalizer may do the same in the middle of anything. A finalizer, which may run on any thread,
the loop's own included, waits for nothing.

Cancellation: a call whose thread is interrupted (Ctrl-C, or what a signal handler raises) is cancelled, and
has ended before the exception goes on. A second interrupt does not wait for that.

Forks and the end of the process: in the child of a fork nothing of the loop is touched, because its
descriptors are those of the parent. The thread is a daemon: a process may end without a close, and what runs
at the interpreter's end is refused, because nothing would answer. Other threads may go on after the main
thread has ended, and may still begin a loop."""

from __future__ import annotations

import asyncio
import socket
import sys
import threading
from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Iterator
from contextlib import AbstractAsyncContextManager, suppress
from contextvars import Context, copy_context
from functools import partial
from typing import Any, Generic, TypeVar, cast

import anyio

from ...storage_backends.base.errors import ClosedError
from .event_loop import lane_thread
from .use_guard import UseGuard

T = TypeVar("T")
V = TypeVar("V")
_END: Any = object()


class _Reply(Generic[T]):
    """What one thread waits for."""

    __slots__ = ("_error", "_gate", "_value", "is_there")

    def __init__(self) -> None:
        # A bare lock: of all that the standard library has, signals interrupt it, and it has no lock inside.
        self._gate = threading.Lock()
        self._gate.acquire()
        self._value: T | None = None
        self._error: BaseException | None = None
        self.is_there = False

    def resolve(self, value: T | None, error: BaseException | None = None) -> None:
        """The first one counts. Two threads may refuse the same at once."""
        if not self.is_there:
            self._value, self._error = value, error
            self.is_there = True
            with suppress(RuntimeError):  # the other one was in between
                self._gate.release()

    def wait(self) -> None:
        # An interrupt may have come behind the acquisition, which succeeds only once.
        if not self.is_there:
            self._gate.acquire()

    def result(self) -> T:
        error, self._error = self._error, None
        if error is None:
            return cast(T, self._value)
        try:
            raise error
        finally:
            # Its traceback has this frame, and those of the call: what it holds must not wait for the
            # collector.
            del error


class _Call(Generic[T]):
    """``make``, called in the loop, and awaited there in a task of its own."""

    __slots__ = ("_context", "_is_abandoned", "_loop", "_make", "_scope", "reply")

    def __init__(self, loop: _Loop[Any], make: Callable[[], Awaitable[T]], context: Context) -> None:
        self._loop = loop
        self._make = make
        self._context = context
        self._scope: anyio.CancelScope | None = None
        self._is_abandoned = False
        self.reply: _Reply[T] = _Reply()

    def start(self) -> None:
        if self._loop.takes_calls and not self._is_abandoned:
            self._loop.spawn(self._run(), self._context)
        else:
            self.refuse()

    def refuse(self) -> None:
        self.reply.resolve(None, self._loop.closed())

    def cancel(self) -> None:
        self._is_abandoned = True
        if self._scope is None:
            self.refuse()  # it has not begun, and will not
        else:
            self._scope.cancel()

    async def _run(self) -> None:
        if self._is_abandoned:
            return
        try:
            with anyio.CancelScope() as self._scope:
                self.reply.resolve(await self._make())
            self.refuse()  # without effect but after a cancellation, when nobody waits for the reason
        except anyio.get_cancelled_exc_class():
            self.refuse()
            raise
        # The caller gets it, whatever it is: the loop goes on for the others.
        except BaseException as error:  # noqa: BLE001
            self.reply.resolve(None, error)


class _Blocks(Generic[T]):
    """An asynchronous generator of the loop, whose blocks a thread takes one by one. The loop holds it until
    it has ended: one that is collected elsewhere would wake the loop, even that of a fork's parent."""

    def __init__(self, loop: _Loop[Any], make: Callable[[], AsyncGenerator[T, None]]) -> None:
        self._loop = loop
        self._make = make
        self._generator: AsyncGenerator[T, None] | None = None
        self._is_running = self._is_abandoned = False

    async def next(self) -> T:
        """The next block, or ``_END``."""
        if self._generator is None:
            self._generator = self._make()
            self._loop.blocks.add(self)
        self._is_running = True
        try:
            block = await anext(self._generator, _END)
        except BaseException:
            self._loop.blocks.discard(self)  # it has ended by it
            raise
        finally:
            self._is_running = False
        if block is _END:
            self._loop.blocks.discard(self)
        elif self._is_abandoned:
            self._close()
        return block

    def abandon(self) -> None:
        self._is_abandoned = True
        if not self._is_running:
            self._close()

    def _close(self) -> None:
        # As a call that nobody waits for.
        if self in self._loop.blocks:
            self._loop.blocks.discard(self)
            assert self._generator is not None
            _Call(self._loop, self._generator.aclose, copy_context()).start()


class _EventLoop(asyncio.SelectorEventLoop):
    """Looks host names up in threads of its own: those of asyncio take nothing more once the main thread
    has ended."""

    async def getaddrinfo(
        self, host: bytes | str | None, port: bytes | str | int | None, **hints: int
    ) -> list[Any]:
        # One for each: a name that no server answers for holds up no other one.
        run = lane_thread()
        assert run is not None
        found: list[Any] = await run(partial(socket.getaddrinfo, host, port, **hints))
        return found


class _Loop(Generic[V]):
    """What the thread has. It does not hold its ``LoopThread``, which ends it when nobody uses it any
    more."""

    def __init__(self, what: str) -> None:
        self._what = what
        self._wanted: deque[tuple[Callable[[], None], Callable[[], None]]] = deque()
        """What to do in the loop, and what to do instead once that has ended."""
        self._loop: asyncio.AbstractEventLoop | None = None
        self._context = Context()
        """The loop's own context, which tells the library that runs it."""
        self._has_ended = False
        self._failure: BaseException | None = None
        self._ends: list[_Reply[None]] = []
        self.thread = 0
        self.opened: _Reply[V] = _Reply()
        self.takes_calls = False
        self._calls: set[asyncio.Task[None]] = set()
        """Not a task group: that would cost each call a fifth more."""
        self.blocks: set[_Blocks[Any]] = set()

    # --- on any thread -----------------------------------------------------------------------------

    def soon(self, act: Callable[[], None], refuse: Callable[[], None] = lambda: None) -> None:
        """Do ``act`` in the loop; ``refuse``, here or in the thread of the loop, if that has ended."""
        if not self._has_ended:
            self._wanted.append((act, refuse))
            # What is added before there is a loop, that finds at its start.
            if self._loop is not None:
                with suppress(RuntimeError):  # it is closed
                    self._loop.call_soon_threadsafe(self._work, context=self._context)
        # It may have ended meanwhile. Nobody takes what another thread waits for out of the queue here: an
        # interrupt would lose it.
        if self._has_ended:
            refuse()

    def end(self, reply: _Reply[None], act: Callable[[], None]) -> None:
        """Do ``act``, which ends the loop, and resolve the reply when it has ended."""

        def begin() -> None:
            self._ends.append(reply)
            act()

        self.soon(begin, lambda: reply.resolve(None, self._failure))

    def context(self) -> Context:
        """The caller's context, for a task of the loop."""
        context = copy_context()
        for variable, value in self._context.items():
            context.run(variable.set, value)
        return context

    def closed(self) -> ClosedError:
        why = f": {self._failure!r}" if self._failure is not None else ""
        return ClosedError(
            f"the {self._what} is closed, or was closed during the call, which may have been carried out{why}"
        )

    @property
    def can_be_waited_for(self) -> bool:
        """Not by its own thread, and not at the interpreter's end, when no other thread runs any more."""
        return self.thread != threading.get_ident() and not sys.is_finalizing()

    # --- in the loop -------------------------------------------------------------------------------

    def run(self, context: AbstractAsyncContextManager[V, Any]) -> None:
        """The thread."""
        try:
            # A context without the variables of whoever has started the thread.
            options = {"loop_factory": _EventLoop}
            Context().run(lambda: anyio.run(self._main, context, backend="asyncio", backend_options=options))
        except BaseException as error:  # noqa: BLE001 - whoever opens or closes it gets it
            self._failure = error
        self._has_ended = True
        self.opened.resolve(None, self._failure or self.closed())
        # From here on each thread that wants something refuses it itself.
        while self._wanted:
            _, refuse = self._wanted.popleft()
            refuse()
        for reply in self._ends:
            reply.resolve(None, self._failure)

    async def _main(self, context: AbstractAsyncContextManager[V, Any]) -> None:
        self.thread = threading.get_ident()
        self._context = copy_context()
        self._body, self._is_wanted = anyio.CancelScope(), anyio.Event()
        self._loop = asyncio.get_running_loop()
        self._work()
        try:
            with self._body:
                async with context as value:
                    self.takes_calls = True
                    self.opened.resolve(value)
                    await self._is_wanted.wait()
                    self.takes_calls = False
        except BaseException as error:
            self._failure = error
            raise
        finally:
            self.takes_calls = False
            for task in self._calls:
                task.cancel()
            while self._calls:
                await asyncio.wait(self._calls)

    def spawn(self, call: Coroutine[Any, Any, None], context: Context) -> None:
        assert self._loop is not None
        task = self._loop.create_task(call, context=context)
        self._calls.add(task)
        task.add_done_callback(self._calls.discard)

    def _work(self) -> None:
        while self._wanted:
            act, _ = self._wanted.popleft()
            act()

    def leave(self) -> None:
        """Leave the context's body as at its end."""
        self._is_wanted.set()

    def abort(self) -> None:
        """Leave it as if cancelled."""
        self._body.cancel()


class LoopThread(Generic[V]):
    """Enters ``context`` in a loop in a new thread; raises what entering it raises. ``what``: what the
    context gives. One that nobody holds any more ends by itself."""

    def __init__(self, what: str, context: AbstractAsyncContextManager[V, Any]) -> None:
        self.guard = UseGuard(what, any_thread=True)
        self._what = what
        self._loop: _Loop[V] = _Loop(what)
        threading.Thread(target=self._loop.run, args=(context,), name=f"tierlog {what}", daemon=True).start()
        try:
            self._loop.opened.wait()
        except BaseException:
            self._loop.soon(self._loop.abort)
            raise

        self.value = self._loop.opened.result()

    def __del__(self) -> None:
        if self.guard.thread:
            self._loop.soon(self._loop.abort)

    def run(self, make: Callable[[], Awaitable[T]]) -> T:
        """The result of ``make()``, which is called and awaited in the loop, in the caller's context.

        Raises ``ClosedError`` in the child of a fork, in the loop's own thread and at the interpreter's end
        (where finalizers may run, which cannot wait), and if the loop ends before the call does."""
        self.guard.check()
        if not self._loop.can_be_waited_for:
            raise ClosedError(
                f"a finalizer or a hook in the thread of the {self._what}, or at the end of the interpreter, "
                f"cannot wait for it"
            )

        call = _Call(self._loop, make, self._loop.context())
        try:
            self._loop.soon(call.start, call.refuse)
            call.reply.wait()
        except BaseException:
            self._loop.soon(call.cancel, call.refuse)
            call.reply.wait()
            raise

        return call.reply.result()

    def blocks(self, make: Callable[[], AsyncGenerator[T, None]]) -> Iterator[T]:
        """What the generator of ``make()`` yields in the loop. Dropped half-way, it ends some time later."""
        blocks = _Blocks(self._loop, make)
        try:
            while (block := self.run(blocks.next)) is not _END:
                yield block
        finally:
            # Perhaps in the collector of garbage, on any thread, or in a fork.
            if self.guard.thread:
                self._loop.soon(blocks.abandon)

    def close(self, *, drains: bool) -> None:
        """Leave the context and end the thread; calls that wait end with ``ClosedError``.

        ``drains``: leave the context as at the end of its body; else as if that was cancelled. Returns when
        the loop has ended, but at once in its own thread and at the interpreter's end, and does nothing in
        the child of a fork."""
        if not self.guard.thread:
            return

        reply: _Reply[None] = _Reply()
        try:
            self._loop.end(reply, self._loop.leave if drains else self._loop.abort)
            if self._loop.can_be_waited_for:
                reply.wait()
        except BaseException:
            self._loop.end(reply, self._loop.abort)
            reply.wait()
            raise

        if reply.is_there:
            reply.result()
