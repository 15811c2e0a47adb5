"""What a test was doing when its time limit ended it: the stack of each thread, and where each task waits."""

from __future__ import annotations

import gc
import os
import sys
import threading
import traceback
from collections.abc import Iterator
from types import CoroutineType, FrameType
from typing import Any

import pytest


def end_process(item: pytest.Item, seconds: float) -> None:
    """Write the report to the process's stderr, which all processes of a run share, and end the process."""
    try:
        capture = item.config.pluginmanager.getplugin("capturemanager")
        if capture is not None:
            capture.suspend_global_capture()
        sys.stderr.write(report(item.nodeid, seconds))
        sys.stderr.flush()
    finally:
        os._exit(1)


def report(test: str, seconds: float) -> str:
    threads = {thread.ident: thread.name for thread in threading.enumerate()}
    frames = sys._current_frames()
    frames.pop(threading.get_ident(), None)
    lines = [f"\n{test} reached its time limit of {seconds:.0f} s\n"]
    for ident, frame in frames.items():
        lines += [f"thread {threads.get(ident, ident)}:\n", *traceback.format_stack(frame)]
    lines += [f"task: {' < '.join(calls)}\n" for calls in waiting_tasks()]
    return "".join(lines)


def waiting_tasks() -> Iterator[list[str]]:
    """Of each suspended coroutine that no other one awaits, where it and those that it awaits stand, the
    innermost first. Of any event loop, in any thread."""
    suspended = [each for each in gc.get_objects() if isinstance(each, CoroutineType) and each.cr_frame]
    awaited = {id(each.cr_await) for each in suspended}
    for each in suspended:
        if id(each) not in awaited and each.cr_suspended:
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
