"""An operator's drain of a host, which the host has to confirm: then it remembers it, and tells the next
supervisor too (rule V10).

Cancellation, and an answer that does not come: the host may drain all the same.
"""

from __future__ import annotations

import anyio

from ...storage_backends.base.errors import OutcomeUnknown
from .control.channel import Connection
from .control.messages import Leave

CONFIRM_SECONDS = 5.0
"""For which the confirmation is waited for."""


class Leaving:
    def __init__(self) -> None:
        self._confirmed: dict[str, anyio.Event] = {}

    async def ask(self, host: str, connection: Connection, term: int) -> None:
        """Returns when the host has confirmed it. Raises ``OutcomeUnknown`` without a timely answer."""
        confirmed = self._confirmed.setdefault(host, anyio.Event())
        connection.send(Leave(term))
        with anyio.move_on_after(CONFIRM_SECONDS):
            await confirmed.wait()
            return
        raise OutcomeUnknown(
            f"{host} did not confirm within {CONFIRM_SECONDS:g} s that it drains: it may do so all the "
            f"same, as `tierlog status` shows; if not, ask again"
        )

    def note(self, host: str) -> None:
        """The host says that it leaves."""
        if (confirmed := self._confirmed.pop(host, None)) is not None:
            confirmed.set()
