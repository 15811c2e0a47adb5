"""Streams of sessions that wait at the end of a segment, each a small record without a task (rule H11).

The handler of the stream has ended, and its call goes on. A fan-out writes to the record as to any stream.
When the record leaves the fan-out, a task reads on from its position, and may have it wait again."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

import anyio

from ....storage_backends.base.errors import NotOwner
from ...telemetry.logging import add_to_events, get_logger
from .call import Call, Disconnected, HttpCall, Receive, Scope, Send
from .fan_out import Chunk, FanOut
from .request_metrics import CLIENT_GONE

if TYPE_CHECKING:
    from .session_call import SessionCall

_log = get_logger("gateway")
_OPERATION = "tail"
ReadOn = Callable[[Call, int, int], Awaitable["WaitingTail | None"]]
"""Sends the rest of a stream from a position of a segment's id; returns the tail if it waits again."""


class WaitingTail:
    __slots__ = ("_begun", "_call", "_fan_out", "_gateway", "_read_on", "_request_id", "position")

    def __init__(self, call: Call, read_on: ReadOn) -> None:
        """``call``: of its handler, which ends once the tail waits."""
        self._gateway = call.server
        self._read_on = read_on
        self._request_id = call.scope["tierlog.request_id"]
        self._begun = anyio.current_time()
        self._call: SessionCall | None = None
        self._fan_out: FanOut | None = None
        self.position = 0

    def wait(self, call: Call, fan_out: FanOut, position: int) -> bool:
        """Wait in ``fan_out``, without the task of ``call``. Returns False if the connection does not let
        it."""
        park = call.scope["tierlog.park"]
        parked: SessionCall | None = park(self)
        if parked is None:
            return False

        if self._call is None:
            # The middleware counts a request when its handler ends.
            call.scope["tierlog.is_parked"] = True
            self._gateway.metrics.operation(_OPERATION).in_flight += 1
        self._call, self._fan_out, self.position = parked, fan_out, position
        fan_out.join(self)
        self._gateway.park(self)
        return True

    # --- what the fan-out, the server, and the connection call -------------------------------------

    def write(self, chunk: Chunk, /) -> bool:
        assert self._call is not None
        self._gateway.metrics.operation(_OPERATION).response_bytes += len(chunk.data)
        return self._call.write_chunk(chunk)

    def leave(self) -> None:
        """From its position a task reads on."""
        assert self._call is not None
        self._gateway.unpark(self)
        self._call.resume(self._resume)

    def cancel(self) -> None:
        """The server stops."""
        assert self._call is not None
        self._leave_fan_out()
        self._call.finish()
        self._end(200)

    def gone(self) -> None:
        """The client has left."""
        self._leave_fan_out()
        self._end(CLIENT_GONE)

    # --- inside ------------------------------------------------------------------------------------

    def _leave_fan_out(self) -> None:
        assert self._fan_out is not None
        self._gateway.unpark(self)
        self._fan_out.remove(self)

    def _end(self, status: int) -> None:
        metrics = self._gateway.metrics
        metrics.operation(_OPERATION).in_flight -= 1
        metrics.note(_OPERATION, "GET", status, anyio.current_time() - self._begun)

    async def _resume(self, scope: Scope, receive: Receive, send: Send) -> None:
        """An application for the rest of the answer."""
        add_to_events(request_id=self._request_id)
        fan_out, parked = self._fan_out, self._call
        assert fan_out is not None
        assert parked is not None
        about: dict[str, Any] = {
            "method": "GET",
            "path_params": {"name": fan_out.name},
            "tierlog.park": parked.park,
            "tierlog.wait_read": parked.wait_read,
            "tierlog.waiting": self,
        }
        counts = self._gateway.metrics.operation(_OPERATION)
        call = HttpCall(self._gateway, counts, about, receive, send)
        call.started = True
        status, waits = 200, False
        try:
            # It may be here because its client is slow. It counts among the tails meanwhile.
            with anyio.CancelScope() as waiting, self._gateway.parked(waiting, has_begun=True):
                await call.wait_read()
            waits = await self._read_on(call, self.position, fan_out.segment_id) is not None
        except Disconnected:
            status = CLIENT_GONE
        except NotOwner:
            pass  # not logged for each of the tails: the container moved, and they go on at its next host
        except Exception as error:  # noqa: BLE001 - the connection survives every bug of a store
            _log.warning("answer_aborted", operation=_OPERATION, error=repr(error))
        finally:
            call.release()
            if not waits:
                self._end(status)
