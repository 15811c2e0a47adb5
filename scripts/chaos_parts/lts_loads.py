"""What `chaos_lts_only.py` writes, and what may be there once everything but long-term storage is lost.

A load is a sequence of steps, one after the other, whose bytes and rows all follow from their numbers. So the
state after every step is known, and a recovered store must show one of these states: of a step that was acked
before a flush which returned, or of a later one that was sent. A load goes on from there as its writer would:
it asks the store for what is there, and sends the next step.
"""

from __future__ import annotations

import zlib
from abc import ABC, abstractmethod
from bisect import bisect_left
from collections.abc import Iterator

import tierlog
from chaos_parts.events import SegmentCheck, event_bytes
from chaos_parts.ledger import Writer
from chaos_parts.processes import RunError
from tierlog import AttributeUpdate, AttributeUpdateKind, StagedPart, TransactionState, TransactionToken
from tierlog.actors.settings.units import MiB

_BATCH = 8
_ABORTED = 4
"""One of so many transactions is aborted."""
_TRUNCATED = 5
"""A target is truncated after so many steps, behind all but the newest."""
_ROWS = 60
_PARTS = ("a", "b")
_MERGED = "merged"
"""The attribute that counts the merges."""


class Load(ABC):
    """One sequence of steps. ``sent``, ``acked`` and ``flushed`` count steps: each is in the store perhaps,
    certainly, and for good."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.sent = self.acked = self.flushed = 0
        self._marked = 0

    def mark(self) -> None:
        """A call of ``flush()`` begins."""
        self._marked = self.acked

    def note_flushed(self) -> None:
        """It has returned."""
        self.flushed = max(self.flushed, self._marked)

    async def run(self, store: tierlog.Client) -> None:
        """Take steps until this is cancelled."""
        while True:
            self.sent = self.acked + 1
            await self.step(store, self.acked)
            self.acked = self.sent

    async def check(self, store: tierlog.Client) -> int:
        """Compare everything with the store, which was recovered, and go on with what it has; returns how
        many acked steps were lost. Raises ``RunError``."""
        found, acked = await self.find(store), self.acked
        if not self.flushed <= found <= self.sent:
            raise RunError(
                f"{self.name}: {found} steps are there; {self.flushed} were flushed and {self.sent} sent"
            )
        await self.compare(store, found)
        self.sent = self.acked = self.flushed = self._marked = found
        return max(0, acked - found)

    @abstractmethod
    async def create(self, store: tierlog.Client) -> None: ...

    @abstractmethod
    async def step(self, store: tierlog.Client, number: int) -> None:
        """Take it, or what is left of it: a recovered store may have a part that nobody can see yet."""

    @abstractmethod
    async def find(self, store: tierlog.Client) -> int:
        """How many steps are in the store."""

    @abstractmethod
    async def compare(self, store: tierlog.Client, steps: int) -> None:
        """Raises ``RunError`` unless the store is as after ``steps``, with at most a part of the next one."""

    def _refuse(self, what: str) -> RunError:
        return RunError(f"{self.name}: {what}")


class Events(Load):
    """An exactly-once writer appends events to a segment that it has with others: a step is an event."""

    def __init__(self, name: str, writer: Writer) -> None:
        super().__init__(name)
        self._writer = writer

    async def create(self, store: tierlog.Client) -> None:
        await store.create_segment(self.name, exist_ok=True)

    async def run(self, store: tierlog.Client) -> None:
        while True:
            first, self.sent = self.acked, self.acked + 1 + zlib.crc32(b"%d" % self.acked) % _BATCH
            offset = await self._append(store, first, self.sent)
            if offset is not None:  # A repeated call finds that the first one was applied.
                self._writer.offsets[first] = offset
            self.acked = self.sent

    async def step(self, store: tierlog.Client, number: int) -> None:
        await self._append(store, number, number + 1)

    async def _append(self, store: tierlog.Client, first: int, end: int) -> int | None:
        writer = self._writer.id
        events = [event_bytes(writer, number) for number in range(first, end)]
        return await store.append_many(self.name, events, writer_id=writer, first_event_number=first)

    async def find(self, store: tierlog.Client) -> int:
        last = await store.last_event_number(self.name, self._writer.id)
        return 0 if last is None else last + 1

    async def compare(self, store: tierlog.Client, steps: int) -> None:
        """The segment itself is compared once for all writers: ``compare_events``."""
        self._writer.next, self._writer.sent_max = steps, steps
        self._writer.offsets = {
            number: offset for number, offset in self._writer.offsets.items() if number < steps
        }

    async def send_again(self, store: tierlog.Client) -> None:
        """A writer that repeats its last event adds nothing, and none can leave a gap."""
        info = await store.segment_info(self.name)
        before, refusal = info.length, tierlog.HistoryLost if info.history else tierlog.OutOfOrder
        if self.acked:
            await self.step(store, self.acked - 1)
            try:
                await self._append(store, self.acked + 1, self.acked + 2)
            except refusal:
                pass
            else:
                raise self._refuse(f"event {self.acked + 1} of {self._writer.id} was acked after a gap")
        after = (await store.segment_info(self.name)).length
        if after != before:
            raise self._refuse(f"events that were sent again grew it from {before} to {after} bytes")


async def compare_events(store: tierlog.Client, name: str, writers: list[Writer]) -> int:
    """Compare the whole segment with what its writers have in it, and say how many bytes it has."""
    check, offset = SegmentCheck(name, writers), 0
    while block := await store.read(name, offset, 4 * MiB):
        check.feed(block)
        offset += len(block)
    if violations := check.finish():
        raise RunError("; ".join(violations))
    return offset


class _Blocks(Load):
    """A target to which each step adds two parts in one operation. Now and then it is truncated."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self._lengths = [0]
        """Of the target, after each number of steps."""

    def parts(self, number: int) -> list[bytes]:
        """What the step adds."""
        return [
            b"".join(event_bytes(f"{part}{each}", number) for each in range(1 + number % 3))
            for part in _PARTS
        ]

    def adds(self, number: int) -> bool:
        return True

    async def create(self, store: tierlog.Client) -> None:
        await store.create_segment(self.name, exist_ok=True)

    async def step(self, store: tierlog.Client, number: int) -> None:
        await self.add(store, number)
        if number % _TRUNCATED == _TRUNCATED - 1:
            await store.truncate_segment(self.name, self._start_after(number + 1))

    @abstractmethod
    async def add(self, store: tierlog.Client, number: int) -> None: ...

    def _length_after(self, steps: int) -> int:
        for number in range(len(self._lengths) - 1, steps):
            self._lengths.append(self._lengths[number] + len(self._block(number)))
        return self._lengths[steps]

    def _block(self, number: int) -> bytes:
        return b"".join(self.parts(number)) if self.adds(number) else b""

    def _start_after(self, steps: int) -> int:
        """The start once so many steps were taken to their end."""
        truncated = steps // _TRUNCATED * _TRUNCATED
        return self._length_after(truncated - 1) if truncated else 0

    async def find(self, store: tierlog.Client) -> int:
        length = (await store.segment_info(self.name)).length
        while self._lengths[-1] < length:
            self._length_after(len(self._lengths))
        steps = bisect_left(self._lengths, length)
        if self._lengths[steps] != length:
            raise self._refuse(f"it has {length} bytes, and {steps} steps make {self._lengths[steps]}")
        return steps

    async def compare(self, store: tierlog.Client, steps: int) -> None:
        info = await store.segment_info(self.name)
        starts = {self._start_after(steps)}
        if steps and steps > self.flushed:
            starts.add(self._start_after(steps - 1))
        if info.start_offset not in starts:
            raise self._refuse(f"it begins at {info.start_offset} after {steps} steps, not at {starts}")

        first = bisect_left(self._lengths, info.start_offset)
        content = b"".join(self._block(number) for number in range(first, steps))
        if await _read(store, self.name, info.start_offset) != content:
            raise self._refuse(f"its bytes are not those of its first {steps} steps")
        if steps and info.start_offset != self._start_after(steps):
            await store.truncate_segment(self.name, self._start_after(steps))

    async def _fill(self, store: tierlog.Client, name: str, data: bytes) -> None:
        """Append what is missing."""
        length = (await store.segment_info(name)).length
        if length < len(data):
            half = max(length, len(data) // 2)
            for first, end in ((length, half), (half, len(data))):
                if first < end:
                    await store.append(name, data[first:end], expected_offset=first)


class Merges(_Blocks):
    """Sealed segments are merged, and an attribute of the target counts them."""

    async def add(self, store: tierlog.Client, number: int) -> None:
        sources = self._sources(number)
        for name, data in sources.items():
            await store.create_segment(name, exist_ok=True)
            await self._fill(store, name, data)
            await store.seal_segment(name)
        counter = AttributeUpdate(_MERGED, 1, AttributeUpdateKind.ACCUMULATE)
        await store.merge_segments(self.name, list(sources), attribute_updates=[counter])

    def _sources(self, number: int) -> dict[str, bytes]:
        names = (f"{self.name}#{part}-{number}" for part in _PARTS)
        return dict(zip(names, self.parts(number), strict=True))

    async def compare(self, store: tierlog.Client, steps: int) -> None:
        await super().compare(store, steps)
        merged = (await store.segment_info(self.name)).attributes.get(_MERGED, 0)
        if merged != steps:
            raise self._refuse(f"{steps} merges are there, and its attribute says {merged}")
        begun = self._sources(steps)
        for name in await store.list_segments(f"{self.name}#"):
            data = begun.get(name)
            if data is None or steps >= self.sent:
                raise self._refuse(f"{name} is there, and {steps} merges")
            found = await _read(store, name, 0)
            if not data.startswith(found):
                raise self._refuse(f"{name} has other bytes than were appended")


class Transactions(_Blocks):
    """Two staged segments are committed; some transactions are aborted."""

    def adds(self, number: int) -> bool:
        return number % _ABORTED != _ABORTED - 1

    def _id(self, number: int) -> str:
        return f"run-{number:06d}"

    async def add(self, store: tierlog.Client, number: int) -> None:
        name, token = self._id(number), TransactionToken(self.name, number)
        begun = await store.begin_transaction(self.name, name, token=token)
        if begun.state is not TransactionState.OPEN:
            raise self._refuse(f"the transaction {name} is {begun.state.value} before its commit")
        staged = []
        for part, data in zip(_PARTS, self.parts(number), strict=True):
            segment = await store.stage_segment(self.name, name, part)
            await self._fill(store, segment, data)
            staged.append(StagedPart(segment, len(data)))
        if not self.adds(number):
            await store.abort_transaction(self.name, name, reason="it is one of four")
        elif not (await store.commit_transaction(self.name, name, staged, token=token)).applied:
            raise self._refuse(f"the commit of {name} was not applied")

    async def find(self, store: tierlog.Client) -> int:
        steps = await super().find(store)
        # Of an aborted one there are no bytes.
        if not self.adds(steps):
            known = await self._known(store)
            steps += known.get(self._id(steps)) is TransactionState.ABORTED
        return steps

    async def compare(self, store: tierlog.Client, steps: int) -> None:
        await super().compare(store, steps)
        known = await self._known(store)
        for number in range(steps):
            ended = TransactionState.COMMITTED if self.adds(number) else TransactionState.ABORTED
            if (found := known.pop(self._id(number), None)) is not ended:
                raise self._refuse(f"the transaction {self._id(number)} is {found}, not {ended}")
        begun = known.pop(self._id(steps), None)
        if known or (begun is not None and (begun is not TransactionState.OPEN or steps >= self.sent)):
            raise self._refuse(f"after {steps} transactions it knows {known or begun} too")

    async def _known(self, store: tierlog.Client) -> dict[str, TransactionState]:
        infos = await store.list_transactions(self.name)
        return {info.transaction_id: info.state for info in infos if info.target == self.name}


class Rows(Load):
    """An exactly-once writer updates several rows of a table in each step, and removes some."""

    _WRITER = "rows"

    async def create(self, store: tierlog.Client) -> None:
        await store.create_table(self.name, exist_ok=True)

    async def step(self, store: tierlog.Client, number: int) -> None:
        updates = [tierlog.TableUpdate(key, value) for key, value in _changes(number)]
        await store.table(self.name).update(updates, writer_id=self._WRITER, event_number=number)

    async def find(self, store: tierlog.Client) -> int:
        last = await store.last_event_number(self.name, self._WRITER)
        return 0 if last is None else last + 1

    async def compare(self, store: tierlog.Client, steps: int) -> None:
        rows: dict[bytes, bytes] = {}
        for number in range(steps):
            for key, value in _changes(number):
                rows.pop(key, None)
                if value is not None:
                    rows[key] = value
        found = {row.key: row.value async for row in store.table(self.name).items()}
        if found != rows:
            wrong = sorted(key for key in found | rows if found.get(key) != rows.get(key))
            raise self._refuse(f"after {steps} updates these rows differ: {wrong}")


def _changes(number: int) -> Iterator[tuple[bytes, bytes | None]]:
    """The rows of one update."""
    first = zlib.crc32(b"%d" % number)
    for at in range(1 + first % 9):
        chance = (first // 9 + 7 * at) % _ROWS
        value = None if (chance + number) % 5 == 0 else b"%d of %d" % (chance, number) * (1 + chance)
        yield b"%04d" % chance, value


async def _read(store: tierlog.Client, name: str, offset: int) -> bytes:
    data = bytearray()
    while block := await store.read(name, offset + len(data), 4 * MiB):
        data += block
    return bytes(data)
