"""What stands between a client and a host, and knows a session: it strips the upgrade, swallows it, passes it
and nothing more, or loses, doubles, exchanges and damages frames.

A checksum that TCP or TLS has does not protect from these: they take whole frames apart, and put others
together."""

from __future__ import annotations

import struct
from collections.abc import Callable
from random import Random

from tierlog.actors.gateway.wire.session import FRAME_HEAD_BYTES, PAYLOAD_BYTES_MAX, PROTOCOL

from .streams import Connection

_HEAD = struct.Struct(">IIIBB")
_END = b"\r\n\r\n"
_WISH = f"Connection: Upgrade\r\nUpgrade: {PROTOCOL}\r\n".encode()
Filter = Callable[[bytes], bytes]


class UpgradeFilter:
    """``head`` sees that of a request for a session, or of its answer, and ``rest`` what follows. Everything
    else passes."""

    def __init__(self, head: Filter, rest: Filter) -> None:
        self._head = head
        self._rest = rest
        self._begun: bytes | None = b""
        self._is_session = False

    def __call__(self, data: bytes) -> bytes:
        if self._begun is None:
            return self._rest(data) if self._is_session else data

        begun = self._begun + data
        head, end, rest = begun.partition(_END)
        if not end:
            self._begun = begun
            return b""

        self._begun = None
        self._is_session = f"upgrade: {PROTOCOL}".encode() in head.lower()
        if not self._is_session:
            return begun
        return self._head(head + end) + (self._rest(rest) if rest else b"")


def nothing(data: bytes) -> bytes:
    return b""


def strip_upgrade(connection: Connection) -> None:
    """A proxy that knows HTTP only."""
    connection.up.pass_on = UpgradeFilter(lambda head: head.replace(_WISH, b""), bytes)


def swallow_upgrade(connection: Connection) -> None:
    """Nobody answers the request for a session."""
    connection.up.pass_on = UpgradeFilter(nothing, nothing)


def pass_upgrade_only(connection: Connection) -> None:
    """A proxy that passes the upgrade and nothing more."""
    connection.up.pass_on = UpgradeFilter(bytes, nothing)
    connection.down.pass_on = UpgradeFilter(bytes, nothing)


def end_after_upgrade(connection: Connection) -> None:
    """One that ends the connection when the first frame comes."""

    def end(data: bytes) -> bytes:
        connection.reset()
        return b""

    connection.up.pass_on = UpgradeFilter(bytes, end)


PROXIES = (strip_upgrade, swallow_upgrade, pass_upgrade_only, end_after_upgrade)


class FrameFault:
    """Meets the frame of that number on its connection, once."""

    KINDS = ("lost", "doubled", "replayed", "exchanged", "damaged")

    def __init__(self, kind: str, number: int, random: Random) -> None:
        self.kind = kind
        self._number = number
        self._random = random
        self._begun = b""
        self._seen = 0
        self._held: list[bytes] = []
        self._replays_at = number + random.randint(1, 3)
        self.shows = False
        """Frames have arrived that show it."""

    def stop(self) -> None:
        """It meets nothing any more, unless it has begun."""
        if self._seen < self._number:
            self._number = 1 << 60

    def __call__(self, data: bytes) -> bytes:
        self._begun += data
        passed: list[bytes] = []
        while len(self._begun) >= FRAME_HEAD_BYTES:
            end = FRAME_HEAD_BYTES + _HEAD.unpack_from(self._begun)[0]
            if len(self._begun) < end:
                break
            frame, self._begun = self._begun[:end], self._begun[end:]
            self._seen += 1
            passed += self._passed(frame)
        return b"".join(passed)

    def _passed(self, frame: bytes) -> list[bytes]:
        number, held = self._seen, self._held
        if number < self._number:
            return [frame]
        if number > self._number and self.kind in ("lost", "exchanged"):
            self.shows, self._held = True, []
            return [frame, *held]
        if self.kind == "replayed":
            # A few frames in a row, again.
            self._held = [*held, frame] if number < self._replays_at else []
            self.shows = self.shows or number == self._replays_at
            return [frame, *held] if number == self._replays_at else [frame]
        if number > self._number:
            return [frame]

        match self.kind:
            case "lost":
                return []
            case "exchanged":
                self._held = [frame]
                return []
            case "doubled":
                self.shows = True
                return [frame, frame]
            case _:
                self.shows = True
                return [self._damaged(frame)]

    def _damaged(self, frame: bytes) -> bytes:
        size, sequence, call, kind, flags = _HEAD.unpack_from(frame)
        heads = (
            (PAYLOAD_BYTES_MAX + self._random.randint(1, 1 << 20), sequence, call, kind, flags),
            (size, sequence ^ (1 << self._random.randrange(32)), call, kind, flags),
            (size, sequence, call, kind | 0x80, flags),
            (size, sequence, call, kind, flags | 1 << self._random.randint(1, 7)),
        )
        return _HEAD.pack(*self._random.choice(heads)) + frame[FRAME_HEAD_BYTES:]


def meddle(connection: Connection, fault: FrameFault, *, upwards: bool) -> None:
    """``fault`` in the frames of one direction."""
    stream = connection.up if upwards else connection.down
    stream.pass_on = UpgradeFilter(bytes, fault)
    stream.shows_fault = lambda: fault.shows
