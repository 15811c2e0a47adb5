"""The live segments of a container, for checks that must not load one."""

from __future__ import annotations

from tierlog.actors.container.segments import SegmentTable


def live_ids(segments: SegmentTable) -> dict[str, int]:
    """The ids by name, as lookups of names find them."""
    found = {name: segments.sid_of(name) for name in segments._by_name}
    return {name: sid for name, sid in found.items() if sid is not None}
