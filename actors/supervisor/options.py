"""How a supervisor is to run."""

from __future__ import annotations

import attrs

from ...storage_backends.base.arguments import APPEND_BYTES_MAX
from .fleet import FleetOptions


@attrs.frozen(kw_only=True)
class SupervisorOptions:
    fleet: FleetOptions
    control: str
    """The path of the control socket; empty without hosts of its own."""
    heartbeat: float = 0.1
    """Seconds between a host's heartbeats."""
    orphan_grace: float = 60
    """Seconds that a host serves on without a supervisor."""
    append_bytes_max: int = APPEND_BYTES_MAX
    """The largest append that the hosts take, in bytes; clients learn it from the map."""
    store: str = ""
    """The store's id in hexadecimal, which hosts must have too."""
