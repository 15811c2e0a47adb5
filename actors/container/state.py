"""The state of a container: segments, transactions, the system table, and the counters for ids and sequences.

There is one state, the *speculative* one: it includes every operation that was given a sequence, durable or
not. Operations are applied in sequence order, each once and synchronously, with the same code live and in
replay (``operations/``). The pipeline makes operations durable; the tail cache holds the bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence

from ...journal.manifest.element import TRANSACTIONS
from ...journal.operations.cycle_complete import CycleComplete
from ...journal.operations.ended_transactions import TransactionEnd
from ...journal.operations.operation import Operation
from ...journal.operations.segment_image import SegmentStatus, WriterState
from ...journal.operations.transaction_image import TransactionImage
from ...storage_backends.base.ids import counter_of, epoch_of, segment_id
from ...storage_backends.base.segments import ATTRIBUTES_SHOWN_MAX, AttributeName
from ...storage_backends.base.sorted_dict import SortedDict
from ...storage_backends.base.transactions import is_staged, split_staged
from ...storage_backends.segments.records import is_storage_key
from ...storage_backends.segments.records.claim import CLAIM_PREFIX
from ...storage_backends.segments.records.segment import SEGMENT_PREFIX, segment_key, segment_of_key
from ...storage_backends.segments.records.unconfirmed import UNCONFIRMED_KEY
from ...storage_backends.sorted_runs.rows import Row, decoded
from ...storage_backends.sorted_runs.run_list import RunList
from ...storage_backends.sorted_runs.table import Table
from ..kernel.slices import in_slices
from .attribute_rows import attribute_key, attribute_row, value_of
from .closures import ClosureLog, is_record
from .cycle_cut import CycleCut
from .ended_rows import ended_key, ended_of_row, ended_rows, index_key, open_row
from .left_rows import mark_row
from .lost_histories import EndedLog, Histories, current, decode_histories, encode_histories, note_change
from .manifest_state import ManifestState
from .operations import APPLY, CLIENT_OPERATIONS
from .segment_rows import NO_RECORD, image_key, name_key, name_row, sid_of_row
from .segments import NotLoaded, SegmentState, SegmentTable
from .snapshot import Snapshot, is_clean
from .transaction_table import Key, TransactionTable
from .writer_rows import state_of, writer_key, writer_row

HISTORY_KEY = "p:"
"""The record whose version is that from which on this history is the only one (rule J6)."""
RESIDENT_PREFIXES = (SEGMENT_PREFIX, CLAIM_PREFIX, UNCONFIRMED_KEY, HISTORY_KEY)
"""Of records that synchronous steps need: those of the segments in memory, to claim long-term storage, to
delete, and to answer what has changed."""
_RESIDENT_KEYS = tuple(prefix.encode() for prefix in RESIDENT_PREFIXES)
NO_CYCLE = CycleComplete(0, 0, 0, False)
_COMPARED_MAX = 512
"""The most keys times runs that one decision looks up."""
FindCached = Callable[[RunList, bytes], tuple[bool, Row | None]]
"""Whether it is known without I/O which row of the runs a key has, and that row."""


class ContainerState:
    def __init__(
        self,
        container: int = 0,
        epoch: int = 0,
        on_load: Callable[[SegmentState], None] = lambda segment: None,
    ) -> None:
        """``on_load(segment)`` is called when a cold segment comes into memory."""
        self.container = container
        self.epoch = epoch
        self.segments = SegmentTable(self._check_absent)
        self.transactions = TransactionTable()
        self.table = Table()
        """The records of long-term storage, as rows; those that runs have are not in memory (rule M8)."""
        self.resident: SortedDict[str, tuple[int, bytes]] = SortedDict()
        """Key -> (version, encoded record): records that are in the table too, and always in memory, because
        synchronous steps need them."""
        self.histories: tuple[int, ...] = ()
        """The epochs of recoveries from long-term storage alone (rule R8)."""
        self.ended_logs: tuple[EndedLog, ...] = ()
        """The logs that recoveries took the place of (rule P8)."""
        self.sequence = 0
        """The sequence of the newest operation."""
        self.client_sequence = 0
        """The sequence of the newest operation that a client caused."""
        self.cycle = NO_CYCLE
        """The newest complete flush cycle."""
        self.manifest = ManifestState()
        """What the log knows of the chain in long-term storage."""
        self.find_cached: FindCached = lambda runs, key: (False, None)
        self.looked_up: Mapping[str | int, bool] = {}
        """Names, and ids, that were just looked up in the runs, and whether there is such a segment. Valid
        for the present step."""
        self.looked_up_rows: Mapping[bytes, Row | None] = {}
        """Rows that were just looked up, by key. Valid likewise."""
        self.image_entries = ATTRIBUTES_SHOWN_MAX
        """Attributes that a segment has in memory and in its image, writers, and expired writers, of each at
        most; further ones are rows (rules M19, M20)."""
        self.has_spilled = False
        """Whether attributes or writers are known that are rows: checkpoints must say so (rule M19)."""
        self.on_rows_left: Callable[[], None] = lambda: None
        """Called when a segment loses its name that has rows."""
        self.recovered_ends: dict[Key, TransactionImage] | None = None
        """During recovery, until runs are known that have them: the ended transactions, because earlier
        versions published none of them."""
        self.parked: Collection[str] = ()
        """The names in requests that wait for cold segments. What was loaded for one of them stays in memory
        until it has all that it needs: otherwise two of its segments could take turns there without end."""
        self.closures = ClosureLog()
        """Which operations put rows that are not published, and for which segments."""
        self.cut: CycleCut | None = None
        """What the flush cycle that is being published has captured."""
        self.snapshot: Snapshot | None = None
        self.checkpoint_bytes = 0
        """The size of the newest checkpoint."""
        self.checkpoint_sequence = 0
        """The sequence of the newest checkpoint."""
        self._on_load = on_load
        self.live_segments = 0
        """How many live segments there are, cold ones too."""
        self._created = 0
        self.newest_segment = 0
        """The highest segment id that the log is known to have used."""
        self._knows_newest = True
        """Whether no checkpoint left that id out."""

    def apply(self, op: Operation) -> None:
        """Give ``op`` the next sequence and change the state by it."""
        self.sequence += 1
        kind = type(op)
        if kind in CLIENT_OPERATIONS:
            self.client_sequence = self.sequence
        APPLY[kind](self, op)

    # --- segment ids (rule C2) -------------------------------------------------------------------

    def next_segment_id(self) -> int:
        """A fresh id; it is used up when its creation is applied."""
        return segment_id(self.epoch, self._created + 1)

    def take_segment_id(self) -> int:
        """A fresh id, used up at once, for records that are committed before the creation."""
        self._created += 1
        return segment_id(self.epoch, self._created)

    def count_segment_id(self, sid: int) -> None:
        """The id is used up: never assign it again."""
        self.newest_segment = max(self.newest_segment, sid)
        # C2: ids of earlier owners have their epochs, which are not used again.
        if epoch_of(sid) == self.epoch:
            self._created = max(self._created, counter_of(sid))

    def note_newest_segment(self, sid: int) -> None:
        """A checkpoint notes the highest id, whose segment may be deleted."""
        self.newest_segment = max(self.newest_segment, sid)
        self._knows_newest = True

    @property
    def known_newest_segment(self) -> int | None:
        """The highest id that the log used; None if it may have used higher ones, which checkpoints of older
        versions leave open."""
        return self.newest_segment if self._knows_newest else None

    # --- for apply functions ---------------------------------------------------------------------

    def change(self, sid: int) -> SegmentState:
        """The segment, about to be changed. ``KeyError`` if there is none."""
        segment = self.segments.by_id[sid]
        self.before_change(segment)
        return segment

    def before_change(self, segment: SegmentState) -> None:
        """The segment, which is in memory, is about to be changed."""
        if self.snapshot is not None:
            self.snapshot.segments.before_change(segment.sid)
        if self.cut is not None:
            self.cut.before_change(segment)
        if self.histories:
            note_change(self.histories, segment)
        segment.touched = self.sequence
        if not segment.is_listed:
            self.segments.list_dirty(segment)

    def change_record(self, sid: int) -> SegmentState:
        """The segment, whose record in long-term storage is about to change. ``KeyError`` if there is
        none."""
        segment = self.segments.by_id[sid]
        if self.snapshot is not None:
            self.snapshot.segments.before_change(sid)
        if self.cut is not None:
            self.cut.before_record_change(segment)
        if not segment.is_listed:
            self.segments.unpublished[sid] = None
        return segment

    def add_segment(self, segment: SegmentState) -> None:
        """The present operation creates the segment."""
        segment.touched = self.sequence
        self.segments.add(segment)
        self.live_segments += 1
        self.segments.unpublished[segment.sid] = None
        freed = self.table.find_in_memory(name_key(segment.name))
        if freed is not None and (before := self.closures.segment_of(freed.version)):
            self.closures.note(self.sequence, segment.sid, before)
        if self.cut is not None:
            self.cut.note_created(segment.sid)
        self.table.put((name_row(segment.name, self.sequence, segment.sid),))

    def unname(self, segment: SegmentState, status: SegmentStatus, beside: int = 0) -> None:
        """The segment is deleted or merged: free its name. ``beside``: another one that the operation
        changes."""
        if segment.sid in self.transactions.open_of:
            raise ValueError(f"{segment!r} has open transactions: they must end first (rule T8)")

        if not segment.is_gone:
            self.live_segments -= 1
            self.table.put((Row(name_key(segment.name), self.sequence, None),))
            self.closures.note(self.sequence, segment.sid, beside or segment.sid)
            if segment.is_table or segment.has_spilled:
                self.table.put((mark_row(segment.sid, self.sequence),))
                self.on_rows_left()
        self.segments.unname(segment, status)

    def remove_segment(self, sid: int) -> None:
        """Nothing of the segment is needed any more."""
        self.segments.remove(sid)
        self.table.put_records((Row(image_key(sid), self.sequence, None),))

    def load_record(self, segment: SegmentState) -> None:
        """Load the record in long-term storage of a segment that was made from an image."""
        entry = self.resident.get(segment_key(segment.sid))
        if entry is not None:
            segment.load_record(*entry)

    def has_long_image(self, segment: SegmentState) -> bool:
        """Whether an earlier version, which knew no rows, left more in the image than now. Nobody would
        remove the rows of a segment that is gone (rule M17)."""
        entries = max(len(segment.attributes), len(segment.writers), len(segment.expired))
        return entries > self.image_entries and not segment.is_gone

    # --- attributes (rule M19) ---------------------------------------------------------------------

    def set_attributes(self, segment: SegmentState, values: Iterable[tuple[str, int]]) -> None:
        """The present operation sets attributes that have names."""
        attributes, sid, version = segment.attributes, segment.sid, self.sequence
        if not segment.spilled:
            attributes.update(values)
            return

        for name, value in values:
            if name in attributes:
                attributes[name] = value
            else:
                self.table.put((attribute_row(sid, name, version, value),))

    def spill_attributes(self, segment: SegmentState, keep: int) -> None:
        """Names that the segment's image does not have are rows from now on, and those beyond its first
        ``keep``."""
        segment.spilled = self.has_spilled = True
        for name in list(segment.attributes)[keep:]:
            value = segment.attributes.pop(name)
            self.table.put((attribute_row(segment.sid, name, self.sequence, value),))

    def set_attribute_ids(self, segment: SegmentState, values: Iterable[tuple[bytes, int]]) -> None:
        """The present operation sets attributes that have ids."""
        segment.has_ids = self.has_spilled = True
        self.table.put([attribute_row(segment.sid, each, self.sequence, value) for each, value in values])

    def find_attributes(
        self, segment: SegmentState, names: Iterable[AttributeName]
    ) -> dict[AttributeName, int | None]:
        """The values of attributes; None for those that are not set. Raises ``NotLoaded`` if rows must be
        looked up, ``DataCorruption``."""
        found: dict[AttributeName, int | None] = {}
        keys: dict[bytes, AttributeName] = {}
        for name in names:
            is_name = isinstance(name, str)
            value = segment.attributes.get(name) if isinstance(name, str) else None
            if value is None and (segment.spilled if is_name else segment.has_ids):
                keys[attribute_key(segment.sid, name)] = name
            else:
                found[name] = value
        if keys:
            for key, row in self._find_rows(segment.name, keys).items():
                found[keys[key]] = decoded(value_of, row, key)
        return found

    # --- writers (rule M20) ------------------------------------------------------------------------

    def spill_writers(self, segment: SegmentState, writers: Iterable[bytes]) -> None:
        """These writers of the segment's image, expired ones too, are rows from now on."""
        segment.has_writer_rows = self.has_spilled = True
        rows: list[Row] = []
        for writer in writers:
            if (known := segment.writers.pop(writer, None)) is None:
                del segment.expired[writer]
            rows.append(writer_row(segment.sid, writer, self.sequence, known))
        self.table.put(rows)

    def find_writers(
        self, segment: SegmentState, writers: Iterable[bytes]
    ) -> dict[bytes, WriterState | None]:
        """The latest events of those writers that the segment ever knew; None for expired ones. Raises
        ``NotLoaded`` if rows must be looked up, ``DataCorruption``."""
        found: dict[bytes, WriterState | None] = {}
        keys: dict[bytes, bytes] = {}
        for writer in writers:
            # Memory first: rows of writers that came back are old.
            if (known := segment.writers.get(writer)) is not None or writer in segment.expired:
                found[writer] = known
            elif segment.has_writer_rows:
                keys[writer_key(segment.sid, writer)] = writer
        if keys:
            for key, row in self._find_rows(segment.name, keys).items():
                if row is not None and row.value is not None:
                    found[keys[key]] = decoded(state_of, row.value, key)
        return found

    def _find_rows(self, name: str, keys: Iterable[bytes]) -> dict[bytes, Row | None]:
        """The newest rows of ``keys``, which only requests that name the segment ``name`` change. Raises
        ``NotLoaded`` for those that must be looked up: nothing changes them until the request is decided
        again."""
        found = {key: self.table.find_in_memory(key) for key in keys}
        runs, looked_up = self.table.runs, self.looked_up_rows
        if not runs.records_to:
            return found

        missing = [key for key, row in found.items() if row is None and key not in looked_up]
        found.update((key, looked_up[key]) for key, row in found.items() if row is None and key in looked_up)
        if missing and len(missing) * len(runs) <= _COMPARED_MAX:
            cached = {key: self.find_cached(runs, key) for key in missing}
            found.update((key, row) for key, (is_known, row) in cached.items() if is_known)
            missing = [key for key, (is_known, _) in cached.items() if not is_known]
        if missing:
            raise NotLoaded(name, rows=missing)

        return found

    # --- transactions (rule M21) -------------------------------------------------------------------

    def find_transaction(self, target: str, transaction: str, sid: int | None) -> TransactionImage | None:
        """The record, open or ended. ``sid`` is the live segment of the target's name, if there is one:
        transactions of an earlier segment of that name are not its own (rule T8). Raises ``NotLoaded`` if the
        row must be looked up, ``DataCorruption``."""
        record = self.transactions.records.get((target, transaction))
        if record is None:
            key = ended_key(target, transaction)
            record = decoded(ended_of_row, self._find_rows(target, (key,))[key], key)
        return None if record is None or (sid is not None and sid != record.sid) else record

    def find_transaction_of(self, staged: str) -> TransactionImage | None:
        """The same, for a staged segment that there is not: the target is not loaded. If that is looked up,
        it is as of then, which is after the request came."""
        target, transaction = split_staged(staged)
        record = self.transactions.records.get((target, transaction))
        if record is None:
            key, name = ended_key(target, transaction), name_key(target)
            rows = self._find_rows(staged, (key, name))
            record, sid = decoded(ended_of_row, rows[key], key), decoded(sid_of_row, rows[name], name)
            if record is not None and sid not in (None, record.sid):
                return None
        return record

    def begin_transaction(self, record: TransactionImage) -> None:
        """The present operation begins a transaction."""
        self.closures.note(self.sequence, record.sid, record.sid)
        self.table.put((open_row(record, self.sequence),))

    def end_transaction(self, record: TransactionImage) -> None:
        """The present operation ends a transaction."""
        self.transactions.ends += 1
        self.closures.note(self.sequence, record.sid, record.sid)
        self.table.put(ended_rows(record, self.sequence))
        if self.recovered_ends is not None:
            self.recovered_ends[record.target, record.id] = record

    def restore_end(self, record: TransactionImage) -> None:
        """Recovery: a checkpoint of an earlier version has an ended transaction."""
        if self.recovered_ends is None:
            raise ValueError(f"a checkpoint has {record}, and its runs have ended transactions")

        self.transactions.ends += 1
        self.recovered_ends[record.target, record.id] = record

    def publish_begins_again(self, records: Iterable[TransactionImage]) -> None:
        """Recovery: no run has these open transactions. The next one will."""
        for record in records:
            # Replay puts those that began after the checkpoint.
            if self.table.find_in_memory(ended_key(record.target, record.id)) is None:
                self.table.put((open_row(record, self.sequence),))

    def publish_ends_again(self, records: Iterable[TransactionImage]) -> None:
        """Recovery: no run has these ended transactions. The next one will."""
        for record in records:
            # Replay puts those that ended after the checkpoint.
            if self.table.find_in_memory(ended_key(record.target, record.id)) is None:
                self.table.put(ended_rows(record, self.sequence, is_brought_over=True))

    def forget_ends(self, ends: Iterable[TransactionEnd]) -> None:
        """The present operation removes the rows of ended transactions."""
        version, first = self.sequence, 0
        for end in ends:
            self.transactions.ends -= 1
            key = index_key(end.version, end.target, end.id)
            # F10: a tombstone waits with the row that it removes.
            row = self.table.find_in_memory(key)
            if row is not None and (target := self.closures.segment_of(row.version)):
                first = first or target
                self.closures.note(version, target, first)
            self.table.put((Row(key, version, None),))
            if end.is_newest:
                self.table.put((Row(ended_key(end.target, end.id), version, None),))
                if self.recovered_ends is not None:
                    self.recovered_ends.pop((end.target, end.id), None)

    # --- cold segments (rule M4) -----------------------------------------------------------------

    def load_segment(self, segment: SegmentState, record_version: int, record: bytes) -> None:
        """A cold segment comes into memory."""
        self.has_spilled |= segment.has_spilled
        # The row of an image may have a greater version: that of the record in it.
        segment.touched = min(segment.touched, self.clean_images_to)
        if record_version:
            self.resident[segment_key(segment.sid)] = (record_version, record)
        self.segments.add(segment)
        self._on_load(segment)

    def unload_segment(self, sid: int) -> None:
        """A segment that ``can_unload`` leaves memory."""
        segment = self.segments.by_id[sid]
        if self.snapshot is not None:
            self.snapshot.segments.before_change(sid)
        self.segments.unload(segment)
        self.resident.pop(segment_key(sid), None)

    def can_unload(self, segment: SegmentState) -> bool:
        """Whether the runs have all that is needed of the segment."""
        return (
            segment.is_idle
            and self.is_published(segment)
            and not is_staged(segment.name)
            and segment.name not in self.parked
            # Their decisions need the target, and whether it is live.
            and segment.sid not in self.transactions.open_of
            and segment.fits_row
        )

    def is_published(self, segment: SegmentState) -> bool:
        """Whether the runs have the image, with the record in it."""
        runs = self.table.runs
        return (
            segment.touched <= self.clean_images_to
            and segment.recorded <= runs.records_to
            and segment.sid not in runs.held
        )

    def has_name(self, name: str) -> bool:
        """Whether there is a live segment of that name, cold or not. Raises ``NotLoaded`` if that must be
        looked up."""
        return self.segments.in_memory(name) is not None or self._has_cold(
            name, name_key(name), needs_image=False
        )

    def find_by_id(self, sid: int) -> SegmentState | None:
        """The segment of that id. Raises ``NotLoaded``."""
        segment = self.segments.by_id.get(sid)
        if segment is None and self._has_cold(sid, image_key(sid)):
            raise NotLoaded(sid=sid)

        return segment

    def _check_absent(self, name: str) -> None:
        if self._has_cold(name, name_key(name)):
            raise NotLoaded(name)

    def _has_cold(self, what: str | int, key: bytes, *, needs_image: bool = True) -> bool:
        """Whether the table has a row of a name, or of an id, that is not in memory. Raises ``NotLoaded`` if
        that must be looked up."""
        runs = self.table.runs
        if not runs.schema:
            return False

        # First: it is newer than what was looked up.
        row = self.table.find_in_memory(key)
        if row is None:
            if (known := self.looked_up.get(what)) is not None:
                return known

            is_known, row = self.find_cached(runs, key)
            if not is_known:
                if isinstance(what, str):
                    raise NotLoaded(what, needs_image=needs_image)
                raise NotLoaded(sid=what)
        return row is not None and row.value is not None

    # --- the system table (rules M8 to M10) -------------------------------------------------------

    def write_records(self, writes: Sequence[tuple[str, bytes | None]]) -> None:
        """The present operation writes these records; None removes one."""
        version = self.sequence
        rows = [Row(key.encode(), version, value) for key, value in writes]
        self.table.put_records(row for row in rows if is_storage_key(row.key))
        self.table.put(row for row in rows if not is_storage_key(row.key))
        for key, value in writes:
            if key.startswith(RESIDENT_PREFIXES):
                self._keep_resident(key, version, value)

    def find_record(self, key: str) -> Row | None:
        """The newest row of ``key``, a tombstone too; None if it is not in memory."""
        row = self.table.find_in_memory(key.encode())
        if row is None and key.startswith(RESIDENT_PREFIXES):
            version, value = self.resident.get(key, (0, None))
            # Of a cold segment only the runs have the record.
            if (
                value is not None
                or not key.startswith(SEGMENT_PREFIX)
                or segment_of_key(key) in self.segments
            ):
                return Row(key.encode(), version, value)

        return row

    def find_segment_record(self, sid: int) -> tuple[int, bytes]:
        """Of a segment in memory: the version of its record, and the record."""
        return self.resident.get(segment_key(sid), NO_RECORD)

    def _keep_resident(self, key: str, version: int, value: bytes | None) -> None:
        if value is None:
            self.resident.pop(key, None)
        else:
            self.resident[key] = (version, value)
            if key == HISTORY_KEY:
                self.histories, self.ended_logs = decode_histories(value)

    def begin_history(
        self, above: int, recovery: int = 0, ended_logs: tuple[EndedLog, ...] | None = None
    ) -> None:
        """The present operation leaves all versions below ``above`` to another history (rule J6).
        ``recovery``: the epoch of a recovery from long-term storage alone, with which that ends (rule R8);
        then also the ``ended_logs`` that are known from then on."""
        self.sequence = max(self.sequence, above)
        epochs = (*self.histories, recovery) if recovery else self.histories
        ended = self.ended_logs if ended_logs is None else ended_logs
        self.write_records(((HISTORY_KEY, encode_histories(Histories(epochs, ended))),))

    @property
    def history(self) -> int:
        """The present history."""
        return current(self.histories)

    @property
    def history_from(self) -> int:
        """Another history may have used versions below this one."""
        return self.resident.get(HISTORY_KEY, NO_RECORD)[0]

    def know_elements(self, manifest: ManifestState) -> None:
        """An element counts: its runs are those of the table. Raises ``DecodeError``."""
        self.table.use(manifest.runs)
        self.manifest = manifest
        if manifest.runs.schema >= TRANSACTIONS:
            self.recovered_ends = None

    def hold_back(self) -> Iterator[None]:
        """Of what the runs should have, keep what is held back (rule F10), and forget the operations whose
        rows they have. Some in each step."""
        runs = self.table.runs
        for sids in in_slices(runs.held):
            self.segments.unpublished.update((sid, None) for sid in sids if sid in self.segments)
            yield
        yield from self.table.hold_back(lambda row: self.closures.is_held(runs.held, row))
        yield from self.closures.forget(runs)

    @property
    def unpublished_segments(self) -> int:
        """Segments in memory whose images the runs may lack, about."""
        return len(self.segments.unpublished) + (0 if self.cut is None else self.cut.changed)

    @property
    def clean_images_to(self) -> int:
        """The runs have the images up to this version."""
        runs = self.table.runs
        return runs.rows_to if runs.schema else 0

    # --- checkpoints and recovery ----------------------------------------------------------------

    def begin_snapshot(self) -> Snapshot:
        """Fix the state as it is now, at ``sequence``. One at a time."""
        if self.snapshot is not None:
            raise RuntimeError("another checkpoint is in progress")

        self.snapshot = Snapshot(self)
        return self.snapshot

    def end_snapshot(self) -> None:
        if self.snapshot is not None:
            self.table.end_view(self.snapshot.table)
        self.snapshot = None
        self.resident.end_view()
        self.transactions.records.end_view()

    def restore_row(self, row: Row) -> None:
        """Recovery: add a row of a checkpoint, whose elements are known."""
        runs = self.table.runs
        if not is_clean(runs, row):
            self.put_row(row)
        elif runs.held and self.closures.is_held(runs.held, row):
            self.table.put_held((row,))
        # The keys of other rows need not be text.
        if row.key.startswith(_RESIDENT_KEYS):
            self._keep_resident(row.key.decode(), row.version, row.value)

    def put_row(self, row: Row) -> None:
        """Recovery: add a row that the runs do not have."""
        if is_record(row.key):
            self.table.put_records((row,))
        else:
            self.table.put((row,))

    def restore(self, segment: SegmentState) -> None:
        """Recovery: add a segment of a checkpoint. Its metadata entries and transactions are restored
        first."""
        self.load_record(segment)
        self.segments.add(segment)
        self.has_spilled |= segment.has_spilled
        self.live_segments += not segment.is_gone
        if not self.is_published(segment):
            self.segments.unpublished[segment.sid] = None
        self.newest_segment = max(self.newest_segment, segment.sid)
        if not segment.is_gone and is_staged(segment.name):
            self.transactions.stage(segment.name, segment.sid)

    def publish_again(self, sids: Iterable[int]) -> None:
        """Recovery: no run has the names and images of these segments, because earlier versions wrote all
        that there are. The next one will."""
        for sid in sids:
            self.segments.unpublished[sid] = None
            segment = self.segments.by_id[sid]
            # Replay puts the names of segments that were created after the checkpoint.
            if not segment.is_gone and self.table.find_in_memory(name_key(segment.name)) is None:
                self.table.put((name_row(segment.name, self.sequence, sid),))

    def restored(self, sequence: int, cycle: CycleComplete, size: int) -> None:
        """Recovery: a checkpoint of ``size`` bytes is loaded; the next operation gets the sequence after
        ``sequence``."""
        self._knows_newest = False
        self.checkpoint_bytes = size
        self.sequence = self.checkpoint_sequence = sequence
        self.cycle = cycle
        # A checkpoint does not record which operations clients caused. If all segments are clean, none of
        # them makes a cycle due, so an idle store stays quiet after its opening (F5).
        self.client_sequence = sequence if self.segments.dirty else min(sequence, cycle.cut)
