"""The contract of ``LedgerService`` as tests, for the one in memory and for BookKeeper's."""

from __future__ import annotations

import itertools
from abc import ABC, abstractmethod

import anyio
import pytest

from tierlog.storage_backends.base.errors import InvalidArgument, OutcomeUnknown, TierlogError
from tierlog.storage_backends.base.ledger_service import (
    ENTRY_BYTES_MAX,
    MISSING,
    READ_ENTRIES_MAX,
    LedgerFenced,
    LedgerService,
    NoSuchEntry,
    NoSuchLedger,
    NotEnoughBookies,
    Quorum,
    StoredRecord,
)

PAIR = Quorum(2, 2, 2)
_NUMBERS = itertools.count()


class LedgerServiceContract(ABC):
    @abstractmethod
    def make_service(self) -> LedgerService:
        """The service of this test, which others may use too."""

    def path(self) -> str:
        """One that no other test has."""
        return f"/contract/{next(_NUMBERS)}"

    # --- ledgers ---------------------------------------------------------------------------------

    async def test_entries_come_back_as_they_were_written(self) -> None:
        service = self.make_service()
        ledger = await service.create_ledger(PAIR, {"who": b"\0me"})
        assert await ledger.append([[b"a", bytearray(b"b")], [memoryview(b"c")], []]) == 0
        assert await ledger.append([[bytes(ENTRY_BYTES_MAX)]]) == 3
        await ledger.close()

        found = await service.open_ledger(ledger.id, recover=False)
        assert found.description == (3, 3 + ENTRY_BYTES_MAX, True, {"who": b"\0me"})
        assert await service.describe_ledger(ledger.id) == found.description
        assert await found.read(0, 3) == [b"ab", b"c", b"", bytes(ENTRY_BYTES_MAX)]
        assert await ledger.read(1, 1) == [b"c"]
        found.drop()
        ledger.drop()

    async def test_concurrent_appends_are_added_in_the_order_of_the_calls(self) -> None:
        ledger = await self.make_service().create_ledger(PAIR, {})
        begun: list[bytes] = []
        numbers: dict[bytes, int] = {}

        async def append(data: bytes) -> None:
            begun.append(data)
            numbers[data] = await ledger.append([[data], [data]])

        async with anyio.create_task_group() as tasks:
            for each in range(20):
                tasks.start_soon(append, b"%d" % each)
        assert [numbers[data] for data in begun] == list(range(0, 40, 2))
        ledger.drop()

    async def test_recovery_fences_the_writer_and_finds_what_was_acked(self) -> None:
        service = self.make_service()
        ledger = await service.create_ledger(PAIR, {})
        for data in (b"a", b"b"):
            await ledger.append([[data]])
        found = await service.open_ledger(ledger.id, recover=True)

        assert found.description[:3] == (1, 2, True)
        with pytest.raises(LedgerFenced):
            await ledger.append([[b"zombie"]])
        with pytest.raises(OutcomeUnknown):
            await ledger.append([[b"again"]])
        assert (await service.open_ledger(ledger.id, recover=True)).description.last == 1
        assert await found.read(0, 1) == [b"a", b"b"]

    async def test_a_ledger_with_a_living_writer_is_read_to_its_end(self) -> None:
        service = self.make_service()
        ledger = await service.create_ledger(PAIR, {})
        for data in (b"a", b"b", b"c"):
            await ledger.append([[data]])
        found = await service.open_ledger(ledger.id, recover=False)

        assert not found.description.is_closed
        assert found.description.last < 3
        assert await found.read(0, 2, unconfirmed=True) == [b"a", b"b", b"c"]
        with pytest.raises(NoSuchEntry):
            await found.read(3, 3, unconfirmed=True)
        assert await ledger.append([[b"d"]]) == 3
        ledger.drop()

    async def test_reads_have_a_limit(self) -> None:
        ledger = await self.make_service().create_ledger(PAIR, {})
        await ledger.append([[b"x"]] * (READ_ENTRIES_MAX + 1))

        assert len(await ledger.read(0, READ_ENTRIES_MAX - 1)) == READ_ENTRIES_MAX
        with pytest.raises(InvalidArgument):
            await ledger.read(0, READ_ENTRIES_MAX)
        ledger.drop()

    async def test_ledgers_are_listed_in_the_order_of_their_ids_and_deleted_ones_are_gone(self) -> None:
        service = self.make_service()
        made = [(await service.create_ledger(PAIR, {})).id for _ in range(3)]
        first, second, third = sorted(made)
        assert [each for each in await service.list_ledgers(first, 1000) if each in made] == [second, third]
        assert (await service.list_ledgers(-1, 1))[0] <= first
        for _ in range(2):
            await service.delete_ledger(second)

        assert second not in await service.list_ledgers(first, 1000)
        for call in (service.open_ledger(second, recover=True), service.describe_ledger(second)):
            with pytest.raises(NoSuchLedger):
                await call

    async def test_more_bookies_than_there_are_are_refused(self) -> None:
        service = self.make_service()
        bookies = await service.count_bookies()

        with pytest.raises(NotEnoughBookies):
            await service.create_ledger(Quorum(bookies + 1, 2, 2), {})

    # --- records ---------------------------------------------------------------------------------

    async def test_a_record_is_created_once_and_replaced_by_its_version(self) -> None:
        service, path = self.make_service(), f"{self.path()}/a/b"
        assert await service.load(path) is None
        made = await service.create(path, b"one")
        assert made == StoredRecord(b"one", 0)
        assert await service.create(path, b"two") is None
        assert await service.replace(path, b"two", made.version) == 1
        assert await service.replace(path, b"three", made.version) is None
        assert await service.load(path) == (b"two", 1)
        assert [await service.check(path, version) for version in (0, 1, 2)] == [False, True, False]
        assert [await service.remove(path, version) for version in (0, 1, 1)] == [False, True, False]
        assert [await service.replace(path, b"", 1), await service.load(path)] == [None, None]
        assert not await service.check(path, 1)

    async def test_children_are_the_names_below_a_path(self) -> None:
        service, path = self.make_service(), self.path()
        assert await service.children(path) == []
        for name in ("b", "a"):
            await service.create(f"{path}/{name}", b"")

        assert sorted(await service.children(path)) == ["a", "b"]

    @pytest.mark.parametrize("version", [MISSING, -2])
    async def test_no_version_means_any(self, version: int) -> None:
        service, path = self.make_service(), self.path()
        await service.create(path, b"")
        for call in (service.replace(path, b"x", version), service.remove(path, version)):
            try:
                assert not await call
            except TierlogError as error:
                assert isinstance(error, InvalidArgument)  # noqa: PT017 - either is right
        assert await service.load(path) == (b"", 0)
