"""The JSON bodies of requests and answers: one type for each, which decodes, encodes and validates it, and
from which its JSON Schema is made (rule H8).

Bodies of requests are read strictly: an unknown or repeated member, a missing one or one of another type
raises ``InvalidArgument``, which names the member. Bodies of answers are read leniently: members that a newer
server added are ignored; a missing one, or one of another type, raises ``ValueError``.

Ranges of numbers are checked here. The grammar of names, ids and writers is only described here; the code
that uses the value checks it, with a better message than a pattern could give."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any, Literal, Self, TypeVar

import msgspec
from msgspec import UNSET, Meta, Struct, UnsetType

from ....storage_backends.base.arguments import (
    APPEND_BYTES_MAX,
    OFFSET_MAX,
    ROLLING_SIZE_MAX,
    ROLLING_SIZE_MIN,
)
from ....storage_backends.base.backups import NAME_PATTERN, StepKind
from ....storage_backends.base.errors import InvalidArgument, shown
from ....storage_backends.base.names import NAME_BYTES_MAX, SYSTEM_SCOPE
from ....storage_backends.base.segments import (
    ATTRIBUTE_ID_BYTES,
    ATTRIBUTE_MAX,
    ATTRIBUTE_MIN,
    ATTRIBUTE_NAME_BYTES_MAX,
    ATTRIBUTE_UPDATES_MAX,
    AttributeName,
    AttributeUpdate,
    AttributeUpdateKind,
)
from ....storage_backends.base.transactions import (
    LEASE_DEFAULT,
    LEASE_MAX,
    LEASE_MIN,
    PART_NAME_MAX,
    PARTS_MAX,
    TRANSACTION_ID_MAX,
    WRITER_ATTRIBUTE,
    StagedPart,
    TransactionInfo,
    TransactionToken,
)
from ...telemetry.printable import printable
from .headers import NUMBER_MAX, WRITER_ID_BYTES_MAX

T = TypeVar("T")
JSON_TYPE = "application/json"
STRINGS_MAX = 1 << 17
"""Strings in the body of a request, names of members included: more than any needs. A mebibyte of short ones
takes 50 ms to decode."""
COMMIT_BYTES_MAX = 10 << 20
"""Bytes of the body of a commit: room for the most parts, with the longest names."""


# --- members ------------------------------------------------------------------------------------


def described(pattern: str, **more: object) -> Meta:
    """Text whose grammar stands in the schema and is checked elsewhere."""
    return Meta(extra_json_schema={"pattern": pattern, **more})


# Letters and digits of every script are word characters in a name, as in ``base/names.py``.
_COMPONENT = r"[\w.\-#=@+~$:]+"
_NOT_HEX = re.compile("[^0-9a-f]")
_DOTS = r"(?!\.{1,2}(/|$))"
_TOKEN_WRITER_MAX = ATTRIBUTE_NAME_BYTES_MAX - len(WRITER_ATTRIBUTE)

Number = Annotated[int, Meta(ge=0, le=NUMBER_MAX)]
Offset = Annotated[int, Meta(ge=0, le=OFFSET_MAX)]
PreviousNumber = Annotated[int, Meta(ge=-1, le=NUMBER_MAX)]
SignedNumber = Annotated[int, Meta(ge=ATTRIBUTE_MIN, le=ATTRIBUTE_MAX)]
SegmentName = Annotated[
    str,
    described(
        rf"^(?!{SYSTEM_SCOPE[:-1]}(/|$)){_DOTS}{_COMPONENT}(/{_DOTS}{_COMPONENT})*$", maxLength=NAME_BYTES_MAX
    ),
]
WriterId = Annotated[str, described(f"^([A-Za-z0-9._~-]|%[0-9A-Fa-f]{{2}}){{1,{WRITER_ID_BYTES_MAX}}}$")]
AttributeId = Annotated[str, described(f"^[0-9a-f]{{{2 * ATTRIBUTE_ID_BYTES}}}$")]
BackupName = Annotated[str, described(f"^{NAME_PATTERN}$")]
TransactionId = Annotated[str, described(f"^[A-Za-z0-9_.:-]{{1,{TRANSACTION_ID_MAX}}}$")]


# --- requests: no other members are taken --------------------------------------------------------


# Unknown members are refused: a misspelt `exist_ok` must not be ignored.
class RequestBody(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    pass


class Nothing(RequestBody, frozen=True):
    """The body of a verb without arguments: empty, or an empty object."""


class Create(RequestBody, frozen=True):
    rolling_size: Annotated[int, Meta(ge=ROLLING_SIZE_MIN, le=ROLLING_SIZE_MAX)] | None = None
    exist_ok: bool = False


class PinnedElement(RequestBody, frozen=True):
    """An element of a container's journal."""

    n: Number
    crc: Number


class TakeBackupStep(RequestBody, frozen=True):
    """One step of making or removing a backup; a client takes them in order, for all containers."""

    kind: StepKind
    name: BackupName
    token: Annotated[str, Meta(max_length=64)] = ""
    """Of ``pin`` and ``drop``: identifies the call, so that a repeat pins nothing else, and a call that fails
    undoes nothing of another one."""
    elements: Annotated[tuple[PinnedElement, ...], Meta(max_length=1024)] = ()
    """Of ``put``: what each container answered to ``pin``."""


class Truncate(RequestBody, frozen=True, omit_defaults=True):
    offset: Offset
    history: Offset | None = None
    """The history that the offset is of."""


class Update(RequestBody, frozen=True):
    """Of an attribute that has a name, or an id."""

    value: SignedNumber
    name: Annotated[str, Meta(min_length=1, max_length=ATTRIBUTE_NAME_BYTES_MAX)] | UnsetType = UNSET
    id: AttributeId | UnsetType = UNSET
    kind: AttributeUpdateKind = AttributeUpdateKind.REPLACE
    expected: SignedNumber | None = None


class Merge(RequestBody, frozen=True):
    sources: Annotated[list[SegmentName], Meta(min_length=1)]
    attribute_updates: list[Update] = []


class Attributes(RequestBody, frozen=True):
    updates: Annotated[list[Update], Meta(min_length=1, max_length=ATTRIBUTE_UPDATES_MAX)]


class ExpireWriters(RequestBody, frozen=True):
    writer_ids: Annotated[list[WriterId], Meta(min_length=1)]


class Token(RequestBody, frozen=True):
    # Any printable text is taken; the schema describes the part of it that a length in characters can.
    writer: Annotated[str, described(f"^[!-~]{{1,{_TOKEN_WRITER_MAX}}}$")]
    epoch: Annotated[int, Meta(ge=0, le=ATTRIBUTE_MAX)]


class Part(RequestBody, frozen=True):
    name: SegmentName
    length: Number


class Begin(RequestBody, frozen=True):
    transaction_id: TransactionId
    # Unset and not null: a client that sends null has forgotten a value.
    token: Token | UnsetType = UNSET
    lease: Annotated[float, Meta(ge=LEASE_MIN, le=LEASE_MAX)] = LEASE_DEFAULT


class Stage(RequestBody, frozen=True):
    transaction_id: TransactionId
    part: Annotated[str, described(f"^[A-Za-z0-9_-]{{1,{PART_NAME_MAX}}}$")]


class Commit(RequestBody, frozen=True):
    transaction_id: TransactionId
    parts: Annotated[list[Part], Meta(max_length=PARTS_MAX)]
    token: Token | UnsetType = UNSET


class Abort(RequestBody, frozen=True):
    transaction_id: TransactionId
    reason: Annotated[str, Meta(max_length=1_000)] = ""


class Move(RequestBody, frozen=True):
    host: str | None
    """Where the container goes and stays; None ends that it stays where it is."""


_REASON_MAX = 300
"""Characters of what is wrong with a body."""


def decode_request(body: bytes, kind: type[T]) -> T:
    """An empty body stands for an empty object."""
    *_, value = request_in_steps(body, kind)
    assert value is not None
    return value


def request_in_steps(body: bytes, kind: type[T]) -> Iterator[T | None]:
    """As ``decode_request``, in two steps of half a millisecond for each MiB: None, then the value."""
    # `curl -X POST` without data is enough for a verb without arguments.
    body = body or b"{}"
    if body.count(b'"') > 2 * STRINGS_MAX:
        raise InvalidArgument(f"the body has more than {STRINGS_MAX} names and texts")
    try:
        value = msgspec.json.decode(body, type=kind)
        yield None
        json.loads(body, object_pairs_hook=_refuse_repeated)  # msgspec would take the last of them
    except (ValueError, RecursionError) as error:
        # It quotes names of the body's members, whatever they are.
        raise InvalidArgument(f"the body: {printable(str(error)[:_REASON_MAX])}") from error

    yield value


def _refuse_repeated(pairs: list[tuple[str, Any]]) -> None:
    names = [name for name, _ in pairs]
    if len(set(names)) != len(names):
        raise ValueError(f"a member is given twice among {', '.join(names)[:200]}")


def update_bodies(updates: Sequence[AttributeUpdate]) -> list[Update]:
    return [
        Update(each.value, each.name, UNSET, each.kind, each.expected)
        if isinstance(each.name, str)
        else Update(each.value, UNSET, each.name.hex(), each.kind, each.expected)
        for each in updates
    ]


def update_values(bodies: Sequence[Update]) -> list[AttributeUpdate]:
    return [AttributeUpdate(_attribute(each), each.value, each.kind, each.expected) for each in bodies]


def _attribute(body: Update) -> AttributeName:
    if isinstance(body.name, str) and isinstance(body.id, UnsetType):
        return body.name
    if isinstance(body.id, str) and isinstance(body.name, UnsetType):
        return attribute_id(body.id)
    raise InvalidArgument("an update of an attribute needs its name or its id, and not both")


def attribute_id(text: str, *, is_prefix: bool = False) -> bytes:
    """An attribute's id, or the first bytes of one. Raises ``InvalidArgument``."""
    size = 2 * ATTRIBUTE_ID_BYTES
    is_whole = len(text) == size or (is_prefix and len(text) < size and not len(text) % 2)
    if not is_whole or _NOT_HEX.search(text):
        raise InvalidArgument(f"an attribute's id has {size} lower-case hex digits; {shown(text)} has not")
    return bytes.fromhex(text)


def token_body(token: TransactionToken | None) -> Token | UnsetType:
    return UNSET if token is None else Token(token.writer, token.epoch)


def token_value(body: Token | UnsetType) -> TransactionToken | None:
    return None if isinstance(body, UnsetType) else TransactionToken(body.writer, body.epoch)


def part_bodies(parts: Sequence[StagedPart]) -> list[Part]:
    """Raises ``InvalidArgument`` if a member is of another type or out of its range."""
    try:
        return msgspec.convert(parts, list[Part], from_attributes=True)
    except msgspec.ValidationError as error:
        raise InvalidArgument(f"parts: {error}") from error


# --- answers: later versions may add members -----------------------------------------------------


# An object, so that a later version can add members.
class Empty(Struct, frozen=True):
    pass


class Appended(Struct, frozen=True):
    offset: Number | None
    """None for a duplicate of an earlier append."""


class Merged(Struct, frozen=True):
    offset: Number


class Length(Struct, frozen=True):
    length: Number


class AttributeValues(Struct, frozen=True, omit_defaults=True):
    attributes: dict[str, SignedNumber]
    ids: dict[AttributeId, SignedNumber] = {}
    """Those that have ids in place of names."""

    @classmethod
    def of(cls, values: Mapping[AttributeName, int]) -> Self:
        return cls(
            {name: value for name, value in values.items() if isinstance(name, str)},
            {name.hex(): value for name, value in values.items() if isinstance(name, bytes)},
        )

    def values(self) -> dict[AttributeName, int]:
        """Raises ``ValueError``."""
        ids = {bytes.fromhex(text): value for text, value in self.ids.items()}
        return dict((*self.attributes.items(), *ids.items()))


class ListedAttributes(AttributeValues, frozen=True, omit_defaults=True):
    after: str | None = None
    """What the next page begins behind; null if there are no more."""


class KnownWriters(Struct, frozen=True):
    known: Number


class EventNumber(Struct, frozen=True):
    event_number: Number | None


class AppendStarts(Struct, frozen=True):
    append_starts: list[Number]


class SegmentNames(Struct, frozen=True, omit_defaults=True):
    segments: list[SegmentName]
    token: str | None = None
    """Continues after this page; null if there are no more."""


class Staged(Struct, frozen=True):
    segment: SegmentName


class Transactions(Struct, frozen=True, omit_defaults=True):
    transactions: list[TransactionInfo]
    token: str | None = None
    """Continues after this page; null if there are no more."""


class ContainerAssignment(Struct, frozen=True, omit_defaults=True):
    """Which host serves one container."""

    container: Number
    url: str | None
    """The base URL of the host; None while no host serves the container, or none is known."""
    epoch: Number | None
    """The epoch of the owner, if it is known. Of two maps the one with the larger epoch is right about this
    container."""
    absence: str = ""
    """Why no host serves it, and what to do about it, if the supervisor answers."""
    is_withheld: bool = False
    """It stays closed until an operator opens it."""


class ContainerMap(Struct, frozen=True):
    """Which host serves which container: all of them, in order."""

    version: Number
    """Rises with each change that the server makes; not comparable between servers."""
    containers: tuple[ContainerAssignment, ...]
    append_bytes_max: Number = APPEND_BYTES_MAX
    """The largest append that the service takes: clients refuse larger ones before they send them."""
    store: str = ""
    """The store's id in hexadecimal; empty from a server that does not say."""

    def second_hand(self) -> ContainerMap:
        """As a server knows it that is not sure: it ends no client's search (rule H21)."""
        entries = tuple(ContainerAssignment(each.container, each.url, None) for each in self.containers)
        return msgspec.structs.replace(self, containers=entries)

    def behind_one_port(self) -> ContainerMap:
        """Without the hosts' URLs: clients reach all containers through the address that they use."""
        hidden = tuple(msgspec.structs.replace(each, url=None) for each in self.containers)
        return msgspec.structs.replace(self, containers=hidden)


class ContainerStatus(Struct, frozen=True):
    container: Number
    state: str
    """``active`` if it is served, else why not: for example ``recovering`` or ``quarantined``."""


GcAction = Literal["retry", "purge", "pause", "resume"]


class GcOrder(RequestBody, frozen=True):
    """What the garbage collector of a container shall do."""

    action: GcAction


class GcDone(Struct, frozen=True):
    queue: str
    names: Number
    """The names that the order applies to."""
    paused: bool


class GcTaskBody(Struct, frozen=True):
    kind: str
    name: str
    state: str
    """``steps``, ``delay``, ``element``, ``confirmation`` or ``failed``."""
    seconds: float
    error: str


class GcQueue(Struct, frozen=True):
    """The tasks of a container's garbage collector."""

    container: Number
    queue: str
    failed_queue: str
    queued: Number
    unpublished: Number
    """How many of them wait for an element (rule G6)."""
    steps: Number
    """Items of deferred work (rule S11)."""
    failed: Number
    paused: bool
    unconfirmed: str
    """Empty if the container is confirmed (rule G4)."""
    tasks: list[GcTaskBody]
    failed_tasks: list[GcTaskBody]


class Unconfirmed(Struct, frozen=True):
    """What nothing refers to, and why the container does not delete it by itself (rule G4)."""

    container: Number
    reason: str
    """Empty if the container is confirmed."""
    chunks: Number
    bytes: Number


class BackupEntry(Struct, frozen=True):
    name: str
    created_ms: Number
    containers: Number
    problem: str
    """Why it cannot be restored; empty if nothing is known against it."""


class Backups(Struct, frozen=True):
    backups: tuple[BackupEntry, ...]


class BackupStepDone(Struct, frozen=True):
    """The answer to a step of a backup."""

    n: Number = 0
    """Of ``pin``: the number of the element."""
    crc: Number = 0
    """Of ``pin``: its CRC."""
    found: bool = False
    """Of ``remove`` and ``drop``: whether there was any."""


class HostStatus(Struct, frozen=True):
    """The answer of ``/ready``, from a host about its own containers and from the supervisor about all."""

    ready: bool
    """Whether every container in ``containers`` is active, and the process not about to stop."""
    draining: bool
    """Whether the process is about to stop."""
    containers: tuple[ContainerStatus, ...]


class StorageHealth(Struct, frozen=True):
    state: str
    cause: str


class Health(Struct, frozen=True):
    alive: bool
    storage: StorageHealth


class ReportedStorage(Struct, frozen=True):
    # Defaults, here and below: during an upgrade a supervisor of an earlier version answers.
    state: str = "unknown"
    cause: str = ""


class HostReport(Struct, frozen=True):
    """What a service's status has of one host, as far as its readers need it."""

    id: str
    phase: str
    pid: Number | None
    containers: list[Number]
    lag_seconds: float
    storage: ReportedStorage
    starts: Number
    last_exit: str | None
    machine: str = ""
    joined: bool = False
    """Whether it is none of the supervisor's own processes."""


class ContainerReport(Struct, frozen=True):
    container: Number
    phase: str
    host: str | None
    epoch: Number | None
    segments: Number
    wal_bytes: Number
    unflushed_bytes: Number
    reason: str
    unconfirmed: bool = False
    log: ReportedStorage = ReportedStorage()
    """The health of its log, by what its owner last asked of it."""


class StandbyHealth(Struct, frozen=True):
    """A supervisor that stands by."""

    status: Literal["standing-by"]
    pid: Number
    machine: str
    holder: str
    """The process that has the lease, as it calls itself."""
    waiting_seconds: float


class StandbyReport(StandbyHealth, frozen=True):
    url: str


class ReportedImbalance(Struct, frozen=True):
    containers: Number = 0
    """Those that are still to move."""
    reason: str = ""
    """Why they do not at once."""


class ServiceStatus(Struct, frozen=True):
    folder: str
    pid: Number
    term: Number
    ready: bool
    stopping: bool
    failovers: Number
    failover_seconds: list[float]
    hosts: list[HostReport]
    containers: list[ContainerReport]
    requests: dict[str, Number] | None = None
    """Those to a bucket, by their kind."""
    machine: str = ""
    """The supervisor's, and below its URL and for how long it has been active."""
    url: str = ""
    active_seconds: float = 0.0
    imbalance: ReportedImbalance = ReportedImbalance()
    standbys: list[StandbyReport] = []
    """Those at the other addresses that were asked: no supervisor knows of them."""


def encode_json(value: object) -> bytes:
    return msgspec.json.encode(value)


def decode_answer(body: bytes, kind: type[T]) -> T:
    try:
        return msgspec.json.decode(body, type=kind)
    except RecursionError as error:
        raise ValueError("nested too deeply") from error


def decode_map(body: bytes) -> ContainerMap:
    found = decode_answer(body, ContainerMap)
    numbers = [each.container for each in found.containers]
    if not numbers or numbers != list(range(len(numbers))):
        raise ValueError("a container map lists every container once, in order")

    return found
