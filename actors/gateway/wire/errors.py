"""Errors over HTTP: one table, read in both directions (rule H2).

An error that leaves a server arrives in the client as the same class with the same message and fields. An
answer that no tierlog server wrote, or that was damaged on its way, proves nothing about the store: it
becomes ``OutcomeUnknown`` if the request may have been applied, else ``Unavailable`` (rule H3). Reading an
answer never raises, whatever its bytes are."""

from __future__ import annotations

import enum
import json
import math
from collections.abc import Mapping
from typing import Annotated, Any, ClassVar

import attrs
import msgspec
from msgspec import UNSET, Meta, Struct, UnsetType

from ....storage_backends.base.errors import (
    AttributeConflict,
    BackupExists,
    BackupIncomplete,
    BackupNotFound,
    BadChunkOffset,
    BadOffset,
    ChangesIncomplete,
    ChunkError,
    ChunkExists,
    ChunkNotFound,
    ChunkReadOnly,
    ClaimOutdated,
    ClosedError,
    ConfigError,
    DataCorruption,
    HistoryLost,
    InvalidArgument,
    MetadataConflict,
    NotOwner,
    OutcomeUnknown,
    OutOfOrder,
    SegmentError,
    SegmentExists,
    SegmentNotFound,
    SegmentNotSealed,
    SegmentSealed,
    SegmentTruncated,
    StorageFull,
    StoreMismatch,
    TableConflict,
    Throttled,
    TierlogError,
    TooLarge,
    TransactionEnded,
    TransactionNotFound,
    Unavailable,
    UnknownWriter,
    Unsupported,
    WrongSegmentKind,
)

PROBLEM_TYPE = "application/problem+json"
TYPE_PREFIX = "urn:tierlog:"
"""A problem's ``type`` is this and the error's ``code``; both are stable."""
_SHOWN_MAX = 200


# --- errors that only HTTP has ------------------------------------------------------------------


class UnsupportedMediaType(InvalidArgument):
    """The request's Content-Type is not the one that this path takes. Nothing was done."""

    code = "unsupported-media-type"


class RangeNotSatisfiable(InvalidArgument):
    """The range begins at or behind the segment's tail; ``length`` is the segment's length, ``sealed``
    whether it is final."""

    code = "range-not-satisfiable"

    def __init__(self, message: str, *, length: int = 0, sealed: bool = False) -> None:
        super().__init__(message)
        self.length = length
        self.sealed = sealed


class NoSuchPath(Unsupported):
    """The server has no such path: a wrong URL, or a server of another version."""

    code = "no-such-path"


class NoSuchContainer(InvalidArgument):
    """The store has no container of this number."""

    code = "no-such-container"


class NoSuchHost(InvalidArgument):
    """The service has no host of this name."""

    code = "no-such-host"


class CrossOrigin(InvalidArgument):
    """A page of another site sent the request; only pages of this origin may change anything."""

    code = "cross-origin"


class UnknownHost(InvalidArgument):
    """The request's ``Host`` is not a name of the server. Use one of its names, or give it this one."""

    code = "unknown-host"


class Conflict(InvalidArgument):
    """The command conflicts with the current state: check the status, and send it again once that has
    changed."""

    code = "conflict"


class MethodNotAllowed(Unsupported):
    """The path exists, but not for this method; ``allowed`` names those it has, separated by commas."""

    code = "method-not-allowed"

    def __init__(self, message: str, *, allowed: str = "") -> None:
        super().__init__(message)
        self.allowed = allowed


class RequestTimeout(Unavailable):
    """The request's body did not arrive in time. Nothing was applied; send it again."""

    code = "request-timeout"


class StandsBy(Unavailable):
    """The server is a supervisor that waits for the lease, which ``holder`` has: ask another address."""

    code: ClassVar[str] = Unavailable.code

    def __init__(self, message: str, *, holder: str) -> None:
        super().__init__(message)
        self.holder = holder


class OwnedElsewhere(NotOwner):
    """The segment's container is served by the host at ``owner`` (a URL): ask there."""

    code: ClassVar[str] = NotOwner.code

    def __init__(self, message: str, *, owner: str) -> None:
        super().__init__(message)
        self.owner = owner


# --- the table ----------------------------------------------------------------------------------


class RetryHint(enum.Enum):
    """What a caller may do with the same request."""

    NEVER = "never"
    """It will fail again until something else changes."""
    LATER = "later"
    """Nothing was applied: send it again after the pause in Retry-After."""
    ELSEWHERE = "elsewhere"
    """Nothing was applied here: find the owner and send it there."""
    IDENTIFIED = "identified"
    """It may have been applied: repeat it only if a repeat can be distinguished from a second one (writer id,
    expected offset)."""


@attrs.frozen
class Row:
    kind: type[TierlogError]
    status: int
    retry: RetryHint
    fields: tuple[str, ...] = ()
    """The attributes that travel, which are also the keyword arguments of its constructor."""
    message: str = "detail"
    """The field of the document that is its constructor's first argument."""
    pause: float = 1.0
    """Seconds to wait before a retry ``LATER``."""


_SEGMENT = ("segment",)
_CHUNK = ("chunk",)
_NEVER, _LATER = RetryHint.NEVER, RetryHint.LATER
TABLE = (
    Row(InvalidArgument, 400, _NEVER),
    Row(TooLarge, 413, _NEVER),
    Row(BackupExists, 409, _NEVER),
    Row(BackupNotFound, 404, _NEVER),
    Row(BackupIncomplete, 409, _NEVER),
    Row(UnsupportedMediaType, 415, _NEVER),
    Row(RangeNotSatisfiable, 416, _NEVER, ("length", "sealed")),
    Row(ConfigError, 500, _NEVER),
    Row(Unsupported, 501, _NEVER),
    Row(NoSuchPath, 404, _NEVER),
    Row(NoSuchContainer, 404, _NEVER),
    Row(NoSuchHost, 404, _NEVER),
    Row(CrossOrigin, 403, _NEVER),
    Row(UnknownHost, 421, _NEVER),
    Row(Conflict, 409, _NEVER),
    Row(MethodNotAllowed, 405, _NEVER, ("allowed",)),
    Row(ClosedError, 503, _LATER),
    Row(SegmentError, 409, _NEVER, _SEGMENT),
    Row(SegmentNotFound, 404, _NEVER, _SEGMENT),
    Row(SegmentExists, 409, _NEVER, _SEGMENT),
    Row(SegmentSealed, 409, _NEVER, _SEGMENT),
    Row(SegmentNotSealed, 409, _NEVER, _SEGMENT),
    Row(SegmentTruncated, 410, _NEVER, (*_SEGMENT, "start_offset")),
    Row(BadOffset, 412, _NEVER, (*_SEGMENT, "expected", "given")),
    Row(AttributeConflict, 409, _NEVER, _SEGMENT),
    Row(WrongSegmentKind, 409, _NEVER, _SEGMENT),
    Row(ChangesIncomplete, 410, _NEVER, (*_SEGMENT, "complete_since")),
    Row(TableConflict, 412, _NEVER, (*_SEGMENT, "key_hex", "expected", "present")),
    Row(OutOfOrder, 409, _LATER, (*_SEGMENT, "last_event_number"), pause=0.05),
    Row(UnknownWriter, 409, _NEVER, _SEGMENT),
    Row(HistoryLost, 410, _NEVER, (*_SEGMENT, "history", "recovered_length", "last_event_number")),
    Row(TransactionNotFound, 404, _NEVER, _SEGMENT),
    Row(TransactionEnded, 409, _NEVER, (*_SEGMENT, "state")),
    Row(OutcomeUnknown, 500, RetryHint.IDENTIFIED),
    Row(ClaimOutdated, 503, _LATER),
    Row(StandsBy, 503, _LATER, ("holder",)),
    Row(Unavailable, 503, _LATER),
    Row(RequestTimeout, 408, _LATER),
    Row(OwnedElsewhere, 421, RetryHint.ELSEWHERE, ("owner",)),
    Row(NotOwner, 421, RetryHint.ELSEWHERE),
    Row(Throttled, 429, _LATER, pause=0.1),
    Row(StorageFull, 507, _LATER, pause=5.0),
    Row(DataCorruption, 500, _NEVER, ("file", "offset"), message="reason"),
    Row(StoreMismatch, 500, _NEVER),
    Row(ChunkError, 500, _NEVER, _CHUNK),
    Row(ChunkNotFound, 500, _NEVER, _CHUNK),
    Row(ChunkExists, 500, _NEVER, _CHUNK),
    Row(BadChunkOffset, 500, _NEVER, (*_CHUNK, "expected", "given")),
    Row(ChunkReadOnly, 500, _NEVER, _CHUNK),
    Row(MetadataConflict, 503, _LATER),
    Row(TierlogError, 500, _NEVER),
)
"""Every class. Of two rows with one code the one with more fields comes first, and stands for documents that
have them."""

_BY_KIND = {row.kind: row for row in TABLE}
_BY_CODE: dict[str, tuple[Row, ...]] = {
    row.kind.code: tuple(r for r in TABLE if r.kind.code == row.kind.code) for row in TABLE
}
_FIELD_TYPES: dict[str, tuple[type, ...]] = {
    "segment": (str,),
    "chunk": (str,),
    "file": (str,),
    "owner": (str,),
    "holder": (str,),
    "allowed": (str,),
    "state": (str,),
    "offset": (int,),
    "length": (int,),
    "sealed": (bool,),
    "start_offset": (int,),
    "expected": (int,),
    "given": (int,),
    "present": (int,),
    "key_hex": (str,),
    "complete_since": (int,),
    "history": (int,),
    "recovered_length": (int,),
    "last_event_number": (int, type(None)),
}
# The first clause of what the class's documentation says: both have one source.
_TITLES = {
    row.kind: (row.kind.__doc__ or "")
    .split(". ")[0]
    .split("; ")[0]
    .split(": ")[0]
    .replace("\n", " ")
    .replace("``", "")
    .rstrip(".")
    for row in TABLE
}


class ProblemDocument(Struct, frozen=True, omit_defaults=True):
    """The members that every problem has. Those of the error's class come on top."""

    type: str
    title: str
    status: Annotated[int, Meta(ge=400, le=599)]
    detail: str
    code: str
    retry: RetryHint
    retry_after: Annotated[float, Meta(ge=0)] | UnsetType = UNSET
    request_id: str | UnsetType = UNSET


@attrs.frozen
class Problem:
    """An error as it travels."""

    status: int
    headers: dict[str, str]
    document: dict[str, Any]

    def body(self) -> bytes:
        return json.dumps(self.document).encode()


def row_of(error: BaseException) -> Row | None:
    """The row of the error's class, or of its nearest base class. None for an exception that is not a
    ``TierlogError``."""
    # A class without a row travels as its nearest base, which tells the client as much as it can know.
    for kind in type(error).__mro__:
        row = _BY_KIND.get(kind)
        if row is not None:
            return row

    return None


def problem_document(error: BaseException) -> dict[str, Any]:
    """The JSON document of an error: in an answer's body, and for one item of a batch."""
    row = row_of(error)
    if row is None:
        # A bug of the server. Its text goes to the server's log only. Its effect is unknown: only what has an
        # identity may be repeated.
        code, title, status, retry = "internal", "An unexpected error", 500, RetryHint.IDENTIFIED
        detail = "the server failed; see its log"
    else:
        code, title, status, retry = row.kind.code, _TITLES[row.kind], row.status, row.retry
        detail = str(error)
    pause = row.pause if row is not None and row.retry is RetryHint.LATER else UNSET
    document: dict[str, Any] = msgspec.to_builtins(
        ProblemDocument(TYPE_PREFIX + code, title, status, detail, code, retry, pause)
    )
    if row is not None:
        members = row.fields if row.message == "detail" else (row.message, *row.fields)
        document.update((name, getattr(error, name)) for name in members)
    return document


def to_problem(error: BaseException) -> Problem:
    """Status, headers and document of an error. The text of one that is not a ``TierlogError`` is left out;
    its code is ``internal``."""
    document = problem_document(error)
    headers = {"Content-Type": PROBLEM_TYPE}
    if "retry_after" in document:
        # The header has whole seconds (RFC 9110, 10.2.3). Rounded down, clients would come too early.
        headers["Retry-After"] = str(math.ceil(document["retry_after"]))
    # H13: for clients and proxies that do not read the document.
    if isinstance(error, OwnedElsewhere):
        headers["Tierlog-Owner"] = error.owner
    if isinstance(error, MethodNotAllowed):
        # RFC 9110, 15.5.6: a 405 names the methods.
        headers["Allow"] = error.allowed
    if isinstance(error, RangeNotSatisfiable):
        # RFC 9110, 14.4: a client that knows nothing of problems learns the length too.
        headers["Content-Range"] = f"bytes */{error.length}"
    return Problem(document["status"], headers, document)


def is_problem(headers: Mapping[str, str]) -> bool:
    """Whether the answer has the form of a tierlog server's error. ``headers``: as for ``from_problem``."""
    return headers.get("content-type", "").partition(";")[0].strip().lower() == PROBLEM_TYPE


def from_problem(
    status: int, headers: Mapping[str, str], body: bytes, *, maybe_applied: bool
) -> TierlogError:
    """The error of an answer. ``headers``: with lower-case names, or case-insensitive.

    ``maybe_applied``: the request changes something, and may have reached a server. It decides what an answer
    without a tierlog problem means (rule H3).
    """
    if is_problem(headers):
        try:
            error = from_document(json.loads(body))
        # Half a document, or one nested deeper than the decoder goes, is as foreign as a proxy's page.
        except (ValueError, RecursionError):
            error = None
        if error is not None:
            return error

    # `repr`, because a proxy's page ends up in an error message, on one line of a terminal.
    shown = repr(bytes(body[:_SHOWN_MAX]).decode("utf-8", "replace"))
    return _no_answer(f"an answer with status {status} that no tierlog server wrote: {shown}", maybe_applied)


def from_document(document: object) -> TierlogError | None:
    """The error of a document; None if this version knows no such error."""
    if not isinstance(document, dict):
        return None

    code, detail = document.get("code"), document.get("detail")
    if not isinstance(code, str) or not isinstance(detail, str):
        return None

    for row in _BY_CODE.get(code, ()):
        # One of another version may lack a field. A class with invented values would mislead more than a
        # plain problem.
        message = document.get(row.message)
        if isinstance(message, str) and all(_is_valid(document, name) for name in row.fields):
            return row.kind(message, **{name: document[name] for name in row.fields})

    return None


def malformed_answer(reason: str, *, maybe_applied: bool) -> TierlogError:
    """The error for an answer of success whose content cannot be decoded."""
    return _no_answer(f"the server's answer is malformed: {reason}", maybe_applied)


def retry_after(headers: Mapping[str, str], body: bytes = b"") -> float | None:
    """Seconds that the server asks to wait: the document's number, which is finer, or the header's; None
    without either."""
    try:
        document = json.loads(body) if body else None
    except (ValueError, RecursionError):
        document = None
    seconds = document.get("retry_after") if isinstance(document, dict) else None
    # ``json`` reads NaN and Infinity too: no comparison admits them.
    if isinstance(seconds, int | float) and not isinstance(seconds, bool) and 0 <= seconds < 1e9:
        return float(seconds)

    text = headers.get("retry-after", "")
    return float(text) if text.isascii() and text.isdigit() and len(text) < 10 else None


# --- inside -------------------------------------------------------------------------------------


def _is_valid(document: Mapping[str, object], name: str) -> bool:
    # Not ``isinstance``: a bool is an int.
    return name in document and type(document[name]) in _FIELD_TYPES[name]


def _no_answer(message: str, maybe_applied: bool) -> TierlogError:
    return (
        OutcomeUnknown(f"{message}; the request may have been applied")
        if maybe_applied
        else Unavailable(message)
    )
