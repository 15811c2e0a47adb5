"""Checks of arguments that the store, its read-only view, the clients and the command line share.

They raise ``InvalidArgument`` with the allowed values. ``names.py`` checks names; what only one verb takes is
checked in that verb.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Protocol, TypeVar
from uuid import UUID

from .checksum import Buffer
from .errors import InvalidArgument, shown
from .names import check_segment_name
from .segments import (
    ATTRIBUTE_ID_BYTES,
    ATTRIBUTE_PAGE_MAX,
    ATTRIBUTE_UPDATES_MAX,
    AttributeUpdate,
    check_attribute_name,
)
from .transactions import PARTS_MAX, StagedPart, TransactionToken

T = TypeVar("T")
WriterId = str | bytes | UUID
WRITER_ID_BYTES_MAX = 64
EVENT_NUMBER_MAX = (1 << 63) - 1
READ_BYTES_MAX = 64 << 20
OFFSET_MAX = 1 << 62
ROLLING_SIZE_MIN = 64 << 10
ROLLING_SIZE_MAX = 1 << 40
APPEND_BYTES_MAX = 32 << 20
"""The largest size of an append that a configuration can allow."""
EVENTS_MAX = 1 << 20
"""The most events in one ``append_many``."""
SOURCES_MAX = 0xFFFF
"""The most sources of one merge."""
WRITERS_MAX = 1 << 16
"""The most writers in one ``expire_writers``, which logs them all in one group."""
REASON_MAX = 1_000
"""The most characters of the reason of an abort."""
_LONE_SURROGATE = re.compile("[\ud800-\udfff]")


class JoinedAppend(Protocol):
    """What ``append_each`` takes: the joined bytes of one or many events of one writer. ``BatchItem`` is
    one."""

    @property
    def name(self) -> str: ...
    @property
    def data(self) -> Buffer: ...
    @property
    def writer(self) -> bytes:
        """Empty if not idempotent; then the event numbers are 0 and None."""

    @property
    def first_event(self) -> int: ...
    @property
    def count(self) -> int:
        """The number of events in ``data``, numbered from ``first_event`` on."""

    @property
    def previous_event(self) -> int | None: ...
    @property
    def expected_offset(self) -> int | None: ...
    @property
    def history(self) -> int | None: ...


def check_int(what: str, value: object, low: int, high: int) -> int:
    """``value`` if it is an int from ``low`` to ``high``."""
    if type(value) is not int or not low <= value <= high:
        raise InvalidArgument(f"{what} must be an int from {low} to {high}, not {shown(value)}")

    return value


def check_offset(value: object, what: str = "offset") -> int:
    return check_int(what, value, 0, OFFSET_MAX)


def check_history(value: object) -> int | None:
    """The history that a position is of; None if the caller does not say."""
    return None if value is None else check_int("history", value, 0, OFFSET_MAX)


def history_of_append(value: object, writer_id: object, expected_offset: object) -> int | None:
    history = check_history(value)
    if history is not None and writer_id is None and expected_offset is None:
        raise InvalidArgument(
            "history says of which history event_number or expected_offset is: give one of them"
        )
    return history


def check_rolling_size(value: object, smallest: int = ROLLING_SIZE_MIN) -> int:
    return check_int("rolling_size", value, smallest, ROLLING_SIZE_MAX)


def check_range(start: object, end: object) -> tuple[int, int]:
    """Two offsets in ascending order, or equal."""
    first, last = check_offset(start, "start"), check_offset(end, "end")
    if first > last:
        raise InvalidArgument(f"start {first} is above end {last}: exchange them")

    return first, last


def check_size(value: object, what: str = "size") -> int:
    """The size of one read, in bytes."""
    return check_int(what, value, 1, READ_BYTES_MAX)


def check_many(what: str, values: Iterable[T]) -> Iterable[T]:
    """``values``, if it is an iterable other than text or bytes, whose items are characters and numbers."""
    # An abstract class is slow to ask.
    if type(values) is list or type(values) is tuple:
        return values

    if isinstance(values, (str, bytes, bytearray, memoryview)) or not isinstance(values, Iterable):
        raise InvalidArgument(f"{what} are an iterable of items, not {type(values).__name__}")

    return values


def writer_bytes(writer_id: WriterId | None) -> bytes:
    """A writer id as 1 to 64 bytes; empty for None."""
    if writer_id is None:
        return b""

    if isinstance(writer_id, UUID):
        return writer_id.bytes

    if not isinstance(writer_id, (str, bytes)):
        raise InvalidArgument(f"writer_id must be a str, bytes or UUID, not {type(writer_id).__name__}")

    # Lone surrogates keep their bytes, so that two ids never become one.
    writer = writer_id.encode("utf-8", "surrogatepass") if isinstance(writer_id, str) else writer_id
    if not 0 < len(writer) <= WRITER_ID_BYTES_MAX:
        raise InvalidArgument(
            f"writer_id must have 1 to {WRITER_ID_BYTES_MAX} bytes, not {len(writer)}: {shown(writer_id)}"
        )

    return writer


def required_writer(writer_id: WriterId | None, verb: str) -> bytes:
    writer = writer_bytes(writer_id)
    if not writer:
        raise InvalidArgument(f"{verb} needs a writer_id")

    return writer


def checked_writers(writer_ids: Iterable[WriterId]) -> tuple[bytes, ...]:
    """The writers of one ``expire_writers``."""
    writers = tuple(
        required_writer(writer, "expire_writers") for writer in check_many("writer_ids", writer_ids)
    )
    if not writers:
        raise InvalidArgument("expire_writers takes at least one writer id")
    if len(writers) > WRITERS_MAX:
        raise InvalidArgument(
            f"expire_writers takes at most {WRITERS_MAX} writer ids, not {len(writers)}: expire them in parts"
        )
    return writers


def event_identity(
    writer_id: WriterId | None, number: int | None, what: str, count: int = 1
) -> tuple[bytes, int]:
    """The writer's bytes and the first event number of an idempotent append of ``count`` events."""
    writer = writer_bytes(writer_id)
    if not writer:
        raise InvalidArgument("event numbers need a writer_id")

    if number is None:
        raise InvalidArgument(f"a writer_id needs its {what}")

    return writer, check_int(what, number, 0, EVENT_NUMBER_MAX - count + 1)


def previous_event(value: int | None, first: int) -> int | None:
    return None if value is None else check_int("previous_event_number", value, -1, first - 1)


def check_data(data: object) -> int:
    """The size of an append's bytes."""
    if not isinstance(data, (bytes, bytearray, memoryview)):
        raise InvalidArgument(f"data must be bytes, bytearray or memoryview, not {type(data).__name__}")

    return data.nbytes if isinstance(data, memoryview) else len(data)


def joined_events(events: Iterable[Buffer]) -> tuple[bytes, int]:
    """The joined bytes of ``append_many``'s events, and their number."""
    batch = [event if type(event) is bytes else _copied(event) for event in check_many("events", events)]
    if not 0 < len(batch) <= EVENTS_MAX:
        raise InvalidArgument(f"append_many takes 1 to {EVENTS_MAX} events, not {len(batch)}")

    return b"".join(batch), len(batch)


def _copied(event: Buffer) -> bytes:
    """One event's bytes, copied so that the caller may reuse the buffer."""
    if not isinstance(event, (bytes, bytearray, memoryview)):
        raise InvalidArgument(f"an event must be bytes, bytearray or memoryview, not {type(event).__name__}")

    return bytes(event)


def checked_updates(
    updates: Iterable[AttributeUpdate], *, is_verb: bool = False
) -> tuple[AttributeUpdate, ...]:
    """``is_verb``: they are all that ``update_attributes`` does."""
    checked = tuple(check_many("attribute updates", updates))
    if not all(isinstance(update, AttributeUpdate) for update in checked):
        raise InvalidArgument("an attribute update must be an AttributeUpdate")

    if len(checked) > ATTRIBUTE_UPDATES_MAX:
        raise InvalidArgument(
            f"a call takes at most {ATTRIBUTE_UPDATES_MAX} attribute updates, not {len(checked)}"
        )
    if is_verb and not checked:
        raise InvalidArgument("update_attributes takes at least one AttributeUpdate")

    return checked


def check_prefix(prefix: object) -> str:
    """The beginning of the names that a listing shows."""
    if not isinstance(prefix, str):
        raise InvalidArgument(f"prefix is a str, not {type(prefix).__name__}")
    if _LONE_SURROGATE.search(prefix):
        raise InvalidArgument(f"prefix is Unicode text, {shown(prefix)} is not: it has a lone surrogate")
    return prefix


def check_attribute_page(prefix: object, after: object, limit: object) -> None:
    """The arguments of a page of attributes."""
    if isinstance(prefix, bytes) and len(prefix) <= ATTRIBUTE_ID_BYTES:
        kind: type = bytes
    elif isinstance(prefix, str) and not _LONE_SURROGATE.search(prefix):
        kind = str
    else:
        raise InvalidArgument(
            f"prefix is a str, or at most {ATTRIBUTE_ID_BYTES} bytes of an id, not {shown(prefix)}"
        )

    if after is not None:
        check_attribute_name(after)
        if not isinstance(after, kind):
            raise InvalidArgument(f"prefix {shown(prefix)} and after {shown(after)} must be of one type")
    check_int("limit", limit, 1, ATTRIBUTE_PAGE_MAX)


def checked_sources(sources: Iterable[str]) -> tuple[str, ...]:
    """The valid, different names of a merge's sources."""
    names = tuple(check_many("sources", sources))
    for name in names:
        check_segment_name(name)

    if not 0 < len(names) <= SOURCES_MAX or len(set(names)) != len(names):
        raise InvalidArgument(
            f"a merge takes 1 to {SOURCES_MAX} different source names, not {shown(sources)}"
        )

    return names


def checked_token(token: object) -> TransactionToken | None:
    if token is not None and not isinstance(token, TransactionToken):
        raise InvalidArgument(f"token must be a TransactionToken, not {shown(token)}")

    return token


def checked_parts(parts: Iterable[StagedPart]) -> tuple[StagedPart, ...]:
    """The parts of a commit, with valid names and lengths."""
    chosen = tuple(check_many("parts", parts))
    if len(chosen) > PARTS_MAX:
        raise InvalidArgument(f"a commit takes at most {PARTS_MAX} parts, not {len(chosen)}")

    for part in chosen:
        if not isinstance(part, StagedPart):
            raise InvalidArgument(f"a part must be a StagedPart, not {shown(part)}")

        check_segment_name(part.name)
        check_offset(part.length, "a part's length")

    return chosen


def checked_reason(reason: object) -> str:
    """Why a transaction is aborted."""
    if not isinstance(reason, str) or len(reason) > REASON_MAX or _LONE_SURROGATE.search(reason):
        raise InvalidArgument(f"a reason is text of at most {REASON_MAX} characters, not {shown(reason)}")

    return reason


def not_an_append(value: object) -> InvalidArgument:
    return InvalidArgument(f"append_each takes items such as tierlog.BatchItem, not {shown(value)}")


def check_joined(append: JoinedAppend) -> tuple[int | None, int | None, int | None]:
    """The checked previous event number, expected offset and history of one append of ``append_each``."""
    if not isinstance(append.writer, bytes):
        raise InvalidArgument(f"an append's writer must be bytes, not {type(append.writer).__name__}")

    if append.writer:
        writer_bytes(append.writer)
        count = check_int("count", append.count, 1, EVENTS_MAX)
        check_int("first_event_number", append.first_event, 0, EVENT_NUMBER_MAX - count + 1)
    elif append.first_event or append.count or append.previous_event is not None:
        raise InvalidArgument("event numbers need a writer_id")

    expected = (
        None if append.expected_offset is None else check_offset(append.expected_offset, "expected_offset")
    )
    # Most have neither, and need no further call.
    history, previous = append.history, append.previous_event
    if history is not None:
        history = history_of_append(history, append.writer or None, expected)
    if previous is not None:
        previous = previous_event(previous, append.first_event)
    return previous, expected, history
