"""What clients do in a world with sessions, and what each of them must find.

Every event says whose it is, and which: a segment's bytes are whole events, and tell which appends they are
of. A numbered writer has each event once, in order. A plain append that was acked is at its offset, one that
was refused is nowhere, and one whose outcome is unknown is there once or not at all. Whatever a reader or a
tail got are the bytes of the segment. No call takes longer than its deadline allows."""

from __future__ import annotations

import re
from bisect import bisect
from collections.abc import Awaitable, Callable
from contextlib import aclosing
from math import inf
from random import Random
from typing import TypeVar

import attrs
import trio

from tierlog.actors.gateway.client.async_client import Client
from tierlog.actors.gateway.client.sessions import AsyncSession
from tierlog.storage_backends.base.errors import (
    OutcomeUnknown,
    OutOfOrder,
    SegmentExists,
    Throttled,
    TierlogError,
    Unavailable,
    UnknownWriter,
)
from tierlog.storage_backends.base.segments import AttributeUpdate, AttributeUpdateKind
from tierlog.storage_backends.base.tables import TableRow
from tierlog.storage_backends.base.transactions import StagedPart

from ..invariants import Broken
from ..trace import Trace

T = TypeVar("T")
SLACK = 2.0
"""Seconds that a call may take besides its deadline: for what waits behind a process that stands still."""
_SIZES = (8, 40, 40, 200, 200, 900, 3000, 9000)
COUNTER = "count"
_IN_VAIN = "no answer in time"
_HEAD = re.compile(rb"<([a-z0-9.]+):([0-9]+):([0-9]+):")
_MAY_WORK_LATER = (Unavailable, OutcomeUnknown, Throttled, OutOfOrder, UnknownWriter)
"""The last two: the event before has to be sent again."""


def event(name: str, number: int, size: int) -> bytes:
    head = f"<{name}:{number}:{size}:".encode()
    filler = f"{name}.{number}.".encode()
    return head + (filler * (size // len(filler) + 1))[:size] + b">"


def events_in(content: bytes, shown: str) -> list[tuple[str, int, int]]:
    """Name, number and offset of each event. Raises ``Broken`` for anything else."""
    found, position = [], 0
    while position < len(content):
        head = _HEAD.match(content, position)
        name, number, size = ("", 0, 0) if head is None else (head[1].decode(), int(head[2]), int(head[3]))
        whole = event(name, number, size)
        if head is None or content[position : position + len(whole)] != whole:
            raise Broken(
                f"it does not hold that events are whole\n{shown} at {position}: "
                f"{content[position : position + 60]!r}"
            )
        found.append((name, number, position))
        position += len(whole)
    return found


@attrs.define(eq=False)
class Shared:
    """What the workloads of one world know of each other."""

    trace: Trace
    lengths: dict[str, int] = attrs.field(factory=dict)
    """Of each segment, bytes that are known to be in it."""
    reads: list[tuple[str, int, bytes]] = attrs.field(factory=list)
    """What anybody has read: segment, offset, bytes."""
    calls: int = 0
    is_healed: bool = False

    def grows(self, segment: str, length: int) -> None:
        self.lengths[segment] = max(self.lengths.get(segment, 0), length)

    def check_reads(self, contents: dict[str, bytes]) -> None:
        for segment, offset, data in self.reads:
            if contents[segment][offset : offset + len(data)] != data:
                raise Broken(
                    f"it does not hold that readers get the segment's bytes\n{segment} from {offset}: "
                    f"{data[:60]!r}, and not {contents[segment][offset : offset + 60]!r}"
                )


class Caller:
    """Makes calls of one client."""

    def __init__(self, name: str, client: Client, deadline: float, random: Random, shared: Shared) -> None:
        self.name = name
        self.client = client
        self._deadline = deadline
        self._random = random
        self._shared = shared

    async def call(self, what: str, act: Callable[[], Awaitable[T]], wait: float = 0.0) -> T:
        """One call; it ends by its deadline."""
        shared, sessions, begun = self._shared, _received(self.client), trio.current_time()
        shared.calls += 1
        shared.trace.note(self.name, what)
        seconds = self._deadline + wait + SLACK
        try:
            with trio.move_on_after(seconds):
                answer = await act()
                shared.trace.note(self.name, f"{what}: {_brief(answer)}")
                return answer
        except TierlogError as error:
            shared.trace.note(self.name, f"{what}: {type(error).__name__}: {error}")
            if trio.current_time() - begun >= self._deadline + wait:
                _check_retired(self.client, str(error), sessions)
            raise
        except Exception as error:
            raise Broken(f"it does not hold that errors are the store's\n{self.name} {what}") from error
        raise Broken(
            f"it does not hold that calls end by their deadline\n{self.name} {what}: no answer after "
            f"{seconds:g} s"
        )

    async def until_done(self, what: str, act: Callable[[], Awaitable[T]]) -> T | None:
        """A call that may be repeated, until it is answered. None if it finds that it was done before."""
        while True:
            try:
                return await self.call(what, act)
            except _MAY_WORK_LATER:
                await trio.sleep(self._random.choice((0.01, 0.2)))
            except SegmentExists:
                return None
            except TierlogError as error:
                raise Broken(
                    f"it does not hold that only calls with a reason are refused\n{error}"
                ) from error

    def size(self) -> int:
        return self._random.choice(_SIZES)

    async def pause(self) -> None:
        if seconds := self._random.choice((0.0, 0.0, 0.01, 0.1, 0.5)):
            await trio.sleep(seconds)


class Workload(Caller):
    """One task."""

    async def run(self) -> None:
        raise NotImplementedError


class NumberedWriter(Workload):
    """Appends numbered events, several at a time, and repeats what is not acked."""

    def __init__(self, segment: str, count: int, *arguments: object) -> None:
        super().__init__(f"{segment} writer", *arguments)  # type: ignore[arg-type]
        self.segment = segment
        self._count = count
        self._sizes = [self.size() for _ in range(count)]

    async def run(self) -> None:
        await self.until_done("creates", lambda: self.client.create_segment(self.segment))
        number = 0
        while number < self._count:
            width = min(self._count - number, self._random.choice((1, 1, 2, 5)))
            async with trio.open_nursery() as nursery:
                for each in range(number, number + width):
                    nursery.start_soon(self._append, each)
            number += width
            await self.pause()

    async def _append(self, number: int) -> None:
        data = event(self.segment, number, self._sizes[number])
        random = Random(f"{self.segment} {number}")
        while True:
            if random.random() < 0.15:
                # Its caller leaves, and asks for it again.
                with trio.move_on_after(random.choice((0.0, 0.0005, 0.002, 0.05))):
                    await self._send(number, data)
                    return
            else:
                await self._send(number, data)
                return

    async def _send(self, number: int, data: bytes) -> None:
        await self.until_done(
            f"appends {number}, {len(data)} bytes",
            lambda: self.client.append(
                self.segment,
                data,
                writer_id=self.segment.encode(),
                event_number=number,
                previous_event_number=number - 1 if number else None,
            ),
        )

    def check(self, content: bytes) -> None:
        found = [(name, number) for name, number, _ in events_in(content, self.segment)]
        if found != [(self.segment, number) for number in range(self._count)]:
            raise Broken(f"it does not hold that a writer's events are there once, in order\n{found}")


class PlainAppender(Workload):
    """Appends that may not be repeated, some at an offset; callers leave at any moment."""

    def __init__(self, segment: str, part: int, count: int, *arguments: object) -> None:
        super().__init__(f"{segment} appender {part}", *arguments)  # type: ignore[arg-type]
        self.segment = segment
        self._part = f"{segment}.{part}"
        self._count = count
        self._begins: list[int] = []
        """The first of those that are sent at a time."""
        self._acked: dict[int, int] = {}
        """Offsets by number."""
        self._refused: dict[int, str] = {}

    async def run(self) -> None:
        await self.until_done("creates", lambda: self.client.create_segment(self.segment, exist_ok=True))
        number = 0
        while number < self._count:
            self._begins.append(number)
            following = min(self._count, number + self._random.choice((1, 1, 3, 6)))
            async with trio.open_nursery() as nursery:
                for each in range(number, following):
                    nursery.start_soon(self._append, each)
            number = following
            await self.pause()

    async def _append(self, number: int) -> None:
        data, random = event(self._part, number, self.size()), self._random
        client, segment, length = self.client, self.segment, self._shared.lengths.get(self.segment, 0)
        expected = length if random.random() < 0.2 else None
        what = f"appends {number}, {len(data)} bytes{'' if expected is None else f' at {expected}'}"

        async def append() -> int:
            return await client.append(segment, data, expected_offset=expected)

        leaves = random.random()
        seconds = random.choice((0.0003, 0.001, 0.003, 0.02)) if leaves < 0.3 else inf
        with trio.move_on_after(seconds):
            try:
                offset = await self.call(what, append)
            except OutcomeUnknown:
                pass
            except TierlogError as error:
                self._refused[number] = f"{type(error).__name__}: {error}"
            else:
                self._acked[number] = offset
                self._shared.grows(segment, offset + len(data))

    def check(self, content: bytes) -> None:
        places: dict[int, list[int]] = {}
        for name, number, offset in events_in(content, self.segment):
            if name == self._part:
                places.setdefault(number, []).append(offset)
        for number in range(self._count):
            found, acked = places.get(number, []), self._acked.get(number)
            if len(found) > 1:
                raise Broken(f"it does not hold that nothing is doubled\n{self._part} {number} is at {found}")
            if acked is not None and found != [acked]:
                raise Broken(
                    f"it does not hold that nothing acked is lost\n{self._part} {number}, acked at {acked}, "
                    f"is at {found}"
                )
            if found and number in self._refused:
                raise Broken(
                    f"it does not hold that what is refused is not done\n{self._part} {number}, at {found}: "
                    f"{self._refused[number]}"
                )
        order = [number for number, _ in sorted(self._acked.items(), key=lambda acked: acked[1])]
        rounds = [bisect(self._begins, number) for number in order]
        if rounds != sorted(rounds):
            raise Broken(f"it does not hold that acked appends keep their order\n{self._part}: {order}")


class Counter(Workload):
    """Adds to an attribute of a segment, a call that is never repeated."""

    def __init__(self, segment: str, count: int, *arguments: object) -> None:
        super().__init__(f"{segment} counter", *arguments)  # type: ignore[arg-type]
        self.segment = segment
        self._count = count
        self._acked = self._doubtful = 0

    async def run(self) -> None:
        await self.until_done("creates", lambda: self.client.create_segment(self.segment, exist_ok=True))
        for _ in range(self._count):
            await self._add()
            await self.pause()

    async def _add(self) -> None:
        update, random = AttributeUpdate(COUNTER, 1, AttributeUpdateKind.ACCUMULATE), self._random

        async def add() -> None:
            await self.client.update_attributes(self.segment, [update])

        leaves = random.random()
        if leaves < 0.1:
            # N6: who is cancelled before sends nothing.
            with trio.CancelScope() as scope:
                scope.cancel()
                await self.call("adds 1, and is cancelled", add)
            return

        self._doubtful += 1
        with trio.move_on_after(random.choice((0.0005, 0.003)) if leaves < 0.3 else inf):
            try:
                await self.call("adds 1", add)
            except OutcomeUnknown:
                pass
            except TierlogError:
                self._doubtful -= 1
            else:
                self._doubtful -= 1
                self._acked += 1

    async def check_count(self) -> None:
        page = await self.until_done("reads its count", lambda: self.client.list_attributes(self.segment))
        assert page is not None
        found = page.attributes.get(COUNTER, 0)
        if not self._acked <= found <= self._acked + self._doubtful:
            raise Broken(
                f"it does not hold that what is acked is done once\n{self._acked} were acked, "
                f"{self._doubtful} are in doubt, and the count is {found}"
            )


class Committer(Workload):
    """Commits transactions, and aborts some; each of its calls is repeated until it is answered."""

    def __init__(self, segment: str, count: int, *arguments: object) -> None:
        super().__init__(f"{segment} committer", *arguments)  # type: ignore[arg-type]
        self.segment = segment
        self._count = count
        self._committed: list[tuple[str, int]] = []
        """The events that the segment has, in order."""

    async def run(self) -> None:
        client, segment = self.client, self.segment
        await self.until_done("creates", lambda: client.create_segment(segment, exist_ok=True))
        for number in range(self._count):
            await self._transact(f"t{number}")
            await self.pause()

    async def _transact(self, id: str) -> None:
        client, segment, random = self.client, self.segment, self._random
        await self.until_done(f"begins {id}", lambda: client.begin_transaction(segment, id))
        parts, events = list[StagedPart](), list[tuple[str, int]]()
        for part in range(random.choice((1, 1, 2, 3))):
            staged, staged_events = await self._stage(id, str(part))
            parts.append(staged)
            events += staged_events
        if random.random() < 0.2:
            await self.until_done(f"aborts {id}", lambda: client.abort_transaction(segment, id))
        else:
            await self.until_done(f"commits {id}", lambda: client.commit_transaction(segment, id, parts))
            self._committed += events

    async def _stage(self, id: str, part: str) -> tuple[StagedPart, list[tuple[str, int]]]:
        """A part with its events."""
        name, length = f"{self.segment}.{id}.{part}", 0
        staged = await self.until_done(
            f"stages {part} of {id}", lambda: self.client.stage_segment(self.segment, id, part)
        )
        assert staged is not None
        count = self._random.choice((0, 1, 3))
        for number in range(count):
            data = event(name, number, self.size())
            await self._append(staged, number, data)
            length += len(data)
        return StagedPart(staged, length), [(name, number) for number in range(count)]

    async def _append(self, staged: str, number: int, data: bytes) -> None:
        await self.until_done(
            f"appends {number} to {staged}",
            lambda: self.client.append(staged, data, writer_id=b"w", event_number=number),
        )

    def check(self, content: bytes) -> None:
        found = [(name, number) for name, number, _ in events_in(content, self.segment)]
        if found != self._committed:
            raise Broken(
                f"it does not hold that a transaction is there once, or not at all\n{self.segment}: {found}, "
                f"and not {self._committed}"
            )


class RowCounter(Workload):
    """Adds to a row whose version it expects; nobody else changes it."""

    def __init__(self, table: str, count: int, *arguments: object) -> None:
        super().__init__(f"{table} row counter", *arguments)  # type: ignore[arg-type]
        self._table = table
        self._count = count
        self._acked = self._doubtful = 0

    async def run(self) -> None:
        await self.until_done("creates", lambda: self.client.create_table(self._table, exist_ok=True))
        for _ in range(self._count):
            await self._add()
            await self.pause()

    async def _read(self) -> TableRow | None:
        return await self.until_done("reads its row", lambda: self.client.table(self._table).get(b"key"))

    async def _add(self) -> None:
        row = await self._read()
        value, version = (0, 0) if row is None else (int(row.value), row.version)
        self._doubtful += 1
        try:
            await self.call(
                f"puts {value + 1}",
                lambda: self.client.table(self._table).put(
                    b"key", b"%d" % (value + 1), expected_version=version
                ),
            )
        except OutcomeUnknown:
            pass
        except TierlogError:
            # An earlier call of unknown outcome may be applied late.
            self._doubtful -= 1
        else:
            self._doubtful -= 1
            self._acked += 1

    async def check_count(self) -> None:
        row = await self._read()
        found = 0 if row is None else int(row.value)
        if not self._acked <= found <= self._acked + self._doubtful:
            raise Broken(
                f"it does not hold that what is acked is done once\n{self._acked} were acked, "
                f"{self._doubtful} are in doubt, and the row has {found}"
            )


class Reader(Workload):
    """Reads what is known to be there, in parts, and asks for facts."""

    def __init__(self, segments: list[str], count: int, *arguments: object) -> None:
        super().__init__("reader", *arguments)  # type: ignore[arg-type]
        self._segments = segments
        self._count = count

    async def run(self) -> None:
        for _ in range(self._count):
            async with trio.open_nursery() as nursery:
                for _ in range(self._random.choice((1, 1, 3, 6))):
                    nursery.start_soon(self._ask)
            await self.pause()

    async def _ask(self) -> None:
        random, shared = self._random, self._shared
        segment, kind = random.choice(self._segments), random.random()
        known = shared.lengths.get(segment, 0)
        try:
            with trio.move_on_after(random.choice((0.001, 0.01)) if random.random() < 0.15 else inf):
                if kind < 0.3:
                    info = await self.call(f"asks about {segment}", lambda: self.client.segment_info(segment))
                    if info.length < known:
                        raise Broken(f"it does not hold that lengths grow\n{segment}: {info} after {known}")
                    shared.grows(segment, info.length)
                elif kind < 0.5:
                    await self._poll(segment, known)
                else:
                    offset, size = random.randint(0, known), random.choice((1, 100, 2000, 30_000))
                    data = await self.call(
                        f"reads {segment} {offset}+{size}", lambda: self.client.read(segment, offset, size)
                    )
                    shared.reads.append((segment, offset, data))
        except TierlogError:
            pass

    async def _poll(self, segment: str, known: int) -> None:
        wait = self._random.choice((0.0, 0.5, 3.0))
        found = await self.call(
            f"polls {segment} from {known}", lambda: self.client.poll(segment, known, wait), wait
        )
        self._shared.reads.append((segment, known, found.block))


class Tail(Workload):
    """Follows a segment from its begin to its seal, more slowly than it grows, at times."""

    def __init__(self, segment: str, number: int, *arguments: object) -> None:
        super().__init__(f"tail {number} of {segment}", *arguments)  # type: ignore[arg-type]
        self.segment = segment
        self.content = bytearray()
        self.is_over = False

    async def run(self) -> None:
        random, shared = self._random, self._shared
        while not self.is_over:
            try:
                async with aclosing(
                    self.client.tail(
                        self.segment, len(self.content), block_size=random.choice((10, 500, 1 << 20))
                    )
                ) as blocks:
                    leaves_after = random.choice((3, 1000, 1000))
                    async for block in blocks:
                        self.content += block
                        shared.grows(self.segment, len(self.content))
                        leaves_after -= 1
                        if not leaves_after:
                            break
                        if not shared.is_healed and random.random() < 0.1:
                            await trio.sleep(random.choice((0.01, 1.0, 8.0)))
                    else:
                        self.is_over = True
            except TierlogError as error:
                shared.trace.note(self.name, f"{type(error).__name__}: {error}")
                await trio.sleep(0.1)
        shared.trace.note(self.name, f"is over with {len(self.content)} bytes")

    def check(self, content: bytes) -> None:
        if self.content != content:
            raise Broken(
                f"it does not hold that tails get exactly the segment's bytes\n{self.name}: "
                f"{len(self.content)} bytes and not {len(content)}"
            )


class Leaver(Workload):
    """Follows a segment that is never sealed, and leaves."""

    def __init__(self, segment: str, count: int, *arguments: object) -> None:
        super().__init__(f"leaver of {segment}", *arguments)  # type: ignore[arg-type]
        self._segment = segment
        self._count = count

    async def run(self) -> None:
        await self.until_done("creates", lambda: self.client.create_segment(self._segment, exist_ok=True))
        for _ in range(self._count):
            with trio.move_on_after(self._random.choice((0.01, 0.3, 2.0, 8.0))):
                try:
                    async with aclosing(self.client.tail(self._segment)) as blocks:
                        async for _ in blocks:
                            raise Broken("it does not hold that a tail of nothing has no block")
                except TierlogError as error:
                    self._shared.trace.note(self.name, f"{type(error).__name__}: {error}")
            await self.pause()


class Visitor(Caller):
    """Asks at the end."""

    async def seal_and_read(self, segment: str) -> bytes:
        """All of its bytes, which are no more from now on."""
        length = await self.until_done(f"seals {segment}", lambda: self.client.seal_segment(segment))
        content = bytearray()
        while length is None or len(content) < length:
            content += await self._read(segment, len(content))
        return bytes(content)

    async def _read(self, segment: str, offset: int) -> bytes:
        block = await self.until_done(
            f"reads {segment} from {offset}", lambda: self.client.read(segment, offset, 1 << 20)
        )
        if not block:
            raise Broken(f"it does not hold that all bytes can be read\n{segment} at {offset}")
        return block

    async def ask(self, segment: str) -> None:
        await self.until_done(f"asks about {segment}", lambda: self.client.segment_info(segment))


def _received(client: Client) -> dict[str, tuple[AsyncSession, int]]:
    """The open session with each server, and how many frames have come of it."""
    sessions = client._transport.sessions
    if sessions is None:
        return {}
    found = {url: sessions.open_at(url) for url in sessions._servers}
    return {url: (session, session.core.received) for url, session in found.items() if session is not None}


def _check_retired(client: Client, error: str, before: dict[str, tuple[AsyncSession, int]]) -> None:
    """N6: a session from which nothing came while a call waited in vain is not used again."""
    is_last = _IN_VAIN in error and "the attempt before" not in error
    for url, (session, received) in _received(client).items():
        if before.get(url) == (session, received) and f" {url}/" in error and is_last:
            raise Broken(f"it does not hold that a session that fell silent is left\n{error}")


def _brief(answer: object) -> str:
    return f"{len(answer)} bytes {answer[:12]!r}" if isinstance(answer, bytes) else repr(answer)[:80]
