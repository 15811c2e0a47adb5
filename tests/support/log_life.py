"""A log's life under one fault: owners that append, truncate and take over, each going on where the one
before ended, and a zombie. Nothing that was acked may be lost or read twice."""

from __future__ import annotations

from abc import ABC, abstractmethod

import pytest

from tierlog.journal.log.contract import DurableDataLog
from tierlog.storage_backends.base.errors import NotOwner, OutcomeUnknown, Unavailable


class LogLife(ABC):
    def __init__(self) -> None:
        self.acked: dict[int, bytes] = {}
        self.appended = 0

    @abstractmethod
    def log(self) -> DurableDataLog:
        """Another owner, not open yet."""

    async def opened(self) -> DurableDataLog:
        """An owner; another one if it fails."""
        for _ in range(4):
            log = self.log()
            try:
                await self._open(log)
            except (Unavailable, OutcomeUnknown):
                continue
            return log
        raise AssertionError("one fault stopped four owners")

    async def _open(self, log: DurableDataLog) -> int:
        opened = await log.open()
        self.check({number: bytes(payload) async for number, payload in log.read()}, opened.next_group)
        return opened.next_group

    async def append(self, log: DurableDataLog, truncate_before: int = 0) -> DurableDataLog:
        """Returns the owner, which is another one after a failure."""
        self.appended += 1
        payload = b"%d" % self.appended
        try:
            number = await log.append([payload], truncate_before=truncate_before)
        except (Unavailable, OutcomeUnknown):
            return await self.opened()
        self.acked[number] = payload
        return log

    async def truncate(self, log: DurableDataLog) -> DurableDataLog:
        try:
            await log.truncate()
        except (Unavailable, OutcomeUnknown):
            return await self.opened()
        return log

    def check(self, read: dict[int, bytes], next_group: int) -> None:
        first = min(read, default=next_group)
        assert sorted(read) == list(range(first, next_group))
        assert {n: p for n, p in self.acked.items() if n >= first} == {
            n: p for n, p in read.items() if n in self.acked
        }

    async def check_all(self) -> None:
        """What another owner reads."""
        assert await self._open(self.log()) > max(self.acked)

    async def live(self) -> None:
        first = await self.opened()
        for _ in range(2):
            first = await self.append(first)
        first = await self.append(first, truncate_before=2)
        first = await self.truncate(first)
        second = await self.opened()
        second = await self.append(second)
        second = await self.append(second, truncate_before=second.next_group)
        second = await self.truncate(second)
        with pytest.raises((NotOwner, Unavailable, OutcomeUnknown)):
            await first.append([b"zombie"])
        third = await self.opened()
        third = await self.append(third)
        await self.truncate(third)
