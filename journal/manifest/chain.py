"""Reading a container's chain from long-term storage. Nothing here writes.

Only the newest elements matter; older ones are deleted (rule J8). A listing finds them: it has whatever was
created before it began. An element that is deleted between listing and reading counts as absent."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from contextlib import aclosing, suppress
from functools import partial

import attrs

from ...storage_backends.base.chunk_storage import ChunkStorage
from ...storage_backends.base.codec import DecodeError, hex_number
from ...storage_backends.base.errors import ChunkNotFound, DataCorruption, Unavailable
from ...storage_backends.base.parallel import in_parallel
from ...storage_backends.base.values import Value
from .element import CONTAINERS_PREFIX, ELEMENT_BYTES_MAX, Element, Owner, Position, check_crc, position_of

_ATTEMPTS_MAX = 10
"""Times that a chain is listed whose newest element vanishes each time."""

_READS_MAX = 16
"""Elements that are read at a time."""
_PART = 256
"""Elements that are read together; the newest ones that ``read_owners`` reads."""
_SHOWN = 100
"""What a message shows of a name."""


def journal_prefix(container: int) -> str:
    return f"{CONTAINERS_PREFIX}{container:04d}/journal/"


def runs_prefix(container: int) -> str:
    """The prefix of the names of the runs of the container's system table."""
    return f"{CONTAINERS_PREFIX}{container:04d}/runs/"


def element_name(container: int, n: int) -> str:
    return f"{journal_prefix(container)}{n:016x}"


async def list_elements(chunks: ChunkStorage, container: int, after: int = 0) -> list[int]:
    """The numbers above ``after`` of the elements in storage, lowest first. Objects with other names are
    nobody's."""
    prefix = journal_prefix(container)
    numbers = []
    async with aclosing(chunks.list(prefix, element_name(container, after))) as infos:
        async for info in infos:
            # Left alone and not damage: a file that is no element cannot be one of another history either.
            with suppress(DecodeError):
                numbers.append(hex_number(info.name.removeprefix(prefix)))

    return numbers


def check_container(element: Element, container: int) -> None:
    """Raises ``DecodeError`` if another container's owner created the element: below this one's name it was
    copied by hand, its CRC holds, and the segments of this container would be gone without a word (J2)."""
    prefix, other = runs_prefix(container), element.owner.container
    for run in element.runs:
        if not run.name.startswith(prefix):
            raise DecodeError(f"it names {run.name[:_SHOWN]!r}, which is no run of this container")
    if other is not None and other != container:
        raise DecodeError(f"it is one of container {other}")


@attrs.frozen(eq=False, repr=False)
class StoredElement(Value):
    """An element in storage."""

    position: Position
    element: Element

    @property
    def n(self) -> int:
        return self.position.n


async def read_element(
    chunks: ChunkStorage, container: int, n: int, seen: StoredElement | None = None
) -> StoredElement:
    """Raises ``DataCorruption`` with the object's name if it is not element ``n``, ``ChunkNotFound``. If it
    is ``seen``, it is not decoded again: with a long run list that takes 5 ms."""
    name = element_name(container, n)
    # One byte more than an element can have, so that a longer object does not pass for its beginning.
    content = await chunks.read(name, 0, ELEMENT_BYTES_MAX + 1)
    try:
        if seen is not None and seen.n == n and seen.position == position_of(content):
            check_crc(content)
            return seen

        element = Element.decode(content)
        check_container(element, container)
    except DecodeError as error:
        raise DataCorruption(
            f"element {n} of container {container} cannot be read: {error}",
            file=name,
            offset=0,
        ) from error

    # An element under another name was copied by hand: its CRC holds, and its number would decide wrongly.
    if element.n != n:
        raise DataCorruption(f"this is element {element.n}, not {n}", file=name, offset=0)

    return StoredElement(position_of(content), element)


async def read_newest(
    chunks: ChunkStorage, container: int, numbers: list[int], seen: StoredElement | None = None
) -> StoredElement | None:
    """The newest element, if ``numbers`` are those listed last; None if there is none.

    One that vanishes was deleted because two newer ones exist: then the chain is listed again."""
    for _ in range(_ATTEMPTS_MAX):
        if not numbers:
            return None

        with suppress(ChunkNotFound):
            return await read_element(chunks, container, numbers[-1], seen)

        # In place: the caller goes on with the numbers that the element was found by.
        numbers[:] = await list_elements(chunks, container)
    raise _vanished(container, numbers[-1])


def _vanished(container: int, n: int) -> Unavailable:
    return Unavailable(f"element {n} of container {container} is listed and cannot be read: try again")


async def check_end(chunks: ChunkStorage, container: int, newest: int) -> None:
    """Raises ``DataCorruption`` if something that is no file has the name of the element above the ``newest``
    that was listed: listings leave it out, and a chain has no gaps (rules J1, R2)."""
    name = element_name(container, newest + 1)
    try:
        # That it can be read is no problem: its owner has created it since the listing.
        await chunks.read(name, 0, 1)
    except ChunkNotFound as error:
        if error.is_taken:
            raise DataCorruption(
                f"element {newest + 1} of container {container} cannot be read: what has its name is not a "
                f"regular file",
                file=name,
                offset=0,
            ) from error


@attrs.frozen(eq=False, repr=False)
class ChainProblem(Value):
    name: str
    """The name of the object."""
    message: str
    offset: int = 0
    n: int = 0
    """The number of an element that cannot be read; 0 for other problems."""


@attrs.frozen(eq=False, repr=False)
class ChainReport(Value):
    """A container's chain as far as it stands."""

    container: int
    elements: tuple[StoredElement, ...]
    """The elements that can be read, newest first."""
    problems: tuple[ChainProblem, ...] = ()

    @property
    def unreadable(self) -> list[ChainProblem]:
        """The problems of elements that cannot be read, newest first."""
        return [problem for problem in self.problems if problem.n]

    @property
    def listed(self) -> list[StoredElement | ChainProblem]:
        """All elements, damaged or not, newest first."""
        listed: list[StoredElement | ChainProblem] = [*self.elements, *self.unreadable]
        return sorted(listed, key=lambda each: each.n, reverse=True)

    @property
    def newest(self) -> Element | None:
        """What a boot from long-term storage alone begins with: the newest element that can be read."""
        return self.elements[0].element if self.elements else None


async def read_chain(chunks: ChunkStorage, container: int) -> ChainReport:
    """Read all elements and check that each continues the one before, if that is still there."""
    return await _read_current(chunks, container, _read_all)


async def read_owners(chunks: ChunkStorage, container: int) -> ChainReport:
    """Read the newest elements, and of those below at least the first and last of each opening, and its first
    with the cycle of the newest. Checks as ``read_chain`` does that they continue each other (rule R2)."""
    return await _read_current(chunks, container, _read_ends)


_Readable = StoredElement | ChainProblem | None
_Read = Callable[[Sequence[int]], Awaitable[Sequence[_Readable]]]


async def _read_current(
    chunks: ChunkStorage, container: int, walk: Callable[[list[int], _Read], Awaitable[list[_Readable]]]
) -> ChainReport:
    async def read(numbers: Sequence[int]) -> Sequence[_Readable]:
        return await in_parallel(
            _READS_MAX, [partial(_read_or_problem, chunks, container, n) for n in numbers]
        )

    numbers: list[int] = []
    for _ in range(_ATTEMPTS_MAX):
        numbers = await list_elements(chunks, container)
        chain = _report(container, await walk(numbers, read))
        if not numbers or (chain.listed and chain.listed[0].n == numbers[-1]):
            return chain
    raise _vanished(container, numbers[-1])


def _report(container: int, found: Sequence[_Readable]) -> ChainReport:
    elements: list[StoredElement] = []
    problems: list[ChainProblem] = []
    for each in sorted((each for each in found if each is not None), key=lambda each: each.n, reverse=True):
        if isinstance(each, ChainProblem):
            problems.append(each)
            continue
        # The walk goes on after a break: an operator needs to see what both histories have.
        if elements and (message := _break_between(each, elements[-1].element)):
            problems.append(ChainProblem(element_name(container, each.n), message))
        elements.append(each)
    return ChainReport(container, tuple(elements), tuple(problems))


async def _read_all(numbers: list[int], read: _Read) -> list[_Readable]:
    return [
        each for start in range(0, len(numbers), _PART) for each in await read(numbers[start : start + _PART])
    ]


async def _read_ends(numbers: list[int], read: _Read) -> list[_Readable]:
    """Thousands are left if none could be deleted for long. In one history the elements of an opening have no
    others between them, so where two are of one opening, those between need not be read."""
    found = list(await read(numbers[-_PART:]))
    newest = found[-1] if found else None
    below = numbers[:-_PART]
    if not below or not isinstance(newest, StoredElement):
        return found

    cycle = newest.element.progress.cycle
    read_below = {below[-1]: (await read(below[-1:]))[0], below[0]: (await read(below[:1]))[0]}
    spans = [below]
    while spans:
        middles = list[int]()
        halves = list[list[int]]()
        for span in spans:
            first, last = read_below[span[0]], read_below[span[-1]]
            if not isinstance(first, StoredElement) or not isinstance(last, StoredElement):
                # Deleted or damaged, as what is between may be.
                middles += span[1:-1]
            elif len(span) > 2 and _side(first, cycle) != _side(last, cycle):
                half = len(span) // 2
                middles.append(span[half])
                halves += [span[: half + 1], span[half:]]
        read_below.update(zip(middles, await read(middles), strict=True))
        spans = halves
    return [*read_below.values(), *found]


def _side(stored: StoredElement, cycle: int) -> tuple[Owner, int, int]:
    element = stored.element
    # The cycles of an opening rise; a restore begins another one with an earlier cycle (R4).
    return element.owner, element.epoch, (element.progress.cycle > cycle) - (element.progress.cycle < cycle)


async def _read_or_problem(chunks: ChunkStorage, container: int, n: int) -> _Readable:
    """None if it was deleted since it was listed."""
    try:
        return await read_element(chunks, container, n)
    except ChunkNotFound:
        return None
    except DataCorruption as error:
        return ChainProblem(error.file, error.reason, error.offset, n)


def _break_between(older: StoredElement, newer: Element) -> str:
    """Why ``newer`` does not continue ``older``; empty if it does, or if others between them are gone."""
    if newer.owner.store != older.element.owner.store:
        return f"element {newer.n} is of another store"

    if newer.predecessor.n == older.position.n and newer.predecessor != older.position:
        return (
            f"element {newer.n} follows an element with CRC {newer.predecessor.crc:08x}, this one has "
            f"{older.position.crc:08x}: another history went on"
        )

    return ""
