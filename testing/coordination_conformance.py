"""``CoordinationConformance``: the contract of ``Coordination`` as tests. Inherit from it and implement
``make_coordination``."""

from __future__ import annotations

from abc import ABC, abstractmethod

import anyio
import pytest

from ..journal.coordination.contract import (
    RECORD_BYTES_MAX,
    SUPERVISOR,
    TERM,
    Coordination,
    LeaseHeld,
)
from ..storage_backends.base.errors import InvalidArgument, NotOwner

_DURATION = 60.0
"""Seconds. No test lasts as long."""


class CoordinationConformance(ABC):
    pytestmark = pytest.mark.anyio

    @abstractmethod
    async def make_coordination(self) -> Coordination:
        """Return a new object; all of one test share their records and leases."""

    async def test_there_is_no_record_before_it_is_created(self) -> None:
        assert await (await self.make_coordination()).load(TERM) is None

    async def test_a_record_is_what_was_set_last(self) -> None:
        first, second = await self.make_coordination(), await self.make_coordination()

        created = await first.compare_and_set(TERM, b"one")
        assert created
        assert await second.load(TERM) == (b"one", created)
        replaced = await second.compare_and_set(TERM, b"two", created)
        assert replaced not in (None, created)
        assert await first.load(TERM) == (b"two", replaced)

    async def test_a_record_that_exists_is_not_created(self) -> None:
        first, second = await self.make_coordination(), await self.make_coordination()
        await first.compare_and_set(TERM, b"one")

        assert await second.compare_and_set(TERM, b"two") is None
        found = await first.load(TERM)
        assert found is not None
        assert found.data == b"one"

    async def test_a_record_of_another_version_is_not_replaced(self) -> None:
        coordination = await self.make_coordination()
        created = await coordination.compare_and_set(TERM, b"one")
        assert created
        await coordination.compare_and_set(TERM, b"two", created)

        assert await coordination.compare_and_set(TERM, b"three", created) is None
        found = await coordination.load(TERM)
        assert found is not None
        assert found.data == b"two"

    async def test_a_record_that_was_never_created_is_not_replaced(self) -> None:
        coordination = await self.make_coordination()

        assert await coordination.compare_and_set(TERM, b"one", "a version") is None
        assert await coordination.load(TERM) is None

    async def test_a_record_is_limited(self) -> None:
        coordination = await self.make_coordination()
        for data in (b"", b"x" * (RECORD_BYTES_MAX + 1)):
            with pytest.raises(InvalidArgument):
                await coordination.compare_and_set(TERM, data)
        version = await coordination.compare_and_set(TERM, b"x" * RECORD_BYTES_MAX)
        assert await coordination.load(TERM) == (b"x" * RECORD_BYTES_MAX, version)

    async def test_of_several_that_replace_one_version_one_succeeds(self) -> None:
        """Read, add and write by compare-and-set: no value is lost and none is used twice."""
        values: list[int] = []

        async def raise_often() -> None:
            coordination = await self.make_coordination()
            for _ in range(5):
                while True:
                    found = await coordination.load(TERM)
                    value = 1 + (int(found.data.split()[0]) if found else 0)
                    # An id in it: otherwise two with the same value would both succeed.
                    data = b"%d %d" % (value, id(coordination))
                    if await coordination.compare_and_set(TERM, data, found.version if found else ""):
                        break
                values.append(value)

        async with anyio.create_task_group() as tasks:
            for _ in range(3):
                tasks.start_soon(raise_often)
        assert sorted(values) == list(range(1, 16))

    async def test_a_lease_has_one_holder(self) -> None:
        first, second = await self.make_coordination(), await self.make_coordination()
        lease = await first.take_lease(SUPERVISOR, "first", _DURATION)

        assert lease.is_held()
        with pytest.raises(LeaseHeld) as refused:
            await second.take_lease(SUPERVISOR, "second", _DURATION)
        assert refused.value.holder
        await lease.renew()
        assert lease.is_held()
        with pytest.raises(LeaseHeld):
            await second.take_lease(SUPERVISOR, "second", _DURATION)
        await lease.release()

    async def test_a_released_lease_can_be_taken_at_once(self) -> None:
        first, second = await self.make_coordination(), await self.make_coordination()
        earlier = await first.take_lease(SUPERVISOR, "first", _DURATION)
        await earlier.release()
        assert not earlier.is_held()

        later = await second.take_lease(SUPERVISOR, "second", _DURATION)
        assert later.is_held()
        await earlier.release()
        with pytest.raises(NotOwner):
            await earlier.renew()
        await later.renew()
        assert later.is_held()
        await later.release()
