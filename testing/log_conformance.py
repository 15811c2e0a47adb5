"""``DurableDataLogConformance``: the contract of ``DurableDataLog`` as tests.

Inherit from it and implement ``make_log``::

    class TestMyLog(DurableDataLogConformance):
        async def make_log(self) -> DurableDataLog:
            return MyLog(...)  # each call: another owner of the *same* log

The tests run on the loops of your ``anyio_backend`` fixture. Crashes and damaged files depend on the
implementation and are not covered.
"""

from __future__ import annotations

from abc import ABC, abstractmethod

import anyio
import pytest

from ..journal.log.contract import GROUP_BYTES_MAX, DurableDataLog, OpenedLog
from ..storage_backends.base.errors import ClosedError, DataCorruption, InvalidArgument, NotOwner


async def contents(log: DurableDataLog, first: int = 0) -> dict[int, bytes]:
    """All groups from ``first`` on, by number."""
    return {number: bytes(payload) async for number, payload in log.read(first)}


class DurableDataLogConformance(ABC):
    pytestmark = pytest.mark.anyio

    @abstractmethod
    async def make_log(self) -> DurableDataLog:
        """Return another owner, not open yet, of the log of this test."""

    async def opened(self, above: int = 0) -> tuple[DurableDataLog, OpenedLog]:
        log = await self.make_log()
        return log, await log.open(above=above)

    async def reopened(self) -> dict[int, bytes]:
        """What the next owner reads."""
        log, _ = await self.opened()
        found = await contents(log)
        await log.close()
        return found

    async def test_a_fresh_log_is_empty_and_starts_at_group_one(self) -> None:
        log, found = await self.opened()

        assert (found.history_epoch, list(found.groups), found.next_group, log.next_group) == (0, [], 1, 1)
        assert found.epoch > 0
        assert await contents(log) == {}
        await log.close()

    async def test_groups_come_back_in_order_with_their_numbers_tags_and_sizes(self) -> None:
        log, _ = await self.opened()
        assert [await log.append([b"one"], tag=7), await log.append([b"t", b"wo"]), await log.append([])] == [
            1,
            2,
            3,
        ]
        await log.close()

        log, found = await self.opened()
        assert [(group.number, group.tag, group.size) for group in found.groups] == [
            (1, 7, 3),
            (2, 0, 3),
            (3, 0, 0),
        ]
        assert found.tags == {1: 7}
        assert list((await contents(log)).items()) == [(1, b"one"), (2, b"two"), (3, b"")]
        assert list(await contents(log, 3)) == [3]
        await log.close()

    async def test_all_kinds_of_buffers_and_large_groups_survive(self) -> None:
        log, _ = await self.opened()
        large = bytes(range(256)) * 2048
        await log.append([b"a", bytearray(b"b"), memoryview(b"c")])
        await log.append([large[:1], memoryview(large)[1:]])
        await log.close()

        assert await self.reopened() == {1: b"abc", 2: large}

    async def test_every_open_takes_a_larger_epoch_and_knows_the_one_before(self) -> None:
        log, first = await self.opened()
        await log.close()
        log, second = await self.opened(above=100)
        await log.close()
        log, third = await self.opened()
        await log.close()

        assert first.epoch == second.history_epoch
        assert second.epoch > 100
        assert third.epoch > second.epoch == third.history_epoch

    async def test_groups_keep_their_owners_epochs_but_the_last_may_be_logged_again(self) -> None:
        log, first = await self.opened()
        await log.append([b"x"], tag=3)
        await log.append([b"y"], tag=4)
        await log.close()

        log, second = await self.opened()
        kept, last = second.groups
        assert (kept.epoch, kept.tag, last.tag) == (first.epoch, 3, 4)
        assert last.epoch in {first.epoch, second.epoch}
        await log.close()

    async def test_a_later_owner_fences_an_earlier_one(self) -> None:
        old, _ = await self.opened()
        await old.append([b"acked"])
        new, _ = await self.opened()

        with pytest.raises(NotOwner):
            await old.confirm_owner()
        with pytest.raises(NotOwner):
            old.check_owner()
        with pytest.raises(NotOwner):
            await old.append([b"zombie"])
        with pytest.raises(NotOwner):
            await old.append([b"zombie again"])
        new.check_owner()
        await new.confirm_owner()
        await new.append([b"new"])
        await old.close()
        await new.close()
        assert await self.reopened() == {1: b"acked", 2: b"new"}

    async def test_an_owner_that_opens_again_by_itself_follows_only_its_own_epochs(self) -> None:
        """It would fence an owner that took over in the meantime."""
        first, _ = await self.opened()
        again = await self.make_log()
        await again.open(after=first.own_epochs)
        other, _ = await self.opened()
        late = await self.make_log()
        with pytest.raises(NotOwner):
            await late.open(after=[*first.own_epochs, *again.own_epochs])

        await other.confirm_owner()
        assert await other.append([b"still the owner"]) == 1
        for log in (first, again, late, other):
            await log.close()

    async def test_a_fenced_append_is_in_no_later_read(self) -> None:
        """An append that begins after the fencing never appears."""
        old, _ = await self.opened()
        await old.append([b"acked"])
        new, _ = await self.opened()
        with pytest.raises(NotOwner):
            await old.append([b"zombie"])
        await old.close()
        await new.close(clean=False)

        assert await self.reopened() == {1: b"acked"}

    async def test_one_append_more_than_the_log_allows_is_a_bug_of_the_caller(self) -> None:
        log, _ = await self.opened()
        refused = []

        async def append() -> None:
            try:
                await log.append([b"x"])
            except RuntimeError as error:
                refused.append(error)

        async with anyio.create_task_group() as tasks:
            for _ in range(log.appends_max + 1):
                tasks.start_soon(append)
        assert len(refused) == 1
        assert log.next_group == log.appends_max + 1
        await log.append([b"sound"])
        await log.close()

    async def test_concurrent_appends_are_numbered_and_return_in_the_order_of_the_calls(self) -> None:
        log, _ = await self.opened()
        begun: list[bytes] = []
        returned: list[tuple[int, bytes]] = []

        async def append(payload: bytes) -> None:
            begun.append(payload)
            returned.append((await log.append([payload]), payload))

        for start in range(0, 40, log.appends_max):
            async with anyio.create_task_group() as tasks:
                for index in range(start, start + log.appends_max):
                    tasks.start_soon(append, b"%d" % index)
        await log.close()

        assert returned == list(enumerate(begun, 1))
        assert await self.reopened() == dict(enumerate(begun, 1))

    async def test_an_append_that_was_cancelled_before_it_began_breaks_the_log(self) -> None:
        """Its outcome is unknown."""
        log, _ = await self.opened()
        await log.append([b"acked"])
        with anyio.CancelScope() as scope:
            scope.cancel()
            await log.append([b"unknown"])
        with pytest.raises(Exception, match="open it again"):
            await log.append([b"later"])
        await log.close()

        found = await self.reopened()
        assert found[1] == b"acked"
        assert b"later" not in found.values()

    async def test_truncation_forgets_what_lies_below_its_address(self) -> None:
        log, _ = await self.opened()
        for index in range(1, 6):
            await log.append([b"%d" % index], truncate_before=4 if index == 5 else 0)
        await log.truncate()
        await log.truncate()
        await log.close()

        log, found = await self.opened()
        assert [group.number for group in found.groups] == [4, 5]
        assert found.tags == {group.number: group.tag for group in found.groups if group.tag}
        assert await contents(log) == {4: b"4", 5: b"5"}
        assert found.next_group == 6
        await log.close()

    async def test_the_window_of_any_durable_group_is_read_at_any_time(self) -> None:
        first, _ = await self.opened()
        for size in (0, 10, 700 << 10, 700 << 10, 3 << 20):
            await first.append([bytes([size % 251]) * size])
        log, _ = await self.opened()
        for number in range(6, 30):
            await log.append([b"%d" % number])

        found = {n: await log.read_window(log.window_of(n)) for n in range(1, 30)}
        assert {n: bytes(dict(window)[n]) for n, window in found.items()} == {
            **{
                n: bytes([size % 251]) * size
                for n, size in enumerate((0, 10, 700 << 10, 700 << 10, 3 << 20), 1)
            },
            **{n: b"%d" % n for n in range(6, 30)},
        }
        assert all(window[0][0] == log.window_of(n) for n, window in found.items())
        assert max(sum(len(payload) for _, payload in window) for window in found.values()) == 3 << 20
        await log.close()

    async def test_a_window_is_read_beside_appends_and_truncations(self) -> None:
        log, _ = await self.opened()
        for number in range(1, 11):
            await log.append([b"%d" % number])

        async def read(number: int) -> None:
            for _ in range(10):
                assert bytes(dict(await log.read_window(number))[number]) == b"%d" % number

        async with anyio.create_task_group() as tasks:
            for number in (8, 9, 10):
                tasks.start_soon(read, number)
            for number in range(11, 21):
                await log.append([b"%d" % number], truncate_before=8)
                await log.truncate()
        await log.close()

    async def test_a_fenced_owner_knows_its_windows_although_its_successor_truncated_them(self) -> None:
        old, _ = await self.opened()
        for number in range(1, 6):
            await old.append([b"%d" % number])
        windows = [old.window_of(number) for number in range(1, 6)]
        new, _ = await self.opened()
        for number in range(6, 12):
            await new.append([b"x" * (700 << 10)], truncate_before=number)
        await new.truncate()

        assert [old.window_of(number) for number in range(1, 6)] == windows
        await old.close()
        await new.close()

    async def test_a_group_that_the_log_does_not_have_is_refused_and_harmless(self) -> None:
        log, _ = await self.opened()
        for _ in range(3):
            await log.append([b"group"])
        for number in (0, 4):
            with pytest.raises(DataCorruption):
                await log.read_window(number)

        assert await log.append([b"next"]) == 4
        await log.close()

    async def test_inspect_reads_windows_too(self) -> None:
        owner, _ = await self.opened()
        await owner.append([b"one"])
        await owner.append([b"two"])
        view = await self.make_log()
        await view.inspect()

        assert bytes(dict(await view.read_window(2))[2]) == b"two"
        await view.close()
        await owner.close()

    async def test_a_log_can_be_truncated_to_its_newest_group_again_and_again(self) -> None:
        for index in range(1, 5):
            log, _ = await self.opened()
            assert await log.append([b"checkpoint"], truncate_before=index) == index
            await log.truncate()
            await log.close()

        assert await self.reopened() == {4: b"checkpoint"}

    async def test_a_fenced_owner_may_not_truncate(self) -> None:
        old, _ = await self.opened()
        await old.append([b"a"])
        await old.append([b"b"], truncate_before=2)
        new, _ = await self.opened()
        with pytest.raises(NotOwner):
            await old.truncate()
        await old.close()
        await new.close()

    async def test_a_truncation_address_above_its_own_group_is_refused_and_harmless(self) -> None:
        log, _ = await self.opened()
        with pytest.raises(InvalidArgument):
            await log.append([b"x"], truncate_before=2)
        with pytest.raises(InvalidArgument):
            await log.append([b"x"], tag=1 << 32)
        assert await log.append([b"x"], truncate_before=1) == 1
        await log.close()

    async def test_a_group_above_the_limit_is_refused_and_harmless(self) -> None:
        log, _ = await self.opened()
        half = memoryview(bytes(GROUP_BYTES_MAX // 2 + 1))
        with pytest.raises(InvalidArgument):
            await log.append([half, half])
        assert await log.append([b"x"]) == 1
        await log.close()

    async def test_inspect_sees_what_is_there_and_fences_nobody(self) -> None:
        log, found = await self.opened()
        await log.append([b"a"], tag=9)
        reader = await self.make_log()
        seen = await reader.inspect()

        assert (seen.epoch, [group.tag for group in seen.groups], seen.next_group) == (found.epoch, [9], 2)
        assert await contents(reader) == {1: b"a"}
        with pytest.raises(RuntimeError):
            await reader.append([b"not mine"])
        await reader.close()
        await log.confirm_owner()
        assert await log.append([b"b"]) == 2
        await log.close()

    async def test_a_closed_log_refuses_and_closes_again(self) -> None:
        log, _ = await self.opened()
        await log.close()
        await log.close()
        with pytest.raises(ClosedError):
            await log.append([b"x"])
        with pytest.raises(ClosedError):
            log.check_owner()
        with pytest.raises(ClosedError):
            await log.confirm_owner()

    async def test_opening_one_object_twice_is_a_bug_of_the_caller(self) -> None:
        log, _ = await self.opened()
        with pytest.raises(RuntimeError):
            await log.open()
        await log.close()

    async def test_reading_after_an_append_is_a_bug_of_the_caller(self) -> None:
        log, _ = await self.opened()
        await log.append([b"x"])
        with pytest.raises(RuntimeError):
            await contents(log)
        await log.close()

    async def test_statistics_and_room_of_a_healthy_log(self) -> None:
        log, found = await self.opened()
        await log.append([b"12345"])
        statistics = log.statistics()

        assert (statistics.epoch, statistics.next_group) == (found.epoch, 2)
        assert (statistics.appended_groups, statistics.appended_bytes) == (1, 5)
        assert statistics.retained_bytes >= 5
        assert log.has_room(1000)
        await log.close()
