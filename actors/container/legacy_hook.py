"""What a container asks of a legacy layout: software from before chunk records may have written
segments beside this store, and may still read them. ``legacy_rolling`` implements the hook; the runtime
passes it in."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from .container import Container


class LegacyHook(Protocol):
    """One object per ownership; a store without a legacy layout has none."""

    async def import_missing(self, container: Container, name: str) -> None:
        """Called before ``name`` is reported as not found. Returns once the legacy layout's segment of that
        name is imported; also if there is none. Raises why it cannot be imported."""
        ...

    def record_changed(self, sid: int, name: str) -> None:
        """The record of the segment in long-term storage was committed or removed."""
        ...

    def cycle_completed(self) -> None:
        """A flush cycle is complete."""
        ...

    async def run(self, container: Container) -> None:
        """Runs alongside the container until cancelled."""
        ...

    async def flush(self, container: Container) -> None:
        """Called after a flush that a client asked for, which waits for it."""
        ...
