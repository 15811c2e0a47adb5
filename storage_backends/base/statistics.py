"""How a statistics snapshot says what its numbers are.

Owns: the marks that fields of snapshots carry in their metadata. Does not own: rendering
(``actors/telemetry/metrics.py`` reads the marks), so that no low layer ever imports metrics.

A snapshot is an ``attrs.frozen`` class whose name ends in ``Statistics``. A field's name is its metric's name
and carries its unit (``append_bytes``, ``oldest_age_seconds``). Marks are optional: a number without one is
exported as untyped.

::

    @attrs.frozen
    class ContainerStatistics:
        container: int = attrs.field(metadata=label())
        append_bytes: int = attrs.field(metadata=counter("Bytes of acked appends."))
        queue_bytes: int = attrs.field(metadata=gauge("Bytes that wait in the mailbox."))
        log: LogStatistics
"""

from __future__ import annotations

import enum
from typing import Any

import attrs


class MetricKind(enum.Enum):
    COUNTER = "counter"
    """Only grows while its owner lives; starts again at 0 with the next owner."""
    GAUGE = "gauge"
    """Goes up and down."""
    LABEL = "label"
    """Names the object that the snapshot is about, for all numbers in it and below it."""
    STATE = "state"
    """A word; exported as the number 1 with the word as a label."""


@attrs.frozen
class Metric:
    """The mark of one field: it lives in the field's metadata, under this class as the key."""

    kind: MetricKind
    help: str = ""


def counter(help: str) -> dict[Any, Any]:
    """Metadata for a number that only grows."""
    return {Metric: Metric(MetricKind.COUNTER, help)}


def gauge(help: str) -> dict[Any, Any]:
    """Metadata for a number that goes up and down."""
    return {Metric: Metric(MetricKind.GAUGE, help)}


def label() -> dict[Any, Any]:
    """Metadata for a field that names what the snapshot is about."""
    return {Metric: Metric(MetricKind.LABEL)}


def state(help: str) -> dict[Any, Any]:
    """Metadata for a field that holds a word or an enum member."""
    return {Metric: Metric(MetricKind.STATE, help)}
