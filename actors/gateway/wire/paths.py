"""Paths of the HTTP interface, built and taken apart (rule H1). Names are not checked here.

The last component of a segment's path is always the verb, so a segment may be called ``append`` or
``app/events/append``. A name is percent-encoded, its slashes are not; ``#`` becomes ``%23``.
"""

from __future__ import annotations

import enum
import re
from collections.abc import Mapping, Sequence
from urllib.parse import quote, unquote_to_bytes

from ....storage_backends.base.errors import InvalidArgument, shown
from ....storage_backends.base.list_pages import Listing, PageAsked
from ....storage_backends.base.segments import AttributeName
from .headers import parse_number, parse_writer, writer_text

PREFIX = "/v1"
SEGMENTS = PREFIX + "/segments"
TRANSACTIONS = PREFIX + "/transactions"
BATCH = PREFIX + "/batch"
FLUSH = PREFIX + "/flush"
CONTAINERS = PREFIX + "/containers"
SESSION = PREFIX + "/session"
HEALTH = "/health"
READY = "/ready"
METRICS = "/metrics"
OPENAPI = "/openapi.json"

# Left readable. Percent, question mark and number sign would end the path or change it (RFC 3986, 3.3).
_NAME_SAFE = "/@:+~$=-._"
_SECONDS = re.compile(r"[0-9]{1,2}(\.[0-9]{1,3})?")


class Verb(enum.Enum):
    """The verbs of one segment, by their path component."""

    CREATE = "create"
    APPEND = "append"
    SEAL = "seal"
    TRUNCATE = "truncate"
    DELETE = "delete"
    MERGE = "merge"
    ATTRIBUTES = "attributes"
    EXPIRE_WRITERS = "expire-writers"
    BYTES = "bytes"
    TAIL = "tail"
    INFO = "info"
    LIST_ATTRIBUTES = "list-attributes"
    LAST_EVENT_NUMBER = "last-event-number"
    APPEND_STARTS = "append-starts"
    LAYOUT = "layout"
    BEGIN_TRANSACTION = "begin-transaction"
    STAGE_SEGMENT = "stage-segment"
    COMMIT_TRANSACTION = "commit-transaction"
    ABORT_TRANSACTION = "abort-transaction"
    TRANSACTION_INFO = "transaction-info"
    CREATE_TABLE = "create-table"
    UPDATE_ROWS = "update-rows"
    GET_ROWS = "get-rows"
    PAGE_OF_ROWS = "page-of-rows"
    PAGE_OF_CHANGES = "page-of-changes"

    @property
    def method(self) -> str:
        return "GET" if self in _READING else "POST"


_READING = frozenset(
    {
        Verb.BYTES,
        Verb.TAIL,
        Verb.INFO,
        Verb.LIST_ATTRIBUTES,
        Verb.LAST_EVENT_NUMBER,
        Verb.APPEND_STARTS,
        Verb.LAYOUT,
        Verb.TRANSACTION_INFO,
    }
)


def segment_path(name: str, verb: Verb) -> str:
    """``/v1/segments/app/events%23part-7/append``."""
    return f"{SEGMENTS}/{quote(name, safe=_NAME_SAFE)}/{verb.value}"


def container_path(container: int, what: str) -> str:
    return f"{CONTAINERS}/{container}/{what}"


def page_path(listed: str, asked: PageAsked, limit: int) -> str:
    """The path of a page of ``listed``: ``SEGMENTS`` or ``TRANSACTIONS``."""
    path = f"{listed}?limit={limit}"
    for member, value in (("prefix", asked.prefix), ("token", asked.token)):
        if value:
            path += f"&{member}={quote(value, safe='')}"
    return path


def bytes_path(name: str, history: int | None) -> str:
    path = segment_path(name, Verb.BYTES)
    return path if history is None else f"{path}?history={history}"


def tail_path(
    name: str, offset: int, history: int | None = None, *, wait: float | None = None, stream: bool = False
) -> str:
    """A long poll, of the server's default wait or of ``wait`` seconds; or a stream."""
    path = f"{segment_path(name, Verb.TAIL)}?offset={offset}"
    if history is not None:
        path += f"&history={history}"
    if stream:
        return path + "&stream=true"

    return path if wait is None else f"{path}&wait={wait:.3f}"


def list_attributes_path(name: str, prefix: AttributeName, after: AttributeName | None, limit: int) -> str:
    path = f"{segment_path(name, Verb.LIST_ATTRIBUTES)}?limit={limit}"
    if isinstance(prefix, bytes):
        path += "&ids=true"
    for member, value in (("prefix", prefix), ("after", after)):
        if value:
            text = value.hex() if isinstance(value, bytes) else quote(value, safe="")
            path += f"&{member}={text}"
    return path


def last_event_number_path(name: str, writer: bytes) -> str:
    return f"{segment_path(name, Verb.LAST_EVENT_NUMBER)}?writer_id={writer_text(writer)}"


def range_path(name: str, verb: Verb, start: int, end: int) -> str:
    """Of a verb that takes two offsets in its query."""
    return f"{segment_path(name, verb)}?start={start}&end={end}"


def transaction_info_path(target: str, transaction_id: str) -> str:
    return f"{segment_path(target, Verb.TRANSACTION_INFO)}?transaction_id={quote(transaction_id, safe=':')}"


def split_segment_path(path: str) -> tuple[str, str] | None:
    """Name and verb of a decoded path below ``SEGMENTS``; None if it has not both. Neither is checked."""
    head = SEGMENTS + "/"
    if not path.startswith(head):
        return None

    # H1: the last component is the verb, and the name has all slashes before it.
    name, slash, verb = path[len(head) :].rpartition("/")
    return (name, verb) if slash and name and verb else None


# --- queries ------------------------------------------------------------------------------------


def parse_query(query: bytes, allowed: Sequence[str]) -> dict[str, str]:
    """The parameters of a query, still percent-encoded. A repeated parameter, or one that is not ``allowed``,
    raises ``InvalidArgument``: a misspelt ``wait`` would silently mean the default."""
    values: dict[str, str] = {}
    # Not ``urllib.parse.parse_qs``: it keeps both of two values and drops what it cannot read.
    for part in query.decode("latin-1").split("&"):
        # ``?``, ``?a=1&`` and ``?&a=1`` are usual, and mean nothing else.
        if not part:
            continue

        name, _, value = part.partition("=")
        if name in values:
            raise InvalidArgument(f"query parameter {shown(name)} is given twice")

        if name not in allowed:
            known = ", ".join(allowed) or "none"
            raise InvalidArgument(f"query parameter {shown(name)} is unknown; this path takes: {known}")

        values[name] = value

    return values


def query_text(value: str) -> str:
    """A parameter as text; ``+`` is a space, as forms write it."""
    try:
        # Before the decoding of ``%2B``, which stands for a plus.
        return unquote_to_bytes(value.replace("+", " ").encode("latin-1")).decode()
    except UnicodeDecodeError as error:
        raise InvalidArgument(f"a query parameter is percent-encoded UTF-8, not {shown(value)}") from error


def query_number(values: Mapping[str, str], name: str, default: int) -> int:
    return parse_number(name, values[name]) if name in values else default


def query_history(values: Mapping[str, str]) -> int | None:
    return query_number(values, "history", 0) if "history" in values else None


def query_page(listing: Listing, values: Mapping[str, str]) -> PageAsked:
    """What a page is asked for with."""
    prefix, token = query_text(values.get("prefix", "")), query_text(values.get("token", ""))
    return PageAsked.of(listing, prefix, token or None, query_number(values, "limit", listing.limit_max))


def query_seconds(values: Mapping[str, str], name: str, default: float, maximum: float) -> float:
    """Seconds with up to three decimals, from 0 to ``maximum`` (rule H4)."""
    if name not in values:
        return default

    text = values[name]
    # The pattern first: ``float`` takes "nan", "1e9" and blanks.
    if not _SECONDS.fullmatch(text) or float(text) > maximum:
        raise InvalidArgument(
            f"{name} is a number of seconds from 0 to {maximum:g}, with up to three decimals, not "
            f"{shown(text)}"
        )

    return float(text)


def query_flag(values: Mapping[str, str], name: str) -> bool:
    value = values.get(name, "false")
    # H4: "1", "yes" and an empty value could be meant in either way.
    if value not in ("true", "false"):
        raise InvalidArgument(f"{name} is true or false, not {shown(value)}")

    return value == "true"


def query_writer(values: Mapping[str, str]) -> bytes:
    if "writer_id" not in values:
        raise InvalidArgument("the query needs writer_id")

    return parse_writer("writer_id", values["writer_id"])


def query_transaction(values: Mapping[str, str]) -> str:
    """The id, not checked: the store does."""
    if "transaction_id" not in values:
        raise InvalidArgument("the query needs transaction_id")

    return query_text(values["transaction_id"])
