"""Times for people: ``datetime`` ends with the year 9999, but a wrong clock or a damaged record does not."""

from __future__ import annotations

from datetime import UTC, datetime


def show_utc(seconds: float, pattern: str, beyond: str = "{} s since 1970") -> str:
    """``seconds`` since 1970 in the format ``pattern`` of ``strftime``; in the format ``beyond`` if the
    calendar has no such time."""
    try:
        return datetime.fromtimestamp(seconds, tz=UTC).strftime(pattern)
    except (ValueError, OverflowError, OSError):
        return beyond.format(int(seconds))
