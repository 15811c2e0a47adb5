"""Options of the storage-backend actor."""

from __future__ import annotations

from msgspec import Struct

from ...storage_backends.base.errors import InvalidArgument
from ..kernel.backoff import Backoff
from ..kernel.mailbox import LaneBounds, MailboxOptions

DEFAULT_BACKOFF = Backoff(first=0.1, maximum=5.0)
DEFAULT_QUEUE = MailboxOptions(
    normal=LaneBounds(count=1024, size_bytes=256 << 20), internal=LaneBounds(count=1024, size_bytes=64 << 20)
)


class StorageOptions(Struct, frozen=True, kw_only=True):
    reads_max: int = 16
    """Reads at the same time, with info, exists and list."""
    writes_max: int = 8
    """Writes at the same time, with deletes."""
    queue: MailboxOptions = DEFAULT_QUEUE
    """Bounds of each of the two queues, reads and writes."""
    attempts: int = 3
    """Attempts of a repeatable call, at least 1."""
    backoff: Backoff = DEFAULT_BACKOFF
    read_deadline: float = 30.0
    """Seconds from the call to its answer, retries included; then ``Unavailable``."""
    write_deadline: float = 60.0
    """Likewise; then ``OutcomeUnknown``, or ``Unavailable`` if it was never begun."""
    list_page: int = 10_000
    """Names in one page of a list, at most."""
    safe_size_bytes: int = 0
    """Users' chunks stop growing while more than this is in use; 0 for no limit."""
    safe_size_interval: float = 60.0
    """Seconds between two measurements of the space in use."""
    sweep_interval: float = 86_400.0
    """Seconds between two sweeps of files that dead processes left unfinished. Opening sweeps too."""
    breaker_failures: int = 5
    """Failures in a row that open the breaker."""
    breaker_interval: float = 5.0
    """Seconds between two probes while it is open."""
    drain_deadline: float = 10.0
    """Seconds that a stop waits for queued and running calls, and again for closing the backend."""

    def __post_init__(self) -> None:
        # With 0 of any of these every call would wait forever, without an error.
        if min(self.reads_max, self.writes_max, self.attempts, self.list_page) < 1:
            raise InvalidArgument(f"reads_max, writes_max, attempts and list_page are at least 1: {self}")

        if min(self.read_deadline, self.write_deadline, self.safe_size_interval, self.sweep_interval) <= 0:
            raise InvalidArgument(f"deadlines and intervals are above 0 seconds: {self}")

        if self.safe_size_bytes < 0 or self.drain_deadline < 0:
            raise InvalidArgument(f"safe_size_bytes and drain_deadline are not negative: {self}")
