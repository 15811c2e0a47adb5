"""The legacy layout as a container sees it: one object per ownership, which imports segments that the
container does not know and keeps header files up to date (``container/legacy_hook.py``)."""

from __future__ import annotations

from .container_access import ContainerAccess
from .header_updates import HeaderUpdates
from .importing import import_missing


class RollingLayout:
    """Imports at first access; with ``writes_headers`` legacy readers go on reading."""

    def __init__(self, *, writes_headers: bool) -> None:
        self._headers = HeaderUpdates() if writes_headers else None

    async def import_missing(self, container: ContainerAccess, name: str) -> None:
        await import_missing(container, name)

    def record_changed(self, sid: int, name: str) -> None:
        if self._headers is not None:
            self._headers.record_changed(sid, name)

    def cycle_completed(self) -> None:
        if self._headers is not None:
            self._headers.cycle_completed()

    async def run(self, container: ContainerAccess) -> None:
        if self._headers is not None:
            await self._headers.run(container)

    async def flush(self, container: ContainerAccess) -> None:
        if self._headers is not None:
            await self._headers.flush(container)
