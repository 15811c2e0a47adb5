"""The life of an embedded store: opening, failures and recoveries while the app continues, fencing, forks,
cancellation, Ctrl-C."""

from __future__ import annotations

import errno
import itertools
import os
import re
import signal
import subprocess
import sys
import textwrap
from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager
from pathlib import Path
from random import Random
from typing import Any

import anyio
import pytest
from simulation.file_layer import Fail, Fault, Pause, SimulatedDisk, SimulatedFiles

import tierlog
from support.container_world import ContainerWorld, read_all, virtual_time
from support.patience import scaled
from support.stores import CONFIG, config, follow, make
from tierlog import ClosedError, InvalidArgument, NotOwner, OutcomeUnknown, SegmentStore, Unavailable
from tierlog.actors.container.segments import SegmentState
from tierlog.actors.container.state import ContainerState
from tierlog.actors.kernel.exits import first_leaf
from tierlog.actors.settings.configuration import SupervisionConfig, TimeoutsConfig
from tierlog.actors.store import runtime
from tierlog.storage_backends.base.files import IoCall, Open, Sync, Write
from tierlog.testing.faulty_chunk_storage import Call

pytestmark = pytest.mark.anyio

EIO = Fail(OSError(errno.EIO, "scripted"))


class Folder:
    """A data folder on a simulated disk; ``fault`` breaks calls on its log."""

    def __init__(self) -> None:
        self.disk = SimulatedDisk(Random(1))
        self.fault: Fault | None = None
        self.kind: type[IoCall] = Sync
        self.hits = 0

    @asynccontextmanager
    async def open(self, **changed: Any) -> AsyncIterator[SegmentStore]:
        files = SimulatedFiles(self.disk, self._on_call)
        async with tierlog.open_store("/data", containers=1, config=config(**changed), files=files) as store:
            yield store

    def _on_call(self, index: int, call: IoCall) -> Fault | None:
        path = (
            call.path
            if isinstance(call, Open)
            else call.handle.path
            if isinstance(call, (Sync, Write))
            else ""
        )
        if self.fault is None or type(call) is not self.kind or "/wal/0000" not in path:
            return None

        self.hits += 1
        return self.fault

    def fail_next_sync(self) -> None:
        self.fault, self.kind = EIO, Sync


def restarts(store: SegmentStore) -> int:
    return store.statistics().containers[0].restarts


async def fail_once(folder: Folder, store: SegmentStore) -> None:
    """One append meets a failing disk; then the disk is well again."""
    folder.fail_next_sync()
    with pytest.raises(OutcomeUnknown):
        await store.append("s", b"?", writer_id="writer", event_number=restarts(store))
    folder.fault = None


# --- failures -----------------------------------------------------------------------------------


async def test_a_failed_container_recovers_within_the_store_and_the_body_continues() -> None:
    """W6, A9: the append that met the failure has an unknown outcome; everything acked is there; nobody
    reopens anything."""
    folder = Folder()
    async with folder.open() as store:
        await make(store, "s", b"abc")
        for round_ in range(3):
            await fail_once(folder, store)
            data = await read_all(store, "s")
            assert data.rstrip(b"?") == b"abc"
            await store.append("s", b"?", writer_id="writer", event_number=round_)
            assert await store.last_event_number("s", "writer") == round_

        assert await read_all(store, "s") == b"abc???"
        assert restarts(store) == 3


async def test_calls_that_were_waiting_are_carried_out_by_the_next_ownership() -> None:
    """What was refused before it was taken in, and what changes nothing, is asked again; no caller
    notices."""
    folder = Folder()
    async with folder.open() as store:
        await make(store, "s", b"abc")
        answers: list[object] = []

        async def query() -> None:
            answers.append((await store.segment_info("s")).start_offset)
            answers.append(await store.list_segments())

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(fail_once, folder, store)
            for _ in range(20):
                tasks.start_soon(query)
                await anyio.lowlevel.checkpoint()

        assert answers.count(0) == answers.count(["s"]) == 20
        assert restarts(store) == 1


async def test_a_tail_does_not_notice_a_recovery() -> None:
    folder = Folder()
    async with folder.open() as store:
        await make(store, "s", b"abc")
        seen: list[bytes] = []

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(follow, store, "s", seen)
            await anyio.wait_all_tasks_blocked()
            await fail_once(folder, store)
            await store.append("s", b"?", writer_id="writer", event_number=0)
            await store.append("s", b"def")
            await store.seal_segment("s")

        assert b"".join(seen) == b"abc?def"
        assert restarts(store) == 1


@virtual_time
async def test_a_recovering_container_answers_unavailable_after_the_limit() -> None:
    folder = Folder()
    async with folder.open(timeouts=TimeoutsConfig(unavailable=3.0)) as store:
        await make(store, "s", b"abc")
        await fail_once(folder, store)
        release = anyio.Event()
        folder.fault, folder.kind = Pause(release), Open
        before = anyio.current_time()
        for call in (
            lambda: store.append("s", b"x"),
            lambda: store.read("s", 0, 1),
            lambda: store.segment_info("s"),
            store.flush,
        ):
            with pytest.raises(Unavailable) as caught:
                await call()
            assert caught.value.retryable

        assert 12 <= anyio.current_time() - before < 13
        assert store.statistics().containers[0].state == "recovering"
        release.set()
        assert (await read_all(store, "s")).startswith(b"abc")


@virtual_time
async def test_a_container_that_fails_too_often_stays_stopped_and_reports_the_reason() -> None:
    """A10: five restarts in a minute are not enough; the body still goes on."""
    folder = Folder()
    async with folder.open(
        supervision=SupervisionConfig(restarts=5, backoff=0.001, backoff_max=0.002)
    ) as store:
        await make(store, "s", b"abc")
        folder.fail_next_sync()
        with pytest.raises(OutcomeUnknown):
            await store.append("s", b"x")
        with pytest.raises(Unavailable):
            await store.append("s", b"x")
        folder.fault = None

        with pytest.raises(Unavailable):
            await store.read("s", 0, 1)
        assert restarts(store) == 5
    async with folder.open() as store:
        assert (await store.read("s", 0, 3)) == b"abc"


async def test_the_apps_own_errors_come_out_as_they_are(tmp_path: Path) -> None:
    with pytest.raises(ZeroDivisionError):
        async with tierlog.open_store(tmp_path, containers=1, config=CONFIG):
            1 / 0  # noqa: B018

    with pytest.raises(tierlog.SegmentNotFound):
        async with tierlog.open_store(tmp_path, containers=1, config=CONFIG) as store:
            await store.read("none", 0, 1)


# --- fencing, closing, forks --------------------------------------------------------------------


async def test_an_open_folder_is_refused(tmp_path: Path) -> None:
    async with tierlog.open_store(tmp_path, containers=1, config=CONFIG) as store:
        await make(store, "s", b"abc")
        with pytest.raises(NotOwner, match="open already: use that store"):
            await tierlog.open_store(tmp_path, config=config(layout="layout-upgrade")).__aenter__()
        assert not (tmp_path / "wal" / "layout").exists(), "a refused opening changes nothing"
        assert await store.append("s", b"d") == 3
    async with tierlog.open_store(tmp_path, config=CONFIG) as store:
        assert await store.read("s", 0, 10) == b"abcd"


async def test_of_two_that_open_a_folder_at_the_same_time_one_is_refused(tmp_path: Path) -> None:
    async with tierlog.open_store(tmp_path, containers=1, config=CONFIG):
        pass
    refused = 0
    both = anyio.Event()

    async def use() -> None:
        nonlocal refused
        try:
            async with tierlog.open_store(tmp_path, config=CONFIG) as store:
                with anyio.fail_after(scaled(30)):
                    await both.wait()
                assert await store.list_segments() == []
        except NotOwner:
            refused += 1
            both.set()

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(use)
        tasks.start_soon(use)
    assert refused == 1


async def test_a_second_opening_fences_the_first(tmp_path: Path) -> None:
    async with tierlog.open_store(tmp_path, containers=1, config=CONFIG) as first:
        await make(first, "s", b"abc")
        async with tierlog.open_store(tmp_path, config=CONFIG, take_over=True) as second:
            await second.append("s", b"def")
            with pytest.raises(NotOwner):
                await first.read("s", 0, 3)
            with pytest.raises((NotOwner, OutcomeUnknown)):
                await first.append("s", b"lost")
            for call in (
                lambda: first.append("s", b"lost"),
                lambda: first.segment_info("s"),
                first.flush,
                lambda: first.read("s", 0, 1),
            ):
                with pytest.raises(NotOwner) as caught:
                    await call()
                assert not caught.value.retryable
            assert first.statistics().containers[0].state == "fenced"
            assert await second.read("s", 0, 10) == b"abcdef"

    async with tierlog.open_store(tmp_path, config=CONFIG) as third:
        assert await third.read("s", 0, 10) == b"abcdef"


async def test_an_idle_store_that_was_fenced_notices_it_and_does_not_count_as_the_owner(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Until its process ended, each opening had to take it over again, and its tails waited for nothing."""
    monkeypatch.setattr(runtime, "_FENCE_CHECK_SECONDS", 0.01)
    async with tierlog.open_store(tmp_path, containers=2, config=CONFIG) as first:
        await make(first, "s", b"abc")
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(tail_until_fenced, first)
            async with tierlog.open_store(tmp_path, config=CONFIG, take_over=True):
                pass

        with anyio.fail_after(scaled(20)):
            while (tmp_path / "owners").exists():
                await anyio.sleep(0.01)
        async with tierlog.open_store(tmp_path, config=CONFIG) as third:
            assert await third.read("s", 0, 10) == b"abc"


async def tail_until_fenced(store: SegmentStore) -> None:
    with pytest.raises(NotOwner):
        async for block in store.tail("s"):
            assert block == b"abc"


async def test_a_closed_store_refuses_everything(tmp_path: Path) -> None:
    async with tierlog.open_store(tmp_path, containers=1, config=CONFIG) as store:
        await make(store, "s", b"abc")

    for call in (
        lambda: store.append("s", b"x"),
        lambda: store.read("s", 0, 1),
        store.flush,
        store.list_segments,
    ):
        with pytest.raises(ClosedError):
            await call()
    assert "closed" in repr(store)


async def test_a5_a_waiting_tail_is_answered_when_the_store_closes(tmp_path: Path) -> None:
    """A5: a tail of another task ends with ``ClosedError``; nobody hangs."""
    async with anyio.create_task_group() as tasks:
        async with tierlog.open_store(tmp_path, containers=1, config=CONFIG) as store:
            await make(store, "s", b"abc")
            ended = anyio.Event()

            async def follow() -> None:
                async with aclosing(store.tail("s", 3)) as blocks:
                    with pytest.raises(ClosedError):
                        await anext(blocks)
                ended.set()

            tasks.start_soon(follow)
            await anyio.wait_all_tasks_blocked()
        with anyio.fail_after(scaled(30)):
            await ended.wait()


async def test_a_context_manager_used_without_with_says_how_to_use_it(tmp_path: Path) -> None:
    url = "http://127.0.0.1:1"
    made: Any
    for made, usage in (
        (tierlog.open_store(tmp_path / "data"), "`async with tierlog.open_store(...) as store`"),
        (tierlog.connect(url), "`async with tierlog.connect(...) as client`"),
        (tierlog.connect_sync(url), "`with tierlog.connect_sync(...) as client`"),
    ):
        with pytest.raises(AttributeError, match=re.escape(usage)):
            made.create_segment("s")
        with pytest.raises(TypeError, match=re.escape(usage)):
            if usage.startswith("`async"):
                with made:
                    pass
            else:
                async with made:
                    pass
    assert os.listdir(tmp_path) == []


async def test_a_forked_child_is_refused(tmp_path: Path) -> None:
    opening = tierlog.open_store(tmp_path, containers=1, config=CONFIG)
    async with opening as store:
        await make(store, "s", b"abc")
        child = os.fork()
        if not child:
            refused = 0
            for call in (
                store.append("s", b"x"),
                store.read("s", 0, 1),
                store.flush(),
                store.create_segment("t"),
                opening.__aexit__(None, None, None),
            ):
                try:
                    call.send(None)
                except ClosedError:
                    refused += 1
            os._exit(refused)

        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 5
        assert await store.append("s", b"d") == 3


@pytest.mark.parametrize("backend", ["asyncio", "trio"])
async def test_the_event_loop_of_another_thread_is_refused_before_anything_is_queued(
    tmp_path: Path, backend: str
) -> None:
    async with tierlog.open_store(tmp_path, containers=1, config=CONFIG) as store:
        await make(store, "s", b"abc")

        async def use() -> int:
            refused = 0
            for call in (
                store.append("s", b"x"),
                store.read("s", 0, 1),
                store.flush(),
                store.list_segments(),
            ):
                with pytest.raises(ClosedError, match="belongs to the event loop of another thread"):
                    await call
                refused += 1
            return refused

        assert await anyio.to_thread.run_sync(lambda: anyio.run(use, backend=backend)) == 4
        assert await store.append("s", b"d") == 3
        assert await store.read("s", 0, 10) == b"abcd"


@pytest.mark.parametrize("backend", ["asyncio", "trio"])
async def test_the_event_loop_of_another_thread_neither_closes_a_store_nor_goes_on_with_its_tail(
    tmp_path: Path, backend: str
) -> None:
    opening = tierlog.open_store(tmp_path, containers=1, config=CONFIG)
    store = await opening.__aenter__()
    await make(store, "s", b"abc")
    blocks = store.tail("s")
    assert await anext(blocks) == b"abc"

    async def use() -> None:
        for call in (opening.__aexit__(None, None, None), anext(blocks)):
            with pytest.raises(ClosedError, match="belongs to the event loop of another thread"):
                await call

    with anyio.fail_after(scaled(30)):
        await anyio.to_thread.run_sync(lambda: anyio.run(use, backend=backend), abandon_on_cancel=True)
        assert await store.append("s", b"d") == 3
        assert await anext(blocks) == b"d"
    await blocks.aclose()
    await opening.__aexit__(None, None, None)
    with pytest.raises(ClosedError):
        await store.append("s", b"e")


@pytest.mark.parametrize(("mode", "warns"), [(0o777, True), (0o775, True), (0o755, False), (0o700, False)])
async def test_a_folder_that_other_users_may_change_is_reported(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, mode: int, warns: bool
) -> None:
    folder = tmp_path / "data"
    folder.mkdir()
    folder.chmod(mode)
    async with tierlog.open_store(folder, containers=1, config=CONFIG):
        assert ("folder_shared" in caplog.text) is warns
        assert (f"chmod -R go= {folder}" in caplog.text) is warns


async def test_the_modes_of_a_folder_that_is_no_store_are_not_reported(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = tmp_path / "tmp"
    folder.mkdir()
    folder.chmod(0o777)
    (folder / "of-others").touch()
    with pytest.raises(InvalidArgument, match="holds other files, such as .*, and no store"):
        await tierlog.open_store(folder, config=CONFIG).__aenter__()
    assert "folder_shared" not in caplog.text


# --- cancellation -------------------------------------------------------------------------------


@pytest.mark.parametrize("turns", range(6))
async def test_a_cancelled_append_leaves_the_store_sound_and_can_be_resent(turns: int) -> None:
    """A6: its outcome is unknown; with a writer id and number a repeat resolves it."""
    folder = Folder()
    async with folder.open() as store:
        await make(store, "s", b"abc")
        async with anyio.create_task_group() as tasks:

            async def append() -> None:
                await store.append("s", b"def", writer_id="w", event_number=0)

            tasks.start_soon(append)
            for _ in range(turns):
                await anyio.lowlevel.checkpoint()
            tasks.cancel_scope.cancel()

        assert await store.append("s", b"def", writer_id="w", event_number=0) == 3
        assert await read_all(store, "s") == b"abcdef"
        assert restarts(store) == 0


async def test_cancelled_flushes_and_merges_leave_the_store_sound() -> None:
    folder = Folder()
    async with folder.open() as store:
        await make(store, "t", b"abc")
        await make(store, "t#1", b"def", sealed=True)
        for call in (store.flush, lambda: store.merge_segments("t", ["t#1"]), store.flush):
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(call)
                await anyio.lowlevel.checkpoint()
                await anyio.lowlevel.checkpoint()
                tasks.cancel_scope.cancel()

        await store.flush()
        assert (await read_all(store, "t"), await store.list_segments()) in [
            (b"abcdef", ["t"]),
            (b"abc", ["t", "t#1"]),
        ]


async def test_a_cancelled_body_closes_the_store_in_order(tmp_path: Path) -> None:
    async with (
        anyio.create_task_group() as tasks,
        tierlog.open_store(tmp_path, containers=2, config=CONFIG) as store,
    ):
        await make(store, "s", b"abc")
        tasks.cancel_scope.cancel()

    async with tierlog.open_store(tmp_path, config=CONFIG) as store:
        assert await store.read("s", 0, 10) == b"abc"


# --- torn sync steps ----------------------------------------------------------------------------


def tear(monkeypatch: pytest.MonkeyPatch, error: BaseException) -> None:
    """The next append is applied by half."""
    whole = ContainerState.before_change

    def half(self: ContainerState, segment: SegmentState) -> None:
        monkeypatch.setattr(ContainerState, "before_change", whole)
        segment.length += 1
        raise error

    monkeypatch.setattr(ContainerState, "before_change", half)


def changes(world: ContainerWorld) -> list[Call]:
    """The collector lists long-term storage meanwhile."""
    return [call for call in world.chunks.calls if call.verb not in {"exists", "info", "list", "read"}]


@pytest.mark.parametrize("error", [MemoryError(), RuntimeError("planted")], ids=repr)
async def test_a_torn_step_poisons_the_container_until_it_recovers(
    error: BaseException, monkeypatch: pytest.MonkeyPatch
) -> None:
    """C5: no answer says success; neither the log nor long-term storage is written any more, not even at a
    clean end."""
    world = ContainerWorld()
    async with anyio.create_task_group() as tasks:
        tear(monkeypatch, error)
        owner = await world.start(tasks)
        await owner.store.create_segment("s")
        written = owner.container.log.next_group, changes(world)
        with pytest.raises(OutcomeUnknown):
            await owner.store.append("s", b"torn")
        owner.container.stop()
        await owner.ended.wait()

        assert owner.container.is_poisoned
        assert type(owner.error) is type(error)
        assert (owner.container.log.next_group, changes(world)) == written
        owner = await world.start(tasks)
        assert await owner.store.append("s", b"whole") == 0
        await owner.stop()


async def test_the_rest_of_a_torn_batch_is_not_written_either(monkeypatch: pytest.MonkeyPatch) -> None:
    """Operations of the same batch were applied before the step broke; the group they were built into is
    dropped."""
    world = ContainerWorld()
    async with anyio.create_task_group() as tasks:
        owner = await world.start(tasks)
        for name in ("a", "b", "c"):
            await owner.store.create_segment(name)
        break_append(3, owner.container.state, monkeypatch)
        groups = owner.container.log.next_group
        outcomes: list[object] = []

        async def append(name: str) -> None:
            try:
                outcomes.append(await owner.store.append(name, b"x"))
            except OutcomeUnknown:
                outcomes.append(None)

        async with anyio.create_task_group() as work:
            for name in ("a", "b", "c"):
                work.start_soon(append, name)
        await owner.ended.wait()

        assert outcomes == [None] * 3
        assert owner.container.log.next_group == groups
        owner = await world.start(tasks)
        assert [await read_all(owner.store, name) for name in ("a", "b", "c")] == [b"", b"", b""]
        await owner.stop()


async def test_c5_a_waiting_committer_does_not_write_a_torn_batch(
    anyio_backend: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The group before it was in the disk's hands, out of any cancellation's reach: it becomes durable, and
    nothing after it."""
    world = ContainerWorld()
    async with anyio.create_task_group() as tasks:
        log, gate = world.logs.log("c0"), anyio.Event()
        owner = await world.start(tasks, log=log)
        for name in ("a", "b", "c"):
            await owner.store.create_segment(name)

        async def disk() -> None:
            with anyio.CancelScope(shield=True):
                await gate.wait()

        log._checkpoint = disk  # type: ignore[method-assign]
        break_append(3, owner.container.state, monkeypatch)
        async with anyio.create_task_group() as work:

            async def append(name: str) -> None:
                with pytest.raises(OutcomeUnknown):
                    await owner.store.append(name, b"x")

            work.start_soon(owner.store.append, "a", b"x")
            await anyio.wait_all_tasks_blocked()
            work.start_soon(append, "b")
            work.start_soon(append, "c")
            await anyio.wait_all_tasks_blocked()
            gate.set()
        await owner.ended.wait()

        owner = await world.start(tasks)
        written = [await read_all(owner.store, name) for name in ("a", "b", "c")]
        assert written == [b"x", b"", b""]
        await owner.stop()


def break_append(number: int, state: ContainerState, monkeypatch: pytest.MonkeyPatch) -> None:
    """Applying the append of that number fails. Each is to another segment than the one before."""
    before_change, appends = state.before_change, itertools.count(1)

    def broken(segment: SegmentState) -> None:
        if next(appends) == number:
            raise RuntimeError("planted")
        before_change(segment)

    monkeypatch.setattr(state, "before_change", broken)


@pytest.mark.parametrize("backend", ["asyncio", "trio"])
def test_ctrl_c_inside_a_sync_step_ends_the_store_without_a_footer(
    backend: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """C5: the interrupt reaches the app; the log gets no byte after it; the next opening recovers."""
    folder = Folder()

    async def interrupted() -> None:
        async with folder.open() as store:
            await make(store, "s", b"abc")
            tear(monkeypatch, KeyboardInterrupt())
            folder.fault, folder.kind = Fail(OSError(errno.EIO, "not after an interrupt")), Write
            await store.append("s", b"torn")

    with pytest.raises(BaseException) as caught:
        anyio.run(interrupted, backend=backend)
    assert type(first_leaf(caught.value)) is KeyboardInterrupt
    assert folder.hits == 0

    async def recovered() -> None:
        async with folder.open() as store:
            assert await read_all(store, "s") == b"abc"
            assert await store.append("s", b"d") == 3

    folder.fault = None
    anyio.run(recovered, backend=backend)


APP = """
    import sys
    import anyio
    import tierlog

    async def main():
        async with tierlog.open_store(sys.argv[1], containers=1) as store:
            await store.create_segment("s")
            while True:
                print(await store.append("s", bytes(100)), flush=True)

    anyio.run(main, backend=sys.argv[2])
"""


@pytest.mark.parametrize("backend", ["asyncio", "trio"])
def test_a_real_ctrl_c_loses_nothing_that_was_acked(backend: str, tmp_path: Path) -> None:
    command = [sys.executable, "-c", textwrap.dedent(APP), str(tmp_path / "data"), backend]
    # Unbuffered: ``communicate`` does not return what a buffer has read ahead of the last line.
    with subprocess.Popen(command, bufsize=0, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as app:
        assert app.stdout is not None
        acked = [int(app.stdout.readline()) for _ in range(20)]
        app.send_signal(signal.SIGINT)
        rest, errors = app.communicate(timeout=scaled(30))
    acked += [int(line) for line in rest.split(b"\n") if line.strip().isdigit() and line in rest.split()]

    async def check() -> None:
        async with tierlog.open_store(tmp_path / "data") as store:
            assert (await store.segment_info("s")).length >= max(acked) + 100

    assert b"KeyboardInterrupt" in errors
    assert acked == list(range(0, 100 * len(acked), 100))
    anyio.run(check)
