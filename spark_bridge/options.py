"""The options of the data source, parsed once into a frozen value.

Spark passes keys in lower case, and the argument of ``load`` or ``save`` as ``path``. An error names an
option, but never a value that could contain a secret: a URL with a password is rejected without being shown.
"""

from __future__ import annotations

import difflib
import json
from collections.abc import Callable, Mapping
from enum import Enum
from typing import TypeVar

import attrs

from ..actors.direct_read.storage import check_location
from ..actors.gateway.client.addresses import check_addresses
from ..actors.settings.units import GiB, KiB, MiB, Setting, duration, size
from ..storage_backends.base.errors import InvalidArgument, shown
from ..storage_backends.base.names import check_segment_name
from ..storage_backends.base.segments import ATTRIBUTE_MAX
from ..storage_backends.base.transactions import (
    LEASE_DEFAULT,
    LEASE_MAX,
    LEASE_MIN,
    TransactionToken,
    is_staged,
)

T = TypeVar("T")


class Edge(Enum):
    """The ends of a segment, in place of an offset."""

    EARLIEST = "earliest"
    LATEST = "latest"


class Delivery(Enum):
    EXACTLY_ONCE = "exactly-once"
    AT_LEAST_ONCE = "at-least-once"


class Rows(Enum):
    """How Spark passes rows to a writer."""

    ARROW = "arrow"
    PYTHON = "python"


class Direct(Enum):
    """Whether tasks read history out of long-term storage themselves."""

    AUTO = "auto"
    ALWAYS = "always"
    NEVER = "never"


Offsets = Edge | Mapping[str, int]
"""One edge for all segments, or an offset for each."""

_TEXT_MAX = 64 * KiB
_NAMES = (
    "endpoint",
    "segment",
    "path",
    "segmentPrefix",
    "startingOffsets",
    "endingOffsets",
    "maxBytesPerTrigger",
    "minPartitions",
    "failOnDataLoss",
    "includeMetadata",
    "readBytes",
    "direct",
    "storageLocation",
    "lts",
    "txnAppId",
    "txnVersion",
    "txnId",
    "txnLease",
    "delivery",
    "batchBytes",
    "rows",
    "createSegment",
    "callTimeout",
)
_OF_SPARK = frozenset({"checkpointlocation", "queryname"})
"""Spark's own options, which it also passes to data sources."""
_TRIGGER_BYTES = size(0, 1, 1024 * GiB, "Bytes that one micro-batch reads.")
_READ_BYTES_DEFAULT = 8 * MiB
_READ_BYTES = size(_READ_BYTES_DEFAULT, 64 * KiB, 256 * MiB, "Bytes of one read.")
_BATCH_BYTES_DEFAULT = 4 * MiB
_BATCH_BYTES = size(_BATCH_BYTES_DEFAULT, 4 * KiB, 32 * MiB, "Bytes of one append.")
_LEASE = duration(LEASE_DEFAULT, LEASE_MIN, LEASE_MAX, "How long a transaction lives without an append.")
_CALL_TIMEOUT = duration(60.0, 0.1, 3600.0, "How long one call to the service may take, retries included.")


@attrs.frozen
class Options:
    """All options. Spark's names are in camelCase, such as ``maxBytesPerTrigger``; sizes are numbers of bytes
    or texts like ``8 MiB``, durations texts like ``60 s``."""

    endpoint: str
    """URL of the service, such as ``http://127.0.0.1:8470``. Required, unless ``lts`` is there."""
    segment: str | None
    """The segment; also the argument of ``load`` and ``save``. None: all whose names have the prefix."""
    segment_prefix: str
    """Reads: all segments whose names begin with it, in place of ``segment``."""
    starting_offsets: Offsets
    """Reads: where to begin: ``earliest`` (default), ``latest`` (streams), or JSON like ``{"app/events":
    0}``. A stream with a checkpoint ignores it."""
    ending_offsets: Offsets
    """Reads: where to end: ``latest`` (default) or JSON."""
    max_bytes_per_trigger: int | None
    """Stream reads: about how many bytes a micro-batch has, 1 byte to 1 TiB. Default: all there are."""
    min_partitions: int
    """Reads: the least number of tasks, if there are so many events, 1 (default) to 100,000."""
    fail_on_data_loss: bool
    """Reads: fail if events to read were truncated or deleted (default: true)."""
    include_metadata: bool
    """Reads: include the columns ``segment`` and ``offset`` (default: true)."""
    read_bytes: int
    """Reads: bytes of one request, 64 KiB to 256 MiB (default: 8 MiB). A task holds two blocks of this
    size."""
    direct: Direct
    """Reads: whether tasks read flushed bytes out of long-term storage themselves: ``auto`` (default: where
    they can, and at least 1 MiB), ``always`` (fail where they cannot) or ``never``."""
    storage_location: str
    """Reads: where tasks find long-term storage, an absolute path or ``s3://BUCKET/PREFIX``, if not where the
    service says."""
    lts: str
    """Batch reads: long-term storage of a store without a service, in place of ``endpoint``: a data folder,
    its ``lts/``, or ``s3://BUCKET/PREFIX``."""
    txn_app_id: str | None
    """Exactly-once writes: the writer, together with ``txn_version``. Streams: in place of the query's id."""
    txn_version: int | None
    """Batch writes: number of the write, which only rises; one at or below the last one is a repeat."""
    txn_id: str | None
    """Batch writes: name of the job, up to 80 letters, digits and ``. _ - :``; repeating a committed job adds
    nothing."""
    txn_lease: float
    """Exactly-once writes: how long an unfinished write is kept without an append (default: 1 h)."""
    delivery: Delivery
    """Writes: ``exactly-once`` (default) or ``at-least-once``."""
    batch_bytes: int
    """Writes: bytes of one append, 4 KiB to 32 MiB (default: 4 MiB), at most the service's
    ``append_bytes_max``. A task has two appends in flight."""
    rows: Rows
    """Writes: ``arrow`` (default) or ``python``, which is several times slower."""
    create_segment: bool
    """Writes: create the segment if it does not exist (default: true)."""
    call_timeout: float
    """How long one call to the service may take, retries included, 0.1 s to 1 h (default: 60 s)."""


def parse_options(given: Mapping[str, str]) -> Options:
    """Raises ``InvalidArgument``, which names the option and the allowed values."""
    texts = {key.lower(): value for key, value in given.items() if key.lower() not in _OF_SPARK}
    for key in texts:
        _check_known(key)

    take = _Parser(texts)
    segment, prefix = _segment(texts)
    lts = take("lts", _location, "")
    return Options(
        endpoint="" if lts and "endpoint" not in texts else _endpoint(texts.get("endpoint")),
        segment=segment,
        segment_prefix=prefix,
        starting_offsets=_edge(take("startingOffsets", _offsets, None), Edge.EARLIEST),
        ending_offsets=_edge(take("endingOffsets", _offsets, None), Edge.LATEST),
        max_bytes_per_trigger=take("maxBytesPerTrigger", _size(_TRIGGER_BYTES), None),
        min_partitions=take("minPartitions", _number(1, 100_000), 1),
        fail_on_data_loss=take("failOnDataLoss", _flag, True),
        include_metadata=take("includeMetadata", _flag, True),
        read_bytes=take("readBytes", _size(_READ_BYTES), _READ_BYTES_DEFAULT),
        direct=take("direct", _word(Direct), Direct.AUTO),
        storage_location=take("storageLocation", _location, ""),
        lts=lts,
        txn_app_id=take("txnAppId", _writer, None),
        txn_version=take("txnVersion", _number(0, ATTRIBUTE_MAX), None),
        txn_id=take("txnId", _id, None),
        txn_lease=take("txnLease", _duration(_LEASE), LEASE_DEFAULT),
        delivery=take("delivery", _word(Delivery), Delivery.EXACTLY_ONCE),
        batch_bytes=take("batchBytes", _size(_BATCH_BYTES), _BATCH_BYTES_DEFAULT),
        rows=take("rows", _word(Rows), Rows.ARROW),
        create_segment=take("createSegment", _flag, True),
        call_timeout=take("callTimeout", _duration(_CALL_TIMEOUT), 60.0),
    )


# --- combinations -------------------------------------------------------------------------------


def check_batch_read(options: Options) -> None:
    if options.max_bytes_per_trigger is not None:
        raise InvalidArgument(
            "option maxBytesPerTrigger is for streams: a batch reads everything up to endingOffsets"
        )

    if options.starting_offsets is Edge.LATEST:
        raise InvalidArgument(
            "option startingOffsets: a batch from 'latest' on reads nothing; use 'earliest' or offsets"
        )

    if options.ending_offsets is Edge.EARLIEST:
        raise InvalidArgument(
            "option endingOffsets: a batch up to 'earliest' reads nothing; use 'latest' or offsets"
        )

    if options.lts and (options.endpoint or options.direct is not Direct.AUTO):
        raise InvalidArgument(
            "option lts reads long-term storage and asks no service: leave out endpoint and direct, or lts"
        )


def check_stream_read(options: Options) -> None:
    _check_service(options)
    if options.ending_offsets is Edge.EARLIEST:
        raise InvalidArgument(
            "option endingOffsets: a stream up to 'earliest' reads nothing; use 'latest' or offsets"
        )


def check_batch_write(options: Options) -> str:
    """Returns the target segment. Raises ``InvalidArgument`` for options that exclude each other."""
    segment = _target(options)
    if (options.txn_app_id is None) is not (options.txn_version is None):
        raise InvalidArgument("options txnAppId and txnVersion go together: give both or neither")

    if options.txn_id is not None and options.txn_app_id is not None:
        raise InvalidArgument(
            "option txnId and the options txnAppId and txnVersion both name the write: give one of them"
        )

    return segment


def check_stream_write(options: Options) -> str:
    """Returns the target segment. Raises ``InvalidArgument`` for options that exclude each other."""
    segment = _target(options)
    if options.txn_version is not None or options.txn_id is not None:
        raise InvalidArgument(
            "options txnVersion and txnId are for batch writes: a stream's version is the number of its "
            "micro-batch"
        )

    return segment


def _check_service(options: Options) -> None:
    if options.lts:
        raise InvalidArgument(
            "option lts is for batch reads: for streams and writes name a service with the option endpoint"
        )


def _target(options: Options) -> str:
    _check_service(options)
    if options.segment is None:
        raise InvalidArgument(
            "option segmentPrefix is for reading: a write has one target, named by segment or save(...)"
        )

    if is_staged(options.segment):
        raise InvalidArgument(
            f"option segment: {options.segment!r} is a name for staged data of transactions"
        )

    if options.delivery is Delivery.AT_LEAST_ONCE and (
        options.txn_app_id,
        options.txn_version,
        options.txn_id,
    ) != (None, None, None):
        raise InvalidArgument(
            "options txnAppId, txnVersion and txnId have no effect with delivery 'at-least-once': remove "
            "one or the other"
        )

    return options.segment


# --- single options -----------------------------------------------------------------------------


class _Parser:
    def __init__(self, texts: Mapping[str, str]) -> None:
        self._texts = texts

    def __call__(self, name: str, parse: Callable[[str], T], default: T) -> T:
        text = self._texts.get(name.lower())
        if text is None:
            return default

        try:
            return parse(_checked_text(text))
        except ValueError as error:
            raise InvalidArgument(f"option {name}: {error}") from error


def _checked_text(text: object) -> str:
    if not isinstance(text, str) or len(text) > _TEXT_MAX:
        raise ValueError(f"text of at most {_TEXT_MAX} characters is expected")

    return text


def _check_known(key: str) -> None:
    names = {name.lower(): name for name in _NAMES}
    if key in names:
        return

    # Its time grows with the square of the length.
    close = difflib.get_close_matches(key[:100], names, n=1, cutoff=0.6)
    hint = f"did you mean {names[close[0]]!r}?" if close else f"there are {', '.join(_NAMES)}"
    raise InvalidArgument(f"the data source tierlog has no option {shown(key)}; {hint}")


def _endpoint(text: str | None) -> str:
    if not text:
        raise InvalidArgument(
            "option endpoint is missing: the URL of a tierlog service, like http://127.0.0.1:8470, or "
            "several, with commas between them"
        )

    # Before anything else shows the text: Spark writes errors into logs that many people can read.
    if "@" in text:
        raise InvalidArgument("option endpoint: a URL must not contain a user name or a password")

    return ",".join(check_addresses(_checked_text(text)))


def _segment(texts: Mapping[str, str]) -> tuple[str | None, str]:
    segment, path, prefix = texts.get("segment"), texts.get("path"), texts.get("segmentprefix")
    if segment is not None and path is not None and segment != path:
        raise InvalidArgument(
            f"option segment is {shown(segment)}, and the argument of load or save is {shown(path)}: "
            "give one of them"
        )

    name = path if segment is None else segment
    if (name is None) is (prefix is None):
        raise InvalidArgument(
            "name one segment (option segment, load(...) or save(...)), or read several with option "
            "segmentPrefix"
        )

    if name is not None:
        check_segment_name(name)
        return name, name

    return None, prefix or ""


def _offsets(text: str) -> Offsets:
    if text.strip().lower() in ("earliest", "latest"):
        return Edge(text.strip().lower())

    try:
        document: object = json.loads(text)
    # Recursion: a document that is nested thousands of levels deep.
    except (ValueError, RecursionError):
        document = None
    if not isinstance(document, dict):
        raise ValueError(  # noqa: TRY004 - the text is wrong, not a type
            f"'earliest', 'latest' or JSON like {{\"app/events\": 0}} is expected, not {shown(text)}"
        )

    for name, offset in document.items():
        check_segment_name(name)
        # JSON's true is an `int` too.
        if type(offset) is not int or not 0 <= offset <= ATTRIBUTE_MAX:
            raise ValueError(f"the offset of {name!r} is a number of bytes, not {shown(offset)}")

    return document


def _edge(given: Offsets | None, otherwise: Edge) -> Offsets:
    return otherwise if given is None else given


def _location(text: str) -> str:
    check_location(text)
    return text


def _flag(text: str) -> bool:
    if text.strip().lower() not in ("true", "false"):
        raise ValueError(f"true or false is expected, not {shown(text)}")

    return text.strip().lower() == "true"


def _number(least: int, most: int) -> Callable[[str], int]:
    def parse(text: str) -> int:
        digits = text.strip()
        if not (digits.isascii() and digits.isdigit() and len(digits) < 20 and least <= int(digits) <= most):
            raise ValueError(f"a whole number from {least} to {most} is expected, not {shown(text)}")

        return int(digits)

    return parse


def _size(setting: Setting) -> Callable[[str], int]:
    def parse(text: str) -> int:
        digits = text.strip()
        is_plain = digits.isascii() and digits.isdigit() and len(digits) < 20
        return int(setting.read(int(digits) if is_plain else digits))

    return parse


def _duration(setting: Setting) -> Callable[[str], float]:
    def parse(text: str) -> float:
        return float(setting.read(text))

    return parse


def _word(kind: type[T]) -> Callable[[str], T]:
    def parse(text: str) -> T:
        values = [str(member.value) for member in kind]  # type: ignore[attr-defined]  # an Enum's members
        word = text.strip().lower()
        if word not in values:
            raise ValueError(f"{' or '.join(map(repr, values))} is expected, not {shown(text)}")

        return kind(word)  # type: ignore[call-arg]  # an Enum's member

    return parse


def _writer(text: str) -> str:
    return TransactionToken(text, 0).writer


def _id(text: str) -> str:
    # The number of the try is appended to it (``identity.py``).
    if not 0 < len(text) <= _ID_MAX or not all(
        letter.isascii() and (letter.isalnum() or letter in "._-:") for letter in text
    ):
        raise ValueError(f"1 to {_ID_MAX} letters, digits and . _ - : are expected, not {shown(text)}")

    return text


_ID_MAX = 80
