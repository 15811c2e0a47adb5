"""``bytes`` of a known size that are written where they stay: what a socket receives into them is handed out
without a copy."""

from __future__ import annotations

from io import BytesIO


class FilledBytes:
    def __init__(self, size: int) -> None:
        # ``bytes`` without another reference: what is written to the view is in them, and they are handed
        # out as they are.
        self._memory = BytesIO(bytes(size))
        self.view = self._memory.getbuffer()

    def drop(self) -> None:
        """Free the memory, whoever refers to this."""
        self.view.release()
        self._memory = BytesIO()

    def take(self) -> bytes:
        """Return the bytes; once, when all are written."""
        self.view.release()
        memory, self._memory = self._memory, BytesIO()  # no second reference to the bytes
        return memory.getvalue()
