"""What a client counts of itself."""

from __future__ import annotations

import attrs

from ....storage_backends.base.statistics import counter, gauge


@attrs.frozen
class ClientStatistics:
    requests: int = attrs.field(
        metadata=counter("Requests sent, repeats and generation at the map included.")
    )
    appends: int = attrs.field(metadata=counter("Appends asked for."))
    batches: int = attrs.field(metadata=counter("Requests with appends: so many carried all of them."))
    appends_waiting: int = attrs.field(metadata=gauge("Callers of appends without an answer."))
    in_flight: int = attrs.field(metadata=gauge("Requests without an answer."))
    generation: int = attrs.field(metadata=counter("Attempts to get a newer container map."))
