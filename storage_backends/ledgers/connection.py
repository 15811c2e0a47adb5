"""``SidecarConnection``: requests to one sidecar and its replies, many at a time.

A request is written at once as far as the socket takes it, and the rest by ``write_all``. Appends and reads
take room in the sidecar's heap until they are replied to; those that find none wait in their order, and hold
up no other request (rule B12). Cancellation of a call gives its reply up; what is not written yet is copied,
because the caller may use its buffers again. The end of the connection fails every call: a change with
``OutcomeUnknown``.
"""

from __future__ import annotations

import socket
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress

import anyio
import anyio.lowlevel
import attrs

from ..base.checksum import Buffer
from ..base.codec import DecodeError, Decoder
from ..base.errors import OutcomeUnknown, TierlogError, Unavailable
from .wire import (
    CHANGES,
    HANDLE_BYTES,
    HELLO,
    OPENINGS,
    REPLY_HEAD,
    Operation,
    Status,
    check_hello,
    encode_request,
    failure_of,
    reply_size,
)

_READ_BYTES = 256 << 10
_JOIN_BYTES_MAX = 64 << 10
"""Up to this size a request is joined into one buffer: a copy costs less than more buffers do."""
_BUFFERS_MAX = 512
"""Of one system call: Linux takes 1,024."""


@attrs.define(eq=False, repr=False)
class _Call:
    operation: Operation
    since: float
    ended: anyio.Event = attrs.field(factory=anyio.Event)
    result: bytes = b""
    error: Exception | None = None
    is_given_up: bool = False
    """Whether its reply is dropped."""
    taken: int = 0
    """Bytes of room."""

    @property
    def is_pending(self) -> bool:
        return not self.ended.is_set()


@attrs.define(eq=False, repr=False)
class _Room:
    """For the bytes of one operation's requests, or replies."""

    size: int
    taken: int = 0
    waiting: dict[int, Sequence[Buffer]] = attrs.field(factory=dict)
    """Requests that found none, by number, in order."""
    freed: float = 0.0
    """When some of it became free last."""


class SidecarConnection:
    """``patience``: seconds after which a sidecar that does not reply counts as stopped. ``room``: bytes of
    appends that it has at most, and of reads."""

    def __init__(self, link: socket.socket, patience: float, room: int) -> None:
        link.setblocking(False)
        self._link = link
        self._patience = patience
        self._rooms = {Operation.APPEND: _Room(room), Operation.READ: _Room(room)}
        self._calls: dict[int, _Call] = {}
        self._number = 0
        self._unwritten: deque[memoryview] = deque()
        self._wake = anyio.Event()
        self._end: str | None = None
        """Why it has ended."""
        self.requests = 0
        self.lost: dict[bytes, Callable[[], None]] = {}
        """Called at the end, by the handle of the ledger that is lost."""

    @property
    def has_ended(self) -> bool:
        return self._end is not None

    def refusal(self) -> Unavailable:
        """Of any call after its end."""
        return Unavailable(self._end or "the sidecar for BookKeeper has not ended")

    # --- calls -----------------------------------------------------------------------------------

    def begin(self, operation: Operation, *arguments: Buffer, taking: int = 0) -> int:
        """Send a request; returns its number, for ``outcome``. Requests of an operation are read in this
        order. ``taking``: the bytes that it takes at most, of an append or a read."""
        if self._end is not None:
            raise self.refusal()
        self._number = number = (self._number + 1) & 0xFFFF_FFFF
        self.requests += 1
        self._calls[number] = call = _Call(operation, anyio.current_time())
        size = sum(map(len, arguments))
        request: Sequence[Buffer] = (encode_request(number, operation, size), *arguments)
        if size <= _JOIN_BYTES_MAX:
            request = (b"".join(request),)
        room = self._rooms.get(operation)
        if room is None:
            self._send(request)
        else:
            # B12: one that is larger than the room goes when it is alone.
            call.taken = min(taking, room.size)
            room.waiting[number] = request
            self._fill(room)
        return number

    def _fill(self, room: _Room) -> None:
        """B12: send what waits for room and finds it, in order."""
        while room.waiting and self._end is None:
            number = next(iter(room.waiting))
            call = self._calls[number]
            if room.taken + call.taken > room.size:
                return
            room.taken += call.taken
            call.since = anyio.current_time()
            self._send(room.waiting.pop(number))

    async def outcome(self, number: int) -> Decoder:
        """The result of a request, once."""
        call = self._calls[number]
        try:
            await call.ended.wait()
        except BaseException:
            self.give_up(number)
            raise
        if not call.is_given_up:
            del self._calls[number]
        if call.error is not None:
            raise call.error
        return Decoder(call.result)

    def give_up(self, number: int) -> None:
        """Drop the reply of a request whose outcome nobody will ask for."""
        call = self._calls.get(number)
        if call is None:
            return
        if call.ended.is_set() and not call.is_given_up:
            self._forget(number)
            return
        call.is_given_up = True
        room = self._rooms.get(call.operation)
        if room is not None and number in room.waiting:
            self._give_up_waiting(room, number)
        else:
            self._unwritten = deque(memoryview(bytes(each)) for each in self._unwritten)

    def _give_up_waiting(self, room: _Room, number: int) -> None:
        if self._calls[number].operation in CHANGES:
            # It is sent all the same: entries of this ledger behind it may wait already.
            room.waiting[number] = (b"".join(room.waiting[number]),)
        else:
            del room.waiting[number], self._calls[number]
            self._fill(room)

    def _forget(self, number: int) -> None:
        """A reply that nobody wants. A ledger's handle in it is let go of."""
        call = self._calls.pop(number)
        if call.operation in OPENINGS and call.result and self._end is None:
            self._calls[self.begin(Operation.DROP_LEDGER, call.result[:HANDLE_BYTES])].is_given_up = True

    async def call(self, operation: Operation, *arguments: Buffer, taking: int = 0) -> Decoder:
        return await self.outcome(self.begin(operation, *arguments, taking=taking))

    # --- writing ---------------------------------------------------------------------------------

    def _send(self, buffers: Sequence[Buffer]) -> None:
        is_idle = not self._unwritten
        self._unwritten.extend(memoryview(each) for each in buffers if len(each))
        if is_idle:
            self._write()
            if self._unwritten:
                self._wake.set()

    def _write(self) -> None:
        """As much as the socket takes."""
        waiting = self._unwritten
        while waiting:
            try:
                written = self._link.sendmsg([waiting[at] for at in range(min(len(waiting), _BUFFERS_MAX))])
            except (BlockingIOError, InterruptedError):
                return
            except OSError:
                # The reader finds the end, and says what the sidecar said.
                waiting.clear()
                return
            while written:
                first = waiting[0]
                if len(first) > written:
                    waiting[0] = first[written:]
                    break
                written -= len(first)
                waiting.popleft()

    async def write_all(self) -> None:
        """Write what the socket did not take at once, until cancelled."""
        while True:
            while self._unwritten:
                await anyio.wait_writable(self._link)
                self._write()
            self._wake = anyio.Event()
            await self._wake.wait()

    # --- reading ---------------------------------------------------------------------------------

    async def greet(self) -> None:
        """Raises ``Unavailable`` if the other end is no sidecar of this version."""
        self._send((HELLO,))
        hello = b""
        while len(hello) < len(HELLO):
            data = await self._receive(len(HELLO) - len(hello))
            if not data:
                raise Unavailable("the sidecar ended at its start")
            hello += data
        check_hello(hello)

    async def read_all(self) -> None:
        """Read replies until the sidecar ends. Raises ``DecodeError`` for anything else."""
        data = bytearray()
        while received := await self._receive(_READ_BYTES):
            data += received
            done = self._take_replies(data)
            del data[:done]
            await anyio.lowlevel.checkpoint()

    async def _receive(self, size: int) -> bytes:
        """Some bytes; none at the end. Waits only if there are none yet."""
        while True:
            try:
                return self._link.recv(size)
            except (BlockingIOError, InterruptedError):
                await anyio.wait_readable(self._link)
            except OSError:
                return b""

    def _take_replies(self, data: bytearray) -> int:
        """The bytes of the whole replies that ``data`` begins with."""
        at = 0
        while at + REPLY_HEAD.size <= len(data):
            length, number, status = REPLY_HEAD.unpack_from(data, at)
            end = at + REPLY_HEAD.size + reply_size(length)
            if end > len(data):
                break
            self._finish(number, status, bytes(memoryview(data)[at + REPLY_HEAD.size : end]))
            at = end
        return at

    def _finish(self, number: int, status: int, result: bytes) -> None:
        call = self._calls.get(number)
        if call is None:
            raise DecodeError(f"a reply to request {number}, which nobody made")
        if status == Status.OK:
            call.result = result
        else:
            call.error = failure_of(status, result.decode(errors="replace"))
        call.ended.set()
        if call.is_given_up:
            self._forget(number)
        room = self._rooms.get(call.operation)
        if room is not None:
            room.taken -= call.taken
            room.freed = anyio.current_time()
            self._fill(room)

    # --- its end ---------------------------------------------------------------------------------

    async def watch_clock(self, stop: Callable[[], None]) -> None:
        """Fail calls without a reply, and call ``stop`` if the sidecar itself does not reply."""
        while True:
            await anyio.sleep(self._patience / 4)
            now = anyio.current_time()
            self._note_progress()
            pending = {number: each for number, each in self._calls.items() if each.is_pending}
            for number, call in pending.items():
                if call.since < now - self._patience:
                    call.is_given_up = True
                    self._fail(call, f"the sidecar for BookKeeper has not replied for {self._patience:g} s")
                    room = self._rooms.get(call.operation)
                    if room is not None and number in room.waiting:
                        # B12: whoever reads again must not wait for what nobody wants any more.
                        self._give_up_waiting(room, number)
            if any(call.since < now - self._patience / 4 for call in pending.values()):
                # The services behind it may be the reason, which is no reason to break what goes on.
                with anyio.move_on_after(self._patience) as scope, suppress(TierlogError):
                    await self.call(Operation.SESSION)
                if scope.cancelled_caught:
                    stop()
                    return

    def _note_progress(self) -> None:
        """B12: what waits for room, in a long queue perhaps, has not been asked of the sidecar yet. It is
        late only if no room becomes free."""
        for room in self._rooms.values():
            for number in room.waiting:
                call = self._calls[number]
                call.since = max(call.since, room.freed)

    @staticmethod
    def _fail(call: _Call, why: str) -> None:
        kind: type[TierlogError] = OutcomeUnknown if call.operation in CHANGES else Unavailable
        call.error = kind(why)
        call.ended.set()

    def shut_down(self) -> None:
        """Let the sidecar know that this is its end."""
        with suppress(OSError):
            self._link.shutdown(socket.SHUT_RDWR)

    def end(self, why: str) -> None:
        """Fail every call, now and later."""
        if self._end is not None:
            return
        self._end = why
        self._unwritten.clear()
        for room in self._rooms.values():
            room.waiting.clear()
        self._link.close()
        for call in self._calls.values():
            if not call.ended.is_set():
                self._fail(call, why)
        lost, self.lost = self.lost, {}
        for act in lost.values():
            act()
