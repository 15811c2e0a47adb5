"""Input of ``tierlog segment append``: from a file, a text or stdin into appends.

Owns: how input is cut into appends and numbered, and a wait for input that does not hold up the store (a
terminal or a pipe may say nothing for hours, while the store must go on flushing). Does not own: what makes
an append durable or a repeat harmless.

Ordering: one append after the other, each durable before the next. A throttled append was not applied and is
simply sent again. Cancellation: what was acked stays; the append under way has an unknown outcome.
"""

from __future__ import annotations

import os
import stat
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import anyio
import attrs

from ...storage_backends.base.errors import InvalidArgument, Throttled, TierlogError
from . import output

if TYPE_CHECKING:
    from ..gateway.client.async_client import Client
    from ..store.store import SegmentStore

_PIECE_BYTES = 4 << 20
_READ_BYTES = 1 << 20
_THROTTLED_SECONDS_MAX = 60.0
_THROTTLED_PAUSE = 0.2


@attrs.frozen
class Terms:
    """What the caller asked for besides the bytes."""

    lines: bool
    writer: str | None
    event_number: int | None
    """Of the first event; given if ``writer`` is."""
    expected_offset: int | None


@attrs.frozen
class Source:
    blocks: Callable[[], AsyncIterator[bytes]]
    size: int | None
    """None if nobody knows."""
    shows_progress: bool


@contextmanager
def opened(file: Path | None, text: str | None) -> Iterator[Source]:
    """Where the bytes come from. ``OSError`` if the file cannot be read, before any store is opened."""
    if text is not None:
        data = text.encode("utf-8", "surrogateescape")
        yield Source(lambda: _one_block(data), len(data), shows_progress=False)
    elif file is None:
        yield _from_descriptor(output.STDIN)
    else:
        with open(file, "rb", buffering=0) as stream:
            yield _from_descriptor(stream.fileno())


async def _one_block(data: bytes) -> AsyncIterator[bytes]:
    yield data


def _from_descriptor(descriptor: int) -> Source:
    found = os.fstat(descriptor)
    size = found.st_size if stat.S_ISREG(found.st_mode) else None
    waits = stat.S_ISFIFO(found.st_mode) or stat.S_ISSOCK(found.st_mode) or os.isatty(descriptor)
    return Source(lambda: _blocks(descriptor, waits), size, shows_progress=not os.isatty(descriptor))


async def _blocks(descriptor: int, waits: bool) -> AsyncIterator[bytes]:
    while True:
        if waits:
            await anyio.wait_readable(descriptor)
        block = os.read(descriptor, _READ_BYTES)
        if not block:
            return
        yield block


async def feed(store: SegmentStore | Client, name: str, source: Source, terms: Terms) -> int | None:
    """Append everything; returns the offset of the first byte, or None if all of it was appended before and
    its offset is not known."""
    feeder = _Feeder(store, name, terms)
    try:
        with output.progress("appending", source.size, shown=source.shows_progress) as advance:
            feeder.advance = advance
            await (feeder.feed_lines(source) if terms.lines else feeder.feed_pieces(source))
    except TierlogError as error:
        if feeder.appended:
            raise TierlogError(
                f"{error}; appended before: the input's beginning, {output.count(feeder.appended, 'byte')}"
            ) from error
        raise
    return feeder.offset


class _Feeder:
    def __init__(self, store: SegmentStore | Client, name: str, terms: Terms) -> None:
        self._store = store
        self._name = name
        self._terms = terms
        self._number = terms.event_number
        self._expected = terms.expected_offset
        self._begun = False
        self._known = 0
        """Lines still to come that the writer appended before."""
        self.offset: int | None = None
        self.appended = 0
        self.advance: Callable[[int, int], None] = lambda done, more: None

    async def feed_lines(self, source: Source) -> None:
        """Whole lines as they come in; a last one without its end counts too."""
        await self._skip_known()
        rest = b""
        async for block in source.blocks():
            *lines, rest = (rest + block).split(b"\n")
            if lines:
                await self._append_many([line + b"\n" for line in lines])
            self._check_fits(rest)
        if rest:
            await self._append_many([rest])
        await self._note_nothing()

    async def _skip_known(self) -> None:
        """Lines that were applied before are left out: input does not come in the same batches twice, and a
        batch is wholly new or old."""
        if self._terms.writer is not None and self._number is not None:
            known = await self._store.last_event_number(self._name, self._terms.writer)
            self._known = 0 if known is None else max(0, known - self._number + 1)

    async def feed_pieces(self, source: Source) -> None:
        piece = bytearray()
        limit = (
            self._store.append_bytes_max
            if self._terms.writer is not None
            else min(_PIECE_BYTES, self._store.append_bytes_max)
        )
        async for block in source.blocks():
            piece += block
            if self._terms.writer is not None:
                self._check_fits(piece)
                continue
            while len(piece) >= limit:
                await self._append(bytes(piece[:limit]))
                del piece[:limit]
        if piece or self._terms.writer is not None:
            await self._append(bytes(piece))
        await self._note_nothing()

    def _check_fits(self, data: bytes | bytearray) -> None:
        most = self._store.append_bytes_max
        if len(data) > most:
            what = "a line" if self._terms.lines else "an append with --writer"
            raise InvalidArgument(
                f"{what} holds at most {most} bytes: send it in parts, or raise append_bytes_max in the "
                f"configuration"
            )

    async def _append(self, data: bytes) -> None:
        terms = self._terms
        await self._send(
            len(data),
            lambda: self._store.append(
                self._name,
                data,
                writer_id=terms.writer,
                event_number=self._number,
                expected_offset=self._expected,
            ),
        )

    async def _append_many(self, lines: list[bytes]) -> None:
        """Several lines at once, cut where an append would grow too large."""
        known = min(self._known, len(lines))
        self._known -= known
        self._number = None if self._number is None else self._number + known
        lines = lines[known:]
        batch: list[bytes] = []
        size = 0
        for line in lines:
            self._check_fits(line)
            if size + len(line) > self._store.append_bytes_max:
                await self._append_batch(batch, size)
                batch, size = [], 0
            batch.append(line)
            size += len(line)
        if batch:
            await self._append_batch(batch, size)
        else:
            self._begun = True

    async def _append_batch(self, batch: list[bytes], size: int) -> None:
        terms = self._terms
        await self._send(
            size,
            lambda: self._store.append_many(
                self._name,
                batch,
                writer_id=terms.writer,
                first_event_number=self._number,
                expected_offset=self._expected,
            ),
        )
        if self._number is not None:
            self._number += len(batch)

    async def _send(self, size: int, attempt: Callable[[], Coroutine[Any, Any, int | None]]) -> None:
        offset = await _unthrottled(attempt)
        if not self._begun:
            self._begun, self.offset = True, offset
        if self._expected is not None and offset is not None:
            self._expected = offset + size
        self.appended += size
        self.advance(size, 0)

    async def _note_nothing(self) -> None:
        """Without input nothing is appended: the answer is where it would have gone."""
        if not self._begun:
            self.offset = (await self._store.segment_info(self._name)).length


async def _unthrottled(attempt: Callable[[], Coroutine[Any, Any, int | None]]) -> int | None:
    """Repeat a throttled append, which was not applied, until the flush has made room or a minute has
    passed."""
    give_up = anyio.current_time() + _THROTTLED_SECONDS_MAX
    while True:
        try:
            return await attempt()
        except Throttled:
            if anyio.current_time() >= give_up:
                raise
        await anyio.sleep(_THROTTLED_PAUSE)
