"""The messages between the supervisor and its hosts, as JSON lines. No I/O.

A connection begins with ``Hello`` from the host, answered by ``Welcome`` or ``Refuse``; over TCP with a proof
before that (``proof.py``). Then orders go one way; answers, events and heartbeats the other. Each line is a
JSON object with its ``type``. Unknown fields are ignored, so that a newer side may add some; an unknown type,
a missing field, a number that nothing has or a line above the limit ends the connection. The version changes
when an older reader would misunderstand; each side speaks a range of versions, and both the newest that they
share (rule V13). Orders carry the supervisor's term: a host obeys the highest it has seen and none below.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from functools import cache, cached_property
from typing import Any

import attrs
import cattrs

from ....storage_backends.base.errors import TierlogError
from ....storage_backends.base.ids import EPOCH_MAX

OLDEST, VERSION = 1, 3
"""The versions that this build speaks: its own, and back to that of the release before. From version 2 on
owners are sent in parts, and statistics with the heartbeats that have news; from version 3 on a host can be
asked to leave."""
_PARTS_SINCE, LEAVE_SINCE = 2, 3
LINE_BYTES_MAX = 1 << 20
OWNERS_MAX = 2048
"""Containers in one message about owners, each with a URL of some 300 bytes at most."""
ABSENCES_MAX, ABSENCE_MAX = 256, 300
"""Of one message: containers that stay closed, and the characters of why each does, of 12 bytes at most."""
COUNT_MAX = (1 << 63) - 1
"""The largest whole number in a message, which others decode as 64 bits."""
_PID_MAX = (1 << 31) - 1


class ProtocolError(TierlogError):
    """The other side of a control connection broke the protocol. The connection must be closed."""

    code = "protocol"


class Unanswered(ProtocolError):
    """A refusal without an answer: the other side looks for another supervisor."""


def _at_most(limit: int, least: int = 0) -> Callable[[Any, Any, int], None]:
    def check(message: object, attribute: attrs.Attribute[int], number: int) -> None:
        if not least <= number <= limit:
            raise ValueError(f"{attribute.name} is {number}, and not from {least} to {limit}")

    return check


def _check_served(message: object, attribute: object, served: Mapping[int, int]) -> None:
    if not all(0 <= index <= COUNT_MAX and 0 <= epoch <= EPOCH_MAX for index, epoch in served.items()):
        raise ValueError("no container has such a number or epoch")


# --- before a host that joins says hello --------------------------------------------------------


@attrs.frozen
class Challenge:
    """From the supervisor."""

    nonce: str


@attrs.frozen
class Proof:
    """From the host."""

    nonce: str
    mac: str


@attrs.frozen
class Proved:
    """From the supervisor: the host is known, and knows by this that the supervisor is."""

    mac: str


# --- from a host --------------------------------------------------------------------------------


@attrs.frozen
class Hello:
    host: str
    pid: int = attrs.field(validator=_at_most(_PID_MAX, 1))
    url: str
    """Where its gateway listens."""
    served: Mapping[int, int] = attrs.field(validator=_check_served)
    """The epoch of each container that it serves, each just checked against its log."""
    term: int = attrs.field(validator=_at_most(EPOCH_MAX))
    """The highest supervisor's term it has seen."""
    version: int = OLDEST
    """The oldest version that it speaks: a supervisor without a range speaks this one or none."""
    newest: int = 0
    """The newest one; 0 from a host that speaks ``version`` alone."""
    machine: str = ""
    """Where it runs, for people."""
    instance: str = ""
    """Identifies its process among all that join with its id."""
    store: str = ""
    """The id of the store that it has opened, in hexadecimal; empty from a host that does not say."""
    leaving: bool = False
    """As in its heartbeats: it gets no containers meanwhile."""


@attrs.frozen
class Heartbeat:
    sequence: int
    lag: float = attrs.field()
    """How late the host's event loop runs, in seconds."""
    statistics: Mapping[str, Any] = attrs.field(factory=dict)
    """Empty if they are as before."""
    leaving: bool = False
    """It received SIGTERM or ``Leave``, and waits for its containers to be moved and for the order to exit.
    Sent with every heartbeat, so that a supervisor that starts meanwhile learns it too."""

    @lag.validator
    def _(self, attribute: object, lag: float) -> None:
        if not 0 <= lag < math.inf:
            raise ValueError(f"no event loop is {lag} s late")


@attrs.frozen
class Opened:
    index: int
    request: int
    epoch: int = attrs.field(validator=_at_most(EPOCH_MAX))


@attrs.frozen
class Failed:
    """An opening failed."""

    index: int
    request: int
    kind: str
    reason: str


@attrs.frozen
class Closed:
    index: int


@attrs.frozen
class Fenced:
    """Another owner opened the container."""

    index: int
    epoch: int = attrs.field(validator=_at_most(EPOCH_MAX))
    """The epoch that was fenced."""
    reason: str


@attrs.frozen
class Ended:
    """A container stopped by itself; its host goes on."""

    index: int
    kind: str
    reason: str


# --- from the supervisor ------------------------------------------------------------------------


@attrs.frozen
class Welcome:
    term: int = attrs.field(validator=_at_most(EPOCH_MAX))
    heartbeat: float
    """Seconds between heartbeats."""
    grace: float
    """Seconds that a host serves on without a supervisor."""
    version: int = 1
    """The one that both speak from here on. A supervisor that sends none speaks version 1 alone."""
    held: bool = True
    """Whether the supervisor still has its lease; if not, another one may have followed."""


@attrs.frozen
class Refuse:
    reason: str


@attrs.frozen
class Open:
    term: int = attrs.field(validator=_at_most(EPOCH_MAX))
    index: int
    request: int


@attrs.frozen
class Close:
    term: int = attrs.field(validator=_at_most(EPOCH_MAX))
    index: int
    request: int


@attrs.frozen
class Leave:
    """Ask for your containers to be moved, and then for the order to exit, whoever the supervisor is: the
    answer is the next heartbeat. Since version 3."""

    term: int = attrs.field(validator=_at_most(EPOCH_MAX))


@attrs.frozen
class Drain:
    """Finish, close everything and exit."""

    term: int = attrs.field(validator=_at_most(EPOCH_MAX))


@attrs.frozen
class Owners:
    """The URL of each container's host, for redirects; sent when it changes."""

    urls: Mapping[int, str]
    """Empty if no host serves the container."""
    is_part: bool = False
    """The other containers' hosts are as before. Since version 2."""
    absences: Mapping[int, str] = attrs.field(factory=dict)
    """Of containers that stay closed until an operator opens them: why, and what to do. What a later message
    names in ``urls`` has none any more."""


Report = Proof | Hello | Heartbeat | Opened | Failed | Closed | Fenced | Ended
Order = Challenge | Proved | Welcome | Refuse | Open | Close | Leave | Drain | Owners
Message = Report | Order

_TYPES: Mapping[str, type] = {
    kind.__name__.lower(): kind
    for kind in (
        Challenge,
        Proof,
        Proved,
        Hello,
        Heartbeat,
        Opened,
        Failed,
        Closed,
        Fenced,
        Ended,
        Welcome,
        Refuse,
        Open,
        Close,
        Leave,
        Drain,
        Owners,
    )
}


@cache
def _converter() -> cattrs.Converter:
    # By the first message, so that importing this module stays cheap.
    return cattrs.Converter()


def encode(message: Message) -> bytes:
    """One line, newline included."""
    document = {"type": type(message).__name__.lower(), **_converter().unstructure(message)}
    return json.dumps(document, separators=(",", ":")).encode() + b"\n"


class OwnersLines:
    """What hosts are sent of owners: each line is encoded once for all of them, and only if one needs it."""

    def __init__(
        self,
        known: Callable[[], Mapping[int, str]],
        changes: Mapping[int, str],
        absences: Callable[[], Mapping[int, str]] = dict,
    ) -> None:
        """``known``: the URLs of all owners. ``changes``: of those that are new; empty of who lost it.
        ``absences``: of all that stay closed, why."""
        self._known = known
        self._changes = changes
        self._find_absences = absences

    def of(self, version: int, *, is_new: bool) -> Sequence[bytes]:
        """For a host that speaks ``version``. ``is_new``: it was sent no owners yet."""
        if not is_new and not self._changes:
            return ()
        if version < _PARTS_SINCE:
            return (self._in_one,)
        return self._all if is_new else self._news

    @cached_property
    def _in_one(self) -> bytes:
        return encode(Owners(self._known()))

    @cached_property
    def _all(self) -> Sequence[bytes]:
        first, *others = _parts(self._known()) or [{}]
        return [
            encode(Owners(first)),
            *(encode(Owners(part, True)) for part in others),
            *_absence_lines(self._absences),
        ]

    @cached_property
    def _news(self) -> Sequence[bytes]:
        absences = {index: why for index, why in self._absences.items() if index in self._changes}
        return [*(encode(Owners(part, True)) for part in _parts(self._changes)), *_absence_lines(absences)]

    @cached_property
    def _absences(self) -> Mapping[int, str]:
        return self._find_absences()


def _parts(texts: Mapping[int, str], size: int = OWNERS_MAX) -> list[dict[int, str]]:
    items = list(texts.items())
    return [dict(items[begin : begin + size]) for begin in range(0, len(items), size)]


def _absence_lines(absences: Mapping[int, str]) -> list[bytes]:
    cut = {index: why[:ABSENCE_MAX] for index, why in absences.items()}
    return [encode(Owners({}, True, part)) for part in _parts(cut, ABSENCES_MAX)]


def decode(line: bytes) -> Message:
    """The message of one line. Raises ``ProtocolError``."""
    try:
        document = _DECODER.decode(line.decode("utf-8", "surrogatepass"))
        kind = _TYPES[document["type"]]
        # Members that this version does not know are ignored: a host of a later build may send them.
        message: Message = _converter().structure(document, kind)
    except (ValueError, TypeError, KeyError, RecursionError, cattrs.BaseValidationError) as error:
        raise ProtocolError(f"malformed message on a control connection: {line[:200]!r}") from error

    return message


def _whole(text: str) -> int:
    number = int(text)
    if abs(number) > COUNT_MAX:
        raise ValueError(f"{number} does not fit into 64 bits")
    return number


def _finite(text: str) -> float:
    # JSON may name what is no number, and infinity.
    number = float(text)
    if not math.isfinite(number):
        raise ValueError(f"{text} is no number")
    return number


_DECODER = json.JSONDecoder(parse_int=_whole, parse_float=_finite, parse_constant=_finite)


def agreed_version(hello: Hello, oldest: int = OLDEST, newest: int = VERSION) -> int:
    """The version that the host and a supervisor with this range speak. Raises ``ProtocolError`` if they
    share none."""
    found = min(newest, max(hello.version, hello.newest))
    if found < max(oldest, hello.version):
        raise ProtocolError(
            f"the host speaks the control protocol from version {hello.version} to "
            f"{max(hello.version, hello.newest)}, the supervisor from {oldest} to {newest}: upgrade the "
            f"older one, by one release at a time"
        )
    return found


class Lines:
    """Splits received bytes into messages, whose lines have ``limit`` bytes at most."""

    def __init__(self, limit: int = LINE_BYTES_MAX) -> None:
        self.limit = limit
        self._rest = bytearray()

    def feed(self, data: bytes) -> list[Message]:
        """Return the messages that ``data`` completes. Raises ``ProtocolError``."""
        self._rest += data
        # Most pieces of a long line have no line feed, and splitting the whole for each would be quadratic.
        *lines, rest = bytes(self._rest).split(b"\n") if b"\n" in data else (bytes(self._rest),)
        self._rest = bytearray(rest)
        # The bound comes before JSON, which takes several times the memory of its text.
        if len(rest) > self.limit or any(len(line) > self.limit for line in lines):
            raise ProtocolError(f"a line of more than {self.limit} bytes on a control connection")

        return [decode(line) for line in lines]
