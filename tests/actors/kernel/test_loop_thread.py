"""An event loop in a thread of its own: who waits, who is interrupted, and how it ends."""

from __future__ import annotations

import gc
import itertools
import os
import signal
import sys
import threading
import weakref
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from contextvars import ContextVar
from types import FrameType
from typing import Any

import anyio
import pytest

from support.patience import scaled
from tierlog import ClosedError
from tierlog.actors.kernel import loop_thread
from tierlog.actors.kernel.loop_thread import LoopThread

WHERE: ContextVar[str] = ContextVar("where", default="nowhere")


class Opened:
    """What the contexts of these tests give."""

    def __init__(self) -> None:
        self.left = threading.Event()
        self.has_failed = False
        self.failing: anyio.Event | None = None


@asynccontextmanager
async def opened() -> AsyncIterator[Opened]:
    found = Opened()
    try:
        async with anyio.create_task_group() as tasks:
            found.failing = anyio.Event()
            tasks.start_soon(_fail, found.failing)
            yield found
            tasks.cancel_scope.cancel()
    except BaseException:
        found.has_failed = True
        raise
    finally:
        found.left.set()


async def _fail(when: anyio.Event) -> None:
    await when.wait()
    raise ZeroDivisionError("a bug")


@contextmanager
def running() -> Iterator[LoopThread[Opened]]:
    loop = LoopThread("thing", opened())
    try:
        yield loop
    finally:
        loop.close(drains=False)


@contextmanager
def ending(*threads: threading.Thread) -> Iterator[None]:
    for thread in threads:
        thread.start()
    yield
    for thread in threads:
        thread.join(scaled(30))
        assert not thread.is_alive()


async def value() -> int:
    return 7


async def forever(entered: threading.Event, ended: threading.Event) -> None:
    entered.set()
    try:
        await anyio.sleep_forever()
    finally:
        ended.set()


def test_what_opening_raises_is_raised() -> None:
    @asynccontextmanager
    async def refused() -> AsyncIterator[None]:
        raise FileNotFoundError("gone")
        yield

    with pytest.raises(FileNotFoundError, match="gone"):
        LoopThread("thing", refused())


def test_calls_have_their_callers_context_and_their_own_result() -> None:
    async def where() -> str:
        return WHERE.get()

    async def fails() -> None:
        raise KeyError("k")

    with running() as loop:
        token = WHERE.set("here")
        assert loop.run(where) == "here"
        WHERE.reset(token)
        assert loop.run(where) == "nowhere"
        with pytest.raises(KeyError):
            loop.run(fails)


def test_a_call_that_raises_what_ends_a_loop_ends_alone() -> None:
    async def exits() -> None:
        raise SystemExit(3)

    with running() as loop:
        with pytest.raises(SystemExit):
            loop.run(exits)
        assert loop.run(value) == 7


# --- interrupts -------------------------------------------------------------------------------------


def test_an_interrupted_call_is_cancelled_and_has_ended() -> None:
    entered, ended = threading.Event(), threading.Event()

    async def interrupted() -> None:
        os.kill(os.getpid(), signal.SIGINT)
        await forever(entered, ended)

    with running() as loop:
        for _ in range(50):
            ended.clear()
            with pytest.raises(KeyboardInterrupt):
                loop.run(interrupted)
            assert ended.is_set() or not entered.is_set()
            entered.clear()
        assert loop.run(value) == 7


def test_a_call_is_interrupted_wherever_its_thread_is() -> None:
    """Interrupts come from a thread that does nothing else, so they hit each step of a call."""
    stop = threading.Event()

    def interrupt() -> None:
        while not stop.is_set():
            signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGUSR1)

    class Interrupt(Exception):
        pass

    is_armed = False

    def handler(number: int, frame: FrameType | None) -> None:
        nonlocal is_armed
        if is_armed:
            is_armed = False
            raise Interrupt

    before = signal.signal(signal.SIGUSR1, handler)
    interrupts = 0
    try:
        with running() as loop, ending(threading.Thread(target=interrupt, daemon=True)):
            try:
                for _ in range(300):
                    try:
                        is_armed = True
                        loop.run(value)
                        is_armed = False
                    except Interrupt:
                        interrupts += 1
                assert loop.run(value) == 7
            finally:
                stop.set()
    finally:
        signal.signal(signal.SIGUSR1, before)

    assert interrupts > 0


def test_a_signal_handler_may_call_while_its_thread_waits() -> None:
    found: list[int] = []

    async def signalled() -> int:
        os.kill(os.getpid(), signal.SIGUSR1)
        while not found:
            await anyio.sleep(0.001)
        return 8

    with running() as loop:
        before = signal.signal(signal.SIGUSR1, lambda *_: found.append(loop.run(value)))
        try:
            assert loop.run(signalled) == 8
        finally:
            signal.signal(signal.SIGUSR1, before)

    assert found == [7]


# --- the end ----------------------------------------------------------------------------------------


def test_calls_that_wait_when_it_is_closed_end() -> None:
    entered, ended = threading.Event(), threading.Event()
    refusals: list[ClosedError] = []

    def call(loop: LoopThread[Opened]) -> None:
        try:
            loop.run(lambda: forever(entered, ended))
        except ClosedError as error:
            refusals.append(error)

    with running() as loop:
        with ending(threading.Thread(target=call, args=(loop,))):
            assert entered.wait(scaled(30))
            loop.close(drains=False)
        assert ended.is_set()
        assert len(refusals) == 1
        with pytest.raises(ClosedError, match="thing is closed"):
            loop.run(value)
        loop.close(drains=True)


def test_no_call_waits_for_a_loop_that_ends_meanwhile() -> None:
    for _ in range(30):
        calls = threading.Barrier(5)

        def call(loop: LoopThread[Opened], calls: threading.Barrier = calls) -> None:
            calls.wait()
            try:
                while True:
                    loop.run(value)
            except ClosedError:
                return

        with running() as loop, ending(*(threading.Thread(target=call, args=(loop,)) for _ in range(4))):
            calls.wait()
            loop.close(drains=True)


def at_line(number: int, act: Callable[[], None]) -> Callable[[FrameType, str, Any], Any]:
    """A trace function that calls ``act`` in front of a thread's ``number``-th line in the module."""
    lines = itertools.count()

    def trace(frame: FrameType, event: str, argument: object) -> Any:
        if frame.f_code.co_filename != loop_thread.__file__ or is_finalizing(frame):
            return None
        if event == "line" and next(lines) == number:
            act()
        return trace

    return trace


def is_finalizing(frame: FrameType | None) -> bool:
    """Whether a finalizer runs: what another test has left may be collected at any line, and an interrupt
    would be lost there."""
    while frame is not None and frame.f_code.co_name != "__del__":
        frame = frame.f_back
    return frame is not None


def test_an_interrupted_thread_takes_no_refusal_of_another_one_with_it() -> None:
    """Each place of a call of one thread with each place of an interrupt in another."""

    class Interrupt(Exception):
        pass

    def interrupt() -> None:
        raise Interrupt

    def call() -> None:
        with suppress(ClosedError, Interrupt):
            loop.run(value)

    def call_and_stop(number: int, stopped: threading.Event, go_on: threading.Event) -> None:
        def stop() -> None:
            stopped.set()
            go_on.wait()

        sys.settrace(at_line(number, stop))
        call()
        sys.settrace(None)
        stopped.set()

    with running() as loop:
        loop.close(drains=True)
        before = sys.gettrace()
        for number, interrupted in itertools.product(range(0, 36, 3), range(36)):
            stopped, go_on = threading.Event(), threading.Event()
            other = threading.Thread(target=call_and_stop, args=(number, stopped, go_on), daemon=True)
            with ending(other):
                assert stopped.wait(scaled(30))
                sys.settrace(at_line(interrupted, interrupt))
                call()
                sys.settrace(before)
                go_on.set()


def test_a_failed_call_leaves_nothing_to_the_collector() -> None:
    class Held:
        pass

    held: list[weakref.ref[Held]] = []

    async def fail() -> None:
        data = Held()
        held.append(weakref.ref(data))
        raise KeyError("k")

    with running() as loop:
        gc.disable()
        try:
            with suppress(KeyError):
                loop.run(fail)
            loop.run(value)  # the task of the first has ended
            assert held[0]() is None
        finally:
            gc.enable()


def test_the_body_ends_well_or_is_cancelled() -> None:
    for drains in (True, False):
        with running() as loop:
            loop.close(drains=drains)
            assert loop.value.has_failed is not drains


def test_a_failure_of_the_context_ends_the_calls_and_is_raised_at_the_close() -> None:
    loop = LoopThread("thing", opened())
    entered, ended = threading.Event(), threading.Event()

    async def fail() -> None:
        assert loop.value.failing is not None
        loop.value.failing.set()
        await forever(entered, ended)

    with pytest.raises(ClosedError, match="a bug"):
        loop.run(fail)
    with pytest.raises(ExceptionGroup):
        loop.close(drains=True)


def test_one_that_nobody_holds_ends_by_itself() -> None:
    loop = LoopThread("thing", opened())
    left = loop.value.left
    del loop

    assert left.wait(scaled(30))


def test_its_own_thread_waits_for_nothing() -> None:
    """Finalizers run on any thread."""

    async def own_calls(held: list[LoopThread[Opened]]) -> None:
        with pytest.raises(ClosedError, match="cannot wait"):
            held[0].run(value)
        held[0].close(drains=True)

    held = [LoopThread("thing", opened())]
    left = held[0].value.left
    held[0].run(lambda: own_calls(held))
    assert left.wait(scaled(30))

    held = [LoopThread("thing", opened())]
    left = held[0].value.left
    held[0]._loop.soon(held.clear)
    assert left.wait(scaled(30))


# --- generators -------------------------------------------------------------------------------------


class Numbers:
    def __init__(self) -> None:
        self.ended = threading.Event()

    async def generate(self) -> AsyncGenerator[int, None]:
        try:
            for number in range(3):
                await anyio.lowlevel.checkpoint()
                yield number
        finally:
            self.ended.set()


def test_blocks_come_one_by_one_and_end() -> None:
    numbers = Numbers()
    with running() as loop:
        assert list(loop.blocks(numbers.generate)) == [0, 1, 2]
        assert numbers.ended.is_set()


def test_blocks_that_are_dropped_end_soon() -> None:
    with running() as loop:
        for drop in (lambda blocks: blocks.close(), lambda blocks: None):
            numbers = Numbers()
            blocks = loop.blocks(numbers.generate)
            assert next(blocks) == 0
            drop(blocks)
            del blocks
            assert numbers.ended.wait(scaled(30))


def test_blocks_are_collected_on_any_thread() -> None:
    class Cycle:
        def __init__(self, blocks: Iterator[int]) -> None:
            self.blocks, self.itself = blocks, self

    async def collect() -> None:
        gc.collect()

    numbers = Numbers()
    with running() as loop:
        cycle = Cycle(loop.blocks(numbers.generate))
        assert next(cycle.blocks) == 0
        del cycle
        loop.run(collect)
        assert numbers.ended.wait(scaled(30))


def test_an_interrupt_ends_a_generator_too() -> None:
    ended = threading.Event()

    async def interrupting() -> AsyncGenerator[int, None]:
        try:
            yield 0
            os.kill(os.getpid(), signal.SIGINT)
            await anyio.sleep_forever()
        finally:
            ended.set()

    with running() as loop:
        blocks = loop.blocks(interrupting)
        assert next(blocks) == 0
        with pytest.raises(KeyboardInterrupt):
            next(blocks)
        assert ended.is_set()
