"""What a client counts of itself."""

from __future__ import annotations

import attrs


@attrs.frozen
class ClientStatistics:
    requests: int
    """Sent, repeats and looks at the map included."""
    appends: int
    batches: int
    """Requests with appends: so many carried all of them."""
    appends_waiting: int
    """Callers without an answer."""
    in_flight: int
    looks: int
    """Attempts to get a newer container map."""
