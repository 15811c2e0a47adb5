"""The host of one container: ownership after ownership, and what callers get meanwhile."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Collection
from contextlib import asynccontextmanager
from random import Random
from typing import Any

import anyio
import attrs
import pytest

from support.container_world import virtual_time
from tierlog.actors.container.local_container import LocalContainer
from tierlog.actors.kernel.backoff import Backoff
from tierlog.actors.kernel.supervision import RestartPolicy
from tierlog.storage_backends.base.errors import (
    ClosedError,
    DataCorruption,
    NotOwner,
    OutcomeUnknown,
    SegmentNotFound,
    StorageFull,
    StoreMismatch,
    TierlogError,
    Unavailable,
)

pytestmark = [pytest.mark.anyio, virtual_time]

POLICY = RestartPolicy(Backoff(first=1.0, maximum=1.0, jitter=0.0), restarts_max=2, window=100.0)


@attrs.define(eq=False)
class Ownership:
    """Stands for a container: starts after ``starts_after`` seconds, lives until it is stopped or fails."""

    number: int
    starts_after: float = 0.0
    start_error: BaseException | None = None
    is_poisoned: bool = False
    previous_epochs: Collection[int] | None = None
    _end: anyio.Event = attrs.field(factory=anyio.Event)
    _error: BaseException | None = None

    @property
    def log(self) -> Ownership:
        return self

    @property
    def own_epochs(self) -> Collection[int]:
        return (10 * self.number,)

    async def run(
        self, started: Callable[[], None], ending: Callable[[], None], previous_epochs: Collection[int] | None
    ) -> None:
        self.previous_epochs = previous_epochs
        try:
            await anyio.sleep(self.starts_after)
            if self.start_error is not None:
                raise self.start_error
            started()
            await self._end.wait()
            if self._error is not None:
                raise self._error
        finally:
            ending()

    def stop(self) -> None:
        self._end.set()

    def fail(self, error: BaseException) -> None:
        self._error = error
        self._end.set()

    def statistics(self) -> Any:
        return f"statistics of {self.number}"


@attrs.define
class Supervised:
    container: LocalContainer
    made: list[Ownership]
    ended: anyio.Event = attrs.field(factory=anyio.Event)

    async def run(self) -> None:
        await self.container.run()
        self.ended.set()


@asynccontextmanager
async def supervised(*scripts: dict[str, Any], wait: float = 10.0) -> AsyncIterator[Supervised]:
    """A supervised container whose n-th ownership is made as the n-th script says (the last one again and
    again)."""
    made: list[Ownership] = []

    def make() -> Any:
        script = scripts[min(len(made), len(scripts) - 1)] if scripts else {}
        made.append(Ownership(len(made) + 1, **script))
        return made[-1]

    world = Supervised(LocalContainer(3, make, POLICY, Random(1), wait), made)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(world.run)
        yield world
        world.container.stop()
        await world.ended.wait()


async def number(ownership: Any) -> int:
    answer: int = ownership.number
    return answer


async def refusal(container: LocalContainer) -> type[Exception]:
    with pytest.raises(TierlogError) as refused:
        await container.call(number)

    return type(refused.value)


async def test_a_call_waits_for_recovery_up_to_the_limit() -> None:
    async with supervised({}, {"starts_after": 5.0}) as world:
        await world.container.wait_started()
        world.made[0].fail(Unavailable("disk"))
        await anyio.wait_all_tasks_blocked()
        before = anyio.current_time()

        assert await world.container.call(number) == 2
        assert anyio.current_time() - before == pytest.approx(6.0)


@pytest.mark.parametrize("error", [Unavailable("not taken in"), ClosedError("mailbox closed")], ids=repr)
async def test_a_call_that_was_not_accepted_is_tried_on_the_next_ownership(error: TierlogError) -> None:
    async with supervised() as world:
        await world.container.wait_started()

        async def verb(ownership: Any) -> int:
            if ownership.number == 1:
                ownership.fail(Unavailable("disk"))
                await anyio.wait_all_tasks_blocked()
                raise error
            return await number(ownership)

        assert await world.container.call(verb) == 2


@pytest.mark.parametrize("error", [OutcomeUnknown("?"), SegmentNotFound("no such")], ids=repr)
async def test_an_answered_call_or_one_of_unknown_outcome_is_never_tried_again(
    error: TierlogError,
) -> None:
    async with supervised() as world:
        await world.container.wait_started()
        calls = 0

        async def verb(ownership: Any) -> int:
            nonlocal calls
            calls += 1
            ownership.fail(Unavailable("disk"))
            await anyio.wait_all_tasks_blocked()
            raise error

        with pytest.raises(type(error)):
            await world.container.call(verb)
        assert calls == 1


async def test_an_unavailable_backend_of_a_running_container_surfaces() -> None:
    async with supervised() as world:
        await world.container.wait_started()

        async def verb(ownership: Any) -> int:
            raise Unavailable("long-term storage is down")

        with pytest.raises(Unavailable, match="long-term storage"):
            await world.container.call(verb)
        assert await world.container.call(number) == 1


async def test_a_fenced_container_stays_fenced() -> None:
    """Reopening it would fence the other owner, and so on without end (A9)."""
    async with supervised() as world:
        await world.container.wait_started()
        world.made[0].fail(NotOwner("epoch 4 fenced 3"))
        await world.ended.wait()

        assert await refusal(world.container) is NotOwner
        assert len(world.made) == 1
        assert world.container.statistics().state == "fenced"


@pytest.mark.parametrize(
    "error",
    [DataCorruption("bad", file="f", offset=7), StoreMismatch("a clone")],
    ids=lambda e: type(e).__name__,
)
async def test_a_corrupt_container_stays_stopped_and_reports_the_reason(error: TierlogError) -> None:
    """A restart would meet the same bytes again."""
    async with supervised({"start_error": ExceptionGroup("tasks", [error])}) as world:
        with pytest.raises(type(error)) as refused:
            await world.container.wait_started()

        assert refused.value is error
        assert await refusal(world.container) is type(error)
        assert len(world.made) == 1
        assert world.container.statistics().state == "corrupt"


async def test_a_container_that_keeps_failing_is_abandoned() -> None:
    async with supervised({"start_error": RuntimeError("bug")}) as world:
        await world.ended.wait()
        with pytest.raises(Unavailable, match="stopped for good: failed: gave up"):
            await world.container.call(number)

        assert len(world.made) == 3


async def test_a_first_opening_without_room_is_not_repeated() -> None:
    """Each attempt may cost room, which does not come back by itself. A container that served is opened
    again: its users may have made room."""
    async with supervised({"start_error": StorageFull("no room")}) as world:
        with pytest.raises(StorageFull, match="no room"):
            await world.container.wait_started()
        assert len(world.made) == 1

    async with supervised() as world:
        await world.container.wait_started()
        world.made[0].fail(StorageFull("no room"))
        await anyio.sleep(1.5)
        assert len(world.made) == 2
        assert world.container.active is not None


async def test_the_last_failure_of_an_abandoned_container_is_reported() -> None:
    async with supervised({"start_error": Unavailable("no disk")}) as world:
        await world.ended.wait()
        with pytest.raises(Unavailable, match="no disk"):
            await world.container.call(number)


async def test_a_stop_during_the_pause_makes_no_new_ownership_work() -> None:
    async with supervised() as world:
        await world.container.wait_started()
        world.made[0].fail(Unavailable("disk"))
        await anyio.wait_all_tasks_blocked()
        world.container.stop()
        await world.ended.wait()

        assert world.container.active is None
        assert await refusal(world.container) is ClosedError


async def test_a_restart_takes_over_only_from_this_containers_own_ownerships() -> None:
    """The first ownership opens on order, over any owner; the next ones open by themselves."""
    async with supervised() as world:
        await world.container.wait_started()
        for _ in range(2):
            world.made[-1].fail(Unavailable("the disk failed"))
            await anyio.sleep(2.0)

        assert [ownership.previous_epochs for ownership in world.made] == [None, {10}, {10, 20}]
