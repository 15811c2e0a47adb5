"""The input of ``tierlog segment append``: a file, a text or stdin becomes appends. That of ``tierlog table
put`` becomes a value.

Waiting for input does not block the event loop: a terminal or a pipe may be silent for hours while the store
must go on flushing. Appends are sent one after the other, each durable before the next. A throttled append
was not applied and is sent again. Cancellation: what was acked stays; the append in flight has an unknown
outcome.
"""

from __future__ import annotations

import errno
import os
import stat
import sys
from collections.abc import AsyncGenerator, Callable, Coroutine, Iterator
from contextlib import AbstractAsyncContextManager, aclosing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import anyio
import attrs

from ...storage_backends.base.arguments import APPEND_BYTES_MAX
from ...storage_backends.base.errors import InvalidArgument, Throttled, TierlogError, TooLarge
from ...storage_backends.base.tables import TABLE_VALUE_BYTES_MAX
from . import output
from .running import OUT_OF_MEMORY, fail

if TYPE_CHECKING:
    from ..gateway.client.async_client import Client
    from ..store.store import SegmentStore

_PIECE_BYTES = 4 << 20
_READ_BYTES = 1 << 20
_THROTTLED_SECONDS_MAX = 60.0
_THROTTLED_PAUSE = 0.2


@attrs.frozen
class AppendOptions:
    lines: bool
    writer: str | None
    event_number: int | None
    """The number of the first event; given together with ``writer``."""
    expected_offset: int | None


@attrs.frozen
class Source:
    blocks: Callable[[], AsyncGenerator[bytes, None]]
    size: int | None
    """The size in bytes; None if it is unknown."""
    shows_progress: bool


@contextmanager
def open_input(file: Path | None, text: str | None) -> Iterator[Source]:
    """The source of the bytes. Raises ``OSError`` if the file cannot be read. One that is missing ends the
    command."""
    if text is not None:
        # Arguments that are not UTF-8 arrive with surrogates (PEP 383): this gives the shell's bytes back.
        data = text.encode("utf-8", "surrogateescape")
        yield Source(lambda: _one_block(data), len(data), shows_progress=False)
    elif file is None:
        yield _from_descriptor(output.STDIN)
    else:
        if not file.exists():
            fail(f"there is no file {file}: name the one that has the bytes, or leave --file out for stdin")
        # Without a buffer, whose bytes `os.read` on the descriptor would miss.
        with open(file, "rb", buffering=0) as stream:
            yield _from_descriptor(stream.fileno())


async def _one_block(data: bytes) -> AsyncGenerator[bytes, None]:
    yield data


def _from_descriptor(descriptor: int) -> Source:
    # The descriptor's kind and not its name: stdin may be a file, and --file a pipe.
    found = os.fstat(descriptor)
    # Only regular files have a size that progress can be measured by.
    size = found.st_size if stat.S_ISREG(found.st_mode) else None
    # Regular files are always readable, and epoll refuses them.
    waits = stat.S_ISFIFO(found.st_mode) or stat.S_ISSOCK(found.st_mode) or os.isatty(descriptor)
    return Source(lambda: _blocks(descriptor, waits), size, shows_progress=not os.isatty(descriptor))


async def _blocks(descriptor: int, waits: bool) -> AsyncGenerator[bytes, None]:
    while True:
        if waits:
            await anyio.wait_readable(descriptor)
        try:
            block = os.read(descriptor, _READ_BYTES)
        except OSError as error:
            # `reserve_standard_streams` has opened a closed stdin for writing only.
            if error.errno != errno.EBADF:
                raise
            raise InvalidArgument(
                "stdin is closed: redirect it from a file or a pipe, or add --file or --data-text"
            ) from error
        if not block:
            return
        yield block


async def read_value(source: Source) -> bytes:
    """All of the input, as the value of a table's row. Raises ``TooLarge``."""
    value = bytearray()
    async with aclosing(source.blocks()) as blocks:
        async for block in blocks:
            value += block
            if len(value) > TABLE_VALUE_BYTES_MAX:
                raise TooLarge(f"a value has at most {TABLE_VALUE_BYTES_MAX} bytes, and the input has more")
    return bytes(value)


async def append_to(
    opening: AbstractAsyncContextManager[SegmentStore | Client],
    name: str,
    source: Source,
    options: AppendOptions,
) -> int | None:
    """``append_input`` to a store that is open for it only. A signal while it closes is reported too."""
    offset, is_done = None, False
    try:
        async with opening as store:
            offset = await append_input(store, name, source, options)
            is_done = True
    except anyio.get_cancelled_exc_class():
        if is_done:
            position = "" if offset is None else f", from offset {offset} on"
            sys.stderr.write(f"interrupted: all bytes were appended{position}\n")
        raise
    return offset


async def append_input(
    store: SegmentStore | Client, name: str, source: Source, options: AppendOptions
) -> int | None:
    """Append everything. Returns the offset of the first byte, or None if all of it is a duplicate whose
    offset is unknown. A failure or a signal reports what was appended before it."""
    appender = _Appender(store, name, options)
    try:
        with output.progress("appending", source.size, shown=source.shows_progress) as advance:
            await (appender.append_lines if options.lines else appender.append_pieces)(source, advance)
    except (TierlogError, MemoryError) as error:
        if appender.appended:
            done = output.count(appender.appended, "byte")
            reason = OUT_OF_MEMORY if isinstance(error, MemoryError) else error
            raise TierlogError(f"{reason}; appended before that: the first {done}") from error
        raise
    except anyio.get_cancelled_exc_class():
        done = output.count(appender.appended, "byte")
        position = "" if appender.offset is None else f", from offset {appender.offset} on"
        sys.stderr.write(
            f"interrupted: the first {done} were appended{position}; an append in flight may follow them\n"
            if appender.appended
            else "interrupted: no append was acked\n"
        )
        raise
    return appender.offset


class _Appender:
    def __init__(self, store: SegmentStore | Client, name: str, options: AppendOptions) -> None:
        self._store = store
        self._name = name
        self._options = options
        self._number = options.event_number
        self._expected = options.expected_offset
        self._is_first = True
        self._known = 0
        """The number of next lines that the writer has appended before."""
        self._advance: Callable[[int, int], None] = lambda done, found: None
        self.offset: int | None = None
        self.appended = 0

    async def append_lines(self, source: Source, advance: Callable[[int, int], None]) -> None:
        """Append whole lines as they arrive, and the last one even without its line end."""
        self._advance = advance
        await self._skip_known()
        rest = b""
        async with aclosing(source.blocks()) as blocks:
            async for block in blocks:
                *lines, rest = (rest + block).split(b"\n")
                if lines:
                    await self._append_many([line + b"\n" for line in lines])
                # Before its line end arrives: an endless line would fill the memory.
                self._check_fits(rest)
        if rest:
            await self._append_many([rest])
        await self._check_empty()

    async def _skip_known(self) -> None:
        """Skip lines that were applied before: a batch must be wholly new or wholly a duplicate, but a second
        run reads the input in other batches."""
        if self._options.writer is not None and self._number is not None:
            known = await self._store.last_event_number(self._name, self._options.writer)
            # Lines are numbered without gaps from the first number on.
            self._known = 0 if known is None else max(0, known - self._number + 1)

    async def append_pieces(self, source: Source, advance: Callable[[int, int], None]) -> None:
        self._advance = advance
        piece = bytearray()
        limit = min(_PIECE_BYTES, self._store.append_bytes_max)
        async with aclosing(source.blocks()) as blocks:
            async for block in blocks:
                piece += block
                if self._options.writer is not None:
                    # An event has one number, so it is one append.
                    self._check_fits(piece)
                    continue
                while len(piece) >= limit:
                    await self._append(bytes(piece[:limit]))
                    del piece[:limit]
        # An empty event has a number too, which a repetition must find.
        if piece or self._options.writer is not None:
            await self._append(bytes(piece))
        await self._check_empty()

    def _check_fits(self, data: bytes | bytearray) -> None:
        """Refuse what no service takes. The append itself checks the limit of this one, which may be raised
        while a command without an end runs: a client asks for it again."""
        if len(data) > APPEND_BYTES_MAX:
            raise TooLarge.append(len(data), self._store.append_bytes_max)

    async def _append(self, data: bytes) -> None:
        await self._send(
            len(data),
            lambda: self._store.append(
                self._name,
                data,
                writer_id=self._options.writer,
                event_number=self._number,
                expected_offset=self._expected,
            ),
        )

    async def _append_many(self, lines: list[bytes]) -> None:
        """Append lines in batches that fit into an append."""
        known = min(self._known, len(lines))
        self._known -= known
        self._number = None if self._number is None else self._number + known
        lines = lines[known:]
        batch: list[bytes] = []
        size = 0
        for line in lines:
            # Whole lines only: a reader between two appends must not see half an event.
            if batch and size + len(line) > self._store.append_bytes_max:
                await self._append_batch(batch, size)
                batch, size = [], 0
            batch.append(line)
            size += len(line)
        if batch:
            await self._append_batch(batch, size)
        else:
            # All are duplicates, and the offset of the first byte is unknown: a later one must not stand for
            # it.
            self._is_first = False

    async def _append_batch(self, batch: list[bytes], size: int) -> None:
        await self._send(
            size,
            lambda: self._store.append_many(
                self._name,
                batch,
                writer_id=self._options.writer,
                first_event_number=self._number,
                expected_offset=self._expected,
            ),
        )
        if self._number is not None:
            self._number += len(batch)

    async def _send(self, size: int, attempt: Callable[[], Coroutine[Any, Any, int | None]]) -> None:
        offset = await _retry_throttled(attempt)
        if self._is_first:
            self._is_first, self.offset = False, offset
        if self._expected is not None and offset is not None:
            # No other writer may append between two pieces either.
            self._expected = offset + size
        self.appended += size
        self._advance(size, 0)

    async def _check_empty(self) -> None:
        """Empty input appends nothing; its offset is the segment's end."""
        if self._is_first:
            self.offset = (await self._store.segment_info(self._name)).length


async def _retry_throttled(attempt: Callable[[], Coroutine[Any, Any, int | None]]) -> int | None:
    """Repeat a throttled append, which was not applied, for up to a minute."""
    give_up = anyio.current_time() + _THROTTLED_SECONDS_MAX
    while True:
        try:
            return await attempt()
        except Throttled:
            if anyio.current_time() >= give_up:
                raise
        await anyio.sleep(_THROTTLED_PAUSE)
