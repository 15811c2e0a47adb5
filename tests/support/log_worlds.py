"""Owners of one log in a service, in an order and with faults that a seed decides, and what must hold."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import AsyncIterator
from contextlib import aclosing
from random import Random

import attrs
import trio
import trio.testing

from support.memory_ledgers import Cluster, MemoryLedgers
from support.memory_objects import Bucket, MemoryObjects
from support.scheduled_ledgers import ScheduledLedgers
from support.scheduled_objects import Requests, ScheduledObjects
from tierlog.journal.log.bookkeeper_layout import BookKeeperLogOptions
from tierlog.journal.log.bookkeeper_log import BookKeeperLog
from tierlog.journal.log.contract import DurableDataLog
from tierlog.journal.log.s3_layout import S3LogOptions
from tierlog.journal.log.s3_log import S3Log
from tierlog.journal.log.s3_register import decode_s3_register
from tierlog.storage_backends.base.errors import DataCorruption, NotOwner, TierlogError
from tierlog.storage_backends.base.world import World

LOG_ID = b"0123456789abcdef"
_STEPS_MAX = 20_000


@attrs.define(eq=False)
class SeenOwner:
    """What one owner read and what it was answered."""

    name: int
    scope: trio.CancelScope = attrs.field(factory=trio.CancelScope)
    epoch: int = 0
    read: dict[int, bytes] | None = None
    """None: it never was the owner."""
    first: int = 0
    """The lowest group that it read, or the next one."""
    acked: dict[int, bytes] = attrs.field(factory=dict)
    ended: bool = False


class LogWorld(ABC):
    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.requests = Requests(self.random, self.random.choice([0.0, 0.05, 0.2]))
        self.owners: list[SeenOwner] = []
        self.tried: dict[int, set[bytes]] = {}
        """By number, all payloads of appends."""
        self.problems: list[str] = []
        self._ids = 0
        self._payloads = 0
        self.appends_max = self.random.choice([1, 1, 3, 16])

    def run(self) -> list[str]:
        """What went wrong."""
        clock = trio.testing.MockClock()
        trio.run(self._main, clock, clock=clock)
        return self.problems

    async def _main(self, clock: trio.testing.MockClock) -> None:
        async with trio.open_nursery() as nursery:
            wanted = self.random.randint(2, 5)
            for _ in range(_STEPS_MAX):
                if len(self.owners) < wanted and (not self.owners or self.random.random() < 0.02):
                    self._begin(nursery)
                self._disturb()
                await trio.testing.wait_all_tasks_blocked()
                if not self.requests.step():
                    clock.jump(0.5)
                if len(self.owners) == wanted and all(owner.ended for owner in self.owners):
                    break
            nursery.cancel_scope.cancel()
        self.requests.settle()
        await self._check()

    def _begin(self, nursery: trio.Nursery) -> None:
        owner = SeenOwner(len(self.owners))
        self.owners.append(owner)
        nursery.start_soon(self._own, owner)

    def _disturb(self) -> None:
        if self.random.random() < 0.02:
            owner = self.random.choice(self.owners)
            (self.requests.stopped.discard if self.random.random() < 0.6 else self.requests.stopped.add)(
                owner.name
            )
        if self.random.random() < 0.003:
            self.random.choice(self.owners).scope.cancel()
        if all(owner.name in self.requests.stopped or owner.ended for owner in self.owners):
            self.requests.stopped.clear()

    @abstractmethod
    def log(self, caller: int | None) -> DurableDataLog:
        """An owner, not open yet; None: one whose calls are answered at once."""

    @property
    def world(self) -> World:
        return World(lambda: 0.0, self.random, self._new_id)

    def _new_id(self) -> str:
        self._ids += 1
        return f"{self._ids:032x}"

    # --- an owner --------------------------------------------------------------------------------

    async def _own(self, owner: SeenOwner) -> None:
        log = self.log(owner.name)
        try:
            with owner.scope:
                await self._work(owner, log)
        except DataCorruption as error:
            self.problems.append(f"owner {owner.name}: {error}")
        except NotOwner as error:
            if len(self.owners) == 1:
                self.problems.append(f"the only owner counts as fenced: {error}")
        except TierlogError:
            pass  # its end: a request without a verdict
        finally:
            owner.ended = True
            await log.close()

    async def _work(self, owner: SeenOwner, log: DurableDataLog) -> None:
        opened = await log.open()
        read = {number: bytes(payload) async for number, payload in _all(log)}
        owner.epoch, owner.first = opened.epoch, min(read, default=opened.next_group)
        if read and sorted(read) != list(range(owner.first, opened.next_group)):
            self.problems.append(f"owner {owner.name} read {sorted(read)}, next {opened.next_group}")
        owner.read = read
        for _ in range(self.random.randint(0, 12)):
            async with trio.open_nursery() as nursery:
                for _ in range(self.random.randint(1, self.appends_max)):
                    nursery.start_soon(self._append, owner, log)
                for _ in range(self.random.choice([0, 0, 1, 3])):
                    nursery.start_soon(self._confirm, owner, log)
            if self.random.random() < 0.3:
                await log.truncate()

    async def _append(self, owner: SeenOwner, log: DurableDataLog) -> None:
        self._payloads += 1
        payload = b"%d" % self._payloads
        number = log.next_group
        self.tried.setdefault(number, set()).add(payload)
        address = self.random.randint(max(1, number - 6), number) if self.random.random() < 0.3 else 0
        try:
            acked = await log.append([payload], truncate_before=address)
        except TierlogError:
            owner.scope.cancel()
            return
        if acked != number:
            self.problems.append(f"owner {owner.name}: group {number} was acked as {acked}")
        owner.acked[acked] = payload

    async def _confirm(self, owner: SeenOwner, log: DurableDataLog) -> None:
        await trio.sleep(0)
        later = [each for each in self.owners if each.epoch > owner.epoch]
        try:
            await log.confirm_owner()
        except TierlogError:
            owner.scope.cancel()
            return
        if later:
            self.problems.append(f"owner {owner.name} was confirmed after {[each.name for each in later]}")

    # --- what must hold --------------------------------------------------------------------------

    async def _check(self) -> None:
        last = SeenOwner(len(self.owners))
        log = self.log(None)
        try:
            opened = await log.open()
            last.read = {number: bytes(payload) async for number, payload in _all(log)}
        except (DataCorruption, NotOwner) as error:
            self.problems.append(f"the last owner: {error}")
            return
        last.epoch, last.first = opened.epoch, min(last.read, default=opened.next_group)
        await log.close()
        opened_ones = sorted(
            [each for each in [*self.owners, last] if each.read is not None], key=lambda each: each.epoch
        )
        for at, owner in enumerate(opened_ones):
            for later in opened_ones[at + 1 :]:
                self._compare(owner, later)
        for number, payload in last.read.items():
            if payload not in self.tried.get(number, set()):
                self.problems.append(f"group {number} is {payload!r}, which nobody appended")

    def _compare(self, owner: SeenOwner, later: SeenOwner) -> None:
        assert owner.read is not None
        assert later.read is not None
        for number, payload in {**owner.read, **owner.acked}.items():
            if number >= later.first and later.read.get(number) != payload:
                self.problems.append(
                    f"owner {later.name} lacks group {number}, {payload!r}, of owner {owner.name}: "
                    f"{later.read.get(number)!r}"
                )


async def _all(log: DurableDataLog) -> AsyncIterator[tuple[int, memoryview]]:
    async with aclosing(log.read()) as groups:
        async for each in groups:
            yield each


class S3LogWorld(LogWorld):
    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self.bucket = Bucket()

    def log(self, caller: int | None) -> DurableDataLog:
        options = S3LogOptions(
            appends_max=self.appends_max,
            pace=0.0,
            check_after=self.random.choice([0.0, 1e9]),
            start_bytes=self.random.choice([108, 110, 1 << 16]),
        )
        objects = (
            MemoryObjects(self.bucket)
            if caller is None
            else ScheduledObjects(self.requests, self.bucket, caller)
        )
        return S3Log(objects, "log/", LOG_ID, self.world, options)


class PutBackS3LogWorld(S3LogWorld):
    """Between owners somebody puts an older register back, version included, which has the same low. Requests
    of dead owners may still arrive."""

    _KEY = "log/register"

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self._registers: list[tuple[bytes, str]] = []

    def _disturb(self) -> None:
        super()._disturb()
        now = self.bucket.objects.get(self._KEY)
        if now is None:
            return
        if now not in self._registers:
            self._registers.append(now)
        if all(owner.ended for owner in self.owners) and self.random.random() < 0.1:
            older = [each for each in self._registers if self._low(each) == self._low(now)]
            self.bucket.objects[self._KEY] = self.random.choice(older)

    @staticmethod
    def _low(register: tuple[bytes, str]) -> int:
        return decode_s3_register(register[0], LOG_ID, "").low

    async def _check(self) -> None:
        await super()._check()
        epochs = [owner.epoch for owner in self.owners if owner.read is not None]
        if len(set(epochs)) < len(epochs):
            self.problems.append(f"two owners had the same epoch: {epochs}")


class BookKeeperLogWorld(LogWorld):
    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self.cluster = Cluster()

    def log(self, caller: int | None) -> DurableDataLog:
        options = BookKeeperLogOptions(
            appends_max=self.appends_max,
            ledger_bytes=self.random.choice([1, 8, 1 << 20]),
            kept_bytes=self.random.choice([0, 1 << 20]),
        )
        service = (
            MemoryLedgers(self.cluster)
            if caller is None
            else ScheduledLedgers(self.requests, self.cluster, caller)
        )
        return BookKeeperLog(service, "/log", LOG_ID, self.world, options)
