"""Readers of long-term storage itself, in seeds of their own: they hold a layout, or a view of long-term
storage, while its owner appends, truncates, deletes, merges, defragments and collects, restarts and fails
over, and then read (rules S21, G2).

For as long as a layout says it is valid, each of its chunks is there and has the segment's bytes. Later a
chunk may be missing, and never has other bytes. A view takes a newer snapshot where an owner has deleted what
its own one names: as long as nothing happens during a read, that has the segment's bytes too.

The readers are no processes of the host: nothing kills or delays them, and no fault of a call meets them.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Mapping
from functools import partial
from random import Random

import anyio.abc
import attrs
import trio

from tierlog.actors.direct_read.windows import windows
from tierlog.actors.store.lts_view import LtsView
from tierlog.journal.manifest.store_record import STORE_RECORD, require_store_record
from tierlog.storage_backends.base.chunk_storage import Capabilities, ChunkInfo
from tierlog.storage_backends.base.errors import (
    BadOffset,
    ChunkNotFound,
    DataCorruption,
    SegmentNotFound,
    SegmentTruncated,
    StoreMismatch,
    TierlogError,
    Unavailable,
)
from tierlog.storage_backends.base.segment_layout import SegmentLayout, StoragePlace
from tierlog.storage_backends.chunks.base import ReadOnlyChunks

from .beside import defrag_later
from .invariants import Broken
from .plan import FaultKind, PlannedFault
from .process import Process
from .run_state import Ending, RunState
from .world import Site

_SECONDS = 60.0
"""That a call to an owner may take."""
_ALL = 1 << 40
_PIECE_BYTES = 1 << 20


@attrs.frozen
class _Range:
    """Bytes of a segment."""

    start: int
    data: bytes

    @property
    def end(self) -> int:
        return self.start + len(self.data)

    def differs(self, other: _Range) -> bool:
        """Whether both have some offset, and other bytes there."""
        first, last = max(self.start, other.start), min(self.end, other.end)
        ours, theirs = (each.data[first - each.start : last - each.start] for each in (self, other))
        return first < last and ours != theirs


class _Objects(ReadOnlyChunks):
    """Long-term storage as it really is. ``pause()``: seconds that a call takes."""

    def __init__(self, site: Site, pause: Callable[[], float]) -> None:
        super().__init__()
        self._site = site
        self._pause = pause

    @property
    def capabilities(self) -> Capabilities:
        return Capabilities(append=False, concat=False)

    def read_now(self, name: str) -> bytes:
        try:
            return self._site.stored_run(name)
        except (KeyError, OSError):
            raise ChunkNotFound(f"there is no chunk {name}", chunk=name) from None

    async def _take_time(self) -> None:
        if seconds := self._pause():
            await trio.sleep(seconds)

    async def _info(self, name: str) -> ChunkInfo:
        await self._take_time()
        return ChunkInfo(name, len(self.read_now(name)))

    async def _read(self, name: str, offset: int, size: int) -> bytes:
        await self._take_time()
        return self.read_now(name)[offset : offset + size]

    async def _list(self, prefix: str, after: str) -> AsyncGenerator[ChunkInfo, None]:
        await self._take_time()
        for name in sorted(self._site.chunk_names()):
            if name.startswith(prefix) and name > after:
                yield ChunkInfo(name, len(self.read_now(name)))

    async def _used_space(self) -> int:
        return sum(len(self.read_now(name)) for name in self._site.chunk_names())


class _Direct:
    """The same for readers without an event loop (``DirectStorage``)."""

    piece_bytes, ahead = _PIECE_BYTES, 0

    def __init__(self, objects: _Objects) -> None:
        self._objects = objects

    def read_into(self, chunk: str, offset: int, target: memoryview) -> int:
        data = self._objects.read_now(chunk)[offset : offset + len(target)]
        target[: len(data)] = data
        return len(data)

    def close(self) -> None:
        pass


class HeldLayouts:
    def __init__(self, run: RunState, tasks: anyio.abc.TaskGroup) -> None:
        """``tasks`` holds the processes."""
        self._run = run
        self._tasks = tasks
        self.acts: Mapping[FaultKind, Callable[[PlannedFault], None]] = {FaultKind.HELD_LAYOUT: self._begin}

    def _begin(self, fault: PlannedFault) -> None:
        process, random = self._run.current, Random(f"fault {fault.chance}")
        name = random.choice(random.choice(self._run.plan.families))
        if process is None or process.frozen:
            return

        hold = self._hold_layout if random.random() < 0.7 else self._hold_view
        parts = [partial(hold, process, name, random)]
        if random.random() < 0.3:
            parts.append(partial(defrag_later, self._run, process, name, random.choice((0.0, 0.3, 1.0))))
        for part in parts:
            self._tasks.start_soon(self._run.site.or_all_end, part)

    # --- layouts ----------------------------------------------------------------------------------

    async def _hold_layout(self, process: Process, name: str, random: Random) -> None:
        asked, start = trio.current_time(), random.choice((0, 0, random.randrange(2000)))
        end = random.choice((_ALL, start + random.randint(1, 2000)))
        self._run.expect_import(name, process.number)
        outcome = await self._run.attempt(
            process,
            f"layout of {name}",
            lambda store: store.segment_layout(name, start, end),
            seconds=_SECONDS,
        )
        layout = outcome.value
        if outcome.ending is not Ending.ANSWERED or not layout.extents:
            return

        until = asked + layout.valid_for
        found = self._read_layout(layout, start, end, until)
        if shown := await self._shown(process, name, layout.segment_id, max(start, layout.start_offset)):
            self._compare(layout, found, shown)
        left = max(0.0, until - trio.current_time())
        # Up to the last moment, at it, or for longer.
        held = random.choice((random.uniform(0.0, left), 0.999 * left, left + random.uniform(0.0, 10.0)))
        await trio.sleep(held)
        again = self._read_layout(layout, start, end, until)
        self._compare(layout, found or shown, again)

    def _read_layout(self, layout: SegmentLayout, start: int, end: int, until: float) -> _Range | None:
        """The bytes that its chunks have now; None if they cannot be read."""
        is_valid = trio.current_time() < until
        first = max(start, layout.start_offset)
        last = min(end, layout.flushed_length, layout.extents[-1].end)
        direct = _Direct(_Objects(self._run.site, lambda: 0.0))
        self._run.counts[f"layouts that were {'valid' if is_valid else 'too old'}"] += 1
        try:
            parts = [bytes(w.buffer[w.begin : w.end]) for w in windows(direct, layout.extents, first, last)]
        except ChunkNotFound as error:
            if is_valid:
                raise Broken(
                    f"it does not hold that the chunks of a layout stay as long as it says\n{error}, of "
                    f"{layout}"
                ) from error
            self._run.counts["layouts whose chunks were gone"] += 1
            return None
        except DataCorruption as error:
            if not self._run.is_damaged:
                raise Broken(
                    f"it does not hold that the chunks of a layout have its bytes\n{error}, of {layout}"
                ) from error
            return None
        return _Range(first, b"".join(parts))

    def _compare(self, layout: object, one: _Range | None, other: _Range | None) -> None:
        if one is not None and other is not None and one.differs(other):
            raise Broken(
                f"it does not hold that a reader of long-term storage gets the segment's bytes\n{layout}: "
                f"{one} and {other}"
            )

    async def _shown(self, process: Process, name: str, segment_id: int, start: int) -> _Range | None:
        """What the owner shows of the segment from ``start`` on; None if it is none of this id, or does not
        answer. Who asked before got this id: so the segment had the name all the time."""
        read = await self._run.attempt(
            process, f"reads {name}", lambda store: store.read(name, start, 1 << 20), seconds=_SECONDS
        )
        info = await self._run.attempt(
            process, f"looks at {name}", lambda store: store.segment_info(name), seconds=_SECONDS
        )
        if read.ending is not Ending.ANSWERED or info.ending is not Ending.ANSWERED:
            return None
        return _Range(start, read.value) if info.value.segment_id == segment_id else None

    # --- views of long-term storage ---------------------------------------------------------------

    async def _hold_view(self, process: Process, name: str, random: Random) -> None:
        pauses = random.choice(((0.0,), (0.0, 0.01, 0.3)))
        objects = _Objects(self._run.site, lambda: random.choice(pauses))
        await objects.open()
        if not await objects.exists(STORE_RECORD):
            return

        view = LtsView(StoragePlace(), await require_store_record(objects), objects)
        known = await self._read_view(view, name, is_instant=len(pauses) == 1)
        if known is None:
            return

        segment_id, found = known
        self._compare(view, found, await self._shown(process, name, segment_id, found.start))
        delay = self._run.plan.site.limits.collect_after
        await trio.sleep(random.choice((0.5 * delay, delay, 3 * delay, 20.0)))
        again = await self._read_view(view, name, is_instant=len(pauses) == 1)
        if again is not None and again[0] == segment_id:
            self._compare(view, found, again[1])
            self._run.counts["views that were held"] += 1

    async def _read_view(self, view: LtsView, name: str, *, is_instant: bool) -> tuple[int, _Range] | None:
        """The segment's id and its bytes; None if there is none of the name."""
        try:
            info = await view.segment_info(name)
            found = _Range(info.start_offset, await view.read(name, info.start_offset, 1 << 20))
            later = await view.segment_info(name)
        except (SegmentNotFound, SegmentTruncated, BadOffset, StoreMismatch):
            return None
        except (DataCorruption, Unavailable, ChunkNotFound) as error:
            if is_instant and not self._run.is_damaged and not self._run.was_full:
                raise Broken(
                    f"it does not hold that a view reads what its storage has\n{name}: {error!r}"
                ) from error
            return None
        except TierlogError as error:
            raise Broken(f"it does not hold that a view says what is wrong\n{name}: {error!r}") from error
        return (info.segment_id, found) if later.segment_id == info.segment_id else None
