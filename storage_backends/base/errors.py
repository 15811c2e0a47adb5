"""Every error that tierlog raises, in one tree under ``TierlogError``.

Each class has a stable ``code``, and ``retryable``, whether the call may safely be repeated as it is.
The message names the segment, file or offset and what to do; the cause is chained.
"""

from __future__ import annotations

from typing import ClassVar, Self

_SHOWN_MAX = 200


class TierlogError(Exception):
    """The base of all errors that tierlog raises on purpose."""

    code: ClassVar[str] = "error"
    retryable: ClassVar[bool] = False
    """Whether the same call may safely be repeated as it is, later. ``OutcomeUnknown`` is not retryable: its
    call may be repeated only with the same writer id and event number, or the same ``expected_offset``."""


def shown(value: object) -> str:
    """``value`` as messages quote it: short, and without an error of its own (Python refuses to print huge
    ints and deeply nested values)."""
    try:
        text = repr(value)
    except (ValueError, RecursionError):
        return f"a value of type {type(value).__name__} that is too large to print"
    return text if len(text) <= _SHOWN_MAX else f"{text[:_SHOWN_MAX]}..."


# --- the caller's mistake -----------------------------------------------------------------------


class InvalidArgument(TierlogError, ValueError):
    """An argument is outside its documented range or grammar. Nothing was done; correct the call."""

    code = "invalid-argument"


class TooLarge(InvalidArgument):
    """The append, or a request's body, is larger than the store or the server takes. Nothing was done; send
    less at a time."""

    code = "too-large"

    @classmethod
    def append(cls, size: int, maximum: int) -> TooLarge:
        return cls(
            f"an append holds at most {maximum} bytes, not {size}: split it, or raise append_bytes_max"
        )


class BackupExists(InvalidArgument):
    """There is a backup of this name, or another call is making one. Nothing was done; choose another name,
    or remove that backup."""

    code = "backup-exists"


class BackupNotFound(InvalidArgument, LookupError):
    """There is no backup of this name: list them."""

    code = "backup-not-found"


class BackupIncomplete(InvalidArgument):
    """A container does not keep what the backup needs: it was given up while it was made, or is being
    removed. Make it again."""

    code = "backup-incomplete"


class ConfigError(InvalidArgument):
    """A configuration file or option is wrong. The message names the key and, if one is similar, the key that
    was probably meant. Correct the configuration."""

    code = "config"


class Unsupported(TierlogError):
    """The backend lacks the capability, or the state does not allow the call. Repeating it does not help."""

    code = "unsupported"


class ClosedError(TierlogError):
    """The store, client or storage is not open. Open it, or make a new one."""

    code = "closed"


# --- answers about a segment --------------------------------------------------------------------


class SegmentError(TierlogError):
    """An error about one segment; ``segment`` is its name."""

    def __init__(self, message: str, *, segment: str = "") -> None:
        super().__init__(message)
        self.segment = segment


class SegmentNotFound(SegmentError, LookupError):
    """No segment has that name. It may have been deleted, or merged into another."""

    code = "segment-not-found"

    @classmethod
    def replaced(cls, name: str) -> Self:
        """The error of a read that began before another segment got the name."""
        return cls(f"segment {name!r} was deleted, and another one has its name now", segment=name)


class SegmentExists(SegmentError):
    """A segment of that name exists already. Choose another name, or use the existing segment."""

    code = "segment-exists"


class SegmentSealed(SegmentError):
    """The segment is sealed: it can be read, truncated, merged and deleted. Append to another segment."""

    code = "segment-sealed"


class SegmentNotSealed(SegmentError):
    """A merge needs sealed sources. Seal this segment first."""

    code = "segment-not-sealed"


class SegmentTruncated(SegmentError):
    """The offset is before the segment's start. Continue at ``start_offset``, the first byte that can be
    read."""

    code = "segment-truncated"

    def __init__(self, message: str, *, segment: str = "", start_offset: int = 0) -> None:
        super().__init__(message, segment=segment)
        self.start_offset = start_offset


class BadOffset(SegmentError):
    """The offset or length that the call gave does not fit the segment. Nothing was applied; another writer
    may have been faster.

    ``expected`` is the segment's length in bytes, ``given`` the argument: the ``expected_offset`` of an
    append, the offset of a truncation, or the length of a commit's part.
    """

    code = "bad-offset"

    def __init__(self, message: str, *, segment: str = "", expected: int, given: int) -> None:
        super().__init__(message, segment=segment)
        self.expected = expected
        self.given = given


class AttributeConflict(SegmentError):
    """The condition of an attribute update does not hold. Nothing of the call was applied; read the
    attributes and decide again."""

    code = "attribute-conflict"


class WrongSegmentKind(SegmentError):
    """The call is for segments of bytes, and the segment is a table, or the other way round. Nothing was
    done; use the verbs of its kind."""

    code = "wrong-segment-kind"

    @classmethod
    def of(cls, name: str, *, is_table: bool) -> WrongSegmentKind:
        """``is_table``: the segment is a table."""
        what = (
            f"{name!r} is a table, which has rows and no bytes: use the verbs of tables"
            if is_table
            else f"{name!r} is a segment of bytes and not a table: use the verbs of segments"
        )
        return cls(what, segment=name)


class TableConflict(SegmentError):
    """A key of a table has another version than the update expects. Nothing was applied; read the key and
    decide again.

    ``key`` is the first such key (``key_hex`` in hex), ``expected`` the version given and ``present`` the
    one that it has; 0 means no row.
    """

    code = "table-conflict"

    def __init__(
        self, message: str, *, segment: str = "", key_hex: str = "", expected: int, present: int
    ) -> None:
        super().__init__(message, segment=segment)
        self.key_hex = key_hex
        self.expected = expected
        self.present = present

    @property
    def key(self) -> bytes:
        try:
            return bytes.fromhex(self.key_hex)
        except ValueError:  # an answer that was damaged on its way
            return b""


class ChangesIncomplete(SegmentError):
    """The table does not know all changes since that version any more: forget its rows, and start over with
    the changes since version 0, which are all rows.

    ``complete_since`` is the least version since which all changes are known.
    """

    code = "changes-incomplete"

    def __init__(self, message: str, *, segment: str = "", complete_since: int = 0) -> None:
        super().__init__(message, segment=segment)
        self.complete_since = complete_since


class OutOfOrder(SegmentError):
    """An idempotent append arrived before its predecessor (rule C3). Nothing was applied; send the events
    after ``last_event_number``, the writer's last applied event, and then this one."""

    code = "out-of-order"
    retryable = True

    def __init__(self, message: str, *, segment: str = "", last_event_number: int | None = None) -> None:
        super().__init__(message, segment=segment)
        self.last_event_number = last_event_number


class UnknownWriter(SegmentError):
    """The writer's state has expired, so duplicates can no longer be detected. Read the segment to find out
    whether the last append was applied, then continue with a new writer id."""

    code = "unknown-writer"


class HistoryLost(SegmentError):
    """The call builds on changes that are lost: since they were acked, the store was recovered from long-term
    storage alone, without them (rules R8 to R10). Nothing was applied. Compare what you know with what is
    left, and go on from there.

    ``history`` is the present history; pass it with positions that are of it. ``recovered_length`` is how
    much of the segment the caller's history has in common with it. ``last_event_number`` is the last event of
    the writer that is left, None if none is or if the call has no writer.
    """

    code = "history-lost"

    def __init__(
        self,
        message: str,
        *,
        segment: str = "",
        history: int = 0,
        recovered_length: int = 0,
        last_event_number: int | None = None,
    ) -> None:
        super().__init__(message, segment=segment)
        self.history = history
        self.recovered_length = recovered_length
        self.last_event_number = last_event_number


class TransactionNotFound(SegmentError, LookupError):
    """The transaction never began, or ended so long ago that its record has expired. ``segment`` is its
    target."""

    code = "transaction-not-found"


class TransactionEnded(SegmentError):
    """The transaction was committed or aborted and accepts no more appends (rule T5). Stop writing to it.

    ``state`` is "committed" or "aborted"; ``segment`` is its target.
    """

    code = "transaction-ended"

    def __init__(self, message: str, *, segment: str = "", state: str = "") -> None:
        super().__init__(message, segment=segment)
        self.state = state


# --- the store's state --------------------------------------------------------------------------


class OutcomeUnknown(TierlogError):
    """The call may or may not have been applied. Retry with the same writer id and event number, or read
    back."""

    code = "outcome-unknown"


class Unavailable(TierlogError):
    """The container or backend cannot answer now: it is starting, recovering or down. Nothing was applied;
    retry later."""

    code = "unavailable"
    retryable = True


class NotOwner(TierlogError):
    """Another owner has opened this container with a higher epoch, and this one is fenced for good. Find the
    new owner, or open the store again."""

    code = "not-owner"


class Throttled(TierlogError):
    """Too much is in flight or not yet flushed. Nothing was applied; slow down and retry."""

    code = "throttled"
    retryable = True


class StorageFull(TierlogError):
    """Free space is below the low-water mark. Appends are refused; reads, deletes, truncates and flushes
    continue. Free some space, then retry."""

    code = "storage-full"
    retryable = True


class DataCorruption(TierlogError):
    """Stored bytes are not what was written, or acked bytes are missing, at ``offset`` of ``file``: a path,
    or the place of an object, a record or an entry. Nothing was changed. ``tierlog doctor --deep`` lists all
    damage and what to do."""

    code = "data-corruption"

    def __init__(self, message: str, *, file: str = "", offset: int = 0) -> None:
        # A place in a service is no file.
        kind = "at" if "://" in file else "file"
        where = f" [{kind} {file}, offset {offset}]" if file else ""
        super().__init__(message + where)
        self.reason = message
        self.file = file
        self.offset = offset


class StoreMismatch(TierlogError):
    """The folder and the long-term storage do not belong together (a clone, a restored copy, another number
    of containers), or the format is newer than this version of tierlog. Nothing was changed."""

    code = "store-mismatch"


# --- chunks -------------------------------------------------------------------------------------


class ChunkError(TierlogError):
    """An error about one chunk; ``chunk`` is its name."""

    code = "chunk-error"

    def __init__(self, message: str, *, chunk: str = "") -> None:
        super().__init__(message)
        self.chunk = chunk


class ChunkNotFound(ChunkError, LookupError):
    """No chunk has that name. ``is_taken``: something that is no chunk has it, as a link or a folder."""

    code = "chunk-not-found"

    def __init__(self, message: str, *, chunk: str = "", is_taken: bool = False) -> None:
        super().__init__(message, chunk=chunk)
        self.is_taken = is_taken


class ChunkExists(ChunkError):
    """A chunk of that name exists already; names are never used twice (rule S2)."""

    code = "chunk-exists"


class BadChunkOffset(ChunkError):
    """The offset of a chunk write is not the chunk's length: ``expected`` is the length, ``given`` the
    argument."""

    code = "bad-chunk-offset"

    def __init__(self, message: str, *, chunk: str = "", expected: int, given: int) -> None:
        super().__init__(message, chunk=chunk)
        self.expected = expected
        self.given = given


class ChunkReadOnly(ChunkError):
    """The chunk is read-only, or its permissions do not allow changes."""

    code = "chunk-read-only"


class MetadataConflict(TierlogError):
    """A key changed since a metadata transaction read it. Nothing was applied; begin another transaction."""

    code = "metadata-conflict"
    retryable = True


class ClaimOutdated(Unavailable):
    """Another owner's claim is above the epoch of this adopted ownership, which ends; the next one opens
    above it."""

    code = "claim-outdated"


CLAIM_REFUSED = (NotOwner, StoreMismatch, ClaimOutdated)
"""Errors of a claim on long-term storage that belongs to another owner or store (rule W8). All others are
temporary."""

_errors = {each for each in globals().values() if isinstance(each, type) and issubclass(each, TierlogError)}
_internal = {SegmentError, MetadataConflict, ClaimOutdated, ChunkError, *ChunkError.__subclasses__()}
for _error in _errors - _internal:
    # As users import it, so that a traceback shows that name. Of errors alone: what resolves the annotations
    # of a class, as msgspec does, looks into the module that the class names.
    _error.__module__ = "tierlog"
