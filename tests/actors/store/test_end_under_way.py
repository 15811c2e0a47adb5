"""The graceful end of a store in which calls are under way, or whose container is being recovered (rule
F9)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import anyio
import anyio.lowlevel
import attrs
import pytest
from msgspec.structs import replace

from support.container_world import MIB
from support.runtime_site import SERVING, Site
from tierlog import OutcomeUnknown, Unavailable
from tierlog.actors.container.checkpoint import TAG_CHECKPOINT_END
from tierlog.actors.container.container import Container
from tierlog.actors.container.operations.transactions import AbortTransactionRequest
from tierlog.actors.container.pipeline import PipelineOptions
from tierlog.actors.kernel.backoff import Backoff
from tierlog.actors.kernel.supervision import RestartPolicy
from tierlog.actors.store.append_requests import append_request
from tierlog.actors.store.graceful_end import LeftInLog
from tierlog.actors.store.runtime import ContainerRuntime, RuntimeParts
from tierlog.journal.log.contract import DurableDataLog
from tierlog.storage_backends.base.checksum import Buffer
from tierlog.storage_backends.base.names import container_of
from tierlog.storage_backends.chunks.memory import MemoryChunkStorage

pytestmark = pytest.mark.anyio
NAME = "app/events"
INDEX = container_of(NAME, 2)
RESTARTS = RestartPolicy(Backoff(first=0.001, maximum=0.01), 1000, 60)


class GatedLog:
    """Appends wait for the site's gate; openings fail while the site has none of its logs."""

    def __init__(self, inner: DurableDataLog, site: GatedSite) -> None:
        self._inner = inner
        self._site = site

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    async def open(self, **options: Any) -> Any:
        if self._site.fails:
            raise Unavailable("scripted: the log does not answer")
        return await self._inner.open(**options)

    async def append(self, buffers: Sequence[Buffer], **options: Any) -> int:
        await self._site.gate.wait()
        if self._site.fails:
            raise Unavailable("scripted: the log does not answer")
        return await self._inner.append(buffers, **options)


class GatedChunks(MemoryChunkStorage):
    """Chunks of segments wait for the site's gate."""

    def __init__(self, site: Site, gate: anyio.Event) -> None:
        super().__init__(site.chunks)
        self._gate = gate
        self.reached = anyio.Event()

    async def _create_with_content(self, name: str, data: Sequence[Buffer]) -> int:
        if name.startswith("containers/"):
            self.reached.set()
            await self._gate.wait()
        return await super()._create_with_content(name, data)


class SlowSite(Site):
    """No flush of a segment ends before the gate is open."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = anyio.Event()
        self.storage = GatedChunks(self, self.gate)
        patient = replace(SERVING.container.writer, segment_deadline=30.0)
        container = replace(SERVING.container, writer=patient)
        self.options = replace(SERVING, container=container, flush_budget=5.0)

    def parts(self) -> RuntimeParts:
        return replace(super().parts(), options=self.options, chunks=self.storage)

    async def append_behind_the_cut(self, owner: Container) -> None:
        await self.storage.reached.wait()
        await owner.append(append_request(NAME, b"2", MIB, None, None, None, None, None))
        self.gate.set()


class LateSite(Site):
    """``ending`` is set when the end of a checkpoint is appended."""

    def __init__(self) -> None:
        super().__init__()
        self.ending = anyio.Event()
        self.options = replace(SERVING, flush_budget=5.0)

    def log(self, index: int) -> Any:
        return NoticedLog(super().log(index), self.ending) if index == INDEX else super().log(index)

    def parts(self) -> RuntimeParts:
        return replace(super().parts(), options=self.options)

    async def abort_behind_the_checkpoint(self, owner: Container) -> None:
        await self.ending.wait()
        await owner.ask(AbortTransactionRequest(NAME, "t", "late"))


class NoticedLog:
    def __init__(self, inner: DurableDataLog, ending: anyio.Event) -> None:
        self._inner = inner
        self._ending = ending

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    async def append(self, buffers: Sequence[Buffer], *, tag: int = 0, **options: Any) -> int:
        if tag == TAG_CHECKPOINT_END:
            self._ending.set()
            await anyio.wait_all_tasks_blocked()
        return await self._inner.append(buffers, tag=tag, **options)


class GatedSite(Site):
    def __init__(self, budget: float = 30.0) -> None:
        super().__init__()
        self.gate = anyio.Event()
        self.gate.set()
        self.fails = False
        one_by_one = replace(SERVING.container, pipeline=PipelineOptions(group_count=1))
        self.options = replace(
            SERVING, container=one_by_one, flush_budget=budget, restart=RESTARTS, unavailable_wait=budget
        )

    def log(self, index: int) -> Any:
        return GatedLog(super().log(index), self) if index == INDEX else super().log(index)

    def parts(self) -> RuntimeParts:
        return replace(super().parts(), options=self.options)


async def opened(runtime: ContainerRuntime) -> None:
    for index in range(2):
        await runtime.open(index)


async def break_container(site: GatedSite, runtime: ContainerRuntime) -> None:
    """Its log fails, and it cannot be opened again for now."""
    site.fails = True
    with pytest.raises(OutcomeUnknown):
        await runtime.store.append(NAME, b"lost")
    while runtime.store.local_containers[INDEX].active is not None:
        await anyio.lowlevel.checkpoint()


async def test_f9_calls_that_wait_for_others_are_flushed_too() -> None:
    """They are accepted after the end has begun, behind the cut of the first flush."""
    site = GatedSite()
    async with anyio.create_task_group() as tasks, site.runtime() as runtime:
        store = runtime.store
        await opened(runtime)
        await store.create_segment(NAME)
        site.gate = anyio.Event()
        for _ in range(5):
            tasks.start_soon(store.append, NAME, b"later")
            await anyio.wait_all_tasks_blocked()

        async def open_gate() -> None:
            await anyio.wait_all_tasks_blocked()
            site.gate.set()

        tasks.start_soon(open_gate)
    assert store.end_report is not None
    assert store.end_report.left == ()
    async with site.runtime() as runtime:
        await opened(runtime)
        info = await runtime.store.segment_info(NAME)
        assert info.flushed_length == info.length == 5 * len(b"later")


async def test_f9_a_call_that_is_accepted_behind_the_cut_of_the_flush_is_flushed_too() -> None:
    """It began before the end, and is acked during the end's flush."""
    site = SlowSite()
    async with anyio.create_task_group() as tasks, site.runtime() as runtime:
        store = runtime.store
        await opened(runtime)
        await store.create_segment(NAME)
        await store.append(NAME, b"1")
        tasks.start_soon(store.on_container, INDEX, site.append_behind_the_cut)
        await anyio.wait_all_tasks_blocked()
        assert not site.storage.reached.is_set()
    assert store.end_report is not None
    assert store.end_report.left == ()
    async with site.runtime() as runtime:
        await opened(runtime)
        info = await runtime.store.segment_info(NAME)
        assert info.flushed_length == info.length == 2


async def test_f9_a_call_that_is_accepted_behind_the_last_checkpoint_is_listed() -> None:
    """Though it has no bytes: the next owner applies it again."""
    site = LateSite()
    async with anyio.create_task_group() as tasks, site.runtime() as runtime:
        store = runtime.store
        await opened(runtime)
        await store.create_segment(NAME)
        await store.begin_transaction(NAME, "t")
        tasks.start_soon(store.on_container, INDEX, site.abort_behind_the_checkpoint)
        await anyio.wait_all_tasks_blocked()
        assert not site.ending.is_set()
    assert store.end_report is not None
    assert [each.reason for each in store.end_report.left] == ["it was accepted during the end"]


async def test_f9_a_host_that_serves_on_flushes_once_and_lists_what_came_meanwhile() -> None:
    """Its clients may append without end; their last appends are flushed when it is closed."""
    site = SlowSite()
    async with anyio.create_task_group() as tasks, site.runtime() as runtime:
        store = runtime.store
        await opened(runtime)
        await store.create_segment(NAME)
        await store.append(NAME, b"1")
        tasks.start_soon(store.on_container, INDEX, site.append_behind_the_cut)
        report = await runtime.flush_before_end()
        assert report.left == (LeftInLog(INDEX, 1, 1, "it was accepted during the end"),)
        assert (await store.segment_info(NAME)).flushed_length == 1
    assert store.end_report is not None
    assert store.end_report.left == ()


async def test_f9_a_container_that_is_being_recovered_is_waited_for() -> None:
    site = GatedSite()
    async with site.runtime() as runtime:
        store = runtime.store
        await opened(runtime)
        await store.create_segment(NAME)
        await store.append(NAME, b"acked")
        await break_container(site, runtime)
        site.fails = False
    assert store.end_report is not None
    assert store.end_report.left == ()
    async with site.runtime() as runtime:
        await opened(runtime)
        assert (await runtime.store.segment_info(NAME)).flushed_length == len(b"acked")


async def test_f9_a_container_that_does_not_come_back_is_listed() -> None:
    site = GatedSite(budget=0.05)
    async with site.runtime() as runtime:
        store = runtime.store
        await opened(runtime)
        await store.create_segment(NAME)
        await store.append(NAME, b"acked")
        await break_container(site, runtime)
    assert store.end_report is not None
    (left,) = store.end_report.left
    assert attrs.evolve(left, reason="") == LeftInLog(INDEX, None, None, "")
    assert "0.05 s" in left.reason
