"""The pins of a container: what backups keep of it (rules P1 to P6).

Owns: pins in the chain of this container, the tables that they keep, and what garbage must not be deleted
because of them. Does not own: the order of a backup over all containers (``base/backups.py``), the record's
format (``journal/manifest/pin_record.py``).

A pin is *fresh* until its record is known to exist: the call that makes a backup is under way. A pin that is
neither fresh nor known to have a record is resolved: with a record it is kept, without one it is dropped.

Cancellation and crash: a pin without a record is resolved by this owner after ``FRESH_SECONDS``, or after
``SILENT_SECONDS`` if another call needs its name or its room, or by the next one. Until then it keeps what it
needs."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Sequence
from functools import partial
from typing import TYPE_CHECKING

import anyio
from msgspec import Struct
from msgspec.structs import replace

from ...journal.manifest.chain import StoredElement, read_element
from ...journal.manifest.element import PINS_MAX, Element, Pin, Position, Progress
from ...journal.manifest.pin_record import (
    encode_pin_record,
    list_pins,
    old_manifest_name,
    pin_of,
    pin_record_name,
    read_pin_record,
    read_pinned,
)
from ...storage_backends.base.backups import Backup, BackupStep, StepAnswer, StepKind, check_backup_name
from ...storage_backends.base.errors import (
    CLAIM_REFUSED,
    BackupExists,
    BackupIncomplete,
    ChunkExists,
    ChunkNotFound,
    InvalidArgument,
    StorageFull,
    Throttled,
    TierlogError,
)
from ...storage_backends.segments.records import chunk_key
from ...storage_backends.segments.records.chunk import CHUNK_PREFIX
from ...storage_backends.sorted_runs.lookup import find_rows
from ...storage_backends.sorted_runs.run_list import RunList
from ...storage_backends.sorted_runs.table import Table
from ..telemetry.logging import get_logger

if TYPE_CHECKING:
    from .container import Container
    from .statistics import PinStatistics

_log = get_logger("container")
FRESH_SECONDS = 900.0
"""Seconds after which a backup that is not complete is given up."""
FRESH_MAX = 8
"""The most calls under way: so those whose clients are gone leave room for other backups."""
SILENT_SECONDS = 60.0
"""Seconds without a step after which a call is given up for another one."""
_RETRY_SECONDS = 60.0


class _Fresh(Struct, frozen=True, eq=False):
    token: str
    """Identifies the call that makes the backup."""
    element: StoredElement
    deadline: float
    heard: float
    """When the call took its last step."""

    @property
    def is_silent(self) -> bool:
        return anyio.current_time() - self.heard >= SILENT_SECONDS


class Pins:
    def __init__(self, container: Container, ended: Callable[[], None]) -> None:
        """``ended()`` is called when a pin has ended: what only it kept is garbage from then on."""
        self._container = container
        self._ended = ended
        self._chunks = container.chunks
        self._ownership = container.ownership
        self._state = container.state
        self._runs: dict[Pin, RunList] = {}
        """What each pin keeps; of those that are not here yet the record must be read first."""
        self._times: dict[Pin, int] = {}
        """When those whose record is known to exist were made."""
        self._noted: frozenset[Pin] = frozenset()
        """Those that were known when the pins were looked at last: one that is gone since has ended."""
        self._fresh: dict[str, _Fresh] = {}
        self._making: str | None = None
        """The backup whose pin is being made."""
        self._lock, self._pinning = anyio.Lock(), anyio.Lock()
        self._wake = anyio.Event()
        self._has_failed = False

    @property
    def known(self) -> tuple[Pin, ...]:
        return self._state.manifest.pins

    # --- the steps of a backup -------------------------------------------------------------------

    async def pin(self, name: str, token: str) -> StoredElement:
        """Flush, and pin what is complete then: everything acked before the call. Returns the element that
        lists the pin, once it counts. With the same ``token`` it is the same one.

        Raises ``BackupExists`` also if another call makes it, ``InvalidArgument`` if there is no room for one
        more, ``Throttled`` if too many are being made, the errors of a flush, ``StorageFull``."""
        check_backup_name(name)
        async with self._pinning:
            if (fresh := self._fresh.get(name)) is not None:
                if fresh.token == token:
                    self._fresh[name] = replace(fresh, heard=anyio.current_time())
                    return fresh.element
                if not fresh.is_silent:
                    raise BackupExists(
                        f"another call is making backup {name!r}: wait for it, or use another name; if its "
                        f"client is gone, try again in a minute"
                    )
                await self._give_up(name)

            await self._check_new(name)
            await self._make_room()
            self._making = name
            try:
                await self.publish_all()
                element = await self._ownership.change_pins(partial(self._with_pin, name))
                # P1: until the record is there, which is made of it.
                self._ownership.spared_elements.add(element.n)
                now = anyio.current_time()
                self._fresh[name] = _Fresh(token, element, now + FRESH_SECONDS, now)
            finally:
                self._making = None
                self._note()
                self._wake.set()
            return element

    async def _make_room(self) -> None:
        """A call whose client seems to be gone makes room (rule P5). Raises ``Throttled``."""
        if len(self._fresh) < FRESH_MAX and len(self.known) < PINS_MAX:
            return

        silent = [name for name, fresh in self._fresh.items() if fresh.is_silent]
        if silent:
            await self._give_up(min(silent, key=lambda name: self._fresh[name].heard))
        elif len(self._fresh) >= FRESH_MAX:
            raise Throttled(
                f"{len(self._fresh)} backups are being made at once: try again when one of them is complete, "
                f"or in a minute, if their clients are gone"
            )

    async def _give_up(self, name: str) -> None:
        _log.warning("backup_given_up", container=self._container.index, backup=name)
        await self.drop(name)

    async def publish_all(self) -> None:
        """Flush, so that the runs that count have everything up to now (rule F10). What they name is there:
        nothing is deleted before runs without it count (rule G6)."""
        await self._container.flush()
        if self._container.table_runs.lacks_room:
            raise StorageFull(
                "long-term storage has no room for the tables of all that was acked: nothing was done; free "
                "some and try again"
            )

    async def _check_new(self, name: str) -> None:
        for object_name in (pin_record_name(name), old_manifest_name(name)):
            if await self._chunks.exists(object_name):
                raise _exists(name)

    def _with_pin(self, name: str, pins: Sequence[Pin], progress: Progress) -> Sequence[Pin]:
        # Those of this name have no record: they are left of a backup that was given up.
        others = [pin for pin in pins if pin.name != name]
        if len(others) >= PINS_MAX:
            raise InvalidArgument(
                f"there are {len(others)} backups, those that are being made included, and room for "
                f"{PINS_MAX}: remove one with `tierlog backup rm`"
            )
        pin = Pin(name, progress.cycle)
        # In this step, so that nothing of it is ever unprotected (rule P4).
        self._runs[pin] = self._state.manifest.runs
        return [*others, pin]

    async def put_record(self, name: str, positions: Sequence[Position]) -> None:
        """Create the record of the backup from the elements that ``pin`` returned, of each container. Raises
        ``BackupExists`` if there is another one, ``BackupIncomplete`` if an element is gone."""
        check_backup_name(name)
        identity = self._ownership.identity
        if len(positions) != identity.containers:
            raise _given_up(name, len(positions))
        elements: list[StoredElement] = []
        for container, position in enumerate(positions):
            try:
                element = await read_element(self._chunks, container, position.n)
            except ChunkNotFound:
                raise _given_up(name, container) from None
            if element.position != position or pin_of(name, element) not in element.element.pins:
                raise _given_up(name, container)
            elements.append(element)
        parts = encode_pin_record(name, identity.store, elements)
        await self._ownership.prove()
        try:
            await self._chunks.create_with_content(pin_record_name(name), parts)
        except ChunkExists:
            data = b"".join(parts)
            if await self._chunks.read(pin_record_name(name), 0, len(data) + 1) != data:
                raise _exists(name) from None

    async def keep(self, name: str) -> None:
        """Return if the container keeps what the record of the backup has of it, and will go on to (rule P3).
        Raises ``BackupIncomplete`` if it does not: the backup was given up meanwhile."""
        async with self._lock:
            found = await self._find(name)
            if found is None or pin_of(name, found) not in self.known:
                raise _given_up(name, self._container.index)
            self._settle(pin_of(name, found), found.element)
            self._end_fresh(name)

    async def remove_record(self, name: str) -> bool:
        """Remove the record; returns whether there was one. The containers drop their pins afterwards."""
        await self._ownership.prove()
        try:
            await self._chunks.delete(pin_record_name(check_backup_name(name)))
        except ChunkNotFound:
            return False
        return True

    async def drop(self, name: str, token: str = "") -> bool:
        """Drop the pins of that name which have no record; returns whether there was any. With a ``token``
        not the one that another call has made: the one that failed has no part in it (rule P3)."""
        async with self._lock:
            fresh = self._fresh.get(name)
            if token and fresh is not None and fresh.token != token:
                return False

            self._end_fresh(name)
            for pin in self.known:
                if pin.name == name:
                    self._times.pop(pin, None)
            try:
                return await self._resolve(name)
            finally:
                self._wake.set()  # ``run`` goes on with what did not come to its end

    async def act(self, step: BackupStep) -> StepAnswer:
        """Take one step of ``make_backup`` or ``remove_backup``."""
        match step.kind:
            case StepKind.PIN:
                return StepAnswer((await self.pin(step.name, step.token)).position)
            case StepKind.PUT:
                await self.put_record(step.name, [Position(*each) for each in step.positions])
            case StepKind.KEEP:
                await self.keep(step.name)
            case StepKind.REMOVE:
                return StepAnswer(found=await self.remove_record(step.name))
            case StepKind.DROP:
                return StepAnswer(found=await self.drop(step.name, step.token))
        return StepAnswer()

    # --- resolution ------------------------------------------------------------------------------

    def _settle(self, pin: Pin, element: Element) -> None:
        self._runs[pin] = element.runs
        self._times[pin] = element.time_ms

    def _end_fresh(self, name: str) -> None:
        if (fresh := self._fresh.pop(name, None)) is not None:
            self._ownership.spared_elements.discard(fresh.element.n)
            self._wake.set()

    async def _find(self, name: str) -> StoredElement | None:
        """What the record has of this container; None if there is no record. Raises ``DataCorruption``."""
        try:
            record = await read_pin_record(self._chunks, name)
            return await read_pinned(self._chunks, record, self._container.index)
        except ChunkNotFound:
            return None

    async def _resolve(self, name: str) -> bool:
        """Keep the pin that the record of that name was made for, and drop the others. Returns whether any
        was dropped."""
        # First: of a mount that is missing, no record can be read either.
        await self._ownership.prove()
        self._note()
        found = await self._find(name)
        kept = None if found is None else pin_of(name, found)
        if found is not None and kept in self.known:
            self._settle(pin_of(name, found), found.element)
        dropped = [pin for pin in self.known if pin.name == name and pin != kept and name != self._making]
        if not dropped:
            return False

        await self._ownership.change_pins(
            lambda pins, progress: [pin for pin in pins if pin not in dropped or name == self._making]
        )
        self._note()
        return True

    def _note(self) -> None:
        """Look at which pins there are. One may also end later than it was dropped: if the outcome of its
        element was unknown, or with another one of its name."""
        known = frozenset(self.known)
        gone, self._noted = self._noted - known, known
        for pin in gone:
            self._times.pop(pin, None)
            self._runs.pop(pin, None)
        if gone:
            self._ended()

    def _unresolved(self) -> list[str]:
        """The names of pins that are neither fresh nor known to have a record."""
        names = (pin.name for pin in self.known if pin not in self._times)
        return [name for name in dict.fromkeys(names) if name not in self._fresh and name != self._making]

    async def run(self) -> None:
        """Resolve pins until cancelled."""
        while True:
            self._wake = anyio.Event()
            self._note()
            now = anyio.current_time()
            for name in [name for name, fresh in self._fresh.items() if fresh.deadline <= now]:
                _log.warning("backup_given_up", container=self._container.index, backup=name)
                self._end_fresh(name)
            pause = min((fresh.deadline for fresh in self._fresh.values()), default=math.inf) - now
            try:
                for name in self._unresolved():
                    async with self._lock:
                        await self._resolve(name)
                self._has_failed = False
            except CLAIM_REFUSED:
                raise
            except TierlogError as error:
                if not self._has_failed:  # once until it succeeds (rule S7)
                    _log.warning("pins_unresolved", container=self._container.index, error=str(error))
                self._has_failed = True
                pause = _RETRY_SECONDS
            with anyio.move_on_after(pause):
                await self._wake.wait()

    # --- garbage ---------------------------------------------------------------------------------

    async def among(self, chunks: Collection[str], runs: Collection[str]) -> set[str]:
        """Which of these chunks and runs a pin needs, or may need that is being made (rule P4). Raises
        ``Unavailable``, ``DataCorruption`` if that cannot be read now."""
        kept = await self._kept()
        manifest = self._state.manifest
        if self._making is not None:
            # P4: the pin will have the runs that count when it is recorded.
            kept += [manifest.runs, manifest.intended_runs]
        return await self._needed(kept, chunks, runs)

    async def kept_among(self, chunks: Collection[str], runs: Collection[str]) -> set[str]:
        """Which of them a pin needs at whose end ``ended()`` is called. Raises as ``among``."""
        self._note()
        return await self._needed(await self._kept(), chunks, runs)

    async def _needed(
        self, kept: Iterable[RunList], chunks: Collection[str], runs: Collection[str]
    ) -> set[str]:
        found: set[str] = set()
        for run_list in kept:
            found.update(run.name for run in run_list if run.name in runs)
            with Table(run_list).view() as view:
                rows = await find_rows(view, self._container.runs, _keys(chunks))
            found.update(_chunk_of(key) for key, row in rows.items() if row.value is not None)
        return found

    async def _kept(self) -> list[RunList]:
        if unresolved := [pin for pin in self.known if pin not in self._runs]:
            async with self._lock:
                for pin in unresolved:
                    if pin not in self._runs and pin in self.known:
                        await self._resolve(pin.name)
        return [self._runs[pin] for pin in self.known if pin in self._runs]

    def statistics(self) -> PinStatistics:
        from .statistics import PinStatistics

        times = [self._times[pin] for pin in self.known if pin in self._times]
        age = (self._container.world.time_ms() - min(times)) / 1000 if times else 0.0
        return PinStatistics(len(self.known), max(0.0, age))


def _chunk_of(key: bytes) -> str:
    return key.decode().removeprefix(CHUNK_PREFIX)


def _keys(chunks: Iterable[str]) -> list[bytes]:
    return [chunk_key(name).encode() for name in chunks]


def _exists(name: str) -> BackupExists:
    return BackupExists(f"there is already a backup {name!r}: choose another name, or remove it")


def _given_up(name: str, container: int) -> BackupIncomplete:
    return BackupIncomplete(
        f"backup {name!r} was given up: container {container} was opened by another owner meanwhile, or it "
        f"took too long; make it again"
    )


async def list_backups(container: Container) -> list[Backup]:
    """The backups in long-term storage, of all containers."""
    return await container.as_owner(list_pins(container.chunks))
