"""The options of segments made of chunks: chunk sizes, reads, caches, deferred work."""

from __future__ import annotations

import attrs

from ..base.errors import InvalidArgument
from ..base.values import Value
from .defrag_rules import DefragOptions
from .records import BLOCK


def _positive(_: object, attribute: attrs.Attribute[int], value: int) -> None:
    if value < 1:
        raise InvalidArgument(f"{attribute.name} is {value}, it must be at least 1")


def _at_least_two(_: object, attribute: attrs.Attribute[int], value: int) -> None:
    if value < 2:
        raise InvalidArgument(f"{attribute.name} is {value}, it must be at least 2")


def _whole_blocks(_: object, attribute: attrs.Attribute[int], value: int) -> None:
    if value < BLOCK or value % BLOCK:
        raise InvalidArgument(f"{attribute.name} is {value}, it must be a multiple of {BLOCK} bytes")


@attrs.frozen(eq=False, repr=False)
class ChunkedOptions(Value):
    rolling_size: int = attrs.field(default=128 << 20, validator=_positive)
    """Bytes at which a chunk is full. Applies to segments created from now on."""
    index_spacing: int = attrs.field(default=64 << 20, validator=_positive)
    """Bytes between index records. Part of the store's format: it must not change once segments exist."""
    read_request: int = attrs.field(default=16 << 20, validator=_whole_blocks)
    """A read of more bytes of one chunk is split into several requests. Rounding to whole blocks may add to
    it."""
    read_parallelism: int = attrs.field(default=16, validator=_positive)
    """Requests in flight for one call."""
    cached_segments: int = attrs.field(default=1024, validator=_positive)
    cached_chunks: int = attrs.field(default=16384, validator=_positive)
    """Bounds of the layout cache: segments, and chunk records over all of them."""
    defrag: DefragOptions = attrs.field(factory=DefragOptions)
    """When small chunks are joined and mostly truncated ones are rewritten."""
    inline_records: int = attrs.field(default=16, validator=_positive)
    """The most chunk and index records that an operation reads itself, beyond a fixed handful; more become
    deferred work (rule S11)."""
    maintenance_records: int = attrs.field(default=256, validator=_at_least_two)
    """The most chunk and index records that one step of deferred work reads; at least 2, because a join needs
    two."""
    adopt_bytes: int = attrs.field(default=256 << 10, validator=_positive)
    """Above about this many bytes of records, an import or a restore of one segment takes several
    transactions (rule S14)."""
