"""``CallHealth``: whether a service answers a log's calls, by those that the log makes anyway. An idle log
makes none, and keeps what it saw last."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import anyio
import attrs

from ...storage_backends.base.errors import OutcomeUnknown, Unavailable

_SILENT_SECONDS = 5.0
"""Without an answer for so long a call may still be under way; longer ones are reported."""
_FAILING_SECONDS = 1.0
"""What fails is repeated, and many a failure is over by then."""


@attrs.define(eq=False, repr=False)
class WatchedCall:
    begun: float
    error: str = ""
    """Of its last attempt."""

    def failed(self, error: Exception) -> None:
        self.error = str(error)


class CallHealth:
    def __init__(self) -> None:
        self._waiting: dict[WatchedCall, None] = {}
        """In the order of their beginnings."""
        self._given_up: WatchedCall | None = None
        """The first that failed since one succeeded."""
        self._answered: float | None = None

    @contextmanager
    def watched(self) -> Iterator[WatchedCall]:
        """Around a call and its repetitions."""
        call = WatchedCall(anyio.current_time())
        self._waiting[call] = None
        try:
            yield call
        except (Unavailable, OutcomeUnknown) as error:
            call.failed(error)
            self._given_up = self._given_up or call
            raise
        else:
            self._given_up, self._answered = None, anyio.current_time()
        finally:
            del self._waiting[call]

    def outage(self) -> str:
        """Why the service counts as away, for people; empty if it answers."""
        now = anyio.current_time()
        call = self._oldest(now)
        if call is None:
            return ""
        answered = "" if self._answered is None else f"; the last answer is {now - self._answered:.0f} s old"
        why = f", the last error: {call.error}" if call.error else ""
        return f"no success for {now - call.begun:.0f} s{answered}{why}"

    def _oldest(self, now: float) -> WatchedCall | None:
        if self._given_up is not None:
            return self._given_up
        call = next(iter(self._waiting), None)
        if call is None:
            return None
        return call if now - call.begun >= (_FAILING_SECONDS if call.error else _SILENT_SECONDS) else None
