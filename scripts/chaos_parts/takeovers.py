"""How long takeovers take, from the service's own log: from the order to open a container until its new owner
has opened it.

A move by an operator or for balance is no takeover: there the order follows a close. The time to detect a
loss is not included. The log of a service that was not started here is unknown, and so are its takeovers."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from datetime import datetime
from typing import Any

from chaos_parts.service import Service

Window = tuple[float, float]
"""Begin and end, in seconds of the wall clock, like the log's timestamps."""


class Takeovers:
    """The takeovers since this was made."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._skip = sum(1 for _ in service.log_lines())

    def seconds(self, windows: Iterable[Window]) -> tuple[list[float], list[float]]:
        """Those that were ordered within one of the windows, and all others."""
        inside: list[float] = []
        outside: list[float] = []
        spans = list(windows)
        for ordered, seconds in takeovers_in(self._lines()):
            (inside if any(begin <= ordered <= end for begin, end in spans) else outside).append(seconds)
        return inside, outside

    def replayed(self) -> dict[str, int]:
        """How many operations the new owners replayed."""
        numbers = sorted(
            int(line["operations"]) for line in self._lines() if line.get("event") == "recovered"
        )
        if not numbers:
            return {}
        return {
            "recoveries": len(numbers),
            "operations replayed (median)": numbers[len(numbers) // 2],
            "(most)": numbers[-1],
        }

    def _lines(self) -> Iterator[dict[str, Any]]:
        for number, text in enumerate(self._service.log_lines()):
            if number >= self._skip and text.startswith("{"):
                yield json.loads(text)


def takeovers_in(lines: Iterable[dict[str, Any]]) -> Iterator[tuple[float, float]]:
    """When each takeover was ordered, by the wall clock, and how many seconds it took."""
    ordered: dict[int, datetime] = {}
    closed: set[int] = set()
    for line in lines:
        event, kind = line.get("event"), line.get("kind")
        if event == "order" and kind == "CloseContainer":
            closed.add(line["index"])
        elif event == "order" and kind == "OpenContainer":
            if line["index"] not in closed:
                ordered[line["index"]] = _time(line)
            closed.discard(line["index"])
        elif event == "done" and kind == "opened" and line["container"] in ordered:
            begin = ordered.pop(line["container"])
            yield begin.timestamp(), (_time(line) - begin).total_seconds()


def _time(line: dict[str, Any]) -> datetime:
    return datetime.fromisoformat(line["timestamp"])
