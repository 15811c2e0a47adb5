"""Many appends to many segments in one request: the binary form, and the form of its answer (rule H7).

::

    batch   = magic "TLB1" | names: u16 | items: u32 | name * names | item * items
    name    = size: u16 | UTF-8
    item    = segment: u16 | flags: u8 | writer size: u8 | events: u32 | payload size: u32
              | first event number: u64 | previous event number: i64 | expected offset: u64 | history
            | writer | payload
    history = u64, or nothing

Numbers are big-endian. ``segment`` is an index into the names. An item with a writer holds ``events`` events
that lie one behind the other in its payload and take the numbers from the first one on; it is wholly new or
wholly a duplicate, like ``append_many`` (rule C3). Flags mark which of the previous event number (1) and the
expected offset (2) count, and whether there is a history (4), that of the event numbers and of the expected
offset (rules R9, R10). What does not count is 0: an item has one encoding.

The answer is a JSON document ``{"results": [...]}`` with one result for each item, in order: the offset, null
(an earlier duplicate) or a problem.

The decoder takes bytes as they come and holds one unfinished item and nothing else. Any bytes give items or
``InvalidArgument``; an item that is larger than the limit is refused when its header is read, before its
payload is.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import Annotated

import attrs
import msgspec
from msgspec import Meta, Struct

from ....storage_backends.base.arguments import WriterId, writer_bytes
from ....storage_backends.base.checksum import Buffer
from ....storage_backends.base.errors import InvalidArgument, OutcomeUnknown, TierlogError, TooLarge
from ....storage_backends.base.names import check_segment_name
from .errors import ProblemDocument, from_document, problem_document
from .headers import NUMBER_MAX, WRITER_ID_BYTES_MAX

BATCH_TYPE = "application/x-tierlog-batch"
MAGIC = b"TLB1"
NAMES_MAX = 0xFFFF
ITEMS_MAX = 65_536
EVENTS_MAX = 1 << 20
"""The most events of one item, as for ``append_many``."""

ITEM_MEMORY = 1 << 10
"""Bytes for which an item counts besides its own, until its batch is answered: it costs a handful of objects,
and its refusal some more."""
STEP_ITEMS = 400
"""The most items that are decoded in one step of the event loop."""
_PROBLEMS = 128
_encode_json = json.JSONEncoder(separators=(",", ":")).encode

_HEAD = struct.Struct(">4sHI")
_NAME = struct.Struct(">H")
_ITEM = struct.Struct(">HBBIIQqQ")
_HISTORY = struct.Struct(">Q")
_HAS_PREVIOUS, _HAS_EXPECTED, _HAS_HISTORY = 1, 2, 4


class BatchItem:
    """One append of ``append_each``: ``data`` for the segment ``name``.

    ``data`` may be the joined bytes of ``count`` events of one ``writer`` (a str, bytes or UUID of 1 to 64
    bytes), numbered from ``first_event`` on. Without a writer leave ``first_event`` and ``count`` at 0.
    ``previous_event``, ``expected_offset`` and ``history`` mean what they mean for ``append``.
    """

    # A plain slotted class: thousands are made each second on either side.

    __slots__ = (
        "count",
        "data",
        "expected_offset",
        "first_event",
        "history",
        "name",
        "previous_event",
        "writer",
    )

    def __init__(
        self,
        name: str,
        data: Buffer,
        writer: WriterId = b"",
        first_event: int = 0,
        count: int = 0,
        previous_event: int | None = None,
        expected_offset: int | None = None,
        history: int | None = None,
    ) -> None:
        self.name = name
        self.data = data
        self.writer = writer if type(writer) is bytes else writer_bytes(writer)
        self.first_event = first_event
        self.count = count
        self.previous_event = previous_event
        self.expected_offset = expected_offset
        self.history = history

    def __repr__(self) -> str:
        return f"<BatchItem {self.name} {len(self.data)} bytes, {self.count} numbered events>"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, BatchItem) and all(
            getattr(self, name) == getattr(other, name) for name in self.__slots__
        )


@attrs.frozen
class BatchLimits:
    items: int = ITEMS_MAX
    append_bytes: int = 8 << 20
    """The most bytes of one item's payload."""


# --- requests -----------------------------------------------------------------------------------


def encode_batch(items: Sequence[BatchItem]) -> list[Buffer]:
    """The body of a batch, in parts that can be sent one behind the other (``b"".join`` gives it whole).

    The items' values are the caller's to check: one out of its field's range raises ``struct.error`` or
    ``KeyError``.
    """
    names: dict[str, int] = {}
    # Room for the head: it has the table of names, which is complete at the end.
    parts: list[Buffer] = [b""]
    for item in items:
        index = names.setdefault(item.name, len(names))
        previous, expected, history = item.previous_event, item.expected_offset, item.history
        flags = (0 if previous is None else _HAS_PREVIOUS) | (0 if expected is None else _HAS_EXPECTED)
        if history is not None:
            flags |= _HAS_HISTORY
        writer = item.writer
        head = _ITEM.pack(
            index,
            flags,
            len(writer),
            item.count,
            len(item.data),
            item.first_event,
            previous or 0,
            expected or 0,
        )
        if history is not None:
            head += _HISTORY.pack(history)
        parts.append(head + writer if writer else head)
        parts.append(item.data)

    encoded = [name.encode() for name in names]
    table = b"".join([piece for name in encoded for piece in (_NAME.pack(len(name)), name)])
    parts[0] = _HEAD.pack(MAGIC, len(names), len(items)) + table
    return parts


class BatchDecoder:
    """``feed`` bytes as they come; each call gives the items that became complete. ``finish`` when there are
    no more."""

    def __init__(self, limits: BatchLimits | None = None) -> None:
        self._limits = limits or BatchLimits()
        self._buffer = bytearray()
        """The begin of what is not complete."""
        self._names: list[str] = []
        self._names_left = -1
        """-1: the head has not been read."""
        self._items_left = 0

    def feed(self, data: Buffer) -> list[BatchItem]:
        """``InvalidArgument`` if the bytes are not a batch; the decoder cannot be used afterwards."""
        return [item for items in self.steps(data) for item in items]

    def steps(self, data: Buffer) -> Iterator[list[BatchItem]]:
        """``feed``, in steps of about a millisecond, of which all are taken before the next call."""
        begun, self._buffer = self._buffer, bytearray()
        if begun:
            begun += data
            data = begun
        with memoryview(data) as view:
            items, position = self._decode(view)
            while len(items) == STEP_ITEMS:
                yield items
                items, position = self._take_items(view, position)
            if position or not begun:
                begun = bytearray(view[position:])
        # What was begun before, and is not complete yet, is not copied again.
        self._buffer = begun
        yield items

    def finish(self) -> None:
        if self._names_left or self._items_left or self._buffer:
            what = f"{self._items_left} items" if not self._names_left else "its head"
            raise InvalidArgument(
                f"the batch ends too early: {what} and {len(self._buffer)} bytes of the next part are left"
            )

    def _decode(self, view: memoryview) -> tuple[list[BatchItem], int]:
        position = 0
        if self._names_left < 0:
            if len(view) < _HEAD.size:
                return [], 0

            self._take_head(*_HEAD.unpack_from(view))
            position = _HEAD.size
        if self._names_left:
            position = self._take_names(view, position)

        return self._take_items(view, position) if not self._names_left else ([], position)

    def _take_head(self, magic: bytes, names: int, items: int) -> None:
        if magic != MAGIC:
            raise InvalidArgument(f"a batch begins with {MAGIC!r}, not {magic!r}")

        if items > self._limits.items:
            raise TooLarge(f"a batch has at most {self._limits.items} items, not {items}")

        # A name of two bytes costs an object: no request may have millions that no item uses.
        if names > items:
            raise InvalidArgument(f"a batch of {items} items names {names} segments: more than it can use")

        self._names_left, self._items_left = names, items

    def _take_names(self, view: memoryview, position: int) -> int:
        while self._names_left and position + _NAME.size <= len(view):
            (size,) = _NAME.unpack_from(view, position)
            start = position + _NAME.size
            # Before it is complete, or it would be collected only to be refused. A character takes up to 4
            # bytes.
            if size > 4 * 255:
                raise InvalidArgument(f"a segment name of {size} bytes is too long")

            if start + size > len(view):
                break

            self._names.append(_name(bytes(view[start : start + size])))
            self._names_left -= 1
            position = start + size

        return position

    def _take_items(self, view: memoryview, position: int) -> tuple[list[BatchItem], int]:
        """The hot loop: about 2 us an item."""
        items: list[BatchItem] = []
        end, names, left, bytes_max = len(view), self._names, self._items_left, self._limits.append_bytes
        while left and len(items) < STEP_ITEMS:
            start = position + _ITEM.size
            if start > end:
                break

            header = _ITEM.unpack_from(view, position)
            index, flags, writer_size, count, size, first, previous, expected = header
            if (
                # One test for the plain item, in which all that is optional is 0.
                index >= len(names)
                or size > bytes_max
                or flags
                or writer_size
                or count
                or first
                or previous
                or expected
            ):
                _check_item(header, len(names), bytes_max)
            history = None
            if flags & _HAS_HISTORY:
                start += _HISTORY.size
                if start > end:
                    break
                history = _history(view, start - _HISTORY.size)
            data_start = start + writer_size
            position_after = data_start + size
            # The rest is on its way. The header is read again then, and was refused already if its size is
            # too large.
            if position_after > end:
                break

            writer = bytes(view[start:data_start]) if writer_size else b""
            items.append(
                BatchItem(
                    names[index],
                    # A copy, because the store keeps it, and the buffer goes on.
                    bytes(view[data_start:position_after]),
                    writer,
                    first,
                    count,
                    previous if flags & _HAS_PREVIOUS else None,
                    expected if flags & _HAS_EXPECTED else None,
                    history,
                )
            )
            position = position_after
            left -= 1

        self._items_left = left
        # H7: bytes that one reader ignores are a second request to another.
        if not left and position < end:
            raise InvalidArgument("the batch has bytes behind its last item")

        return items, position


def _name(data: bytes) -> str:
    try:
        name = data.decode()
    except UnicodeDecodeError as error:
        raise InvalidArgument("a segment name in the batch is not UTF-8") from error

    check_segment_name(name)
    return name


def _history(view: memoryview, position: int) -> int:
    history: int = _HISTORY.unpack_from(view, position)[0]
    if history > NUMBER_MAX:
        raise InvalidArgument(f"a history in the batch is {history}, above {NUMBER_MAX}")
    return history


def _check_item(header: tuple[int, ...], names: int, bytes_max: int) -> None:
    """Raises ``InvalidArgument`` or ``TooLarge`` for an item's header that no client should send."""
    index, flags, writer, count, size, first, previous, expected = header
    if size > bytes_max:
        raise TooLarge.append(size, bytes_max)

    sound = index < names and flags <= 7 and writer <= WRITER_ID_BYTES_MAX and expected <= NUMBER_MAX
    if writer:
        sound = sound and 1 <= count <= EVENTS_MAX and first + count - 1 <= NUMBER_MAX
    else:
        sound = sound and not count and not first and not flags & _HAS_PREVIOUS
        # It says of which history the number or the offset is.
        sound = sound and (not flags & _HAS_HISTORY or bool(flags & _HAS_EXPECTED))
    sound = sound and (-1 <= previous < first if flags & _HAS_PREVIOUS else not previous)
    if not sound or (expected and not flags & _HAS_EXPECTED):
        raise InvalidArgument(
            f"a bad item in the batch: segment {index} of {names}, flags {flags}, writer of {writer} bytes, "
            f"{count} events from {first} on, previous {previous}, expected offset {expected}"
        )


# --- answers ------------------------------------------------------------------------------------

Outcome = int | TierlogError | None
"""The outcome of one item: its offset, None for a duplicate of an earlier append, or the error."""


class Results(Struct, frozen=True):
    """The answer to a batch."""

    results: list[Annotated[int, Meta(ge=0, le=NUMBER_MAX)] | ProblemDocument | None]


def encode_outcomes(outcomes: Iterable[int | BaseException | None]) -> Iterator[bytes]:
    """The answer's body, in pieces that take about a millisecond each. An exception that is not a
    ``TierlogError`` becomes the problem ``internal``."""
    before, iterator = '{"results":[', iter(outcomes)
    part = list(islice(iterator, _PROBLEMS))
    while True:
        following = list(islice(iterator, _PROBLEMS))
        # Numbers one by one: a whole list for ``json`` costs a small batch more than all the rest.
        text = ",".join(
            [
                _encode_json(problem_document(outcome))
                if isinstance(outcome, BaseException)
                else "null"
                if outcome is None
                else str(outcome)
                for outcome in part
            ]
        )
        # In one piece for most: each one more takes a turn of the event loop.
        yield f"{before}{text}{'' if following else ']}'}".encode()
        if not following:
            return
        before, part = ",", following


def decode_outcomes(body: bytes, count: int) -> list[Outcome]:
    """One outcome for each of the ``count`` items. A problem that this version does not know becomes
    ``OutcomeUnknown``. Raises ``ValueError`` if the body is not the answer to so many items.
    """
    try:
        try:
            document = msgspec.json.decode(body)
        except msgspec.DecodeError:
            # The text of an error may have half a surrogate pair, as the path of a file may.
            document = json.loads(body)
    # Raised for deep nesting, and no ValueError.
    except RecursionError as error:
        raise ValueError("nested too deeply") from error

    results = document.get("results") if isinstance(document, dict) else None
    if not isinstance(results, list) or len(results) != count:
        raise ValueError(f"no results for {count} items")

    # Not ``isinstance``: ``true`` is no offset.
    return [result if result is None or type(result) is int else _problem(result) for result in results]


def _problem(result: object) -> TierlogError:
    error = from_document(result)
    return OutcomeUnknown(f"a result that is not known here: {str(result)[:200]}") if error is None else error
