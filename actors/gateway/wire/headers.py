"""Headers of appends and of reads, as text and as values (rules H4, H5).

Numbers are plain decimal digits, from 0 to 2**63 - 1; a previous event number may be -1. Anything else (a
sign, a blank, hexadecimal), and a repeated header, raises ``InvalidArgument``: nothing is guessed.

A writer id is 1 to 64 bytes. Its text form has the letters, digits and ``-._~`` as they are and every other
byte as ``%XX``; it is the same in headers, queries and JSON, so that plain ids such as ``app-7`` can be typed
by hand."""

from __future__ import annotations

import re
from collections.abc import Container, Iterable
from urllib.parse import quote_from_bytes, unquote_to_bytes

import attrs

from ....storage_backends.base.errors import InvalidArgument, shown

WRITER_ID = "Tierlog-Writer-Id"
EVENT_NUMBER = "Tierlog-Event-Number"
PREVIOUS_EVENT_NUMBER = "Tierlog-Previous-Event-Number"
EXPECTED_OFFSET = "Tierlog-Expected-Offset"
OFFSET = "Tierlog-Offset"
"""The offset of the first byte in an answer."""
LENGTH = "Tierlog-Length"
"""The segment's length at the time of the request."""
START_OFFSET = "Tierlog-Start-Offset"
SEALED = "Tierlog-Sealed"
"""Whether the segment was sealed at the time of the request: ``true`` or ``false``."""
HISTORY = "Tierlog-History"
"""The history that an append's event number and expected offset are of, and the next offset of a tail (rule
R10)."""
SEGMENT_ID = "Tierlog-Segment-Id"
"""Distinguishes a segment from a later one of the same name."""
REQUEST_ID = "X-Request-Id"
FORWARDED = "Tierlog-Forwarded"
"""Another host passed the request on, which is never done twice (rule H22)."""

NUMBER_MAX = (1 << 63) - 1
WRITER_ID_BYTES_MAX = 64

# ``int`` would take signs, blanks, underscores and the digits of other scripts too.
_DIGITS = re.compile(r"[0-9]{1,19}")
_WRITER = re.compile(r"(?:[A-Za-z0-9._~-]|%[0-9A-Fa-f]{2})+")
_REQUEST_ID = re.compile(r"[A-Za-z0-9._:/+=@-]{1,128}")


@attrs.frozen
class AppendHeaders:
    """The identity and the condition of an append."""

    writer: bytes = b""
    """Empty: the append is not idempotent, and has no event numbers."""
    event_number: int | None = None
    previous_event_number: int | None = None
    expected_offset: int | None = None
    history: int | None = None


def only_values(headers: Iterable[tuple[bytes, bytes]], wanted: Container[bytes]) -> dict[bytes, bytes]:
    """The values of those ``wanted`` that a request has (names in lower case). Twice is refused (rule H4): of
    two values, a proxy may have checked or act on the other one."""
    found: dict[bytes, bytes] = {}
    for name, value in headers:
        if name in wanted:
            if name in found:
                raise InvalidArgument(f"{name.decode().title()} is given twice")

            found[name] = value
    return found


def append_headers(append: AppendHeaders) -> dict[str, str]:
    headers: dict[str, str] = {}
    if append.writer:
        headers[WRITER_ID] = writer_text(append.writer)
    for name, value in (
        (EVENT_NUMBER, append.event_number),
        (PREVIOUS_EVENT_NUMBER, append.previous_event_number),
        (EXPECTED_OFFSET, append.expected_offset),
        (HISTORY, append.history),
    ):
        if value is not None:
            headers[name] = str(value)

    return headers


_LOWER = {
    name.lower().encode(): name
    for name in (WRITER_ID, EVENT_NUMBER, PREVIOUS_EVENT_NUMBER, EXPECTED_OFFSET, HISTORY)
}


def parse_append_headers(headers: Iterable[tuple[bytes, bytes]]) -> AppendHeaders:
    """Parse a request's raw headers (names in lower case)."""
    found: dict[str, str] = {}
    for raw, value in headers:
        name = _LOWER.get(raw)
        if name is not None:
            # Of two values, a proxy may act on one and the server on the other.
            if name in found:
                raise InvalidArgument(f"{name} is given twice")

            found[name] = value.decode("latin-1")

    return _NOTHING if not found else _append_headers(found)


_NOTHING = AppendHeaders()


def _append_headers(found: dict[str, str]) -> AppendHeaders:
    if WRITER_ID not in found and (EVENT_NUMBER in found or PREVIOUS_EVENT_NUMBER in found):
        raise InvalidArgument(f"event numbers need a {WRITER_ID}")

    if WRITER_ID in found and EVENT_NUMBER not in found:
        raise InvalidArgument(f"an append with a {WRITER_ID} needs its {EVENT_NUMBER}")

    return AppendHeaders(
        parse_writer(WRITER_ID, found[WRITER_ID]) if WRITER_ID in found else b"",
        parse_number(EVENT_NUMBER, found[EVENT_NUMBER]) if EVENT_NUMBER in found else None,
        _parse_previous(found[PREVIOUS_EVENT_NUMBER]) if PREVIOUS_EVENT_NUMBER in found else None,
        parse_number(EXPECTED_OFFSET, found[EXPECTED_OFFSET]) if EXPECTED_OFFSET in found else None,
        parse_number(HISTORY, found[HISTORY]) if HISTORY in found else None,
    )


def _parse_previous(text: str) -> int:
    # For a writer without events, for which there is no event number.
    return -1 if text == "-1" else parse_number(PREVIOUS_EVENT_NUMBER, text)


def parse_number(what: str, text: str) -> int:
    """A decimal number from 0 to ``NUMBER_MAX``."""
    if _DIGITS.fullmatch(text):
        value = int(text)
        if value <= NUMBER_MAX:
            return value

    raise InvalidArgument(f"{what} is a decimal number from 0 to {NUMBER_MAX}, not {shown(text)}")


def writer_text(writer: bytes) -> str:
    return quote_from_bytes(writer, safe="")


def parse_writer(what: str, text: str) -> bytes:
    """The bytes of a writer id in text form."""
    # The length first: the pattern must not run over 64 KiB.
    if len(text) <= 3 * WRITER_ID_BYTES_MAX and _WRITER.fullmatch(text):
        writer = unquote_to_bytes(text)
        if len(writer) <= WRITER_ID_BYTES_MAX:
            return writer

    raise InvalidArgument(
        f"{what} is 1 to {WRITER_ID_BYTES_MAX} bytes: letters, digits and -._~ as they are, the others as "
        f"%XX, not {shown(text)}"
    )


def is_request_id(text: str) -> bool:
    """Whether a request id of a client may go into logs and answers as it is."""
    # A line feed in it would begin another line of the log, or another header.
    return bool(_REQUEST_ID.fullmatch(text))
