"""``ObjectCoordination``: records and leases as objects with conditional puts, for processes on any machine
(rules D1 to D5).

Crash: a put without a verdict takes effect at any later time, or never. A record's put then still has its
condition, and a lease's shows by its id whose it is. State in memory is what this object saw of other
holders' leases, and of its own.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import NamedTuple

import anyio
import attrs

from ...storage_backends.base.errors import (
    DataCorruption,
    InvalidArgument,
    NotOwner,
    StoreMismatch,
    Unsupported,
)
from ...storage_backends.base.object_store import ObjectStore
from ...storage_backends.base.values import Value
from ...storage_backends.base.world import World
from ..log.s3_calls import RepeatedCalls, RequestCounts
from .contract import RECORD_BYTES_MAX, Coordination, Lease, LeaseHeld, Record
from .lease_record import (
    DURATION_MAX,
    HOLDER_BYTES_MAX,
    LeaseRecord,
    decode_lease,
    encode_lease,
    lease_name,
)

OBSERVED = 1.25
"""How many of its durations a lease must stay unchanged before it counts as ended: clocks that run at
different rates are of no consequence up to this (rule D3)."""


@attrs.frozen(kw_only=True, eq=False, repr=False)
class ObjectCoordinationOptions(Value):
    """Times in seconds."""

    patience: float = 30.0
    """How long a request without a verdict is repeated."""
    first_delay: float = 0.02
    longest_delay: float = 1.0


class Moment(NamedTuple):
    """A time by both clocks of a machine, in seconds."""

    monotonic: float
    """It may have stood still while the machine was suspended."""
    wall: float

    def elapsed(self, now: Moment) -> float:
        """Seconds until ``now``, by the clock that shows more of them."""
        return max(now.monotonic - self.monotonic, now.wall - self.wall)


@attrs.frozen
class _Seen:
    """Another holder's lease."""

    record: Record
    """Whole: one that was removed and put again (D4) may have the same version."""
    since: float
    duration_ms: int


class ObjectCoordination(Coordination):
    """``prefix`` ends with a slash, or is empty. ``objects`` is open, and stays open."""

    def __init__(
        self,
        objects: ObjectStore,
        prefix: str,
        world: World,
        options: ObjectCoordinationOptions | None = None,
    ) -> None:
        options = options or ObjectCoordinationOptions()
        delays = (options.first_delay, options.longest_delay)
        self._calls = RepeatedCalls(objects, world, options.patience, delays)
        self._prefix = prefix
        self._world = world
        self._seen: dict[str, _Seen] = {}

    def place(self, name: str) -> str:
        return self._calls.place(self._prefix + name)

    async def load(self, name: str) -> Record | None:
        found = await self._calls.get(self._prefix + name, RECORD_BYTES_MAX)
        if found is None:
            return None
        return Record(found.data if found.length <= RECORD_BYTES_MAX else b"", found.version)

    async def compare_and_set(self, name: str, data: bytes, version: str = "") -> str | None:
        if not 1 <= len(data) <= RECORD_BYTES_MAX:
            raise InvalidArgument(f"a record has 1 to {RECORD_BYTES_MAX} bytes, not {len(data)}")
        if not version:
            if await self.load(name) is not None:
                return None
            await self.try_conditions()
        # D1: what is there with the same bytes is this record, whoever has put it.
        put = await self._calls.put(self._prefix + name, [data], version=version, proof=RECORD_BYTES_MAX)
        return put.version or None

    async def try_conditions(self) -> None:
        """D2: raises ``Unsupported`` if the service ignores a condition."""
        key = f"{self._prefix}trial"
        made = await self._calls.put(key, [self._world.id_bytes()])
        version = made.version
        if not version:
            # Another process's, or of one that ended here.
            if made.found is None:
                return
            version = made.found.version
        else:
            await self._refused(key, "")
        replaced = await self._calls.put(key, [self._world.id_bytes()], version=version)
        if replaced.version:
            await self._refused(key, version)

    async def _refused(self, key: str, version: str) -> None:
        if (await self._calls.put(key, [self._world.id_bytes()], version=version)).version:
            raise Unsupported(
                f"{self._calls.place(key)} was overwritten although the request had a condition: the service "
                f"has no conditional puts, and a store in a bucket needs them"
            )

    @property
    def requests(self) -> RequestCounts:
        return self._calls.counts

    def now(self) -> Moment:
        return Moment(anyio.current_time(), self._world.wall_clock())

    def new_id(self) -> bytes:
        return self._world.id_bytes()

    # --- leases ----------------------------------------------------------------------------------

    async def take_lease(self, name: str, holder: str, duration: float) -> Lease:
        if not 0 < duration <= DURATION_MAX or len(holder.encode()) > HOLDER_BYTES_MAX:
            raise InvalidArgument(
                f"a lease lasts up to {DURATION_MAX:g} s, not {duration:g}, and its holder's name has up to "
                f"{HOLDER_BYTES_MAX} bytes"
            )
        record = LeaseRecord(
            True, self._world.id_bytes(), self._world.id_bytes(), round(duration * 1000), holder
        )
        record_name = lease_name(name)
        while True:
            found = await self.load(record_name)
            if found is not None:
                try:
                    lease = decode_lease(found.data, self.place(record_name))
                except DataCorruption:
                    # D3: its holder puts it again when it renews it. Only an earlier look tells its duration.
                    known = self._seen[name].duration_ms if name in self._seen else 0
                    lease = attrs.evolve(
                        record,
                        duration_ms=max(record.duration_ms, known),
                        holder="a process that the damaged record does not name",
                    )
                self._check_ended(name, found, lease)
            # D4: from before the put on, because others may see it as soon as it is sent.
            begun = self.now()
            version = await self.compare_and_set(
                record_name, encode_lease(record), found.version if found else ""
            )
            if version is not None:
                self._seen.pop(name, None)
                return _ObjectLease(self, record_name, record, version, begun)

    def _check_ended(self, name: str, found: Record, lease: LeaseRecord) -> None:
        """D3: raises ``LeaseHeld`` unless it was released, or unchanged for long enough."""
        if not lease.held:
            return
        now, seen = self.now().monotonic, self._seen.get(name)
        is_renewed = seen is not None and seen.record != found
        if seen is None or is_renewed:
            seen = self._seen[name] = _Seen(found, now, lease.duration_ms)
        duration = lease.duration_ms / 1000
        if now < seen.since + OBSERVED * duration:
            raise LeaseHeld(
                f"{self.place(lease_name(name))} is held by {lease.holder}",
                lease.holder,
                duration,
                is_renewed=is_renewed,
            )


class _ObjectLease(Lease):
    def __init__(
        self,
        coordination: ObjectCoordination,
        name: str,
        record: LeaseRecord,
        version: str,
        begun: Moment,
    ) -> None:
        self._coordination = coordination
        self._name = name
        self._record = record
        self._version = version
        self._begun = begun
        """When the put that last succeeded began."""
        self._ended = False
        self._turn = anyio.Lock()

    def is_held(self) -> bool:
        return not self._ended and self._begun.elapsed(self._coordination.now()) < (
            self._record.duration_ms / 1000
        )

    async def renew(self, confirm: Callable[[], Awaitable[None]] | None = None) -> None:
        async with self._turn:
            if self._ended:
                raise NotOwner(f"the lease {self._coordination.place(self._name)} was released")
            begun = self._coordination.now()
            await self._replace(held=True, confirm=confirm)
            self._begun = begun

    async def release(self) -> None:
        async with self._turn:
            if self._ended:
                return
            self._ended = True
            try:
                await self._replace(held=False)
            except (NotOwner, DataCorruption):
                return  # It has ended already, or a damaged record ends it (D3).

    async def _replace(self, *, held: bool, confirm: Callable[[], Awaitable[None]] | None = None) -> None:
        coordination, record, expected = self._coordination, self._record, self._version
        while True:
            data = encode_lease(attrs.evolve(record, held=held, put_id=coordination.new_id()))
            version = await coordination.compare_and_set(self._name, data, expected)
            if version is not None:
                self._version = version
                return
            # D4: an earlier put of this holder without a verdict may have taken effect.
            found = await coordination.load(self._name)
            now: LeaseRecord | None = None
            try:
                now = decode_lease(found.data, coordination.place(self._name)) if found else None
            except (DataCorruption, StoreMismatch) as error:
                if confirm is None or isinstance(error, StoreMismatch):
                    self._ended = True
                    raise
            if now is None and confirm is not None:
                # D4: who takes it meanwhile changes the record, and this put is refused.
                await confirm()
                expected = found.version if found else ""
                continue
            if found is None or now is None or now.lease_id != record.lease_id or not now.held:
                self._ended = True
                raise NotOwner(
                    f"the lease {coordination.place(self._name)} is not this process's any more"
                    + (f": {now.holder} has it" if now is not None and now.held else "")
                )
            self._version = expected = found.version
