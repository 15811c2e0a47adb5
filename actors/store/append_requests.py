"""The arguments of appends, checked, as requests to a container."""

from __future__ import annotations

from collections.abc import Iterable

from ...storage_backends.base.arguments import (
    JoinedAppend,
    WriterId,
    check_data,
    check_joined,
    check_offset,
    event_identity,
    history_of_append,
    joined_events,
    previous_event,
)
from ...storage_backends.base.checksum import Buffer
from ...storage_backends.base.errors import TooLarge
from ..container.operations.append import AppendRequest


def append_request(
    name: str,
    data: Buffer,
    bytes_max: int,
    writer_id: WriterId | None,
    event_number: int | None,
    previous_event_number: int | None,
    expected_offset: int | None,
    history: int | None,
) -> AppendRequest:
    # Most are, and need no further call.
    if type(data) is not bytes or len(data) > bytes_max:
        _check_size(data, bytes_max)
        data = bytes(data)  # the caller may reuse its buffer
    expected = None if expected_offset is None else check_offset(expected_offset, "expected_offset")
    if writer_id is None and event_number is None and previous_event_number is None:
        request = AppendRequest(name, data, b"", 0, 0, None, expected)
    else:
        writer, first = event_identity(writer_id, event_number, "event_number")
        previous = previous_event(previous_event_number, first)
        request = AppendRequest(name, data, writer, first, 1, previous, expected)

    if history is not None:
        request.history = history_of_append(history, writer_id, expected)
    return request


def append_many_request(
    name: str,
    events: Iterable[Buffer],
    bytes_max: int,
    writer_id: WriterId | None,
    first_event_number: int | None,
    previous_event_number: int | None,
    expected_offset: int | None,
    history: int | None,
) -> AppendRequest:
    data, events_given = joined_events(events)
    _check_size(data, bytes_max)
    writer, first, count = b"", 0, 0
    if writer_id is not None or first_event_number is not None or previous_event_number is not None:
        count = events_given
        writer, first = event_identity(writer_id, first_event_number, "first_event_number", count)
    previous = previous_event(previous_event_number, first)
    expected = None if expected_offset is None else check_offset(expected_offset, "expected_offset")
    known = history_of_append(history, writer or None, expected)
    return AppendRequest(name, data, writer, first, count, previous, expected, known)


def joined_request(append: JoinedAppend, bytes_max: int) -> AppendRequest:
    data, writer, first, count = append.data, append.writer, append.first_event, append.count
    if type(data) is not bytes or len(data) > bytes_max:
        _check_size(data, bytes_max)
    return AppendRequest(append.name, data, writer, first, count, *check_joined(append))


def _check_size(data: Buffer, bytes_max: int) -> None:
    size = len(data) if type(data) is bytes else check_data(data)
    if size > bytes_max:
        raise TooLarge.append(size, bytes_max)
