"""What mailboxes and the event loop count."""

from __future__ import annotations

import attrs

from ...storage_backends.base.statistics import counter, gauge
from ...storage_backends.base.values import Value


@attrs.frozen(eq=False, repr=False)
class LaneStatistics(Value):
    count: int = attrs.field(metadata=gauge("Items inside."))
    size_bytes: int = attrs.field(metadata=gauge("Charged bytes inside, with room granted to putters."))
    waiting: int = attrs.field(metadata=gauge("Putters that wait for room."))
    accepted: int = attrs.field(metadata=counter("Items accepted since the mailbox was made."))
    refused: int = attrs.field(metadata=counter("Offers that found no room."))


@attrs.frozen(eq=False, repr=False)
class MailboxStatistics(Value):
    normal: LaneStatistics
    internal: LaneStatistics
    batches: int = attrs.field(metadata=counter("Batches drained."))
    closed: bool = attrs.field(metadata=gauge("1 after it was closed."))


@attrs.frozen(eq=False, repr=False)
class EventLoopStatistics(Value):
    lag_max_seconds: float = attrs.field(
        metadata=gauge("The longest lag of the process's event loop in the last minute.")
    )
