"""Sessions: one connection that carries many calls at once (rules N1 to N3), as frames. No I/O.

::

    frame   = payload size: u32 | sequence number: u32 | call: u32 | kind: u8 | flags: u8 | payload
    REQUEST = body size: u32 | window: u32 | head size: u32 | head | the body's begin
    ANSWER  = status: u16 | head size: u32 | head | the body's begin
    BODY    = what follows of a body
    WINDOW  = bytes: u32
    CANCEL  = nothing
    BROKEN  = UTF-8
    END     = the last call that was taken: u32 | UTF-8

Numbers are big-endian. The head of a request is the same as in HTTP: method, target, and names and values of
headers in turn, with a NUL between them; that of an answer has headers only. Names are in lower case. The
frame has the body's size and the session ``Host``: a head has no header that concerns a connection.

Frames of one direction are numbered from 0 on, so a frame that is lost, doubled or out of order is noticed.
Any bytes give frames or ``InvalidArgument``; a frame that is too long is refused when its head is read."""

from __future__ import annotations

import enum
import re
import struct
from collections.abc import Callable, Iterable, Iterator
from itertools import chain
from typing import NamedTuple

from ....storage_backends.base.checksum import Buffer
from ....storage_backends.base.errors import InvalidArgument, TooLarge
from .filled_bytes import FilledBytes

PROTOCOL = "tierlog-session"
"""The name in ``Upgrade``."""
PIECE_BYTES = 256 << 10
"""The most bytes of a body in one frame: what waits behind them waits no longer."""
LARGE_BYTES = 64 << 10
"""Payloads and bodies from this size on are received in memory of their own, and not joined with others."""
_BEGUN_SHARE = 4
"""A payload gets memory of its own once a quarter of it is there: a head alone takes none."""
HEAD_BYTES_MAX = 64 << 10
PAYLOAD_BYTES_MAX = PIECE_BYTES + HEAD_BYTES_MAX + 64
BODY_WINDOW = 1 << 20
"""Bytes of a request's body that may be on their way before the handler takes them (rule N3)."""
HEAD_ROOM = 4096
"""Bytes that are received for the head of a frame whose payload has a place: what comes with it is copied."""
WINDOW_MIN, WINDOW_MAX = 64 << 10, 16 << 20
"""Of an answer. The least one takes every answer for which no memory is admitted (rule H12)."""
CALL_MAX = (1 << 32) - 1
LAST = 1
"""The flag of the frame that ends its body."""

_FRAME = struct.Struct(">IIIBB")
_REQUEST = struct.Struct(">III")
_ANSWER = struct.Struct(">HI")
_NUMBER = struct.Struct(">I")
FRAME_HEAD_BYTES = _FRAME.size
HEADERS_MAX = 256
_HEADS_BYTES_MAX = 32 << 10
"""Memory for decoded heads that are kept: a client chooses what it sends."""
_HEAD_OBJECTS_BYTES, _HEADER_OBJECTS_BYTES = 400, 200
"""What the objects of a head, and of each of its headers, take besides their text."""
_METHOD = re.compile(rb"[A-Z]{1,16}")
_TARGET = re.compile(rb"/[\x21\x22\x24-\x7e]*")
_NAME = re.compile(rb"[a-z0-9!#$%&'*+.^_`|~-]+")
_CONTROL = re.compile(rb"[\x00-\x08\x0a-\x1f\x7f]")
_OF_A_CONNECTION = frozenset(
    {
        b"connection",
        b"content-length",
        b"expect",
        b"host",
        b"keep-alive",
        b"te",
        b"trailer",
        b"transfer-encoding",
        b"upgrade",
    }
)
RawHeaders = tuple[tuple[bytes, bytes], ...]


class Kind(enum.IntEnum):
    REQUEST = 1
    ANSWER = 2
    BODY = 3
    WINDOW = 4
    CANCEL = 5
    BROKEN = 6
    """The answer has begun and will never be complete."""
    END = 7
    """The server takes no calls behind the one that it names."""


_KINDS = frozenset(Kind)


class Frame(NamedTuple):
    call: int
    kind: int
    is_last: bool
    payload: bytes
    placed: int = 0
    """Bytes of the payload that are in the memory that was chosen for them, and not in ``payload``."""


class RequestHead(NamedTuple):
    method: str
    target: bytes
    headers: RawHeaders


class RequestFrame(NamedTuple):
    head: RequestHead
    size: int
    """Bytes of the whole body."""
    window: int
    """Bytes of the answer's body that the client takes."""
    body: Buffer


class AnswerFrame(NamedTuple):
    status: int
    headers: RawHeaders
    body: bytes


class FrameEncoder:
    """The frames of one direction."""

    __slots__ = ("_sequence",)

    def __init__(self) -> None:
        self._sequence = 0

    def frame(self, call: int, kind: Kind, parts: Iterable[Buffer] = (), *, last: bool = False) -> bytes:
        parts = tuple(parts)
        return b"".join((self.head(call, kind, sum(map(len, parts)), last=last), *parts))

    def head(self, call: int, kind: Kind, size: int, *, last: bool = False) -> bytes:
        """The head of the next frame, whose payload of ``size`` bytes follows."""
        sequence, self._sequence = self._sequence, (self._sequence + 1) & 0xFFFFFFFF
        return _FRAME.pack(size, sequence, call, kind, LAST if last else 0)


Place = Callable[[int, int], memoryview | None]
"""``place(call, size)``: memory of that size for what follows of the call's body; None: in the frame."""
_NOTHING = memoryview(b"")
_DROPPED = memoryview(bytearray(PAYLOAD_BYTES_MAX))
"""Where bytes go that nobody reads, of all connections."""


def _nowhere(call: int, size: int) -> None:
    """Bodies come in their frames."""


class FrameDecoder:
    """Frames out of bytes as they come. Holds the begin of one frame and nothing else."""

    __slots__ = ("_begun", "_memory", "_place", "_placing", "_sequence", "rest")

    def __init__(self, place: Place = _nowhere) -> None:
        self._begun = bytearray()
        self._place = place
        self._placing: Frame | None = None
        """The frame whose payload is being placed."""
        self._memory: FilledBytes | None = None
        """Where, if the decoder has made the memory."""
        self._sequence = 0
        self.rest = _NOTHING
        """Memory for the rest of it. What is received there, and not fed, is not copied: see ``placed``."""

    @property
    def held(self) -> int:
        """Bytes of memory for the frame that has begun."""
        if self._memory is not None:
            return len(self._memory.view)

        return len(self._begun) + (0 if self._placing is None else self._placing.placed - len(self.rest))

    @property
    def is_inside(self) -> bool:
        """Whether a frame has begun and is not complete."""
        return bool(self._begun or self.rest)

    def drop_place(self, call: int) -> None:
        """The memory chosen for the call's body is not needed: what still comes of a frame goes nowhere, and
        does not keep all of it."""
        if self._placing is not None and self._memory is None and self._placing.call == call:
            self.rest = _DROPPED[: len(self.rest)]

    def feed(self, data: Buffer) -> Iterator[Frame]:
        """The frames that are complete now. ``data`` may be used again once all are taken."""
        if self._begun:
            self._begun += data
            data, self._begun = self._begun, bytearray()
        end = len(data)
        with memoryview(data) as view:
            position = min(len(self.rest), end)
            if position:
                self.rest[:position] = view[:position]
                yield from self.placed(position)
            while end - position >= FRAME_HEAD_BYTES:
                size, sequence, call, kind, flags = _FRAME.unpack_from(view, position)
                # N1: before the payload arrives, which would be kept in memory.
                if size > PAYLOAD_BYTES_MAX:
                    raise TooLarge(f"a frame has at most {PAYLOAD_BYTES_MAX} bytes, not {size}")
                if sequence != self._sequence:
                    raise InvalidArgument(
                        f"frame {sequence} came where {self._sequence} was due: frames were lost or doubled"
                    )
                if kind not in _KINDS or flags & ~LAST:
                    raise InvalidArgument(f"there is no frame of kind {kind} with the flags {flags}")
                begin = position + FRAME_HEAD_BYTES
                memory = self._place(call, size) if kind == Kind.BODY and size else None
                if memory is None and end - begin < size:
                    if size < LARGE_BYTES or end - begin < size // _BEGUN_SHARE:
                        break

                    self._memory = FilledBytes(size)
                    memory = self._memory.view
                position = min(begin + size, end)
                self._sequence = (sequence + 1) & 0xFFFFFFFF
                if memory is None:
                    yield Frame(call, kind, flags == LAST, bytes(view[begin:position]))
                else:
                    self._placing, self.rest = Frame(call, kind, flags == LAST, b"", size), memory
                    memory[: position - begin] = view[begin:position]
                    yield from self.placed(position - begin)
            if position < end:
                self._begun = bytearray(view[position:])

    def placed(self, size: int) -> tuple[Frame, ...]:
        """``size`` more bytes are in ``rest``. The frame, if that were all."""
        self.rest = self.rest[size:]
        if self.rest or self._placing is None:
            return ()

        frame, self._placing = self._placing, None
        self.rest = _NOTHING  # an empty view, too, would keep the memory from being handed out
        if self._memory is not None:
            memory, self._memory = self._memory, None
            frame = Frame(frame.call, frame.kind, frame.is_last, memory.take())
        return (frame,)


def joined_head(texts: Iterable[str]) -> bytes:
    """Raises ``InvalidArgument`` for a text that would be several ones."""
    texts = list(texts)
    head = "\0".join(texts).encode("latin-1")
    if head.count(b"\0") != len(texts) - 1 or b"\n" in head or b"\r" in head:
        raise InvalidArgument("a header has no control characters")
    return head


def request_parts(head: bytes, size: int, window: int, begin: Buffer) -> tuple[Buffer, ...]:
    return (_REQUEST.pack(size, window, len(head)), head, begin)


def answer_parts(status: int, headers: Iterable[tuple[bytes, bytes]], begin: Buffer) -> tuple[Buffer, ...]:
    head = b"\0".join(chain.from_iterable(headers))
    return (_ANSWER.pack(status, len(head)), head, begin)


def number_parts(number: int, text: str = "") -> tuple[Buffer, ...]:
    return (_NUMBER.pack(number), text.encode())


class HeadCache:
    """Decoded heads of requests: most calls of a client have the same few."""

    __slots__ = ("_bytes", "_known")

    def __init__(self) -> None:
        self._known: dict[bytes, RequestHead] = {}
        self._bytes = 0

    def decode(self, head: bytes) -> RequestHead:
        found = self._known.get(head)
        if found is None:
            found = _request_head(head)
            size = 2 * len(head) + _HEAD_OBJECTS_BYTES + _HEADER_OBJECTS_BYTES * len(found.headers)
            if size <= _HEADS_BYTES_MAX // 8:
                if self._bytes + size > _HEADS_BYTES_MAX:
                    self._known.clear()
                    self._bytes = 0
                self._known[head] = found
                self._bytes += size
        return found


def _request_head(head: bytes) -> RequestHead:
    method, _, rest = head.partition(b"\0")
    target, _, named = rest.partition(b"\0")
    if not _METHOD.fullmatch(method) or not _TARGET.fullmatch(target):
        raise InvalidArgument("the head of a request begins with its method and its target")
    headers = _headers(named)
    if len(headers) > HEADERS_MAX:
        raise TooLarge(f"a call has at most {HEADERS_MAX} headers, not {len(headers)}")
    for name, value in headers:
        if name in _OF_A_CONNECTION or not _NAME.fullmatch(name) or _CONTROL.search(value):
            raise InvalidArgument(f"the header {name[:50]!r} is malformed, or concerns a connection")
    # Blanks around a value are no part of it (RFC 9110, 5.5); where the call is passed on they are no header.
    return RequestHead(method.decode(), target, tuple((name, value.strip(b" \t")) for name, value in headers))


def _headers(head: bytes) -> RawHeaders:
    if not head:
        return ()
    parts = head.split(b"\0")
    if len(parts) % 2:
        raise InvalidArgument("a header has a name and a value")
    return tuple(zip(parts[::2], parts[1::2], strict=True))


def decode_request(payload: bytes, heads: HeadCache) -> RequestFrame:
    size, window, head_size = _unpack(_REQUEST, payload)
    begin = _REQUEST.size + head_size
    if head_size > HEAD_BYTES_MAX or begin > len(payload) or not WINDOW_MIN <= window <= WINDOW_MAX:
        raise InvalidArgument("the head of a request is malformed")
    # A large one is not copied: until it is taken, the payload stays.
    body = payload[begin:] if len(payload) < LARGE_BYTES else memoryview(payload)[begin:]
    if len(body) > size:
        raise InvalidArgument(f"{len(body)} bytes of a body of {size}")
    return RequestFrame(heads.decode(payload[_REQUEST.size : begin]), size, window, body)


def decode_answer(payload: bytes) -> AnswerFrame:
    status, head_size = _unpack(_ANSWER, payload)
    begin = _ANSWER.size + head_size
    if begin > len(payload) or not 200 <= status < 600:
        raise InvalidArgument("the head of an answer is malformed")
    return AnswerFrame(status, _headers(payload[_ANSWER.size : begin]), payload[begin:])


def decode_number(payload: bytes) -> int:
    (number,) = _unpack(_NUMBER, payload)
    return int(number)


def decode_text(payload: bytes) -> str:
    return payload.decode("utf-8", "replace")


def decode_end(payload: bytes) -> tuple[int, str]:
    return decode_number(payload), decode_text(payload[_NUMBER.size :])


def _unpack(form: struct.Struct, payload: bytes) -> tuple[int, ...]:
    if len(payload) < form.size:
        raise InvalidArgument("a frame is shorter than its kind")
    return form.unpack_from(payload)
