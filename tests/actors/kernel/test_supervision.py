"""Supervision (A9, A10; durations as C8 says), backoff and shutdown with a deadline (A11), in virtual
time."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from random import Random

import anyio
import pytest
from trio.testing import MockClock

from tierlog.actors.kernel.backoff import Backoff
from tierlog.actors.kernel.exits import CLEAN_EXIT, ActorExit, ExitKind
from tierlog.actors.kernel.supervision import RestartPolicy, SupervisionEvent, SupervisionStep, supervise
from tierlog.actors.kernel.task_groups import finish_within
from tierlog.storage_backends.base.errors import InvalidArgument, NotOwner, Unavailable

pytestmark = pytest.mark.anyio

EXACT = Backoff(first=1, maximum=8, jitter=0)
POLICY = RestartPolicy(backoff=EXACT, restarts_max=5, window=1000, healthy_after=100)
virtual_time = pytest.mark.parametrize(
    "anyio_backend", [("trio", {"clock": MockClock(autojump_threshold=0)})], ids=["trio-virtual"]
)

FAILED = ActorExit(ExitKind.FAILED, Unavailable("down"))


class Supervised:
    """An actor that plays a script of (seconds it lives, how it ends), and what its supervisor said."""

    def __init__(self, *script: tuple[float, ActorExit | BaseException]) -> None:
        self._script = iter(script)
        self.events: list[SupervisionEvent] = []
        self.starts: list[float] = []

    async def run(self) -> ActorExit:
        self.starts.append(anyio.current_time())
        seconds, end = next(self._script)
        await anyio.sleep(seconds)
        if isinstance(end, BaseException):
            raise end
        return end

    async def supervise(self, policy: RestartPolicy = POLICY) -> ActorExit:
        return await supervise("worker", self.run, policy, self.events.append, Random(1))

    @property
    def pauses(self) -> list[float]:
        return [event.delay for event in self.events if event.step is SupervisionStep.RESTARTING]

    @property
    def steps(self) -> list[SupervisionStep]:
        return [event.step for event in self.events]


@pytest.mark.parametrize("kind", [ExitKind.CLEAN, ExitKind.FENCED, ExitKind.CORRUPT])
async def test_a_terminal_exit_is_returned_and_not_restarted(kind: ExitKind) -> None:
    worker = Supervised((0, ActorExit(kind)))
    assert (await worker.supervise()).kind is kind
    assert worker.steps == [SupervisionStep.STARTED, SupervisionStep.ENDED]


@virtual_time
async def test_restarts_back_off_exponentially_up_to_a_bound() -> None:
    worker = Supervised(*[(0, FAILED)] * 5, (0, CLEAN_EXIT))
    start = anyio.current_time()
    assert await worker.supervise() == CLEAN_EXIT
    assert worker.pauses == [1, 2, 4, 8, 8]
    assert [round(at - start) for at in worker.starts] == [0, 1, 3, 7, 15, 23]
    assert worker.events[-1].restarts == 5


@virtual_time
async def test_a_healthy_run_starts_the_backoff_afresh() -> None:
    worker = Supervised((0, FAILED), (0, FAILED), (100, FAILED), (0, FAILED), (0, CLEAN_EXIT))
    await worker.supervise()
    assert worker.pauses == [1, 2, 1, 2]


@virtual_time
async def test_a10_supervision_gives_up_at_the_restart_limit() -> None:
    worker = Supervised(*[(0, FAILED)] * 6)
    ended = await worker.supervise()
    assert (ended.kind, ended.error) == (ExitKind.FAILED, FAILED.error)
    assert "gave up: 5 restarts within 1000 s" in ended.detail
    assert worker.steps[-1] is SupervisionStep.GAVE_UP
    assert len(worker.starts) == 6


@virtual_time
async def test_restarts_outside_the_window_do_not_count() -> None:
    worker = Supervised(*[(400, FAILED)] * 20, (0, CLEAN_EXIT))
    assert await worker.supervise() == CLEAN_EXIT
    assert len(worker.starts) == 21


@virtual_time
@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (Unavailable("down"), ExitKind.FAILED),
        (MemoryError(), ExitKind.POISONED),
        (ExceptionGroup("tasks", [KeyError("bug"), Unavailable("down")]), ExitKind.FAILED),
    ],
    ids=repr,
)
async def test_an_escaped_exception_counts_as_an_exit(error: BaseException, kind: ExitKind) -> None:
    worker = Supervised((0, error), (0, CLEAN_EXIT))
    assert await worker.supervise() == CLEAN_EXIT
    restarted = worker.events[1]
    assert restarted.exit is not None
    assert (restarted.exit.kind, restarted.exit.error) == (kind, error)


async def test_an_escaped_fencing_is_not_restarted() -> None:
    worker = Supervised((0, ExceptionGroup("tasks", [NotOwner("epoch 8")])))
    assert (await worker.supervise()).kind is ExitKind.FENCED
    assert len(worker.starts) == 1


async def test_system_exit_is_reported_and_passes_through() -> None:
    events: list[SupervisionEvent] = []

    async def run() -> ActorExit:
        raise BaseExceptionGroup("tasks", [SystemExit(3), KeyError("bug")])

    with pytest.raises(BaseExceptionGroup):
        await supervise("worker", run, POLICY, events.append, Random(1))
    assert events[-1].exit is not None
    assert events[-1].exit.kind is ExitKind.POISONED


async def _sleep_for_ever() -> ActorExit:
    await anyio.sleep_forever()
    return CLEAN_EXIT


async def _fail() -> ActorExit:
    return FAILED


@pytest.mark.parametrize("run", [_sleep_for_ever, _fail], ids=["in the actor", "between two runs"])
async def test_cancellation_passes_through(run: Callable[[], Awaitable[ActorExit]]) -> None:
    events: list[SupervisionEvent] = []
    slow = RestartPolicy(backoff=Backoff(first=1000, maximum=1000))
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(supervise, "worker", run, slow, events.append, Random(1))
        await anyio.wait_all_tasks_blocked()
        tasks.cancel_scope.cancel()
    assert SupervisionStep.ENDED not in {event.step for event in events}


def test_jitter_shortens_and_comes_from_the_given_random() -> None:
    backoff = Backoff(first=1, maximum=8, jitter=0.5)
    delays = [
        [backoff.delay(attempt, random) for attempt in range(2000)] for random in (Random(1), Random(1))
    ]
    assert delays[0] == delays[1]
    assert all(4 <= delay <= 8 for delay in delays[0][3:])
    assert len(set(delays[0])) > 1900


@pytest.mark.parametrize(
    "make",
    [
        lambda: Backoff(first=-1, maximum=1),
        lambda: Backoff(first=2, maximum=1),
        lambda: Backoff(first=1, maximum=2, factor=0.5),
        lambda: Backoff(first=1, maximum=2, jitter=1.5),
        lambda: RestartPolicy(restarts_max=-1),
        lambda: RestartPolicy(window=0),
    ],
)
def test_policies_are_checked(make: Callable[[], object]) -> None:
    with pytest.raises(InvalidArgument):
        make()


@virtual_time
async def test_clean_up_is_shielded_up_to_its_deadline() -> None:
    results: list[bool] = []

    async def clean_up_twice() -> None:
        try:
            await anyio.sleep_forever()
        finally:
            results.append(await finish_within(10, lambda: anyio.sleep(9)))
            results.append(await finish_within(10, anyio.sleep_forever))

    start = anyio.current_time()
    with anyio.move_on_after(1):
        await clean_up_twice()
    assert results == [True, False]
    assert anyio.current_time() - start == pytest.approx(20)


async def test_errors_of_clean_up_pass() -> None:
    async def clean_up() -> None:
        raise Unavailable("down")

    with pytest.raises(Unavailable):
        await finish_within(10, clean_up)
