"""An event loop without chance: virtual time, a scheduler that follows a seed, and deadlock detection.

Time stands still while any task can run and jumps to the next timer when none can, so an hour of sleep costs
nothing. The order of tasks that are ready together comes from the seed. Trio's switch for that is a private
name; a run that cannot find it fails at once. The cyclic garbage collector is off during a run, because it
runs finalizers at moments that depend on earlier memory use.

A body that needs more than ``limit`` virtual seconds is a ``Deadlock``: its report is made before anything is
cancelled, so that it shows where every task waits. One that needs too many rounds of the scheduler is
``Busy``. An exception of an act (``carry_out``) is raised when the run is over.
"""

from __future__ import annotations

import gc
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import PurePath
from typing import TypeVar

import attrs
import trio
import trio.testing
from trio._core import _run as scheduler

T = TypeVar("T")
_WATCH = "deadlock watch"
LIMIT_SECONDS = 100_000.0
"""Virtual seconds that no run needs: with a timer that far away, time jumps to it when everybody waits for
ever."""

_failures: trio.lowlevel.RunVar[list[BaseException]] = trio.lowlevel.RunVar("failures of acts")


class Deadlock(Exception):
    """Everybody waits forever; the message names each task and where it waits."""


class Busy(Deadlock):
    """A task runs forever; the message names each task and where it is."""


@attrs.frozen
class Rounds:
    """How many rounds of the scheduler a run may take. In each, every task that is ready takes a step."""

    at_one_time: int
    """While virtual time stands still."""
    in_all: int


def run_virtual(
    body: Callable[[], Awaitable[T]], seed: int, *, limit: float = LIMIT_SECONDS, rounds: Rounds | None = None
) -> T:
    """Run ``body`` to its end on trio, in the order that ``seed`` decides, for at most ``limit`` virtual
    seconds, and ``rounds``."""
    failures: list[BaseException] = []

    async def main() -> T:
        _failures.set(failures)
        return await _within(limit, rounds, body)

    with _seeded(seed):
        result = trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))
    if failures:
        raise failures[0]
    return result


def seed_scheduler(seed: int | str) -> None:
    """Trio runs tasks that are ready together in the order that ``seed`` decides, from now on."""
    scheduler._r.seed(seed)


@contextmanager
def _seeded(seed: int) -> Iterator[None]:
    before, collecting = scheduler._ALLOW_DETERMINISTIC_SCHEDULING, gc.isenabled()
    scheduler._ALLOW_DETERMINISTIC_SCHEDULING = True  # type: ignore[misc]
    seed_scheduler(seed)
    gc.disable()
    try:
        yield
    finally:
        scheduler._ALLOW_DETERMINISTIC_SCHEDULING = before  # type: ignore[misc]
        if collecting:
            gc.enable()


async def _within(limit: float, rounds: Rounds | None, body: Callable[[], Awaitable[T]]) -> T:
    found: list[Deadlock] = []
    result: list[T] = []
    failure: BaseException | None = None
    ended = False

    async def watch() -> None:
        await trio.sleep(limit)
        end(Deadlock, f"no end after {limit:g} virtual seconds; these tasks wait:")
        with trio.CancelScope(shield=True):
            while not ended:
                _drop_shields()
                await trio.sleep(1)

    def end(kind: type[Deadlock], why: str) -> None:
        if not found:
            found.append(kind("\n".join((why, *waiting_tasks()))))
        nursery.cancel_scope.cancel()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(watch, name=_WATCH)
        if rounds is not None:
            trio.lowlevel.add_instrument(_Pace(rounds, lambda why: end(Busy, why)))
        try:
            result.append(await body())
        except BaseException as error:  # noqa: BLE001 - raised below, outside the nursery, which would wrap it in a group
            failure = error
        ended = True
        nursery.cancel_scope.cancel()
    if found:
        raise found[0]
    if failure is not None:
        raise failure
    return result[0]


def _drop_shields() -> None:
    """Let the cancellation through to tasks that wait forever behind a shield, and to what they then begin
    behind another."""
    for task in _all_tasks():
        status = None if task.name == _WATCH else task._cancel_status
        while status is not None:
            status._scope.shield = False
            status = status._parent


def waiting_tasks() -> list[str]:
    """Each task of the run but the watch, in the order of their creation: its name, and the calls that it
    waits in."""
    return [f"  {task.name}: {_place(task)}" for task in _all_tasks() if _is_ours(task)]


def _all_tasks() -> list[trio.lowlevel.Task]:
    root = trio.lowlevel.current_root_task()
    return [] if root is None else sorted(_descendants(root), key=lambda task: task._counter)


def _descendants(task: trio.lowlevel.Task) -> Iterator[trio.lowlevel.Task]:
    for nursery in task.child_nurseries:
        for child in nursery.child_tasks:
            yield child
            yield from _descendants(child)


def _is_ours(task: trio.lowlevel.Task) -> bool:
    return task.name != _WATCH and any(
        not _is_library(frame.f_code.co_filename) for frame, _ in task.iter_await_frames()
    )


def _place(task: trio.lowlevel.Task) -> str:
    frames = [
        (frame.f_code, line)
        for frame, line in task.iter_await_frames()
        if not _is_library(frame.f_code.co_filename)
    ]
    return " < ".join(
        f"{code.co_name} ({PurePath(code.co_filename).name}:{line})" for code, line in reversed(frames[-9:])
    )


def _is_library(path: str) -> bool:
    parts = PurePath(path).parts
    return "trio" in parts or "anyio" in parts or path.startswith("<")


class _Pace(trio.abc.Instrument):
    """Counts rounds; from the one that is too many on, ``end`` is called in each, since a task that runs for
    ever may do so behind a new shield."""

    def __init__(self, rounds: Rounds, end: Callable[[str], None]) -> None:
        self._rounds = rounds
        self._end = end
        self._in_all = 0
        self._before = 0
        """Rounds until time last moved."""
        self._time = -1.0

    def before_io_wait(self, timeout: float) -> None:
        self._in_all += 1
        now = trio.current_time()
        if now != self._time:
            self._time, self._before = now, self._in_all
        if self._in_all - self._before > self._rounds.at_one_time:
            self._stop(f"{self._rounds.at_one_time} rounds of the scheduler and no time has passed")
        elif self._in_all > self._rounds.in_all:
            self._stop(f"{self._rounds.in_all} rounds of the scheduler")

    def _stop(self, why: str) -> None:
        self._end(f"the store is busy without end: {why}; these tasks are there:")
        _drop_shields()


class _Countdown(trio.abc.Instrument):
    """Acts at the end of a task's step, when that task has come to an await."""

    def __init__(self, count: int, act: Callable[[], None]) -> None:
        self._left = count
        self._act = act

    def after_task_step(self, task: trio.lowlevel.Task) -> None:
        self._left -= 1
        if self._left > 0:
            return

        trio.lowlevel.remove_instrument(self)
        carry_out(self._act)


def carry_out(act: Callable[[], object]) -> None:
    """Call ``act`` in the middle of something else. What it raises comes out of the run at its end: the store
    would take it for an error of its call, and trio would only log it."""
    try:
        act()
    except BaseException as error:  # noqa: BLE001 - as above
        _failures.get().append(error)


def after_steps(count: int, act: Callable[[], None]) -> None:
    """Call ``act`` when the tasks of this run have taken ``count`` more steps, between two of them: at any
    await point of anybody."""
    trio.lowlevel.add_instrument(_Countdown(count, act))
