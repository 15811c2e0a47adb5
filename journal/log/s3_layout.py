"""The objects of a log in a bucket, and how the log is used."""

from __future__ import annotations

import attrs

from ...storage_backends.base.codec import DecodeError, hex_number
from ...storage_backends.base.values import Value
from .contract import SLOTS_AHEAD
from .s3_slot import SLOT_HEADER_BYTES


@attrs.frozen(kw_only=True, eq=False, repr=False)
class S3LogOptions(Value):
    """Times in seconds."""

    appends_max: int = attrs.field(
        default=4, validator=[attrs.validators.ge(1), attrs.validators.le(SLOTS_AHEAD)]
    )
    """Puts of groups that may be under way at once."""
    pace: float = 0.05
    """The shortest time from the begin of one put to that of the next (``append_delay``): requests cost
    money."""
    pace_bytes: int = 1 << 20
    """A group of so many bytes does not wait."""
    check_after: float = 1.0
    """An owner that appends reads the register when it last did so that long ago."""
    patience: float = 30.0
    """How long a request without a verdict is repeated."""
    first_delay: float = 0.02
    longest_delay: float = 1.0
    kept_bytes: int = 16 << 20
    """Payloads that an opening keeps for ``read``, and that ``read`` fetches ahead."""
    start_bytes: int = attrs.field(default=64 << 10, validator=attrs.validators.ge(SLOT_HEADER_BYTES))
    """What an opening fetches of each object: smaller groups come whole."""
    parallel: int = 16
    """Requests that an opening, a read or a truncation has under way."""


@attrs.frozen(eq=False, repr=False)
class S3LogLayout(Value):
    """The keys of a log below ``prefix``, which ends with a slash."""

    prefix: str

    @property
    def register(self) -> str:
        return f"{self.prefix}register"

    @property
    def slots(self) -> str:
        return f"{self.prefix}g/"

    def slot(self, slot: int) -> str:
        return f"{self.slots}{slot:016x}"

    def slot_in(self, key: str) -> int | None:
        """The slot of a listed key; None if it is none of ours."""
        try:
            return hex_number(key[len(self.slots) :])
        except DecodeError:
            return None
