"""Clients of tables, in about every third seed: updates with and without conditions, repeats after a lost
answer, transactions, reads, pages, changes, and tables that are deleted (rules M14 to M18).

They come beside the plan's own clients, so their calls are no steps of the plan; which seeds have them, and
what they do, is decided by the seed."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial
from random import Random
from typing import Any

import trio

from support.table_rows import records_of
from tierlog.actors.container.container import Container
from tierlog.actors.container.left_rows import MARK_PREFIX
from tierlog.actors.store.store import SegmentStore
from tierlog.storage_backends.base.errors import (
    ChangesIncomplete,
    DataCorruption,
    NotOwner,
    OutcomeUnknown,
    SegmentNotFound,
    TableConflict,
    TierlogError,
)
from tierlog.storage_backends.base.table import Table
from tierlog.storage_backends.base.tables import ABSENT, ChangesPage, TablePage, TableRow, TableUpdate

from .invariants import Broken
from .process import Process
from .run_state import Ending, Outcome, RunState
from .table_history import TableHistory, Update

TABLE = "tables/users"
_DELETED = "tables/deleted"
_KEYS = (*(b"k%d" % number for number in range(12)), b"\xff\x00", b"\x00")
_SHARE = 3
"""Of so many seeds one has tables."""
_STEPS = 30
_CLIENTS = 2
_TRIES = 12
_REMOVAL_SECONDS = 300.0
_FLUSH_SECONDS = 5.0
_RACES = 3


class TableClients:
    def __init__(self, run: RunState) -> None:
        self._run = run
        self.history = TableHistory(TABLE)
        self.clients = (
            [TableClient(number, run, self.history) for number in range(_CLIENTS)]
            if run.plan.seed % _SHARE == 1
            else []
        )
        others = [TableClient(_CLIENTS + number, run, self.history) for number in range(4)]
        self._beside, self._racers = others[:2], others[2:]
        self._hanging, self._slow = trio.Event(), trio.Event()
        if self.clients:
            run.at_hanging_log, run.at_slow_runs = self._note_hanging, self._note_slow

    @property
    def helpers(self) -> list[Callable[[], Awaitable[None]]]:
        """What goes on beside the plan's clients."""
        return [
            *(client.run for client in self.clients),
            self._read_while_the_log_hangs,
            self._race_while_runs_are_slow,
        ]

    def _note_hanging(self) -> None:
        self._hanging.set()

    def _note_slow(self) -> None:
        self._slow.set()

    async def _read_while_the_log_hangs(self) -> None:
        """What is not durable yet, and may be lost, is shown to nobody (rule C1): one client updates, and
        another one reads beside it."""
        writer, reader = self._beside
        while True:
            await self._hanging.wait()
            process = self._run.current
            async with trio.open_nursery() as nursery:
                nursery.start_soon(writer.update_once)
                await trio.sleep(0.01)
                if process is not None:
                    await reader.read_from(process)
            self._hanging = trio.Event()

    async def _race_while_runs_are_slow(self) -> None:
        """A row changes, and leaves memory, while it is looked up for a condition (rule M9)."""
        writer, rival = self._racers
        while True:
            await self._slow.wait()
            self._slow = trio.Event()
            for _ in range(_RACES):
                await writer.race(rival)

    async def check(self) -> None:
        """Nothing is wrong any more: what the last owner shows is what the clients did."""
        for client in self.clients:
            await client.check_all()
        if self.clients:
            self.history.check_conditions()
            await self._check_removals()

    async def _check_removals(self) -> None:
        """Rule M17: nothing is left of deleted tables."""
        process, end = await self._run.serving(), trio.current_time() + _REMOVAL_SECONDS
        while left := [mark for container in process.containers() for mark in _marks(container)]:
            if trio.current_time() > end:
                raise Broken(f"it does not hold that rows of deleted tables go\nleft over: {left}")
            await trio.sleep(1.0)


class TableClient:
    def __init__(self, number: int, run: RunState, history: TableHistory) -> None:
        self.name = f"t{number}"
        self._run = run
        self._history = history
        self._random = Random(f"tables {run.plan.seed} {number}")
        self._process: Process | None = None
        self._seen: dict[bytes, int] = {}
        """By key: a version that it had."""
        self._next_event = 0
        self._doubtful: Update | None = None
        """An update with an event number whose outcome is unknown: the next one with a number is this one
        again."""
        self._mirror: dict[bytes, tuple[bytes, int]] = {}
        """The table, as the changes make it."""
        self._since = 0

    async def run(self) -> None:
        last = max((action.number for action in self._run.plan.actions), default=0)
        for at in sorted(self._random.randint(0, last) for _ in range(_STEPS)):
            await self._run.until(lambda at=at: self._run.reached >= at)  # type: ignore[misc]
            if self._random.random() < 0.3:
                await trio.sleep(self._random.choice((0.01, 0.5, 3.0)))
            await self._step()

    async def _step(self) -> None:
        step = self._random.choices(
            (self._update, self._transaction, self._get, self._page, self._changes, self._delete),
            (12, 3, 5, 3, 3, 1),
        )[0]
        await step()

    async def race(self, rival: TableClient) -> None:
        """Update a row on condition, while ``rival`` updates it and has it published."""
        key = self._random.choice(_KEYS)
        if not await self._apply([(key, True)], {}):
            return
        await self._flush()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._apply, [(key, True)], {key: self._seen.get(key, ABSENT)})
            await trio.sleep(0.02)
            await rival._apply([(key, True)], {})
            await rival._flush()

    async def _flush(self) -> None:
        await self._run.attempt(
            await self._run.serving(),
            f"{self.name} flush",
            lambda store: store.flush(),
            seconds=_FLUSH_SECONDS,
        )

    async def update_once(self) -> None:
        await self._update()

    async def read_from(self, process: Process) -> None:
        """One process, as long as it answers."""
        self._process = process
        await self._get(list(_KEYS))

    async def check_all(self) -> None:
        """Read everything, in every way."""
        for key in _KEYS:
            await self._certainly(partial(self._get, [key]))
        await self._certainly(self._changes)
        rows: dict[bytes, tuple[bytes, int]] = {}
        await self._certainly(partial(self._page, rows))
        if rows != self._mirror:
            raise Broken(f"the changes of {TABLE} make {self._mirror}, and it has {rows}")

    async def _certainly(self, act: Callable[[], Awaitable[bool]]) -> None:
        for _ in range(_TRIES):
            if await act():
                return
            await trio.sleep(5.0)
        raise Broken(f"{TABLE} cannot be read, though nothing is wrong any more")

    # --- calls -----------------------------------------------------------------------------------

    async def _call(self, what: str, send: Callable[[Table], Awaitable[Any]]) -> Outcome:
        """One call, to the process that serves, or to one that this client has not left yet."""
        run, process = self._run, self._process
        if (
            process is None
            or not process.alive
            or (process is not run.current and self._random.random() < 0.5)
        ):
            process = self._process = await run.serving()
        patience = self._random.randint(1, 60) if not run.is_over and self._random.random() < 0.1 else None
        run.trace.note(self.name, f"P{process.number} {what}")
        outcome = await run.attempt(
            process, f"{self.name} {what}", lambda store: self._send(store, send), patience
        )
        run.trace.note(self.name, f"{outcome.ending.value} {outcome.value!r}"[:300])
        run.counts["tables"] += 1
        if outcome.ending is not Ending.ANSWERED:
            self._process = None
        if isinstance(outcome.value, DataCorruption) and not run.may_meet_damage(process):
            raise Broken(f"{what} of {TABLE}: {outcome.value}")
        if isinstance(outcome.value, (NotOwner, DataCorruption)) and run.is_crippled(process):
            run.retire(process)
        return outcome

    async def _send(self, store: SegmentStore, send: Callable[[Table], Awaitable[Any]]) -> Any:
        try:
            return await send(store.table(TABLE))
        except SegmentNotFound:
            if any(update.version is not None for update in self._history.updates):
                raise AssertionError(f"{TABLE} is gone") from None
            # Nothing was put yet: perhaps nobody has created it.
            await store.create_table(TABLE, exist_ok=True)
            return await send(store.table(TABLE))

    async def _update(self) -> bool:
        random = self._random
        keys = random.sample(_KEYS, random.choice((1, 1, 2, 5)))
        rows = [(key, random.random() < 0.75) for key in keys]
        expected = {key: self._guess(key) for key in keys if random.random() < 0.4}
        return await self._apply(rows, expected)

    def _guess(self, key: bytes) -> int:
        """A version that the key may have, or had."""
        return self._random.choice((ABSENT, self._seen.get(key, ABSENT), self._seen.get(key, ABSENT)))

    async def _apply(self, rows: list[tuple[bytes, bool]], expected: dict[bytes, int]) -> bool:
        """One update, sent again as long as its outcome is unknown, if it has an event number."""
        is_event = self._random.random() < 0.6
        update = self._doubtful if is_event else None
        if update is None:
            update = self._history.begin(rows, expected, self._next_event if is_event else None)
        for _ in range(_TRIES):
            outcome = await self._call(str(update), partial(self._send_update, update))
            if outcome.ending is Ending.ANSWERED:
                self._doubtful = None if is_event else self._doubtful
                self._answered(update, outcome.value)
                return True
            is_known = outcome.ending is Ending.REFUSED and not isinstance(outcome.value, OutcomeUnknown)
            if is_known and isinstance(outcome.value, TableConflict):
                conflict = outcome.value
                self._doubtful = None if is_event else self._doubtful
                self._history.conflicted(update, conflict.key, conflict.present, self._history.now())
                self._seen[conflict.key] = conflict.present
                return True
            # Without an event number it must not be sent again; with one it may have been applied before.
            if not is_event:
                if is_known:
                    self._history.refused(update)
                return False
            if self._random.random() < 0.3:
                await self._get()
        self._doubtful = update
        return False

    async def _send_update(self, update: Update, table: Table) -> int | None:
        updates = [TableUpdate(key, value, update.expected.get(key)) for key, value in update.rows.items()]
        if update.event is None:
            return await table.update(updates)
        return await table.update(updates, writer_id=self.name, event_number=update.event)

    def _answered(self, update: Update, version: int | None) -> None:
        if version is None:
            raise Broken(
                f"{update} of {TABLE} is the latest of its writer, and was answered without a version"
            )
        self._history.answered(update, version)
        self._next_event += update.event is not None
        for key, value in update.rows.items():
            self._seen[key] = ABSENT if value is None else version

    async def _transaction(self) -> bool:
        """Read some keys, then change others, if those that were read are unchanged."""
        random = self._random
        read, written = random.sample(_KEYS, 2), random.sample(_KEYS, random.randint(1, 3))
        if not await self._get(read):
            return False
        rows = [(key, random.random() < 0.75) for key in written]
        return await self._apply(rows, {key: self._seen[key] for key in read if key in written})

    async def _get(self, keys: list[bytes] | None = None) -> bool:
        chosen = keys or self._random.sample(_KEYS, self._random.choice((1, 3)))
        began = self._history.now()
        outcome = await self._call(f"get {chosen}", lambda table: table.get_many(chosen))
        if outcome.ending is not Ending.ANSWERED:
            return False
        ended = self._history.now()
        for key, row in zip(chosen, outcome.value, strict=True):
            self._shown(key, row, began, ended)
        return True

    def _shown(self, key: bytes, row: TableRow | None, began: int, ended: int) -> None:
        self._history.shows(key, None if row is None else (row.value, row.version), began, ended)
        self._seen[key] = ABSENT if row is None else row.version

    async def _page(self, rows: dict[bytes, tuple[bytes, int]] | None = None) -> bool:
        """All pages; ``rows`` gets what they show."""
        limit, token, start = self._random.choice((1, 4, 100)), None, b""
        while True:
            began, send = self._history.now(), partial(_send_page, limit, token)
            outcome = await self._call(f"page from {start!r}", send)
            if outcome.ending is not Ending.ANSWERED:
                return False
            page: TablePage = outcome.value
            ended, found = self._history.now(), {row.key: row for row in page.rows}
            last = max(found, default=b"") if page.token else b"\xff" * 9
            for key in _KEYS:
                if start <= key <= last:
                    self._shown(key, found.pop(key, None), began, ended)
            if found:
                raise Broken(f"a page of {TABLE} has {found}, which are no rows after {start!r}")
            if rows is not None:
                rows.update({row.key: (row.value, row.version) for row in page.rows})
            token, start = page.token, last + b"\0"
            if token is None:
                return True

    async def _changes(self) -> bool:
        """Follow the changes to their end."""
        limit, token, since = self._random.choice((1, 4, 100)), None, self._since
        if not since:
            self._mirror = {}  # also what an unfinished pass has shown
        while True:
            began, send = self._history.now(), partial(_send_changes, since, limit, token)
            outcome = await self._call(f"changes since {since}", send)
            if isinstance(outcome.value, ChangesIncomplete):
                if not since:
                    raise Broken(f"the changes of {TABLE} since 0 are not complete: {outcome.value}")
                self._mirror, self._since = {}, 0
            if outcome.ending is not Ending.ANSWERED:
                return False
            page: ChangesPage = outcome.value
            ended = self._history.now()
            for key, value, version in page.rows:
                if version <= since:
                    raise Broken(f"{key!r} of {TABLE} has version {version}: no change since {since}")
                self._history.shows_change(key, value, version, began, ended)
                if value is None:
                    self._mirror.pop(key, None)
                else:
                    self._mirror[key] = value, version
            token = page.token
            if token is None:
                self._since = page.version
                return True

    async def _delete(self) -> bool:
        """A table with some rows is deleted, and its name may be used again at once."""

        async def send(store: SegmentStore) -> None:
            await store.create_table(_DELETED, exist_ok=True)
            table = store.table(_DELETED)
            await table.put_many({b"%d" % number: bytes(20) for number in range(self._random.randint(1, 40))})
            await store.delete_segment(_DELETED)

        run = self._run
        outcome = await run.attempt(await run.serving(), f"{self.name} deletes a table", send)
        # The other client deletes it too.
        if outcome.ending is Ending.REFUSED and not isinstance(outcome.value, TierlogError):
            raise Broken(f"a table cannot be deleted: {outcome.value}")
        return True


async def _send_page(limit: int, token: str | None, table: Table) -> TablePage:
    return await table.page(limit=limit, token=token)


async def _send_changes(since: int, limit: int, token: str | None, table: Table) -> ChangesPage:
    return await table.changes(since, limit=limit, token=token)


def _marks(container: Container) -> list[str]:
    return [key for key in records_of(container) if key.startswith(MARK_PREFIX.decode())]
