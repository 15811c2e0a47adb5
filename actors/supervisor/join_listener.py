"""The supervisor's side of joining: the TCP port on which hosts of other machines connect, and the record
that tells them of it (rules V11 and V12).

The record is put before the first host can join, again whenever the set of joined hosts changes, and never
over one with a higher term. Crash: it is as before or as after (rule D1); hosts of a supervisor that is gone
find its successor's in its place. Cancellation leaves a put that is under way to the bucket.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Awaitable, Callable, Collection

import anyio
import anyio.abc
import attrs

from ...journal.coordination.contract import CONTROL, Coordination
from ...storage_backends.base.errors import OutcomeUnknown, StorageFull, Unavailable, Unsupported
from ..telemetry.logging import get_logger
from .control.channel import Connection, accept_each
from .control.messages import Unanswered
from .control.record import ControlRecord, decode_control, encode_control
from .term import superseded

_log = get_logger("supervisor")
_RETRY_SECONDS = 1.0
"""The pause after a record that could not be put."""
UNPROVEN_MAX = 64
"""Connections at a time that have not proven themselves."""
_WARNING_SECONDS = 60.0
"""Between two warnings about connections without a proof."""


async def joined_before(coordination: Coordination, store: str) -> tuple[str, ...]:
    """The hosts that had joined the last supervisor of the store with this id in hexadecimal."""
    found = await coordination.load(CONTROL)
    if found is None:
        return ()
    record = decode_control(found.data, coordination.place(CONTROL))
    return record.hosts if record.is_of(store) else ()


class JoinListener:
    def __init__(
        self,
        coordination: Coordination,
        listener: anyio.abc.Listener[anyio.abc.SocketStream],
        record: ControlRecord,
        new_id: Callable[[], bytes],
    ) -> None:
        """``record``: what is put first; its hosts are those that are awaited. ``new_id`` returns 16 bytes
        that it never returned before, for nonces and put ids."""
        self._coordination = coordination
        self._listener = listener
        self._record = record
        self._new_id = new_id
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
        """Keep the record up to date. Raises ``NotOwner`` if there is one with a higher term."""
        while True:
            # Before it is put: what changes meanwhile is put next.
            self._changed = anyio.Event()
            try:
                await self._put(self._record)
            except (Unavailable, OutcomeUnknown, StorageFull, Unsupported) as error:
                _log.warning("control_record_not_put", reason=str(error))
                await anyio.sleep(_RETRY_SECONDS)
                continue
            self.published.set()
            await self._changed.wait()

    async def _put(self, record: ControlRecord) -> None:
        # D1: a late put of an earlier attempt is not taken for this one, nor carried out after it: equal
        # bytes would have the same version.
        data = encode_control(attrs.evolve(record, put_id=self._new_id()))
        while True:
            found = await self._coordination.load(CONTROL)
            if found is not None:
                other = decode_control(found.data, self._coordination.place(CONTROL))
                # V1: never over a later supervisor's. What was in the store's place before has other terms.
                if other.is_of(record.store_id.hex()) and other.term > record.term:
                    raise superseded(record.term, other.term)
            if await self._coordination.compare_and_set(CONTROL, data, found.version if found else ""):
                _log.info("control_record_put", address=record.address, port=record.port, hosts=record.hosts)
                return
