"""The loader: looks up the cold segments that requests wait for, and has the pipeline load them (rule M4).

Owns: lookups, their repetition, and the errors of those that fail. Does not own: the order of the requests
(``parked.py``), decisions (the pipeline). A lookup is valid if no rows were released after it (rule M9). A
load is logged with all that was read, so replay reads no run.

Cancellation: the requests that wait are answered by the pipeline's end. Crash: a load is in the log, or
nothing has happened."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Sequence
from itertools import chain
from typing import TYPE_CHECKING

import anyio
import anyio.lowlevel
from msgspec import Struct

from ...journal.log.contract import DurableDataLog
from ...journal.operations.load_segment import LoadSegment
from ...storage_backends.base.errors import TierlogError, Unavailable
from .cold_segments import ColdSegments, Lookup, checked, without_image
from .parked import ATTEMPTS_MAX, Parked, ParkedRequests
from .segment_rows import image_key, name_key, sid_of_row
from .segments import NotLoaded
from .state import ContainerState

if TYPE_CHECKING:
    from .statistics import LoaderStatistics

_BATCH = 256
_LOADED_BYTES_MAX = 4 << 20
"""Of the images that one lookup loads: the others wait for the next one."""
_CHECKED_IN_STEP = 16


class Resumed(Struct, frozen=True):
    """What the pipeline does after a lookup."""

    loads: list[LoadSegment]
    known: dict[str | int, bool]
    """Which of the names and ids there are."""
    ready: list[Parked]
    failed: list[tuple[Parked, TierlogError]]
    records_to: int = 0
    """That of the runs that were looked up."""


class Loader:
    def __init__(
        self, state: ContainerState, log: DurableDataLog, cold: ColdSegments, parked: ParkedRequests
    ) -> None:
        self._state = state
        self._log = log
        self._cold = cold
        self.parked = parked
        self._wake = anyio.Event()
        self._loaded = self._lookups = 0
        self._lookup_seconds = 0.0

    def wake(self) -> None:
        """Requests wait that need a lookup."""
        self._wake.set()

    async def run(
        self, resume: Callable[[Resumed], Iterator[None]], wait_for_room: Callable[[], Awaitable[None]]
    ) -> None:
        """Look up what is needed, until cancelled. ``wait_for_room()`` returns when loads may be logged."""
        while True:
            self._wake = anyio.Event()
            while wanted := self.parked.wanted(_BATCH):
                await wait_for_room()
                begin = anyio.current_time()
                for _ in resume(await self._look_up(wanted)):
                    await anyio.lowlevel.checkpoint()
                self._lookups += 1
                self._lookup_seconds += anyio.current_time() - begin
            await self._wake.wait()

    async def _look_up(self, wanted: Sequence[Parked]) -> Resumed:
        missing = [parked.missing for parked in wanted if parked.missing is not None]
        try:
            lookup = await self._cold.look_up(
                dict.fromkeys(each.name for each in missing if each.name and not each.rows),
                dict.fromkeys(each.sid for each in missing if each.sid),
                dict.fromkeys(chain.from_iterable(each.rows for each in missing)),
            )
            await _check(lookup)
        except TierlogError as error:
            if len(wanted) == 1:
                return Resumed([], {}, [], [(wanted[0], error)])
            # One that cannot be read keeps no other one waiting.
            return await self._look_up(wanted[:1])

        return self._decide(wanted, lookup)

    def _decide(self, wanted: Sequence[Parked], lookup: Lookup) -> Resumed:
        """What the lookup means now, in the step in which the pipeline resumes."""
        resumed = Resumed([], {}, [], [], lookup.records_to)
        loads: set[int] = set()
        size = 0
        for parked in wanted:
            assert parked.missing is not None
            if parked.missing.rows:
                # They hold: what changes them waits behind the request.
                parked.rows = {**parked.rows, **{key: lookup.rows.get(key) for key in parked.missing.rows}}
                resumed.ready.append(parked)
                continue
            if size >= _LOADED_BYTES_MAX:
                break
            settled, sid = self._settle(parked.missing, lookup, resumed)
            if sid is not None and sid not in loads:
                load = lookup.loads[sid]
                assert load is not None
                # A full disk lets deletes pass: the images that they need leave the reserve file to them.
                if not self._log.has_reserve(size + len(load.image)):
                    resumed.failed.append((parked, self._log.room_error()))
                    continue
                loads.add(sid)
                resumed.loads.append(load)
                size += len(load.image)
            if settled:
                resumed.ready.append(parked)
                continue

            parked.attempts += 1
            if parked.attempts >= ATTEMPTS_MAX:
                resumed.failed.append((parked, self._failure(parked.missing, lookup)))
        self._loaded += len(resumed.loads)
        return resumed

    def _settle(self, missing: NotLoaded, lookup: Lookup, resumed: Resumed) -> tuple[bool, int | None]:
        """Whether the request can be decided, False if the lookup must be repeated; and which segment must
        be loaded before."""
        segments, table = self._state.segments, self._state.table
        key = name_key(missing.name) if missing.name else image_key(missing.sid)
        row = table.find_in_memory(key)
        is_in_memory = missing.sid in segments or segments.in_memory(missing.name) is not None
        if is_in_memory or (row is not None and row.value is None):
            return True, None  # loaded or created, or deleted, since
        if table.runs.records_to != lookup.records_to:
            return False, None

        sid = missing.sid or (lookup.sids[missing.name] if row is None else sid_of_row(row))
        is_there = sid is not None and lookup.loads.get(sid) is not None
        resumed.known[missing.name or missing.sid] = is_there
        if sid is None or (missing.sid and not is_there):
            return True, None
        return is_there, sid if is_there and missing.needs_image else None

    def _failure(self, missing: NotLoaded, lookup: Lookup) -> TierlogError:
        """Why the last attempt failed: see ``_settle``."""
        sid = lookup.sids.get(missing.name)
        if sid is not None and self._state.table.runs.records_to == lookup.records_to:
            return without_image(missing.name, sid)
        return Unavailable("runs were published during each attempt to load a segment: try again")

    def statistics(self) -> LoaderStatistics:
        from .statistics import LoaderStatistics

        return LoaderStatistics(
            self._loaded, self._lookups, self._lookup_seconds, len(self.parked), self.parked.size
        )


async def _check(lookup: Lookup) -> None:
    """That all that was found can be loaded: later, in the log, it would end the container. Raises
    ``DataCorruption``."""
    names = {sid: name for name, sid in lookup.sids.items() if sid is not None}
    for number, (sid, load) in enumerate(lookup.loads.items(), 1):
        if load is not None:
            checked(sid, load, names.get(sid, ""))
        if number % _CHECKED_IN_STEP == 0:
            await anyio.lowlevel.checkpoint()
