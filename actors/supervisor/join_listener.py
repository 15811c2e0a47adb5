"""The supervisor's side of joining: the TCP port on which hosts of other machines connect, and the record
that tells them of it (rules V11 and V12).

The record is put before the first host can join, again whenever the set of joined hosts changes or it is
found lost, and never over one with a higher term. Crash: it is as before or as after (rule D1); hosts of a
supervisor that is gone find its successor's in its place. Cancellation leaves a put that is under way to the
bucket.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Awaitable, Callable, Collection

import anyio
import anyio.abc
import attrs

from ...journal.coordination.contract import CONTROL, Coordination, Record
from ...storage_backends.base.errors import (
    DataCorruption,
    OutcomeUnknown,
    StorageFull,
    StoreMismatch,
    Unavailable,
    Unsupported,
)
from ..telemetry.logging import get_logger
from .control.channel import Connection, accept_each
from .control.messages import Unanswered
from .control.record import ControlRecord, decode_control, encode_control
from .term import Predecessor, Term, superseded

_log = get_logger("supervisor")
_RETRY_SECONDS = 1.0
"""The pause after a record that could not be put."""
_LOOK_CHECKS = 3
"""How many checks of the term pass between two looks at the record: a request each time."""
UNPROVEN_MAX = 64
"""Connections at a time that have not proven themselves."""
_WARNING_SECONDS = 60.0
"""Between two warnings about connections without a proof."""


async def find_predecessor(coordination: Coordination, store: str) -> Predecessor:
    """The last supervisor of the store with this id in hexadecimal."""
    found = await coordination.load(CONTROL)
    if found is None:
        return Predecessor()
    try:
        record = decode_control(found.data, coordination.place(CONTROL))
    except DataCorruption as error:
        # V12: it is made anew. Its hosts come by themselves.
        _log.warning("control_record_lost", reason=str(error))
        return Predecessor()
    return Predecessor(record.term, record.hosts) if record.is_of(store) else Predecessor()


class JoinListener:
    def __init__(
        self,
        coordination: Coordination,
        listener: anyio.abc.Listener[anyio.abc.SocketStream],
        record: ControlRecord,
        new_id: Callable[[], bytes],
        term: Term,
    ) -> None:
        """``record``: what is put first; its hosts are those that are awaited. ``new_id`` returns 16 bytes
        that it never returned before, for nonces and put ids."""
        self._term = term
        self._coordination = coordination
        self._listener = listener
        self._record = record
        self._new_id = new_id
        self._newest = b""
        """The record as it was put last."""
        self._changed = anyio.Event()
        self.published = anyio.Event()
        """Set when the record is there: hosts find this supervisor."""
        self._unproven: dict[Connection, str] = {}
        """The addresses of those without a proof, the oldest first."""
        self._warned = -math.inf
        self._ended = 0
        """Connections that ended without a proof since the last warning."""

    async def serve(self, talk: Callable[[anyio.abc.SocketStream], Awaitable[None]]) -> None:
        """Accept connections, and ``talk`` on each of them: ``prove`` comes first."""
        await accept_each(self._listener, talk)

    async def prove(self, connection: Connection) -> bool:
        """As ``Connection.prove``, but returns False too if there is no proof in time."""
        if len(self._unproven) >= UNPROVEN_MAX:
            self._make_room()
        self._unproven[connection] = connection.address
        try:
            return await connection.prove(self._record.secret, self._new_id().hex())
        except Unanswered as error:
            self._warn(connection.address, str(error))
            return False
        finally:
            self._unproven.pop(connection, None)

    def _make_room(self) -> None:
        """V12: who holds connections without a proof keeps no host out, which proves itself at once."""
        counts = Counter(self._unproven.values())
        most = max(counts.values())
        # The first one found is the oldest.
        connection = next(each for each, address in self._unproven.items() if counts[address] == most)
        address = self._unproven.pop(connection)
        connection.abort()
        self._warn(address, f"more than {UNPROVEN_MAX} connections at a time have no proof")

    def _warn(self, address: str, reason: str) -> None:
        self._ended += 1
        now = anyio.current_time()
        # One for each connection would fill the log.
        if now - self._warned >= _WARNING_SECONDS:
            _log.warning("connections_not_proven", count=self._ended, address=address, reason=reason)
            self._warned, self._ended = now, 0

    def note(self, hosts: Collection[str]) -> None:
        """These have joined; the record follows."""
        names = tuple(sorted(hosts))
        if names != self._record.hosts:
            self._record = attrs.evolve(self._record, hosts=names)
            self._changed.set()

    async def publish(self) -> None:
        """Keep the record there, and up to date. Raises ``NotOwner`` if there is one with a higher term."""
        known: ControlRecord | None = None
        while True:
            # Before it is put: what changes meanwhile is put next.
            self._changed, record = anyio.Event(), self._record
            try:
                await self._keep(record, is_new=record is not known)
            except (Unavailable, OutcomeUnknown, StorageFull, Unsupported) as error:
                _log.warning("control_record_not_put", reason=str(error))
                await anyio.sleep(_RETRY_SECONDS)
                continue
            known = record
            self.published.set()
            with anyio.move_on_after(_LOOK_CHECKS * self._term.interval):
                await self._changed.wait()

    async def _keep(self, record: ControlRecord, *, is_new: bool) -> None:
        # D1: a late put of an earlier attempt is not taken for this one, nor carried out after it: equal
        # bytes would have the same version.
        data = encode_control(attrs.evolve(record, put_id=self._new_id()))
        while True:
            found = await self._coordination.load(CONTROL)
            if found is not None and found.data == self._newest and not is_new:
                return
            try:
                lost = self._why_lost(found, record)
            except StoreMismatch as error:
                # V12: a newer supervisor has raised the term before, and the check raises `NotOwner`.
                await self._term.check()
                lost = f"no supervisor that has taken over has put it: {error}"
            if lost and self.published.is_set():
                # V12: not in the place of a store that was removed, nor while another may be active.
                await self._term.confirm()
                _log.warning("control_record_lost", reason=lost)
            if await self._coordination.compare_and_set(CONTROL, data, found.version if found else ""):
                _log.info("control_record_put", address=record.address, port=record.port, hosts=record.hosts)
                self._newest = data
                return

    def _why_lost(self, found: Record | None, record: ControlRecord) -> str:
        """Why what was found is none that this supervisor has put; empty if it is. Raises ``NotOwner`` if it
        is a later one's, ``StoreMismatch`` if it has a newer format."""
        place = self._coordination.place(CONTROL)
        if found is None:
            return f"{place} is missing"
        try:
            other = decode_control(found.data, place)
        except DataCorruption as error:
            return str(error)
        if not other.is_of(record.store_id.hex()):
            return f"{place} is of another store"
        # V1: never over a later supervisor's.
        if other.term > record.term:
            raise superseded(record.term, other.term)
        return f"{place} is of the term {other.term}" if other.term < record.term else ""
