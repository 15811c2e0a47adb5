"""Every error tierlog raises, in one tree.

Owns: the classes, their stable ``code``, whether repeating the same call can help (``retryable``), and how a
message quotes a value. Does not own: mapping from foreign exceptions (each backend does that at its edge) nor
HTTP statuses (the wire table does).

An error says what the caller should do. The message names the segment, file or offset; the cause is chained.
"""

from __future__ import annotations

from typing import ClassVar

_SHOWN_MAX = 200


class TierlogError(Exception):
    """The root of everything tierlog raises on purpose."""

    code: ClassVar[str] = "error"
    retryable: ClassVar[bool] = False


def shown(value: object) -> str:
    """``value`` as a message quotes it: short, and never an error of its own (Python refuses to print huge
    ints and deep nests)."""
    try:
        text = repr(value)
    except (ValueError, RecursionError):
        return f"a value of type {type(value).__name__} that is too large to print"
    return text if len(text) <= _SHOWN_MAX else f"{text[:_SHOWN_MAX]}..."


# --- the caller's mistake -----------------------------------------------------------------------


class InvalidArgument(TierlogError, ValueError):
    """An argument is out of its documented range or grammar. Nothing was done; correct the call."""

    code = "invalid-argument"


class ConfigError(InvalidArgument):
    """A configuration file or option is wrong. The message names the key and, where one is close, the key
    that was meant."""

    code = "config"


class Unsupported(TierlogError):
    """The backend or state cannot do this at all (a capability is missing)."""

    code = "unsupported"


class ClosedError(TierlogError):
    """The object was closed; open it again."""

    code = "closed"


# --- answers about a segment --------------------------------------------------------------------


class SegmentError(TierlogError):
    """An answer about one segment; ``segment`` is its name."""

    def __init__(self, message: str, *, segment: str = "") -> None:
        super().__init__(message)
        self.segment = segment


class SegmentNotFound(SegmentError, LookupError):
    """No segment of that name exists (it may have been deleted or merged away)."""

    code = "segment-not-found"


class SegmentExists(SegmentError):
    """A segment of that name exists already."""

    code = "segment-exists"


class SegmentSealed(SegmentError):
    """The segment is sealed: it can be read, truncated, merged and deleted, never appended to."""

    code = "segment-sealed"


class SegmentNotSealed(SegmentError):
    """A merge needs sealed sources; seal this segment first."""

    code = "segment-not-sealed"


class SegmentTruncated(SegmentError):
    """The offset lies before the segment's start; ``start_offset`` is the first byte that can be read."""

    code = "segment-truncated"

    def __init__(self, message: str, *, segment: str = "", start_offset: int = 0) -> None:
        super().__init__(message, segment=segment)
        self.start_offset = start_offset


class BadOffset(SegmentError):
    """A conditional append named another offset than the segment's length: ``expected`` is the length,
    ``given`` the argument."""

    code = "bad-offset"

    def __init__(self, message: str, *, segment: str = "", expected: int, given: int) -> None:
        super().__init__(message, segment=segment)
        self.expected = expected
        self.given = given


class AttributeConflict(SegmentError):
    """An attribute update's condition does not hold; nothing of the call was applied."""

    code = "attribute-conflict"


class OutOfOrder(SegmentError):
    """An idempotent append arrived before its predecessor (rule C3). Retry once the predecessor is acked."""

    code = "out-of-order"
    retryable = True

    def __init__(self, message: str, *, segment: str = "", last_event_number: int | None = None) -> None:
        super().__init__(message, segment=segment)
        self.last_event_number = last_event_number


class UnknownWriter(SegmentError):
    """The writer's state is not known (it was expired): whether its last append was applied cannot be told
    any more."""

    code = "unknown-writer"


class TransactionNotFound(SegmentError, LookupError):
    """Nobody knows that transaction: it never began, or it ended so long ago that it was forgotten.
    ``segment`` is its target."""

    code = "transaction-not-found"


class TransactionEnded(SegmentError):
    """The transaction was committed or aborted, and takes nothing more (rule T5). Whoever gets this is late:
    it must stop.

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
    """The container or backend cannot answer now (starting, recovering, backend down). Nothing was applied;
    try again later."""

    code = "unavailable"
    retryable = True


class NotOwner(TierlogError):
    """Another owner opened this container with a higher epoch; this one was fenced and stays so."""

    code = "not-owner"


class Throttled(TierlogError):
    """Too much is in flight or not yet flushed. Nothing was applied; slow down and try again."""

    code = "throttled"
    retryable = True


class StorageFull(TierlogError):
    """Free space is below the low-water mark: appends are refused, while reads, deletes, truncates and
    flushes go on."""

    code = "storage-full"
    retryable = True


class DataCorruption(TierlogError):
    """Stored bytes are not what was written, or acked bytes are missing. ``file`` and ``offset`` say where;
    nothing was changed."""

    code = "data-corruption"

    def __init__(self, message: str, *, file: str = "", offset: int = 0) -> None:
        where = f" [file {file}, offset {offset}]" if file else ""
        super().__init__(message + where)
        self.reason = message
        self.file = file
        self.offset = offset


class StoreMismatch(TierlogError):
    """The folder and the long-term storage do not belong together (a clone, a restored copy, another
    container count), or its format is newer than this version. It was left untouched."""

    code = "store-mismatch"


# --- chunks -------------------------------------------------------------------------------------


class ChunkError(TierlogError):
    """An answer about one chunk; ``chunk`` is its name."""

    code = "chunk-error"

    def __init__(self, message: str, *, chunk: str = "") -> None:
        super().__init__(message)
        self.chunk = chunk


class ChunkNotFound(ChunkError, LookupError):
    """No chunk of that name exists."""

    code = "chunk-not-found"


class ChunkExists(ChunkError):
    """A chunk of that name exists already; names are never used twice (rule S2)."""

    code = "chunk-exists"


class BadChunkOffset(ChunkError):
    """A chunk write named another offset than the chunk's length."""

    code = "bad-chunk-offset"

    def __init__(self, message: str, *, chunk: str = "", expected: int, given: int) -> None:
        super().__init__(message, chunk=chunk)
        self.expected = expected
        self.given = given


class ChunkReadOnly(ChunkError):
    """The chunk was made read-only."""

    code = "chunk-read-only"


class MetadataConflict(TierlogError):
    """A metadata transaction's versions are not current: somebody else changed a key since it was read. Begin
    again."""

    code = "metadata-conflict"
    retryable = True


CLAIM_REFUSED = (NotOwner, DataCorruption, StoreMismatch)
"""What a claim on long-term storage raises when it is not ours to make (rule W8); every other error is
trouble that passes."""
