"""``SidecarService``: the ledgers and records of BookKeeper and ZooKeeper, through a process beside this one.

The sidecar is started when it is first needed, and again when it has ended. A ledger belongs to the sidecar
that opened it: the sidecar's end, however it comes, breaks every ledger that was open, and a new opening
recovers (rule B11). ``run`` is the only task that must live as long as the service.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress

import anyio
import anyio.abc
import attrs

from ..base.checksum import Buffer
from ..base.codec import DecodeError, Decoder, Encoder
from ..base.errors import ClosedError, InvalidArgument, OutcomeUnknown, TierlogError, Unavailable
from ..base.ledger_service import (
    ENTRY_BYTES_MAX,
    MISSING,
    READ_ENTRIES_MAX,
    RECORD_BYTES_MAX,
    AppendLost,
    Ledger,
    LedgerDescription,
    LedgerLost,
    LedgerService,
    Quorum,
    Session,
    SidecarNotStarted,
    StoredRecord,
)
from ..base.values import Value
from .connection import SidecarConnection
from .process import Complaint, SidecarProgram, started
from .server_names import require_known
from .wire import HANDLE_BYTES, Operation, Refused, put_map, take_description, text

_PATIENCE_MIN, _SESSIONS_MIN = 30.0, 3.0
"""For how many seconds, and sessions, a reply is waited for at least."""
_START_SECONDS = 60.0
_BRIEF_SECONDS = 5.0
"""One that ended sooner is followed only when another one is needed: it may end again."""
_LAST_LINES_SECONDS = 1.0
_FIRST_PAUSE, _LONGEST_PAUSE = 0.5, 10.0
"""Seconds between a start that failed and the next one. Many may ask meanwhile."""
_ENTRY_BYTES_MAX = ENTRY_BYTES_MAX + 1024
"""With what callers put before the payload."""
_CLOSED = "the connection to BookKeeper is closed"


@attrs.frozen(kw_only=True, eq=False, repr=False)
class SidecarOptions(Value):
    """Times in seconds."""

    servers: str
    """ZooKeeper's addresses: ``host:port``, with commas between them."""
    root: str = "/ledgers"
    """The path at which the BookKeeper cluster has its metadata."""
    session_timeout: float = 10.0


class SidecarService(LedgerService):
    def __init__(self, program: SidecarProgram, options: SidecarOptions) -> None:
        self._program = program
        self._options = options
        self._tasks: anyio.abc.TaskGroup | None = None
        self._begun, self._closing = anyio.Event(), anyio.Event()
        self._attempt: _Attempt | None = None
        """The start that is under way."""
        self._connection: SidecarConnection | None = None
        self._requests_before = 0
        """Of sidecars that have ended."""
        self._failure: TierlogError | None = None
        """Of the last start."""
        self._pause = self._paused_until = 0.0

    # --- its life --------------------------------------------------------------------------------

    async def run(self, *, task_status: anyio.abc.TaskStatus[None] = anyio.TASK_STATUS_IGNORED) -> None:
        """Until ``close`` or cancellation, which end the sidecar."""
        async with anyio.create_task_group() as self._tasks:
            self._begun.set()
            task_status.started()
            await self._closing.wait()
            self._tasks.cancel_scope.cancel()

    def close(self) -> None:
        """Let ``run`` end. Whatever is under way fails."""
        self._closing.set()

    @property
    def requests(self) -> int:
        """Requests to the sidecar so far."""
        return self._requests_before + (self._connection.requests if self._connection else 0)

    async def connected(self) -> SidecarConnection:
        """The present connection; starts a sidecar if there is none. Raises ``Unavailable`` if it cannot
        reach its services."""
        connection = self._connection
        if connection is not None and not connection.has_ended:
            return connection
        await self._begun.wait()
        if self._attempt is None:
            self._attempt = self._begin_attempt()
        attempt = self._attempt
        await attempt.ended.wait()
        return attempt.connection()

    def _begin_attempt(self) -> _Attempt:
        """B11: raises the error of the last start again until its pause is over: a sidecar costs seconds of
        processor time, and whoever is refused may ask again at once."""
        assert self._tasks is not None
        if self._closing.is_set():
            raise ClosedError(_CLOSED)
        if self._failure is not None and anyio.current_time() < self._paused_until:
            raise self._failure.with_traceback(None)
        self._requests_before = self.requests
        self._connection = None
        attempt = _Attempt()
        self._tasks.start_soon(self._try, attempt)
        return attempt

    async def _try(self, attempt: _Attempt) -> None:
        """B11: all callers wait for one start, and it goes on when one of them gives up: calls may have less
        time than a start takes."""
        assert self._tasks is not None
        try:
            self._connection = attempt.result = await self._tasks.start(self._serve_on)
        except TierlogError as error:
            self._failure = attempt.result = error
            self._pause = min(2 * self._pause, _LONGEST_PAUSE) or _FIRST_PAUSE
            self._paused_until = anyio.current_time() + self._pause
        else:
            self._failure, self._pause = None, 0.0
        finally:
            self._attempt = None
            attempt.ended.set()

    async def _serve_on(self, *, task_status: anyio.abc.TaskStatus[SidecarConnection]) -> None:
        """B11: a sidecar, and once it has ended the start of another one, which takes a second: the next call
        may be a failover."""
        begun = anyio.current_time()
        await self._serve(task_status=task_status)
        is_brief = anyio.current_time() < begun + _BRIEF_SECONDS
        if not is_brief and self._attempt is None and not self._closing.is_set():
            # A start for a call has failed meanwhile: this one had lost its socket, and not ended yet.
            with suppress(TierlogError):
                self._attempt = self._begin_attempt()

    async def _serve(self, *, task_status: anyio.abc.TaskStatus[SidecarConnection]) -> None:
        """B11: one sidecar, from its start to its end. Raises only before it has started."""
        patience = max(_PATIENCE_MIN, _SESSIONS_MIN * self._options.session_timeout)
        complaint = Complaint()
        start = _Start(task_status)
        await require_known(self._options.servers)
        why = "this process stopped it"
        async with started(self._program) as (process, link):
            connection = SidecarConnection(link, patience, self._program.room_bytes)
            try:
                async with anyio.create_task_group() as tasks:
                    assert process.stdout is not None
                    tasks.start_soon(complaint.read, process.stdout)
                    tasks.start_soon(connection.write_all)
                    tasks.start_soon(self._introduce, connection, start, tasks, process)
                    why = await _read(connection)
                    # Its last lines may come after its end was seen; this ends it if it has not ended yet.
                    connection.shut_down()
                    with anyio.move_on_after(_LAST_LINES_SECONDS):
                        await complaint.is_complete.wait()
                    tasks.cancel_scope.cancel()
            finally:
                connection.end(f"the sidecar for BookKeeper has ended ({why}){complaint}")
            start.require(connection)

    async def _introduce(
        self,
        connection: SidecarConnection,
        start: _Start,
        tasks: anyio.abc.TaskGroup,
        process: anyio.abc.Process,
    ) -> None:
        options = self._options
        asked = Encoder().blob(text(options.servers)).blob(text(options.root))
        asked.u32(int(options.session_timeout * 1000))
        try:
            with anyio.fail_after(_START_SECONDS):
                await connection.call(Operation.CONNECT, asked.finish())
        except TimeoutError:
            start.failure = Unavailable(f"the sidecar for BookKeeper did not start in {_START_SECONDS:g} s")
            tasks.cancel_scope.cancel()
        except TierlogError as error:
            start.failure = error
            tasks.cancel_scope.cancel()
        else:
            start.succeed(connection)
            tasks.start_soon(connection.watch_clock, process.kill)

    # --- calls -----------------------------------------------------------------------------------

    async def _call(self, operation: Operation, *arguments: Buffer) -> Decoder:
        connection = await self.connected()
        return await connection.call(operation, *arguments)

    def place(self, path: str) -> str:
        return f"zookeeper://{self._options.servers}{path}"

    async def count_bookies(self) -> int:
        return (await self._call(Operation.COUNT_BOOKIES)).u32()

    async def create_ledger(self, quorum: Quorum, metadata: Mapping[str, bytes]) -> Ledger:
        connection = await self.connected()
        asked = Encoder()
        for number in quorum:
            asked.u32(number)
        made = await connection.call(Operation.CREATE_LEDGER, put_map(asked, metadata).finish())
        handle, ledger = made.u32(), made.i64()
        return SidecarLedger(connection, handle, ledger, LedgerDescription(-1, 0, False, metadata))

    async def open_ledger(self, ledger: int, *, recover: bool) -> Ledger:
        connection = await self.connected()
        found = await connection.call(Operation.OPEN_LEDGER, Encoder().i64(ledger).u8(recover).finish())
        return SidecarLedger(connection, found.u32(), ledger, take_description(found))

    async def delete_ledger(self, ledger: int) -> None:
        await self._call(Operation.DELETE_LEDGER, Encoder().i64(ledger).finish())

    async def list_ledgers(self, after: int, count: int) -> list[int]:
        found = await self._call(Operation.LIST_LEDGERS, Encoder().i64(after).u32(count).finish())
        return [found.i64() for _ in range(found.u32())]

    async def describe_ledger(self, ledger: int) -> LedgerDescription:
        return take_description(await self._call(Operation.DESCRIBE_LEDGER, Encoder().i64(ledger).finish()))

    async def load(self, path: str) -> StoredRecord | None:
        try:
            found = await self._call(Operation.LOAD, Encoder().blob(text(path)).finish())
        except Refused:
            return None
        version = found.i64()
        return StoredRecord(found.blob(), version)

    async def create(self, path: str, data: bytes) -> StoredRecord | None:
        asked = Encoder().blob(text(path)).blob(_record_data(data))
        try:
            made = await self._call(Operation.CREATE, asked.finish())
        except Refused:
            return None
        return StoredRecord(data, made.i64())

    async def replace(self, path: str, data: bytes, version: int) -> int | None:
        asked = Encoder().blob(text(path)).blob(_record_data(data)).i64(_condition(version))
        try:
            return (await self._call(Operation.REPLACE, asked.finish())).i64()
        except Refused:
            return None

    async def remove(self, path: str, version: int) -> bool:
        asked = Encoder().blob(text(path)).i64(_condition(version))
        return await self._holds(Operation.REMOVE, asked)

    async def check(self, path: str, version: int) -> bool:
        asked = Encoder().blob(text(path)).i64(_condition(version))
        return await self._holds(Operation.CHECK, asked)

    async def _holds(self, operation: Operation, asked: Encoder) -> bool:
        try:
            await self._call(operation, asked.finish())
        except Refused:
            return False
        return True

    async def children(self, path: str) -> list[str]:
        try:
            found = await self._call(Operation.CHILDREN, Encoder().blob(text(path)).finish())
        except Refused:
            return []
        return [found.blob().decode() for _ in range(found.u32())]

    async def session(self) -> Session:
        found = await self._call(Operation.SESSION)
        return Session(found.i64(), found.u32() / 1000)


@attrs.define(eq=False)
class _Attempt:
    """One start, for all that wait for it."""

    ended: anyio.Event = attrs.field(factory=anyio.Event)
    result: SidecarConnection | TierlogError | None = None
    """None if its service was closed meanwhile."""

    def connection(self) -> SidecarConnection:
        if self.result is None:
            raise ClosedError(_CLOSED)
        if isinstance(self.result, TierlogError):
            raise self.result.with_traceback(None)
        return self.result


class _Start:
    """Whether a sidecar has started, or why not."""

    def __init__(self, task_status: anyio.abc.TaskStatus[SidecarConnection]) -> None:
        self._task_status = task_status
        self._succeeded = False
        self.failure: TierlogError | None = None

    def succeed(self, connection: SidecarConnection) -> None:
        self._succeeded = True
        self._task_status.started(connection)

    def require(self, connection: SidecarConnection) -> None:
        if not self._succeeded:
            raise self.failure or SidecarNotStarted(str(connection.refusal()))


async def _read(connection: SidecarConnection) -> str:
    """Replies, until the sidecar ends; returns why it did."""
    try:
        await connection.greet()
        await connection.read_all()
    except (DecodeError, Unavailable) as error:
        return str(error)
    return "it closed its socket"


class SidecarLedger(Ledger):
    def __init__(
        self, connection: SidecarConnection, handle: int, ledger: int, description: LedgerDescription
    ) -> None:
        self.id = ledger
        self.description = description
        self._connection = connection
        self._handle = handle.to_bytes(HANDLE_BYTES, "big")
        self._failed = False
        self._length = description.length if description.is_closed else None
        """Bytes of its entries, where this process knows them."""

    async def append(self, entries: Sequence[Sequence[Buffer]]) -> int:
        if self._connection.has_ended:
            raise AppendLost(f"ledger {self.id}: {self._connection.refusal()}")
        if self._failed:
            raise OutcomeUnknown(f"an append to ledger {self.id} before this one failed")
        # All at once, before the first wait: the sidecar adds in the order of its requests.
        numbers = [self._begin_append(buffers) for buffers in entries]
        try:
            results = [await self._connection.outcome(number) for number in numbers]
        except BaseException as error:
            self._failed = True
            for number in numbers:
                self._connection.give_up(number)
            if isinstance(error, OutcomeUnknown) and self._connection.has_ended:
                raise AppendLost(str(error)) from error
            raise
        return results[0].i64()

    def _begin_append(self, buffers: Sequence[Buffer]) -> int:
        size = sum(map(len, buffers))
        return self._connection.begin(Operation.APPEND, self._handle, *buffers, taking=size)

    async def read(self, first: int, last: int, *, unconfirmed: bool = False) -> list[bytes]:
        if not 0 <= first <= last < first + READ_ENTRIES_MAX:
            raise InvalidArgument(
                f"entries {first} to {last}: at most {READ_ENTRIES_MAX} can be read at once"
            )
        asked = Encoder().raw(self._handle).i64(first).i64(last).u8(unconfirmed)
        most = (last - first + 1) * _ENTRY_BYTES_MAX
        taking = most if self._length is None else min(most, self._length)
        try:
            found = await self._connection.call(Operation.READ, asked.finish(), taking=taking)
        except (Unavailable, OutcomeUnknown) as error:
            if self._connection.has_ended:
                raise LedgerLost(f"ledger {self.id}: {error}") from error
            raise
        return [found.blob() for _ in range(found.u32())]

    async def close(self) -> None:
        await self._connection.call(Operation.CLOSE_LEDGER, self._handle)

    def when_lost(self, act: Callable[[], None]) -> None:
        if self._connection.has_ended:
            act()
        else:
            self._connection.lost[self._handle] = act

    def drop(self) -> None:
        self._connection.lost.pop(self._handle, None)
        # A sidecar that has ended has let go of everything.
        if not self._connection.has_ended:
            self._connection.give_up(self._connection.begin(Operation.DROP_LEDGER, self._handle))


def _record_data(data: bytes) -> bytes:
    if len(data) > RECORD_BYTES_MAX:
        raise InvalidArgument(f"a record has at most {RECORD_BYTES_MAX} bytes, not {len(data)}")
    return data


def _condition(version: int) -> int:
    # ZooKeeper takes -1 for any version.
    if version <= MISSING:
        raise InvalidArgument(f"no record has version {version}")
    return version
