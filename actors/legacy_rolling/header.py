"""The header file of the legacy layout, byte for byte. Pure.

The text does not contain the length of the last chunk, nor the seal; ``find.py`` reads those from the files.

A segment ``app/events`` is the header file ``app/events$header`` and the data files
``app/events$offset.<start>``; or, without a header, one plain file of the segment's name. The header is UTF-8
text, a sequence of items ``key=value&``, with an ``&`` after the last one too:

* ``maxsize=<bytes>`` comes first: the size at which a file rolls. Of several the first counts.
* ``<start>=<file>`` is a data file and the offset at which it starts, in ascending order.
* ``concat=<count>@<offset>`` means that the next ``count`` data files are a source that was appended at
  ``offset``. A copy of the source's header follows, ``maxsize`` included, and its starts are shifted by
  ``offset``. If the first start behind the item is not 0, the concat was never completed, and the item is
  ignored. An item inside a source replaces the one before: shifts do not add up.

Keys are compared without regard to case. Starts, once shifted, must not descend. An empty header is a
creation that was interrupted: there is no segment. A header that breaks these rules is ``DataCorruption``
with the file and the byte offset of the item."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

import attrs

from ...storage_backends.base.checksum import Buffer
from ...storage_backends.base.errors import DataCorruption

HEADER_SUFFIX = "$header"
_MAX_SIZE = "maxsize"
_CONCAT = "concat"
_NUMBER = re.compile(r"[0-9]{1,19}")
_CONCAT_VALUE = re.compile(r"([0-9]{1,19})@([0-9]{1,19})")
_NUMBER_MAX = (1 << 63) - 1
_LEGACY_FILE = re.compile(r".*\$(header|offset\.[0-9]+)", re.DOTALL)


@attrs.frozen
class LegacyChunk:
    """A data file and the segment offset of its first byte."""

    start: int
    name: str
    """The file's whole name in the chunk storage."""


@attrs.frozen
class LegacyHeader:
    """The content of a header, with its concats applied."""

    max_size: int
    chunks: tuple[LegacyChunk, ...] = ()


def header_name(segment: str) -> str:
    return f"{segment}{HEADER_SUFFIX}"


def segment_of_file(name: str) -> str:
    """The segment of a data file or of a plain file, by its name."""
    return name.rpartition("$offset.")[0] or name


def is_legacy_file(name: str) -> bool:
    """Whether a file of that name is a header or a data file, hence no segment of its own."""
    return _LEGACY_FILE.fullmatch(name) is not None


def format_header(header: LegacyHeader) -> bytes:
    """The bytes of a header file."""
    return _item(_MAX_SIZE, header.max_size) + format_chunks(header.chunks)


def format_chunks(chunks: Iterable[LegacyChunk]) -> bytes:
    """The items of data files: a header grows by these."""
    return b"".join(_item(chunk.start, chunk.name) for chunk in chunks)


def _item(key: object, value: object) -> bytes:
    return f"{key}={value}&".encode()


def parse_header(data: Buffer, file: str) -> LegacyHeader | None:
    """The header in the file ``file``; None if it is empty. Raises ``DataCorruption``."""
    if not len(data):
        return None

    reader = _Reader(file)
    for position, key, value in _items(data, file):
        reader.take(position, key, value)
    if reader.max_size is None:
        raise DataCorruption("the header has no maxsize", file=file, offset=0)

    return LegacyHeader(reader.max_size, tuple(reader.chunks))


def _items(data: Buffer, file: str) -> Iterator[tuple[int, str, str]]:
    """(byte offset, key, value) of each item."""
    position = 0
    *items, rest = bytes(data).split(b"&")
    for item in items:
        key, _, value = item.partition(b"=")
        if not key or not value:
            raise DataCorruption("an item of the header is not key=value", file=file, offset=position)

        try:
            yield position, key.decode(), value.decode()
        except UnicodeDecodeError as error:
            raise DataCorruption(
                "an item of the header is not UTF-8 text", file=file, offset=position
            ) from error
        position += len(item) + 1
    if rest:
        raise DataCorruption("the last item of the header is cut short", file=file, offset=position)


class _Reader:
    """Reads items one by one."""

    def __init__(self, file: str) -> None:
        self._file = file
        self.max_size: int | None = None
        self.chunks: list[LegacyChunk] = []
        self._shift = self._left = 0
        self._is_fresh = False
        """Whether no data file has come since the newest concat item."""

    def take(self, position: int, key: str, value: str) -> None:
        kind = key.lower()
        if kind == _MAX_SIZE:
            # Copies of sources' headers follow concats, each with a size of its own.
            if self.max_size is None:
                self.max_size = self._size(position, value)
        elif kind == _CONCAT:
            self._left, self._shift = self._concat(position, value)
            self._is_fresh = True
        else:
            self._chunk(position, self._number(position, key), value)

    def _chunk(self, position: int, start: int, name: str) -> None:
        if self._is_fresh and start:
            self._left = 0  # the source's header is missing: the concat was never completed
        self._is_fresh = False
        if self._left:
            self._left -= 1
            # Starts in a source's header are relative to the source.
            start += self._shift
        if self.chunks and start < self.chunks[-1].start:
            raise DataCorruption(
                f"a data file starts at {start}, before the one in front of it at {self.chunks[-1].start}",
                file=self._file,
                offset=position,
            )

        self.chunks.append(LegacyChunk(start, name))

    def _size(self, position: int, value: str) -> int:
        size = self._number(position, value)
        if not size:
            raise DataCorruption("the header's maxsize is 0", file=self._file, offset=position)

        return size

    def _concat(self, position: int, value: str) -> tuple[int, int]:
        match = _CONCAT_VALUE.fullmatch(value)
        if match is None:
            raise DataCorruption(f"{value[:40]!r} is not count@offset", file=self._file, offset=position)

        return self._number(position, match[1]), self._number(position, match[2])

    def _number(self, position: int, text: str) -> int:
        if not _NUMBER.fullmatch(text) or (number := int(text)) > _NUMBER_MAX:
            raise DataCorruption(
                f"{text[:40]!r} in the header is not a number of 63 bits", file=self._file, offset=position
            )

        return number
