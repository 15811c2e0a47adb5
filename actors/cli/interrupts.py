"""Ctrl-C and SIGTERM on the command line, and SIGHUP, which a closed terminal sends.

``KeyboardInterrupt`` can be raised between any two instructions, also in the event loop, in a thread's start
or in a finalizer, and the process may then hang. So no signal raises an exception inside a command:

- a command that owns a store is cancelled like any task, and closes the store in order;
- a second signal ends the process at once, like a crash: acked data is durable, and the next owner recovers;
- a command that owns nothing ends at once, even while a full pipe blocks its output.

All of them exit with 128 and the signal's number, 130 after Ctrl-C, and print nothing, but for ``segment
append``, which reports what it appended, and ``backup --copy-to``, ``restore`` and ``recover``, which are to
be run again. Signals arrive in the main thread; elsewhere this has no effect.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from types import FrameType
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

if TYPE_CHECKING:
    import anyio

T = TypeVar("T")
_SHOW_CURSOR = "\x1b[?25h"
_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)

Handler = Callable[[int, FrameType | None], object]
INTERRUPTED = 128 + signal.SIGINT


def end_at_once() -> None:
    """From now on a signal ends the process at once: it owns nothing."""
    _handle(_end)


def _handle(handler: Handler) -> None:
    # Elsewhere Python refuses to set a handler.
    if threading.current_thread() is not threading.main_thread():
        return

    for number in _SIGNALS:
        # `nohup` ignores SIGHUP, and a parent may have ignored SIGTERM.
        if number == signal.SIGINT or signal.getsignal(number) != signal.SIG_IGN:
            signal.signal(number, handler)


def _end(number: int, frame: FrameType | None) -> NoReturn:
    """Exit without waiting for threads, which may never end."""
    # A progress bar hides the cursor; a closed terminal takes no output.
    with suppress(OSError):
        if sys.stderr.isatty():
            os.write(2, _SHOW_CURSOR.encode())
    os._exit(128 + number)


class Interrupts:
    """The signals while one command runs on asyncio: the first cancels it, the second ends the process."""

    def __init__(self) -> None:
        self._cancel: Callable[[], object] | None = None
        self._number: int | None = None
        """Of the first signal."""

    @property
    def exit_code(self) -> int:
        """Of a command that was cancelled."""
        return 128 + (self._number or signal.SIGINT)

    @contextmanager
    def listening(self) -> Iterator[None]:
        before = {number: signal.getsignal(number) for number in _SIGNALS}
        _handle(self._interrupt)
        try:
            yield
        finally:
            if threading.current_thread() is threading.main_thread():
                for number, handler in before.items():
                    # `getsignal` returns None for a handler that was not set by Python code.
                    signal.signal(number, signal.SIG_DFL if handler is None else handler)

    def _interrupt(self, number: int, frame: FrameType | None) -> None:
        if self._number is not None:
            _end(number, frame)
        self._number = number
        if self._cancel is not None:
            self._cancel()

    async def run(self, command: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Run ``command``. The first signal cancels it, and ``KeyboardInterrupt`` is raised after it has
        ended."""
        import anyio

        with anyio.CancelScope() as scope:
            self._cancel_with(scope)
            try:
                return await command()
            finally:
                # The loop may be closed before the handlers are.
                self._cancel = None
                # A command that receives signals itself, such as serve, leaves the defaults behind.
                if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
                    _handle(self._interrupt)
        raise KeyboardInterrupt

    def _cancel_with(self, scope: anyio.CancelScope) -> None:
        import asyncio

        # A signal handler may run in the middle of a step of the loop.
        loop = asyncio.get_running_loop()
        self._cancel = partial(loop.call_soon_threadsafe, scope.cancel)
        if self._number is not None:
            scope.cancel()
