"""Ctrl-C on the command line.

``KeyboardInterrupt`` can be raised between any two instructions, also in the event loop, in a thread's start
or in a finalizer, and the process may then hang. So SIGINT never raises it inside a command:

- a command that owns a store is cancelled like any task, and closes the store in order;
- a second Ctrl-C ends the process at once, like a crash: acked data is durable, and the next owner recovers;
- a command that owns nothing ends at once, even while a full pipe blocks its output.

All of them exit with 130 and print nothing, but for ``segment append``, which reports what it appended.
Signals arrive in the main thread; elsewhere this has no effect.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from functools import partial
from types import FrameType
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

if TYPE_CHECKING:
    import anyio

T = TypeVar("T")
INTERRUPTED = 130
_SHOW_CURSOR = "\x1b[?25h"

Handler = Callable[[int, FrameType | None], object]


def end_at_once() -> None:
    """From now on Ctrl-C ends the process at once: it owns nothing."""
    _handle_sigint(_end)


def _handle_sigint(handler: Handler) -> None:
    # Elsewhere Python refuses to set a handler.
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGINT, handler)


def _end(number: int, frame: FrameType | None) -> NoReturn:
    """Exit without waiting for threads, which may never end."""
    if sys.stderr.isatty():
        # A progress bar hides the cursor.
        os.write(2, _SHOW_CURSOR.encode())
    os._exit(INTERRUPTED)


class Interrupts:
    """Ctrl-C while one command runs on asyncio: the first cancels it, the second ends the process."""

    def __init__(self) -> None:
        self._cancel: Callable[[], object] | None = None
        self._is_interrupted = False

    @contextmanager
    def listening(self) -> Iterator[None]:
        before = signal.getsignal(signal.SIGINT)
        _handle_sigint(self._interrupt)
        try:
            yield
        finally:
            self._cancel = None
            # `getsignal` returns None for a handler that was not set by Python code.
            _handle_sigint(before if callable(before) else signal.default_int_handler)

    def _interrupt(self, number: int, frame: FrameType | None) -> None:
        if self._is_interrupted:
            _end(number, frame)
        self._is_interrupted = True
        if self._cancel is not None:
            self._cancel()

    async def run(self, command: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Run ``command``. The first Ctrl-C cancels it, and ``KeyboardInterrupt`` is raised after it has
        ended."""
        import anyio

        with anyio.CancelScope() as scope:
            self._cancel_with(scope)
            try:
                return await command()
            finally:
                # A command that receives signals itself, such as serve, leaves Python's own handler behind.
                if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
                    _handle_sigint(self._interrupt)
        raise KeyboardInterrupt

    def _cancel_with(self, scope: anyio.CancelScope) -> None:
        import asyncio

        # A signal handler may run in the middle of a step of the loop.
        loop = asyncio.get_running_loop()
        self._cancel = partial(loop.call_soon_threadsafe, scope.cancel)
        if self._is_interrupted:
            scope.cancel()
