"""How a log in ledgers is used, and the position of a group in one."""

from __future__ import annotations

import attrs

from ...storage_backends.base.ledger_service import Quorum
from .bookkeeper_quorum import check_quorum

_ENTRY_BITS = 40
_ENTRY_MASK = (1 << _ENTRY_BITS) - 1


def position(ledger: int, entry: int) -> int:
    """Of a group, for ``GroupIndex``: entries of one ledger follow each other."""
    return ledger << _ENTRY_BITS | entry


def ledger_and_entry(position: int) -> tuple[int, int]:
    return position >> _ENTRY_BITS, position & _ENTRY_MASK


@attrs.frozen(kw_only=True)
class BookKeeperLogOptions:
    """Times in seconds."""

    quorum: Quorum | None = attrs.field(default=None)
    """None: 2/2/2, or 3/3/2 where at least four bookies answer (rule B9)."""
    appends_max: int = attrs.field(default=4, validator=attrs.validators.ge(1))
    """Groups that may be under way at once."""
    ledger_bytes: int = attrs.field(default=64 << 20, validator=attrs.validators.ge(1))
    """The owner begins another ledger behind so many bytes of groups: truncation deletes whole ledgers."""
    patience: float = 30.0
    """How long a call without a verdict is repeated."""
    roll_seconds: float = 2.0
    """How long appends wait at most for another ledger to be made. If that was too short once, truncations
    make it, and no append waits any more (rule B4)."""
    first_delay: float = 0.02
    longest_delay: float = 1.0
    kept_bytes: int = 16 << 20
    """Payloads that an opening keeps for ``read``, and that ``read`` fetches ahead."""
    parallel: int = 8
    """Ledgers that an opening recovers at once."""
    reads: int = 4
    """Reads, each of up to 16 entries, that are under way at once."""
    swept_max: int = attrs.field(default=1000, validator=attrs.validators.ge(1))
    """Ledgers that one truncation looks at in search of orphans."""

    @quorum.validator
    def _check_quorum(self, _: object, quorum: Quorum | None) -> None:
        if quorum is not None:
            check_quorum(quorum)
