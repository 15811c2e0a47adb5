"""Reading a chain from long-term storage (rule J8): the newest element, breaks, and damage."""

from __future__ import annotations

from itertools import pairwise

import anyio.lowlevel
import attrs
import pytest

from support.operations import ELEMENT, element_of
from tierlog.journal.manifest.chain import (
    ChainReport,
    StoredElement,
    element_name,
    journal_prefix,
    list_elements,
    read_chain,
    read_element,
    read_newest,
    read_owners,
)
from tierlog.journal.manifest.element import NOTHING, Element, Position, position_of
from tierlog.storage_backends.base.errors import ChunkNotFound, DataCorruption, Unavailable
from tierlog.storage_backends.chunks.memory import MemoryChunkState, MemoryChunkStorage
from tierlog.storage_backends.sorted_runs.run_list import RunList

pytestmark = pytest.mark.anyio


def element(n: int, predecessor: Position = NOTHING) -> Element:
    return attrs.evolve(element_of(3), n=n, predecessor=predecessor)


async def storage_of(*elements: Element, container: int = 3) -> MemoryChunkStorage:
    chunks = MemoryChunkStorage(MemoryChunkState())
    await chunks.open()
    for each in elements:
        await chunks.create_with_content(element_name(container, each.n), [each.encode()])
    return chunks


def chain(first: int, last: int) -> list[Element]:
    elements, before = [], NOTHING
    for n in range(first, last + 1):
        elements.append(element(n, before))
        before = position_of(elements[-1].encode())
    return elements


async def test_an_element_has_its_name() -> None:
    assert element_name(3, 0x1F) == "_system/containers/0003/journal/000000000000001f"


async def test_elements_are_listed_in_order_from_a_number_on() -> None:
    chunks = await storage_of(element(16), element(9), element(255))
    await chunks.create_with_content("_system/containers/0004/journal/0000000000000001", [b""])
    assert await list_elements(chunks, 3) == [9, 16, 255]
    assert await list_elements(chunks, 3, after=9) == [16, 255]
    assert await list_elements(chunks, 5) == []


async def test_the_newest_element_that_is_still_there_is_read() -> None:
    chunks = await storage_of(*chain(4, 6))
    for listed in ([4, 5, 6], [1, 2]):  # the second is what was there before 5 and 6
        assert (found := await read_newest(chunks, 3, listed)) is not None
        assert found.element.n == 6
        assert listed[-1] == 6
    assert await read_newest(chunks, 3, []) is None


async def test_a_chain_that_is_listed_and_cannot_be_read_is_unavailable() -> None:
    class Forgetful(MemoryChunkStorage):
        async def _read(self, name: str, offset: int, size: int) -> bytes:
            raise ChunkNotFound(name, chunk=name)

    chunks = Forgetful(MemoryChunkState())
    await chunks.open()
    await chunks.create_with_content(element_name(3, 1), [b""])
    with pytest.raises(Unavailable):
        await read_newest(chunks, 3, [1])


async def test_a_chain_is_read_as_far_as_it_stands() -> None:
    chunks = await storage_of(*chain(4, 6))
    report = await read_chain(chunks, 3)
    assert [each.element.n for each in report.elements] == [6, 5, 4]
    assert report.newest == report.elements[0].element
    assert report.problems == ()
    await chunks.delete(element_name(3, 5))
    assert (await read_chain(chunks, 3)).problems == ()


async def test_a_chain_whose_newest_element_is_deleted_meanwhile_is_read_again() -> None:
    """Two newer ones exist by then (rule J8): what is left of the listing is not the chain."""
    elements = chain(1, 4)

    class Advancing(MemoryChunkStorage):
        async def _read(self, name: str, offset: int, size: int) -> bytes:
            if name == element_name(3, 2):
                await self.delete(name)
                for each in elements[2:]:
                    await self.create_with_content(element_name(3, each.n), [each.encode()])
            return await super()._read(name, offset, size)

    chunks = Advancing(MemoryChunkState())
    await chunks.open()
    for each in elements[:2]:
        await chunks.create_with_content(element_name(3, each.n), [each.encode()])

    assert [each.n for each in (await read_chain(chunks, 3)).elements] == [4, 3, 1]


async def test_the_elements_of_a_long_chain_are_read_many_at_a_time() -> None:
    """Nothing could be deleted for long: one after the other, 10,000 take six minutes from S3."""

    class Slow(MemoryChunkStorage):
        running = most = 0

        async def _read(self, name: str, offset: int, size: int) -> bytes:
            self.running += 1
            self.most = max(self.most, self.running)
            for _ in range(5):
                await anyio.lowlevel.checkpoint()
            self.running -= 1
            return await super()._read(name, offset, size)

    state = MemoryChunkState()
    filled = MemoryChunkStorage(state)
    await filled.open()
    for each in (*chain(1, 300), *chain(302, 600)):
        await filled.create_with_content(element_name(3, each.n), [each.encode()])
    await filled.create_with_content(element_name(3, 301), [b"damaged"])
    slow = Slow(state)
    await slow.open()
    report = await read_chain(slow, 3)
    assert [each.n for each in report.elements] == [n for n in range(600, 0, -1) if n != 301]
    assert [each.n for each in report.unreadable] == [301]
    assert 8 <= slow.most <= 16


async def test_an_element_that_does_not_follow_the_one_before_is_reported() -> None:
    four, five = chain(4, 5)
    chunks = await storage_of(attrs.evolve(four, epoch=99), five)
    (problem,) = (await read_chain(chunks, 3)).problems
    assert problem.name == element_name(3, 4)
    assert "another history went on" in problem.message


def long_chain(owners: list[int], cycles: int, *, one_process: bool = False) -> list[Element]:
    """So many elements of each opening, one after the other; the newest ones have the newest cycle.
    ``one_process``: every other opening is the same process's."""
    elements, before, count = list[Element](), NOTHING, sum(owners)
    for opening, of_owner in enumerate(owners):
        for _ in range(of_owner):
            n = len(elements) + 1
            template = element(n, before)
            each = attrs.evolve(
                template,
                epoch=100 + opening,
                owner=attrs.evolve(
                    template.owner, owner=bytes([opening % 2 if one_process else opening]) * 16
                ),
                progress=attrs.evolve(template.progress, cycle=7 if n > count - cycles else 6),
            )
            elements.append(each)
            before = position_of(each.encode())
    return elements


class Counting(MemoryChunkStorage):
    reads = 0

    async def _read(self, name: str, offset: int, size: int) -> bytes:
        self.reads += 1
        return await super()._read(name, offset, size)


async def put_all(elements: list[Element]) -> Counting:
    chunks = Counting(MemoryChunkState())
    await chunks.open()
    for each in elements:
        await chunks.create_with_content(element_name(3, each.n), [each.encode()])
    return chunks


@pytest.mark.parametrize(
    ("owners", "cycles", "most"),
    [
        ([3000], 1, 260),
        ([3000], 1000, 290),
        ([1, 2999], 3000, 290),
        ([500, 1, 1, 700, 1798], 2000, 340),
        ([1] * 250 + [2750], 5, 520),
        ([100, 100], 3, 200),
        ([300], 300, 300),
    ],
)
async def test_r2_of_a_long_chain_the_ends_of_each_owner_are_read(
    owners: list[int], cycles: int, most: int
) -> None:
    elements = long_chain(owners, cycles)
    chunks = await put_all(elements)

    report = await read_owners(chunks, 3)

    assert report.problems == ()
    read = {each.n for each in report.elements}
    assert [each.n for each in report.elements] == sorted(read, reverse=True)
    ends = {1, len(elements)}
    for before, after in pairwise(elements):
        if before.owner != after.owner or before.progress.cycle != after.progress.cycle:
            ends |= {before.n, after.n}
    assert ends <= read
    assert set(range(max(1, len(elements) - 255), len(elements) + 1)) <= read
    assert chunks.reads <= most


async def test_r2_an_opening_between_two_of_the_same_process_is_read() -> None:
    elements = long_chain([1000, 10, 1990], 5, one_process=True)
    read = {each.n for each in (await read_owners(await put_all(elements), 3)).elements}
    assert {1, 1000, 1001, 1010, 1011} <= read


async def test_r4_the_first_element_of_a_cycle_that_a_restore_went_back_to_is_read() -> None:
    before, after = long_chain([800], 0), long_chain([800, 2200], 2200)[800:]
    before = [
        attrs.evolve(each, progress=attrs.evolve(each.progress, cycle=1 + each.n // 100)) for each in before
    ]
    elements, newest = [*before, *after], NOTHING
    for index, each in enumerate(elements):
        elements[index] = attrs.evolve(each, predecessor=newest)
        newest = position_of(elements[index].encode())
    report = await read_owners(await put_all(elements), 3)
    same = [each.n for each in report.elements if each.element.progress.cycle == 7]
    assert (report.problems, min(same)) == ((), 600)


@pytest.mark.one_loop
@pytest.mark.parametrize("at", [2, 700, 1500, 2700, 2999])
async def test_r2_two_histories_are_found_anywhere_in_a_long_chain(at: int) -> None:
    """They have different owners."""
    elements = [*long_chain([0, at], 0), *long_chain([3000], 1)[at:]]
    (problem,) = (await read_owners(await put_all(elements), 3)).problems
    assert problem.name == element_name(3, at)
    assert "another history went on" in problem.message


@pytest.mark.one_loop
@pytest.mark.parametrize("damaged", [{1}, {1500}, {2000, 2744}, {*range(2, 2700)}, {2999}])
async def test_r2_unreadable_elements_of_a_long_chain_hide_no_owner(damaged: set[int]) -> None:
    elements = long_chain([1400, 200, 1400], 1500)
    chunks = await put_all(elements)
    for n in damaged:
        await chunks.delete(element_name(3, n))
        await chunks.create_with_content(element_name(3, n), [b"damaged"])

    ends, whole = await read_owners(chunks, 3), await read_chain(chunks, 3)

    assert {each.owner for each in owned(ends)} == {each.owner for each in owned(whole)}
    for of_owner in (1, 1400, 1401, 1600, 1601, 1500, 1501):
        assert (of_owner in {each.n for each in owned(ends)}) == (of_owner not in damaged)


def owned(report: ChainReport) -> list[Element]:
    return [each.element for each in report.elements]


async def test_every_damaged_byte_of_the_newest_leaves_the_one_before() -> None:
    four, five = chain(4, 5)
    content = five.encode()
    for position in range(len(content)):
        chunks = await storage_of(four)
        damaged = bytearray(content)
        damaged[position] ^= 0xFF
        await chunks.create_with_content(element_name(3, 5), [bytes(damaged)])
        for seen in (None, StoredElement(position_of(content), five)):
            with pytest.raises(DataCorruption) as refused:
                await read_element(chunks, 3, 5, seen)
            assert (refused.value.file, refused.value.offset) == (element_name(3, 5), 0)
        report = await read_chain(chunks, 3)
        assert report.newest == four
        assert [problem.name for problem in report.problems] == [element_name(3, 5)]


async def test_j2_an_element_of_another_container_is_corruption() -> None:
    """Its CRC holds and so does its number: whoever copied it there would have exchanged the segments."""
    own, log = element_of(3), ELEMENT.owner.log[:12]
    for copied, message in (
        (element_of(4), "/0004/runs/"),
        (ELEMENT, "'tables/0/a', which is no run of this container"),
        (attrs.evolve(own, owner=attrs.evolve(own.owner, log=log + bytes([0, 0, 0, 4]))), "of container 4"),
        (attrs.evolve(own, runs=RunList(), owner=attrs.evolve(own.owner, log=log + bytes(4))), "container 0"),
    ):
        chunks = await storage_of(attrs.evolve(copied, n=5))
        with pytest.raises(DataCorruption, match=message) as refused:
            await read_newest(chunks, 3, [5])
        assert refused.value.file == element_name(3, 5)
        assert [each.n for each in (await read_chain(chunks, 3)).unreadable] == [5]
    of_this_log = attrs.evolve(own, n=5, owner=attrs.evolve(own.owner, log=log + bytes([0, 0, 0, 3])))
    assert (await read_element(await storage_of(of_this_log), 3, 5)).element == of_this_log


async def test_foreign_names_among_the_elements_are_left_alone() -> None:
    chunks = await storage_of(element(5))
    for name in ("zz", "0000000000000001.tmp", "notes.txt"):
        await chunks.create_with_content(journal_prefix(3) + name, [b""])
    assert await list_elements(chunks, 3) == [5]


async def test_an_element_under_another_number_is_corruption() -> None:
    chunks = await storage_of()
    await chunks.create_with_content(element_name(3, 5), [element(4).encode()])
    with pytest.raises(DataCorruption, match="this is element 4, not 5"):
        await read_element(chunks, 3, 5)
    with pytest.raises(ChunkNotFound):
        await read_element(chunks, 3, 6)
