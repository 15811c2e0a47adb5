"""``LocalLog``: a ``DurableDataLog`` in local files, for one host and a local file system.

An append is write, sync, register check and watermark, in one program and so in one thread hop. Its decision
point is the check: a group whose check fails is not acked (W1), and the next group starts only afterwards
(W2). Programs run one at a time, except for the removal of needless files; their results are applied in the
event loop after they return. A cancelled append has an unknown outcome, and the log is broken (W6). Nothing
is kept in memory only. Call ``close`` under a shield with a deadline: past it, descriptors are leaked and
never reused (W7). The opening is in ``local_open.py``, the reading of files in ``local_history.py`` and
``local_scan.py``, their creation in ``local_writer.py``.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Collection, Generator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from typing import NamedTuple

import anyio
from msgspec.structs import replace

from ...storage_backends.base.checksum import Buffer
from ...storage_backends.base.errors import (
    DataCorruption,
    InvalidArgument,
    NotOwner,
    StorageFull,
    TierlogError,
    Unavailable,
)
from ...storage_backends.base.files import (
    NOT_A_FILE,
    FileHandle,
    Files,
    Program,
    Read,
    Sync,
    SyncFolder,
    Write,
)
from ...storage_backends.base.os_errors import explain
from ..registers.local import (
    EPOCH_RECORD_BYTES,
    NOBODY,
    confirm_epoch,
    confirm_named,
    encode_epoch,
    fenced,
    moved,
)
from .contract import DurableDataLog, GroupPayload, LogStatistics, OpenedLog, check_group
from .frames import FRAME_HEADER_BYTES, LOG_ID_BYTES, FileId, FrameScratch, Seal, encode_frame
from .lifecycle import LogEvent, LogLifecycle, LogState
from .local_history import History, Part, list_lengths, payloads, read_range, windows
from .local_index import GroupIndex, window_payloads
from .local_layout import LocalLogOptions, LogLayout, parse_wal_names, wal_name
from .local_open import (
    Inspected,
    Opened,
    TakenOver,
    find_moved,
    holds_nothing,
    inspect_log,
    list_state,
    note_watermark,
    open_log,
)
from .local_rolling import find_spare, keep_spare, roll, unlink_spares, write_over
from .local_writer import (
    CurrentFile,
    LogContext,
    Room,
    Space,
    SpaceGauge,
    allocate_ahead,
    is_full,
    lengthen,
    measure_room,
    measure_space,
    restore_reserve,
    trim,
    unlink_files,
)


class _Appended(NamedTuple):
    """The result of an append's program."""

    current: CurrentFile
    register: FileHandle
    parts: tuple[Part, ...]
    spare: Seal | None
    """The spare that it began, or found gone: there is none any more."""
    space: Space | None


class LocalLog(DurableDataLog):
    """One container's log in ``folder``. ``log_id`` (16 bytes) must be the one the log was created with.
    ``owner`` (16 bytes) identifies this opening of the store: all its ownerships of this log have it, and no
    others."""

    def __init__(
        self,
        files: Files,
        folder: str,
        log_id: bytes,
        options: LocalLogOptions | None = None,
        *,
        owner: bytes = NOBODY,
    ) -> None:
        if len(log_id) != LOG_ID_BYTES or len(owner) != len(NOBODY):
            raise InvalidArgument(
                f"a log id has {LOG_ID_BYTES} bytes and an owner {len(NOBODY)}, not {len(log_id)} and "
                f"{len(owner)}"
            )
        self._files = files.lane(f"wal {folder}")
        self._scratch = FrameScratch()
        """Of the group that is written: one at a time (W2)."""
        self._sweeper = files.lane(f"wal sweep {folder}", nofollow_root=folder)
        """Removing a large file takes as long as many appends, which need not wait for it. All calls of one
        program are in the same folder, even if its path leads to another log's meanwhile (W5)."""
        self._reading = files.lane(f"wal read {folder}")
        """Windows are read also during appends and removals."""
        self._options = options or LocalLogOptions()
        self._context = LogContext(LogLayout(folder), log_id, self._options, owner)
        self._life = LogLifecycle(folder)
        # An uncontended append must not yield to the event loop. Unlike a semaphore, a lock would ask twice
        # for each group which task it is.
        self._turn = anyio.Semaphore(1, max_value=1, fast_acquire=True)
        self._sweeping = anyio.Lock()
        """Held by a truncation and by ``close``; acquired before ``_turn``."""
        self._swept_under: tuple[FileHandle, ...] = ()
        """The register that a removal under way asks, which appends do not close although they rolled."""
        self._gauge = SpaceGauge(self._options)
        self._history: History | None = None
        self._register: FileHandle | None = None
        self._current: CurrentFile | None = None
        self._epoch = 0
        self._epoch_record = b""
        self._parts: tuple[Part, ...] = ()
        self._index = GroupIndex()
        self._next_group = 0
        self._truncate_before = 0
        """The newest truncation address that is durable under this owner's epoch (W5)."""
        self._reserve_file = False
        self._spare: Seal | None = None
        """A file that was not removed, and where it ends: the next roll writes it over (W13)."""
        self._appended_groups = 0
        self._appended_bytes = 0
        self._allocated_bytes = 0
        self._syncs = 0

    # --- opening ---------------------------------------------------------------------------------

    async def open(self, *, above: int = 0, after: Collection[int] | None = None) -> OpenedLog:
        self._life.step(LogEvent.BEGIN_OPEN)
        try:
            found, self._index = await self._files.run(self._open(above, after))
        except BaseException as error:
            self._end(error)
            raise
        self._history, self._register = found.history, found.register
        self._truncate_before = found.history.truncate_before
        self._own(found.epoch, found.owned)
        self._life.step(LogEvent.OPENED)
        # The opening logged the last group again, in a file of its own epoch (W4).
        groups = found.history.groups(last_epoch=found.epoch)
        tags, next_group = found.history.tags(), found.history.next_group
        return OpenedLog(found.epoch, found.history_epoch, groups, tags, next_group)

    def _open(self, above: int, after: Collection[int] | None) -> Program[tuple[Opened, GroupIndex]]:
        try:
            found = yield from open_log(self._context, above, after)
            return found, _index_of(found.history, found.owned.current)
        # A program runs to its end in its thread, so no cancellation arrives here. What a refused opening has
        # opened is closed by the program itself (W7).
        except Exception:
            yield from self._context.close_others()
            raise

    def _own(self, epoch: int, owned: TakenOver) -> None:
        assert self._history is not None
        self._epoch = epoch
        # Encoded once: each append and each read compares the register with it.
        self._epoch_record = encode_epoch(self._context.log_id, epoch, self._context.owner)
        self._current = owned.current
        self._parts = tuple(owned.parts)
        self._next_group = self._history.next_group
        self._note_room(owned.room)

    @property
    def own_epochs(self) -> Collection[int]:
        return tuple(self._context.own_epochs)

    async def inspect(self) -> OpenedLog:
        self._life.step(LogEvent.BEGIN_OPEN)
        try:
            found, self._index = await self._files.run(self._inspect())
        except BaseException as error:
            self._end(error)
            raise
        self._history = found.history
        self._epoch, self._next_group = found.epoch, found.history.next_group
        self._life.step(LogEvent.INSPECTED)
        groups, tags = found.history.groups(), found.history.tags()
        return OpenedLog(found.epoch, found.epoch, groups, tags, found.history.next_group)

    def _inspect(self) -> Program[tuple[Inspected, GroupIndex]]:
        found = yield from inspect_log(self._context)
        return found, _index_of(found.history, None)

    async def holds_nothing(self) -> bool:
        """Whether the log has no group, and never had one. It is not opened. Raises ``DataCorruption``,
        ``StoreMismatch``."""
        with self._mapped_errors():
            return await self._files.run(holds_nothing(self._context))

    async def find_moved(self) -> Sequence[str]:
        with self._mapped_errors():
            return await self._files.run(find_moved(self._context.layout.folder))

    async def read(self, first: int = 0) -> AsyncGenerator[GroupPayload, None]:
        self._life.require("read", LogState.OPEN, LogState.INSPECTED)
        history = self._history
        if history is None:
            raise RuntimeError("read is possible before the first append only")
        low = max(first, history.truncate_before)
        last = history.last
        for wal in history.files:
            if last is None or wal.header.first_group >= last.number or wal.next_number <= low:
                continue
            for frames in windows(wal, range(low, last.number)):
                parse = partial(payloads, wal, frames, log_id=self._context.log_id)
                end = frames[-1].payload + frames[-1].size
                for group in await self._load(self._files, wal.file, frames[0].position, end, parse):
                    yield group
        # The last group comes from memory: its old file was sealed before it, trimmed or removed (W4, W9).
        if last is not None and last.number >= low:
            yield last.number, memoryview(last.payload)

    def window_of(self, number: int) -> int:
        return self._index.window_of(number)

    async def read_window(self, number: int) -> Sequence[GroupPayload]:
        self._life.require("read_window", LogState.OPEN, LogState.APPENDING, LogState.INSPECTED)
        window = self._index.find(number)
        parse = partial(window_payloads, window, log_id=self._context.log_id)
        # Opened by name for each read, so that a truncation waits for no reader (W10).
        return await self._load(self._reading, window.file, window.start, window.end, parse)

    async def _load(
        self,
        files: Files,
        file: FileId,
        start: int,
        end: int,
        parse: Callable[[bytes, str], Sequence[GroupPayload]],
    ) -> Sequence[GroupPayload]:
        path = self._context.layout.wal(file)
        with self._mapped_errors():
            data = await files.run(read_range(path, start, end))
        try:
            if data is None:
                raise DataCorruption("the file was removed", file=path, offset=start)
            return parse(data, path)
        except DataCorruption:
            await self._check_not_replaced(file)
            raise

    async def _check_not_replaced(self, file: FileId) -> None:
        """W10: a file that a newer owner trimmed or removed is not corrupt. Raises ``NotOwner`` if this owner
        was fenced, and ``Unavailable`` if the log changed since it was inspected."""
        if self._life.state is not LogState.INSPECTED:
            # Whoever needs a group keeps the truncation address at or below it (C10): this owner has not
            # removed the file.
            self.check_owner()
            return
        image, names = await self._files.run(list_state(self._context))
        assert self._history is not None
        # An opener that raised the epoch before the inspection and sealed its files later trims them too.
        unsealed = self._history.files[-1].file.epoch < self._epoch
        if image is None or image.epoch != self._epoch or file not in names or unsealed:
            raise Unavailable(
                f"{self._context.layout.folder}: the log's owner replaced {wal_name(file)} while it was "
                f"read; open the log again"
            )

    # --- appending -------------------------------------------------------------------------------

    async def append(self, buffers: Sequence[Buffer], *, tag: int = 0, truncate_before: int = 0) -> int:
        size = sum(map(len, buffers))
        check_group(size, tag, truncate_before, self._next_group)
        # Not before the checks: a refused argument is the caller's mistake and must not end this owner (W6).
        self._life.step(LogEvent.BEGIN_APPEND)
        try:
            try:
                # Most need not wait. The program looks whether it is cancelled.
                self._turn.acquire_nowait()
            except anyio.WouldBlock:
                await self._turn.acquire()
            try:
                found = await self._files.run(self._append(buffers, size, tag, truncate_before))
                return self._apply(found, size, truncate_before)
            finally:
                self._turn.release()
        except BaseException as error:
            self._end(error)
            raise

    def _append(
        self, buffers: Sequence[Buffer], size: int, tag: int, truncate_before: int
    ) -> Program[_Appended]:
        current, register, parts = self._current, self._register, self._parts
        spare: Seal | None = None
        assert current is not None
        assert register is not None
        # What a roll replaced is closed by the next append, not by the roll: until ``_apply``,
        # ``check_owner`` reads the old register.
        if len(self._context.handles) > 2:
            yield from self._context.close_others(current.handle, register, *self._swept_under)
        # Before a group and not behind one, so that an owner that appends no more leaves no empty file.
        if current.position >= self._options.file_size:
            sealed = self._needed_parts(current)
            # W1: not a file among another log's.
            yield from confirm_named(register, self._epoch)
            spare = self._spare
            rolled = yield from roll(
                self._context, current, self._next_group, self._truncate_before, sealed, spare
            )
            current, register = rolled or (current, register)
            parts, spare = (sealed, spare) if rolled else (parts, None)

        end = current.position + FRAME_HEADER_BYTES + size
        allocated = current.allocated
        # Compared here too: this runs for every group, and most need neither call.
        if allocated < end + self._options.reserve:
            allocated = yield from allocate_ahead(self._options, current, end)
        length = current.length
        if length < end:
            length = yield from lengthen(self._options, current.handle, length, end)
        _, frame = encode_frame(
            current.salt,
            current.position,
            self._epoch,
            self._next_group,
            tag,
            truncate_before,
            buffers,
            self._scratch,
        )
        try:
            if end < current.recycled:
                yield write_over(current.handle, current.position, frame, end, current.recycled)
            else:
                yield Write(current.handle, current.position, frame)
        finally:
            self._scratch.release()
        yield current.sync
        # W1: the decision point. If they are equal, no later owner had begun to read when the group became
        # durable.
        if (yield Read(register, 0, EPOCH_RECORD_BYTES)) != self._epoch_record:
            yield from confirm_epoch(register, self._context.log_id, self._epoch, self._context.owner)
        written = CurrentFile(
            current.handle,
            current.file,
            current.first_group,
            current.salt,
            current.sync,
            end,
            allocated,
            length,
            current.recycled,
        )
        # W3: not synced, so it costs no disk access. A watermark that a power loss takes back requires less
        # of the log, never more.
        yield from note_watermark(self._context, register, written, self._next_group)
        # In the same program, which saves a hop to the thread.
        space = (yield from measure_space(self._context.layout)) if self._gauge.due else None
        return _Appended(written, register, parts, spare, space)

    def _needed_parts(self, current: CurrentFile) -> tuple[Part, ...]:
        """The seal set of the next file: the files needed above the truncation address, and the current file
        as it is (W4)."""
        parts = (*self._parts, Part(Seal(current.file, current.position), current.first_group))
        return parts[self._covered(parts, self._next_group) :]

    def _covered(self, parts: Sequence[Part], end: int) -> int:
        """How many of ``parts`` are wholly below the truncation address. ``end`` is the first group after the
        last part."""
        # A part ends where the next one starts, so it is not needed if that start is at or below the address.
        starts = [*(part.first_group for part in parts[1:]), end]
        return sum(start <= self._truncate_before for start in starts) if parts else 0

    def _apply(self, found: _Appended, size: int, truncate_before: int) -> int:
        number = self._next_group
        self._current, self._register, self._parts = found.current, found.register, found.parts
        if found.spare is not None:
            self._spare = None
        # Recovery has read all of it: 8 bytes for each group and the last group's payload are free from now
        # on (W2).
        self._history = None
        self._next_group = number + 1
        self._truncate_before = max(self._truncate_before, truncate_before)
        self._appended_groups += 1
        self._appended_bytes += size
        self._syncs += 1
        end = found.current.position
        self._index.add(found.current.file, number, end - size - FRAME_HEADER_BYTES, end)
        self._gauge.spend(size)
        if found.space is not None:
            self._note_room(Room(found.space, found.current.allocated, self._reserve_file))
        # ``check_owner`` may have found a new epoch meanwhile. The group is acked all the same: it was
        # durable before the register changed (W1).
        if self._life.state is LogState.APPENDING:
            self._life.step(LogEvent.APPENDED)
        return number

    # --- truncation ------------------------------------------------------------------------------

    async def truncate(self, *, closing: bool = False) -> None:
        self._require_owner("truncate")
        with self._mapped_errors():
            async with self._sweeping:
                needless = await self._drop_covered()
                register, _ = self._require_owner("truncate")
                spare = None
                if self._spare is None and self.has_room(0):
                    spare = find_spare(needless, self._epoch, self._options.file_size)
                self._swept_under = (register,)
                try:
                    await self._sweeper.run(self._remove(register, needless, spare))
                finally:
                    self._swept_under = ()
                    # Also if it failed or was cancelled: whatever was not renamed, the next roll misses.
                    self._spare = self._spare or spare
                async with self._turn:
                    # Again: during the removal appends went on, and one may have rolled or failed.
                    register, current = self._require_owner("truncate")
                    await self._measure_room(register, current)

    async def _drop_covered(self) -> Mapping[FileId, int]:
        """Drop the files that the durable truncation address covers. Returns the files to remove, with their
        lengths."""
        async with self._turn:
            register, current = self._require_owner("truncate")
            kept = self._parts[self._covered(self._parts, current.first_group) :]
            needless = await self._files.run(
                self._find_needless(register, current, [part.seal.file for part in kept])
            )
            # Last: if the check fails, the seal set stays as it was, and the next truncation computes it
            # again.
            self._parts = kept
            self._index.drop_before(self._truncate_before)
            return needless

    def _find_needless(
        self, register: FileHandle, current: CurrentFile, kept: Sequence[FileId]
    ) -> Program[Mapping[FileId, int]]:
        """W5: every file before the current one that is not needed, and its length. The address is durable,
        and the register is checked again."""
        lengths = yield from list_lengths(self._context.layout)
        yield from confirm_epoch(register, self._context.log_id, self._epoch, self._context.owner)
        # From the listing and not from the parts, so that files that an earlier truncation failed to remove
        # are found again.
        return {
            file: lengths[wal_name(file)]
            for file in parse_wal_names(lengths)
            if file < current.file and file not in kept
        }

    def _remove(self, register: FileHandle, files: Collection[FileId], spare: Seal | None) -> Program[None]:
        """All but the spare."""
        yield from confirm_named(register, self._epoch)
        if spare is not None:
            yield from keep_spare(self._context.layout, spare.file)
        yield from unlink_files(self._context.layout, files)
        # Without it a power loss brings the files back. That is harmless (W5), but it fills the disk again.
        yield SyncFolder(self._context.layout.folder)

    # --- ownership and room ----------------------------------------------------------------------

    def check_owner(self) -> None:
        register, _ = self._require_owner("check_owner")
        with self._mapped_errors():
            # Without a hop to the thread: the page cache has the register, and reading it takes about 1 us.
            record = self._files.peek(register, 0, EPOCH_RECORD_BYTES)
        if record != self._epoch_record:
            error = fenced(self._context.layout.register, self._epoch, int.from_bytes(record[24:32], "big"))
            self._life.failed(error)
            raise error

    def check_folder(self) -> None:
        register, _ = self._require_owner("check_folder")
        with self._mapped_errors():
            # Without a hop to the thread, as above: each commit of a flush asks.
            is_named = self._files.peek_named(register)
        if not is_named:
            raise moved(register.path, self._epoch)

    def has_room(self, size: int) -> bool:
        return size <= self._gauge.room

    def room_error(self) -> StorageFull:
        return StorageFull(
            f"{self._context.layout.folder}: {self._gauge.shortage()}: free space on that disk. Where it has "
            f"the chunks too, truncate or delete segments: their chunks are deleted after gc.delay"
        )

    def has_reserve(self, size: int) -> bool:
        current = self._current
        return self.has_room(size) or (current is not None and current.position + size <= current.allocated)

    def can_shrink(self) -> bool:
        current = self._current
        # A full file gets no more groups: the next one begins another, if there is room for that.
        return bool(self._parts) or (current is not None and current.position >= self._options.file_size)

    async def check_space(self) -> bool:
        """Measure free space and restore the reserves. For a caller that waits for room without appending."""
        self._require_owner("check_space")
        with self._mapped_errors():
            async with self._turn:
                register, current = self._require_owner("check_space")
                await self._measure_room(register, current)
        return self.has_room(0)

    async def _measure_room(self, register: FileHandle, current: CurrentFile) -> None:
        self._note_room(await self._files.run(self._measure(register, current)))
        # On a full disk nothing is kept that could be removed.
        if self._spare is not None and not self.has_room(0):
            self._note_room(await self._files.run(self._measure(register, current, self._take_spare())))

    def _take_spare(self) -> Sequence[FileId]:
        spare, self._spare = self._spare, None
        return () if spare is None else (spare.file,)

    def _measure(
        self, register: FileHandle, current: CurrentFile, spare: Sequence[FileId] = ()
    ) -> Program[Room]:
        """``spare``: to be removed first."""
        # W1: the reserve is not restored in another log's folder.
        yield from confirm_named(register, self._epoch)
        yield from unlink_spares(self._context.layout, spare)
        return (yield from measure_room(self._context, current))

    def _note_room(self, room: Room) -> None:
        assert self._current is not None
        self._current = replace(self._current, allocated=room.allocated)
        self._reserve_file = room.reserve_file
        ahead = room.allocated >= self._current.position + self._options.reserve
        self._allocated_bytes = room.space.log
        self._gauge.observe(room.space.free, reserved=ahead and room.reserve_file)

    @property
    def next_group(self) -> int:
        return self._next_group

    def statistics(self) -> LogStatistics:
        position = self._current.position if self._current else 0
        retained = position + sum(part.seal.end for part in self._parts)
        files = len(self._parts) + (self._current is not None)
        return LogStatistics(
            self._epoch,
            self._next_group,
            self._appended_groups,
            self._appended_bytes,
            retained,
            self._allocated_bytes,
            files,
            self._syncs,
        )

    # --- the end ---------------------------------------------------------------------------------

    async def close(self, *, clean: bool = True) -> None:
        # In the order of ``truncate``, or each could wait for the other.
        async with self._sweeping, self._turn:
            if self._life.state is LogState.CLOSED:
                return
            # After a failure the last group is in doubt; a footer would state that the log ends before it
            # (W3).
            clean = clean and self._life.state is LogState.OPEN
            register, current = self._register, self._current
            self._life.step(LogEvent.CLOSE)
            with self._mapped_errors():
                await self._files.run(self._close(register if clean else None, current, self._take_spare()))

    def _close(
        self, register: FileHandle | None, current: CurrentFile | None, spare: Sequence[FileId]
    ) -> Program[None]:
        try:
            if register is not None and current is not None:
                yield from confirm_epoch(register, self._context.log_id, self._epoch, self._context.owner)
                yield from note_watermark(self._context, register, current, self._next_group - 1, clean=True)
                # Unlike the watermarks of appends: the footer makes every missing byte corruption (W3), after
                # a power loss too.
                yield Sync(register)
                yield from confirm_named(register, self._epoch)
                with suppress(OSError):
                    yield from unlink_spares(self._context.layout, spare)
                    # Without a reserve, the blocks behind the last group are room for the next opening (W6).
                    if (yield from restore_reserve(self._context)):
                        yield from trim(current.handle, current.position)
        except NotOwner:
            return  # The owner that fenced this one has sealed its files.
        finally:
            yield from self._context.close_others()

    def _require_owner(self, verb: str) -> tuple[FileHandle, CurrentFile]:
        self._life.require(verb, LogState.OPEN, LogState.APPENDING)
        assert self._register is not None
        assert self._current is not None
        return self._register, self._current

    def _end(self, error: BaseException) -> None:
        """W6: a failure, a cancellation too, ends this owner. Raises what an ``OSError`` means."""
        mapped = _mapped(error, self._context.layout.folder) if isinstance(error, OSError) else error
        self._life.failed(mapped)
        if mapped is not error:
            raise mapped from error

    @contextmanager
    def _mapped_errors(self) -> Generator[None]:
        try:
            yield
        except OSError as error:
            raise _mapped(error, self._context.layout.folder) from error


def _mapped(error: OSError, folder: str) -> TierlogError:
    where = error.filename or folder
    if is_full(error):
        return StorageFull(f"no space left for {where}: free some space on its file system")
    if error.errno in NOT_A_FILE:
        return DataCorruption("this is not a regular file", file=where, offset=0)
    return Unavailable(explain(error, where))


def _index_of(history: History, current: CurrentFile | None) -> GroupIndex:
    """Of the groups that an opener found; ``current`` is the file in which it logged the last one again. A
    part of the program that reads them: with a million groups it takes a second."""
    index, last = GroupIndex(), history.last
    for wal in history.files:
        for frame in wal.frames:
            # The last group is read from the new file only: its old one is trimmed before it, or unlinked
            # (W4, W9).
            if current is None or (last is not None and frame.number < last.number):
                index.add(wal.file, frame.number, frame.position, frame.payload + frame.size)
    if current is not None and last is not None:
        end = current.position
        index.add(current.file, last.number, end - len(last.payload) - FRAME_HEADER_BYTES, end)
    return index
