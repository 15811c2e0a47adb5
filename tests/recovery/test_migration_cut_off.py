"""A move to BookKeeper, from there, and between two places there, that is cut off at any call that changes
records, ledgers or chunks, before it or behind it (rules E1 to E7): one of the two places has the store, with
everything, and the same command completes the move, or it is given up."""

from __future__ import annotations

import copy
import shutil
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import attrs
import pytest

from support.ledger_stores import ConnectedLedgers, LedgerSite, in_memory
from support.memory_ledgers import StoredLedger
from support.moved_stores import Site, filled, seen
from tierlog import StoreMismatch
from tierlog.storage_backends.base.ledger_service import StoredRecord
from tierlog.storage_backends.chunks.filesystem import FileSystemChunkStorage

pytestmark = [pytest.mark.anyio, pytest.mark.one_loop]
READS = {"count", "open", "list", "describe", "load", "children", "check", "read"}
CHANGES = ("_create", "_create_with_content", "_write", "_delete", "_delete_many", "_concat", "_replace")
EVERY = 40
"""The extended run has one call of so many."""


class CutOff(BaseException):
    """The end of the process."""


@attrs.define
class Calls:
    """The changing calls of one move; from the one at ``end`` on there are no more."""

    end: float = float("inf")
    is_behind: bool = False
    """Whether that one is carried out."""
    count: int = 0
    is_watching: bool = False

    async def make(self, act: Callable[[], Awaitable[Any]], *, changes: bool) -> Any:
        if not self.is_watching:
            return await act()
        number = self.count
        self.count += changes
        if number > self.end or (number == self.end and changes and not self.is_behind):
            raise CutOff
        answer = await act()
        if number == self.end and changes:
            raise CutOff
        return answer


@attrs.frozen
class Saved:
    """All that outlives processes."""

    folder: Path
    ledgers: dict[int, StoredLedger]
    records: dict[str, StoredRecord]


@attrs.frozen
class Move:
    site: Site
    ledgers: LedgerSite
    calls: Calls
    old: str
    new: str
    more: dict[str, Any]

    async def run(self, **more: Any) -> None:
        done = await self.site.move(self.old, self.new, **self.more, **more)
        assert done.is_complete is more.get("confirms", True)

    async def cut_off(self, end: int, *, is_behind: bool) -> None:
        self.calls.end, self.calls.is_behind, self.calls.count = end, is_behind, 0
        self.calls.is_watching = True
        # What is left of it may end in another way once nothing answers.
        with suppress(BaseException):
            await self.run()
        self.calls.is_watching = False

    async def opens(self, place: str, before: dict[str, Any]) -> bool:
        with suppress(StoreMismatch):
            async with self.site.opened(place) as store:
                assert await seen(store) == before
                assert [(each.name, each.problem) for each in await store.backups()] == [("monday", "")]
                return True
        return False

    def save(self, name: str) -> Saved:
        folder, cluster = self.site.path.with_name(f"{self.site.path.name}-{name}"), self.ledgers.cluster
        shutil.rmtree(folder, ignore_errors=True)
        shutil.copytree(self.site.path, folder, symlinks=True)
        return Saved(folder, copy.deepcopy(cluster.ledgers), dict(cluster.records))

    def put_back(self, saved: Saved) -> None:
        shutil.rmtree(self.site.path)
        shutil.copytree(saved.folder, self.site.path, symlinks=True)
        self.ledgers.cluster.ledgers = copy.deepcopy(saved.ledgers)
        self.ledgers.cluster.records = dict(saved.records)

    async def check(self, before: dict[str, Any]) -> None:
        cut_off = self.save("cut-off")
        await self.run()
        assert not await self.opens(self.old, before)
        assert await self.opens(self.new, before)

        self.put_back(cut_off)
        try:
            await self.site.undo(self.old)
        except StoreMismatch:
            assert not await self.opens(self.old, before)
        else:
            assert await self.opens(self.old, before)
        await self.run()
        assert not await self.opens(self.old, before)
        assert await self.opens(self.new, before)


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> Calls:
    found = Calls()
    ask = ConnectedLedgers._ask

    async def asked(self: ConnectedLedgers, name: str, effect: Callable[[], Any]) -> Any:
        return await found.make(lambda: ask(self, name, effect), changes=name not in READS)

    monkeypatch.setattr(ConnectedLedgers, "_ask", asked)
    for verb in CHANGES:
        monkeypatch.setattr(
            FileSystemChunkStorage, verb, _watched(found, getattr(FileSystemChunkStorage, verb))
        )
    return found


def _watched(calls: Calls, verb: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
    async def call(*arguments: Any) -> Any:
        return await calls.make(lambda: verb(*arguments), changes=True)

    return call


PLACES = [("old", "ledgers-a"), ("ledgers-b", "new"), ("ledgers-b", "ledgers-a")]


async def check_each(
    tmp_path: Path, ledgers: LedgerSite, calls: Calls, old: str, new: str, every: int
) -> None:
    site = Site(tmp_path)
    more = {"chunks": str(ledgers.chunks)} if old == "old" else {"chunks": "keep"} if new != "new" else {}
    settings = site.settings if old == "old" else site.with_chunks(ledgers.chunks.name)
    move = Move(site, ledgers, calls, old, new, more)
    async with site.opened(old, config=settings) as store:
        await filled(store)
        await store.backup("monday")
    await move.run(confirms=False)
    async with site.opened(old) as store:
        await store.append("s#0", b"later")
        before = await seen(store)
    begun = move.save("begun")
    await move.cut_off(1 << 30, is_behind=False)
    count = calls.count
    assert count > EVERY
    for end in range(every // 2, count, every):
        for is_behind in (False, True):
            move.put_back(begun)
            await move.cut_off(end, is_behind=is_behind)
            try:
                await move.check(before)
            except BaseException as error:
                error.add_note(f"cut off {'behind' if is_behind else 'before'} call {end} of {count}")
                raise


@pytest.mark.extended
@pytest.mark.parametrize(("old", "new"), PLACES)
async def test_e_a_move_with_bookkeeper_that_is_cut_off_is_completed_or_given_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, calls: Calls, old: str, new: str
) -> None:
    folder = tmp_path / "site"
    folder.mkdir()
    await check_each(folder, in_memory(folder, monkeypatch), calls, old, new, EVERY)


@pytest.mark.long
@pytest.mark.timeout(0)
@pytest.mark.parametrize(("old", "new"), PLACES)
async def test_e_a_move_with_bookkeeper_that_is_cut_off_at_each_call_is_completed_or_given_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, calls: Calls, old: str, new: str
) -> None:
    folder = tmp_path / "site"
    folder.mkdir()
    await check_each(folder, in_memory(folder, monkeypatch), calls, old, new, 1)
