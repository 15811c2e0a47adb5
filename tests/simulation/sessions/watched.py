"""Both ends of a session, with what must hold at each step."""

from __future__ import annotations

from collections.abc import Callable

from tierlog.actors.gateway.client.session import ClientSession, SessionCall
from tierlog.actors.gateway.server.session import SessionConnection
from tierlog.actors.gateway.wire.session import Frame, FrameDecoder
from tierlog.storage_backends.base.checksum import Buffer

from ..invariants import Broken


class WatchedSession(ClientSession):
    """N6: of a call that ended before it was sent, nothing is sent."""

    def __init__(self, write: Callable[[], None]) -> None:
        super().__init__(write)
        self._sent = FrameDecoder()
        self._ended: set[int] = set()

    def cancel(self, call: SessionCall) -> None:
        if not call.is_sent:
            self._ended.add(call.id)
        super().cancel(call)

    def take_output(self) -> list[Buffer]:
        output = super().take_output()
        # All of them: what is found may be raised in a callback, and the session goes on.
        frames = list(self._sent.feed(b"".join(output)))
        if sent := self._ended.intersection(frame.call for frame in frames):
            raise Broken(f"it does not hold that what ended unsent is never sent\ncalls {sorted(sent)}")
        return output


class WatchedConnection(SessionConnection):
    """N5: who has named the last call takes no other one."""

    def _begin_call(self, frame: Frame) -> int:
        has_ended, last = self._has_ended, self._last_call
        work = super()._begin_call(frame)
        if has_ended and self._last_call != last:
            raise Broken(
                f"it does not hold that the end names the last call\n{self._last_call} behind {last}"
            )
        return work
