"""Ends the process of a test that reaches its time limit, and reports what the test was doing."""

from __future__ import annotations

import gc
import os
import sys
import threading
import time
import traceback
from collections.abc import Iterator
from math import inf
from types import CoroutineType, FrameType
from typing import Any

import attrs

INTERVAL = 0.5
"""Seconds between two checks by one thread: to start a thread for each test takes longer than many tests."""


@attrs.define
class Watchdog:
    """Watches one test after the other."""

    capture: Any
    """pytest's capture manager, or None if the run captures nothing."""
    _test: str = ""
    _seconds: float = 0.0
    _deadline: float = inf

    def start(self) -> None:
        threading.Thread(target=self._watch, name="watchdog", daemon=True).start()

    def begin(self, test: str, seconds: float) -> None:
        """End the process if ``end`` is not called within ``seconds``, after a report on stderr, which all
        processes of a run share."""
        self._test, self._seconds = test, seconds
        self._deadline = time.monotonic() + seconds

    def end(self) -> None:
        self._deadline = inf

    def _watch(self) -> None:
        while True:
            time.sleep(INTERVAL)
            if time.monotonic() > self._deadline:
                self._end_process()

    def _end_process(self) -> None:
        try:
            if self.capture is not None:
                self.capture.suspend_global_capture()
            sys.stderr.write(report(self._test, self._seconds))
            sys.stderr.flush()
        finally:
            os._exit(1)


def report(test: str, seconds: float) -> str:
    """The stack of each thread, and where each task stands."""
    threads = {thread.ident: thread.name for thread in threading.enumerate()}
    frames = sys._current_frames()
    frames.pop(threading.get_ident(), None)
    lines = [f"\n{test} reached its time limit of {seconds:.0f} s\n"]
    for ident, frame in frames.items():
        lines += [f"thread {threads.get(ident, ident)}:\n", *traceback.format_stack(frame)]
    lines += [f"task: {' < '.join(calls)}\n" for calls in tasks()]
    return "".join(lines)


def tasks() -> Iterator[list[str]]:
    """Of each coroutine that has begun and that no other one awaits, where it and those that it awaits stand,
    the innermost first. Of any event loop, in any thread. One that runs is listed apart from what awaits it:
    it polls for what never comes."""
    begun = [each for each in gc.get_objects() if isinstance(each, CoroutineType) and each.cr_frame]
    awaited = {id(each.cr_await) for each in begun}
    for each in begun:
        if id(each) not in awaited and (each.cr_suspended or each.cr_running):
            yield [_position(frame) for frame in reversed(list(_frames(each)))]


def _frames(awaitable: Any) -> Iterator[FrameType]:
    """Of a coroutine, and of what it awaits: coroutines and generators."""
    while awaitable is not None:
        frame = getattr(awaitable, "cr_frame", None) or getattr(awaitable, "gi_frame", None)
        if frame is not None:
            yield frame
        awaitable = getattr(awaitable, "cr_await", None) or getattr(awaitable, "gi_yieldfrom", None)


def _position(frame: FrameType) -> str:
    code = frame.f_code
    return f"{code.co_qualname} ({os.path.basename(code.co_filename)}:{frame.f_lineno})"
