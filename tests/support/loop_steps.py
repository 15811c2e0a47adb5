"""The processor time of every step of an event loop.

A step is what runs between two awaits that suspend: one callback of asyncio, one step of a trio task. Its
time is that of the thread (``time.thread_time``), so other programs on the machine do not count. Full
collections of Python's garbage collector are subtracted: they traverse whatever the process holds, and happen
in whichever step comes along.

A step can still look too long, as a hypervisor counts the time for which it takes the processor away, and
other programs share its caches: the best of some attempts counts, and limits grow with ``slowness``. Where
only growth matters, count the calls of a step instead (``CallCounter``): they are the same on every machine.

Event loops of other threads do not count: each thread has a time of its own, and the begin of a step in one
with the end of a step in another made a step of a minute.
"""

from __future__ import annotations

import asyncio
import gc
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Self

import attrs
import sniffio
import trio

from support.patience import scaled

LIMIT = 0.005
"""Seconds of the processor on a quiet machine."""
ATTEMPTS = 5
REFERENCE = 0.0007
"""Seconds that the work of ``slowness`` takes on the machine on which the limits were set."""


def slowness() -> float:
    """How many times longer than on that machine the processor takes here and now; at least 1."""
    seconds = []
    for _ in range(5):
        begin = time.thread_time()
        sorted({f"{number:07d}": number for number in range(3_000)})
        seconds.append(time.thread_time() - begin)
    return max(1.0, min(seconds) / REFERENCE)


class CallCounter:
    """A clock of the running thread that is as slow as its work: it counts calls of functions."""

    def __init__(self) -> None:
        self._calls = 0

    def __call__(self) -> float:
        return self._calls

    def __enter__(self) -> Self:
        sys.setprofile(self._count)
        return self

    def __exit__(self, *_: object) -> None:
        sys.setprofile(None)

    def _count(self, frame: object, event: str, arg: object) -> None:
        if event in ("call", "c_call"):
            self._calls += 1


@attrs.define
class LoopSteps:
    """The steps of one event loop that took the longest."""

    limit: float
    """Seconds above which a step is recorded."""
    clock: Callable[[], float] = time.thread_time
    longest: float = 0.0
    long: list[tuple[float, str]] = attrs.field(factory=list)
    """(seconds, what ran) of every step above the limit, in order."""
    _began: float = 0.0
    _collecting: float = 0.0
    _thread: int = attrs.field(factory=threading.get_ident)

    @property
    def is_own(self) -> bool:
        """Whether this is the thread of the event loop."""
        return threading.get_ident() == self._thread

    def begin(self) -> None:
        self._began = self.clock()

    def end(self, what: Any) -> None:
        took = self.clock() - self._began
        self.longest = max(self.longest, took)
        if took > self.limit:
            self.long.append((took, repr(what)))

    def collected(self, phase: str, info: dict[str, int]) -> None:
        """A callback of Python's garbage collector."""
        if not self.is_own:
            return
        if phase == "start":
            self._collecting = self.clock()
        else:
            self._began += self.clock() - self._collecting


class _TrioSteps(trio.abc.Instrument):
    def __init__(self, steps: LoopSteps) -> None:
        self._steps = steps

    def before_task_step(self, task: trio.lowlevel.Task) -> None:
        self._steps.begin()

    def after_task_step(self, task: trio.lowlevel.Task) -> None:
        self._steps.end(task)


@contextmanager
def recorded_steps(limit: float, clock: Callable[[], float] = time.thread_time) -> Iterator[LoopSteps]:
    """Record the steps of the running event loop."""
    steps = LoopSteps(limit, clock)
    gc.callbacks.append(steps.collected)
    steps.begin()  # the step under way counts from here on
    try:
        if sniffio.current_async_library() == "trio":
            instrument = _TrioSteps(steps)
            trio.lowlevel.add_instrument(instrument)
            try:
                yield steps
            finally:
                trio.lowlevel.remove_instrument(instrument)
        else:
            run = asyncio.Handle._run

            def timed(handle: asyncio.Handle) -> None:
                if not steps.is_own:
                    run(handle)
                    return
                steps.begin()
                run(handle)
                steps.end(handle)

            asyncio.Handle._run = timed  # type: ignore[method-assign,assignment]
            try:
                yield steps
            finally:
                asyncio.Handle._run = run  # type: ignore[method-assign]
        steps.end("the step in which the recording ends")
    finally:
        gc.callbacks.remove(steps.collected)


@attrs.define
class LongestSteps:
    """The longest step of each phase, in its best attempt."""

    limits: dict[str, float] = attrs.field(factory=dict)
    """Limits of the phases that do not have ``LIMIT``, in seconds."""
    seconds: dict[str, float] = attrs.field(factory=dict)
    clock: Callable[[], float] = time.thread_time
    _slowness: float = 1.0

    def attempts(self) -> Iterator[int]:
        """Numbers of the attempts that are needed: up to ``ATTEMPTS``, until no phase has too long a step.

        Raises ``AssertionError`` after the last one.
        """
        for attempt in range(ATTEMPTS):
            yield attempt
            self._slowness = max(self._slowness, slowness())
            if not self._too_long():
                return
        assert not self._too_long(), f"steps of the loop, in seconds: {self._too_long()}"

    @contextmanager
    def of(self, phase: str) -> Iterator[None]:
        with recorded_steps(LIMIT, self.clock) as steps:
            yield
        self.seconds[phase] = min(steps.longest, self.seconds.get(phase, steps.longest))

    def _too_long(self) -> dict[str, float]:
        return {
            phase: seconds
            for phase, seconds in self.seconds.items()
            if seconds > scaled(self.limits.get(phase, LIMIT)) * self._slowness
        }
