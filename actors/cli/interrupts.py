"""Ctrl-C on the command line.

Owns: what SIGINT does to this process. Does not own: what a command puts in order when it is cancelled.

``KeyboardInterrupt`` strikes between any two instructions: in the event loop, in the start of a thread, in a
finalizer, and what it tears there can hang for ever. So no command is interrupted by it:

- what owns something is cancelled like any task, and closes in order;
- a second Ctrl-C ends the process at once, as a crash would: what was acked is durable, and the next owner
  puts the rest in order;
- what owns nothing ends at once at the first, also while a full pipe holds its output back.

All of them exit with 130 and say nothing. Only the main thread is told of signals; elsewhere nothing here has
an effect.
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
    """From now on Ctrl-C ends this process where it stands: nothing is owned, so there is nothing to put in
    order."""
    _obey(_end)


def interrupt_once() -> None:
    """The next Ctrl-C is a ``KeyboardInterrupt``, and what follows does not tear the end that it began. For
    code without an event loop."""
    _obey(_raise_once)


def _obey(handler: Handler) -> None:
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGINT, handler)


def _end(number: int, frame: FrameType | None) -> NoReturn:
    """Without waiting for threads, which nobody may be left to end."""
    if sys.stderr.isatty():
        # A progress bar hides it.
        os.write(2, _SHOW_CURSOR.encode())
    os._exit(INTERRUPTED)


def _raise_once(number: int, frame: FrameType | None) -> NoReturn:
    # Not SIG_IGN: Python complains on stderr about a signal that came in the moment before.
    _obey(_pass_over)
    raise KeyboardInterrupt


def _pass_over(number: int, frame: FrameType | None) -> None:
    """The end is under way already."""


class Interrupts:
    """Ctrl-C while one command runs on asyncio: the first cancels it, the second ends the process."""

    def __init__(self) -> None:
        self._cancel: Callable[[], object] | None = None
        self._is_interrupted = False

    @contextmanager
    def listening(self) -> Iterator[None]:
        before = signal.getsignal(signal.SIGINT)
        _obey(self._heard)
        try:
            yield
        finally:
            self._cancel = None
            _obey(before if callable(before) else signal.default_int_handler)

    def _heard(self, number: int, frame: FrameType | None) -> None:
        if self._is_interrupted:
            _end(number, frame)
        self._is_interrupted = True
        if self._cancel is not None:
            self._cancel()

    async def run(self, command: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """``command``, cancelled by the first Ctrl-C: then ``KeyboardInterrupt``, raised where it tears
        nothing."""
        import anyio

        with anyio.CancelScope() as scope:
            self._cancels(scope)
            try:
                return await command()
            finally:
                # What receives signals itself, as a service does, leaves Python's own handler behind.
                if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
                    _obey(self._heard)
        raise KeyboardInterrupt

    def _cancels(self, scope: anyio.CancelScope) -> None:
        import asyncio

        # Signal handlers run between two steps of the loop, or in the middle of one.
        loop = asyncio.get_running_loop()
        self._cancel = partial(loop.call_soon_threadsafe, scope.cancel)
        if self._is_interrupted:
            scope.cancel()
