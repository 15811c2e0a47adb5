"""Each request of a log's life fails once, in each way: three owners, truncations, and a zombie (rules L1 to
L8)."""

from __future__ import annotations

import attrs
import pytest

from support.faulty_objects import KINDS_AND_DELAYS, FaultKind, FaultyObjects, ObjectFault
from support.memory_objects import Bucket, MemoryObjects
from support.s3 import numbered_world
from tierlog.journal.log.s3_layout import S3LogOptions
from tierlog.journal.log.s3_log import S3Log
from tierlog.storage_backends.base.errors import NotOwner, OutcomeUnknown, Unavailable
from tierlog.storage_backends.base.object_store import ObjectStore

pytestmark = pytest.mark.anyio

LOG_ID = b"0123456789abcdef"
PATIENT = S3LogOptions(pace=0.0, first_delay=0.0, longest_delay=0.0, check_after=0.0)
HASTY = attrs.evolve(PATIENT, patience=-1.0)
"""Its first request without a verdict ends the owner, as a kill would."""
REQUESTS_MAX = 60


class Life:
    """Owners of one log, each of which goes on where the one before ended."""

    def __init__(self, objects: ObjectStore, options: S3LogOptions) -> None:
        self.objects = objects
        self.options = options
        self.world = numbered_world()
        self.acked: dict[int, bytes] = {}
        self.appended = 0

    def log(self, objects: ObjectStore | None = None) -> S3Log:
        return S3Log(objects or self.objects, "wal/", LOG_ID, self.world, self.options)

    async def opened(self) -> S3Log:
        """An owner; another one if it fails."""
        for _ in range(4):
            log = self.log()
            try:
                opened = await log.open()
                self.check(
                    {number: bytes(payload) async for number, payload in log.read()}, opened.next_group
                )
            except (Unavailable, OutcomeUnknown):
                continue
            return log
        raise AssertionError("one fault stopped four owners")

    async def append(self, log: S3Log, truncate_before: int = 0) -> S3Log:
        """Returns the owner, which is another one after a failure."""
        self.appended += 1
        payload = b"%d" % self.appended
        try:
            number = await log.append([payload], truncate_before=truncate_before)
        except (Unavailable, OutcomeUnknown):
            return await self.opened()
        self.acked[number] = payload
        return log

    async def truncate(self, log: S3Log) -> S3Log:
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


async def requests_of_a_life() -> int:
    objects = FaultyObjects(Bucket())
    await Life(objects, PATIENT).live()
    return len(objects.asked)


async def test_a_life_has_as_many_requests_as_are_tried() -> None:
    assert 40 < await requests_of_a_life() <= REQUESTS_MAX


@pytest.mark.parametrize("options", [PATIENT, HASTY], ids=["repeated", "fatal"])
@pytest.mark.parametrize(("kind", "delay"), KINDS_AND_DELAYS)
async def test_no_fault_of_one_request_loses_or_repeats_a_group(
    kind: FaultKind, delay: int, options: S3LogOptions
) -> None:
    for at in range(1, REQUESTS_MAX + 1):
        objects = FaultyObjects(Bucket(), ObjectFault(at, kind, delay))
        life = Life(objects, options)
        await life.live()
        objects.settle()
        last = life.log(MemoryObjects(objects.bucket))
        opened = await last.open()
        life.check({number: bytes(payload) async for number, payload in last.read()}, opened.next_group)
        assert opened.next_group > max(life.acked)
