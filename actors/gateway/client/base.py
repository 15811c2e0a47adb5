"""What both clients have in common: their state, the checks before each call, and their statistics."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from threading import get_ident

import attrs

from ....storage_backends.base.arguments import (
    APPEND_BYTES_MAX,
    JoinedAppend,
    WriterId,
    check_data,
    check_offset,
    event_identity,
    history_of_append,
    joined_events,
    previous_event,
)
from ....storage_backends.base.checksum import Buffer
from ....storage_backends.base.errors import ClosedError, TierlogError, TooLarge
from ....storage_backends.base.names import check_segment_name
from ....storage_backends.base.statistics import counter, gauge
from ...kernel.use_guard import UseGuard
from ...telemetry.tracing import Tracing
from ..wire.batch import BatchItem
from .attempts import REFRESH_SECONDS, ClientContext, Program, RefreshMap
from .coalescer import checked_items
from .requests import check_append_size


@attrs.frozen
class ClientStatistics:
    """What a client's ``statistics()`` returns: counters and gauges as of one moment."""

    requests: int = attrs.field(metadata=counter("Requests sent, repeats and map refreshes included."))
    appends: int = attrs.field(metadata=counter("Appends that callers made."))
    batches: int = attrs.field(metadata=counter("Requests that carried these appends."))
    appends_waiting: int = attrs.field(metadata=gauge("Appends that wait for their answer."))
    in_flight: int = attrs.field(metadata=gauge("Requests that wait for their answer."))
    map_refreshes: int = attrs.field(
        metadata=counter("Refreshes of the container map, failed ones included.")
    )


class ClientBase:
    def __init__(self, context: ClientContext, tracing: Tracing | None, guard: UseGuard) -> None:
        self._context = context
        self._tracing = tracing
        self._guard = guard
        self._is_closed = False
        self._limit_due = -math.inf
        """When to ask again whether the limit of an append was raised."""

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of {self._context.map.base}{', closed' if self._is_closed else ''}>"

    @property
    def append_bytes_max(self) -> int:
        """The largest append that the service takes, in bytes, as of the newest container map."""
        return self._context.map.append_bytes_max

    def container_of(self, name: str) -> int:
        """The index of the container that hosts ``name``. Raises ``InvalidArgument`` for a bad name."""
        check_segment_name(name)
        return self._context.map.container_of(name)

    def _append_item(
        self,
        name: str,
        data: Buffer,
        writer_id: WriterId | None,
        event_number: int | None,
        previous_event_number: int | None,
        expected_offset: int | None,
        history: int | None,
    ) -> BatchItem:
        """The arguments of ``append``, checked except for the name and the service's limit, with a copy of a
        mutable buffer."""
        if type(data) is not bytes:
            # Before the copy: a caller may have passed a mapped file of many gigabytes.
            if (size := check_data(data)) > APPEND_BYTES_MAX:
                raise TooLarge.append(size, self.append_bytes_max)
            data = bytes(data)
        expected = None if expected_offset is None else check_offset(expected_offset, "expected_offset")
        known = None if history is None else history_of_append(history, writer_id, expected)
        if writer_id is None and event_number is None and previous_event_number is None:
            return BatchItem(name, data, expected_offset=expected, history=known)

        writer, first = event_identity(writer_id, event_number, "event_number")
        previous = previous_event(previous_event_number, first)
        return BatchItem(name, data, writer, first, 1, previous, expected, known)

    def _append_many_item(
        self,
        name: str,
        events: Iterable[Buffer],
        writer_id: WriterId | None,
        first_event_number: int | None,
        previous_event_number: int | None,
        expected_offset: int | None,
        history: int | None,
    ) -> BatchItem:
        """The arguments of ``append_many``, checked except for the name and the service's limit."""
        data, count = joined_events(events)
        expected = None if expected_offset is None else check_offset(expected_offset, "expected_offset")
        known = history_of_append(history, writer_id, expected)
        if writer_id is None and first_event_number is None and previous_event_number is None:
            return BatchItem(name, data, expected_offset=expected, history=known)

        writer, first = event_identity(writer_id, first_event_number, "first_event_number", count)
        previous = previous_event(previous_event_number, first)
        return BatchItem(name, data, writer, first, count, previous, expected, known)

    def _check_size(self, size: int) -> Program[None]:
        """Raises ``TooLarge``, but not by an old map: the service's limit may have been raised since."""
        yield from self._refresh_limit()
        check_append_size(size, self.append_bytes_max)

    def _checked_items(
        self, appends: Sequence[JoinedAppend]
    ) -> Program[tuple[list[BatchItem], list[TierlogError | None]]]:
        """The valid ``appends``, and for each given one its refusal, which is not ``TooLarge`` by an old
        map."""
        items, refusals = checked_items(appends, self.append_bytes_max)
        if any(isinstance(refusal, TooLarge) for refusal in refusals):
            yield from self._refresh_limit()
            items, refusals = checked_items(appends, self.append_bytes_max)
        return items, refusals

    def _refresh_limit(self) -> Program[None]:
        context = self._context
        # Not for each append of a loop that goes on: while no server answers, it takes seconds.
        if context.clock() >= self._limit_due:
            yield RefreshMap(context.map.generation, REFRESH_SECONDS)
            self._limit_due = context.clock() + context.map_refresh

    def _check(self) -> None:
        if self._is_closed:
            raise ClosedError("the client is closed: its body has ended, or `close` or `aclose` was called")

        # Another event loop, or the child of a fork, would share sockets with this one. Compared here too:
        # this runs for each append.
        if self._guard.thread != get_ident():
            self._guard.check()


def render(statistics: Callable[[], ClientStatistics]) -> bytes:
    from ...telemetry.metrics import render_metrics

    return render_metrics(lambda: (statistics(),))
