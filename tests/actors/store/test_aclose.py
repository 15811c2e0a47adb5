"""``aclose``, and openings whose two ends are in different tasks: start-up and shut-down hooks, fixtures,
containers of dependencies."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, aclosing, asynccontextmanager
from pathlib import Path
from threading import Thread

import anyio
import pytest
import trio

import tierlog
from support.patience import scaled
from support.stores import CONFIG, config, make
from tierlog import ClosedError, SegmentStore, Unavailable
from tierlog.actors.container.local_container import LocalContainer
from tierlog.actors.settings.configuration import ShutdownConfig
from tierlog.actors.store import runtime
from tierlog.storage_backends.chunks.memory import MemoryChunkStorage

pytestmark = pytest.mark.anyio


async def in_another_task(act: Callable[[], Awaitable[object]]) -> None:
    async def run() -> None:
        await act()

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(run)


async def refuse(store: SegmentStore) -> None:
    for call in (lambda: store.append("s", b"x"), lambda: store.read("s", 0, 1), store.flush):
        with pytest.raises(ClosedError, match="the store is closed"):
            await call()


# --- two tasks -----------------------------------------------------------------------------------


async def test_a_store_is_entered_in_one_task_and_left_in_another(tmp_path: Path) -> None:
    stack = AsyncExitStack()
    stores: list[SegmentStore] = []

    async def start_up() -> None:
        opening = tierlog.open_store(tmp_path, containers=1, config=CONFIG)
        stores.append(await stack.enter_async_context(opening))

    await in_another_task(start_up)
    [store] = stores
    await make(store, "s", b"abc")
    await in_another_task(stack.aclose)

    await refuse(store)
    async with tierlog.open_store(tmp_path, config=CONFIG) as store:
        assert await store.read("s", 0, 10) == b"abc"


async def test_an_awaited_store_is_closed_by_any_task(tmp_path: Path) -> None:
    store = await tierlog.open_store(tmp_path, containers=1, config=CONFIG)
    await make(store, "s", b"abc")
    await in_another_task(store.aclose)

    await refuse(store)
    store = await tierlog.open_store(tmp_path, config=CONFIG)
    async with aclosing(store):
        assert await store.read("s", 0, 10) == b"abc"
    await refuse(store)


async def test_an_awaited_store_may_be_entered_and_is_closed_at_the_end_of_that_body(tmp_path: Path) -> None:
    async with await tierlog.open_store(tmp_path, containers=1, config=CONFIG) as store:
        await make(store, "s", b"abc")
    await refuse(store)

    with pytest.raises(ZeroDivisionError):
        async with await tierlog.open_store(tmp_path, config=CONFIG) as store:
            raise ZeroDivisionError
    await refuse(store)


async def test_a_store_outlives_the_cancelled_scope_that_it_was_opened_in(tmp_path: Path) -> None:
    with anyio.CancelScope() as scope:
        store = await tierlog.open_store(tmp_path, containers=1, config=CONFIG)
        scope.cancel()
    await make(store, "s", b"abc")
    await store.aclose()


def test_a_store_that_nobody_closed_is_closed_at_the_end_of_trios_main_task(tmp_path: Path) -> None:
    async def forget() -> None:
        store = await tierlog.open_store(tmp_path, containers=1, config=CONFIG)
        await make(store, "s", b"abc")

    async def use() -> None:
        async with tierlog.open_store(tmp_path, config=CONFIG) as store:
            assert await store.read("s", 0, 10) == b"abc"

    trio.run(forget)
    assert not (tmp_path / "owners").exists()
    trio.run(use)


def test_the_hooks_of_an_event_loop_that_stands_still_in_between(tmp_path: Path) -> None:
    """As the two halves of a fixture."""

    @asynccontextmanager
    async def fixture() -> AsyncIterator[SegmentStore]:
        async with tierlog.open_store(tmp_path, containers=1, config=CONFIG) as store:
            yield store

    with asyncio.Runner() as runner:
        context = fixture()
        store = runner.run(context.__aenter__())
        runner.run(make(store, "s", b"abc"))
        assert runner.run(store.read("s", 0, 10)) == b"abc"
        runner.run(context.__aexit__(None, None, None))
        runner.run(refuse(store))


# --- calls in flight -----------------------------------------------------------------------------


async def test_calls_that_wait_get_an_error_and_the_body_is_left_as_usual(tmp_path: Path) -> None:
    ended: list[str] = []
    async with anyio.create_task_group() as tasks:

        async def follow(store: SegmentStore) -> None:
            async with aclosing(store.tail("s", 3)) as blocks:
                with pytest.raises(ClosedError):
                    await anext(blocks)
            ended.append("tail")

        async with tierlog.open_store(tmp_path, containers=1, config=CONFIG) as store:
            await make(store, "s", b"abc")
            tasks.start_soon(follow, store)
            await anyio.wait_all_tasks_blocked()
            tasks.start_soon(store.aclose)
            with pytest.raises(ClosedError):
                async for _ in store.tail("s", 3):
                    pass
            await refuse(store)
            ended.append("body")
    assert sorted(ended) == ["body", "tail"]


async def test_an_append_that_was_accepted_is_acked_or_is_not_there(
    tmp_path: Path,
) -> None:
    outcomes: list[object] = []
    async with tierlog.open_store(tmp_path, containers=1, config=CONFIG) as store:
        await make(store, "s")

        async def append() -> None:
            try:
                outcomes.append(await store.append("s", b"x"))
            except ClosedError as error:
                outcomes.append(error)

        async with anyio.create_task_group() as tasks:
            for _ in range(20):
                tasks.start_soon(append)
            await anyio.lowlevel.checkpoint()
            tasks.start_soon(store.aclose)
    acked = [outcome for outcome in outcomes if isinstance(outcome, int)]
    assert len(outcomes) == 20
    async with tierlog.open_store(tmp_path, config=CONFIG) as store:
        assert (await store.segment_info("s")).length == len(acked)


# --- closing -------------------------------------------------------------------------------------


class Gate(MemoryChunkStorage):
    """A chunk storage whose end waits, and may fail."""

    def __init__(self, error: Exception | None = None) -> None:
        super().__init__()
        self.reached, self.release = anyio.Event(), anyio.Event()
        self.error = error

    async def _close(self) -> None:
        self.reached.set()
        await self.release.wait()
        if self.error is not None:
            raise self.error


async def test_each_of_several_closers_returns_when_the_store_has_ended(tmp_path: Path) -> None:
    gate, returned = Gate(), 0
    store = await tierlog.open_store(tmp_path, containers=1, config=CONFIG, storage=gate)

    async def close() -> None:
        nonlocal returned
        await store.aclose()
        returned += 1

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(close)
        tasks.start_soon(close)
        await gate.reached.wait()
        await anyio.wait_all_tasks_blocked()
        assert returned == 0
        gate.release.set()
    await store.aclose()
    assert returned == 2


async def test_a_cancelled_closer_leaves_at_once_and_the_closing_goes_on(tmp_path: Path) -> None:
    gate = Gate()
    store = await tierlog.open_store(tmp_path, containers=1, config=CONFIG, storage=gate)
    with anyio.move_on_after(0) as scope:
        await store.aclose()
    assert scope.cancelled_caught
    await gate.reached.wait()
    await refuse(store)
    gate.release.set()
    await store.aclose()
    assert not (tmp_path / "owners").exists()


async def test_a_body_that_is_left_while_another_task_closes_waits_for_the_end(tmp_path: Path) -> None:
    gate, is_left = Gate(), False

    async def release() -> None:
        await gate.reached.wait()
        await anyio.wait_all_tasks_blocked()
        assert not is_left
        gate.release.set()

    async with anyio.create_task_group() as tasks:
        with anyio.CancelScope() as scope:
            async with tierlog.open_store(tmp_path, containers=1, config=CONFIG, storage=gate) as store:
                tasks.start_soon(store.aclose)
                tasks.start_soon(release)
                await gate.reached.wait()
                scope.cancel()
        is_left = True
    await refuse(store)


async def test_an_error_of_the_end_reaches_each_closer_and_the_body(tmp_path: Path) -> None:
    gate = Gate(OSError("planted"))
    gate.release.set()

    async def close() -> None:
        with pytest.raises(ExceptionGroup) as caught:
            await store.aclose()
        assert caught.group_contains(Unavailable, match="planted", depth=None)

    with pytest.raises(ExceptionGroup) as caught:
        async with tierlog.open_store(tmp_path, containers=1, config=CONFIG, storage=gate) as store:
            await in_another_task(close)
            await close()
    assert caught.group_contains(Unavailable, match="planted", depth=None)


async def test_an_error_that_aclose_raises_in_the_body_comes_out_once(tmp_path: Path) -> None:
    gate = Gate(OSError("planted"))
    gate.release.set()
    with pytest.raises(ExceptionGroup) as caught:
        async with tierlog.open_store(tmp_path, containers=1, config=CONFIG, storage=gate) as store:
            await store.aclose()
    assert caught.value.__context__ is None


async def test_a_store_that_ends_by_itself_refuses_calls_and_says_why_when_it_is_closed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def fail(*_: object) -> None:
        raise RuntimeError("planted")

    monkeypatch.setattr(runtime, "_FENCE_CHECK_SECONDS", 0.01)
    monkeypatch.setattr(LocalContainer, "ends_fenced", fail)
    with pytest.raises(ExceptionGroup) as caught:
        async with tierlog.open_store(tmp_path, containers=1, config=CONFIG) as store:
            with anyio.fail_after(scaled(20)):
                while "ended_by_itself" not in caplog.text:
                    await anyio.sleep(0.01)
            await refuse(store)
    assert caught.group_contains(RuntimeError, match="planted", depth=None)


# --- opening -------------------------------------------------------------------------------------


async def test_a_cancelled_opening_leaves_nothing_open(tmp_path: Path) -> None:
    class Slow(MemoryChunkStorage):
        def __init__(self) -> None:
            super().__init__()
            self.reached, self.release = anyio.Event(), anyio.Event()

        async def _open(self) -> None:
            self.reached.set()
            await self.release.wait()

    async def cancel() -> None:
        await slow.reached.wait()
        scope.cancel()
        slow.release.set()

    slow = Slow()
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(cancel)
        with anyio.CancelScope() as scope:
            await tierlog.open_store(tmp_path, containers=1, config=CONFIG, storage=slow)
    assert scope.cancelled_caught
    assert not (tmp_path / "owners").exists()


def test_an_opening_that_begins_as_asyncios_main_task_ends_does_not_hang(tmp_path: Path) -> None:
    """``asyncio.run`` then cancels a task that has not begun, of which nothing runs."""
    ended: list[str] = []

    async def open_it() -> None:
        try:
            await tierlog.open_store(tmp_path, containers=1, config=CONFIG)
        finally:
            ended.append("opening")

    async def main() -> None:
        tasks.append(asyncio.create_task(open_it()))

    tasks: list[asyncio.Task[None]] = []
    # A daemon: it would hang for ever.
    thread = Thread(target=lambda: asyncio.run(main()), daemon=True)
    thread.start()
    thread.join(scaled(10))
    assert not thread.is_alive()
    assert ended == ["opening"]
    assert tasks[0].cancelled()


async def test_aclose_flushes_as_the_end_of_a_body_does(tmp_path: Path) -> None:
    settings = config(shutdown=ShutdownConfig(embedded_budget=20.0))
    store = await tierlog.open_store(tmp_path, containers=1, config=settings)
    await make(store, "s", b"abc")
    await store.aclose()
    assert store.end_report is not None
    assert store.end_report.left == ()


async def test_aclose_is_refused_where_the_store_cannot_be_used(tmp_path: Path) -> None:
    store = await tierlog.open_store(tmp_path, containers=1, config=CONFIG)

    async def close() -> None:
        with pytest.raises(ClosedError, match="belongs to the event loop of another thread"):
            await store.aclose()

    await anyio.to_thread.run_sync(lambda: trio.run(close))
    await make(store, "s", b"abc")
    await store.aclose()
