"""Metric declarations in the fields of statistics snapshots.

A snapshot is an ``attrs.frozen`` class whose name ends in ``Statistics``. A field's name is its metric's name
and contains its unit (``append_bytes``, ``oldest_age_seconds``). ``actors/telemetry/metrics.py`` reads the
declarations, so no lower layer imports metrics. A number without a declaration is exported as untyped.

The snapshots of a folder are in a module of their own, which ``statistics()`` imports: to make these classes
takes longer than to open a log, and the first ack does not need them.

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
    """Only grows; restarts at 0 with the next owner."""
    GAUGE = "gauge"
    """Goes up and down."""
    LABEL = "label"
    """Identifies the object of the snapshot, for all numbers in it and in nested snapshots."""
    STATE = "state"
    """A word, exported as the number 1 with the word as a label."""


@attrs.frozen(eq=False, repr=False)
class Metric:
    """The declaration of one field, stored in the field's metadata with this class as the key."""

    kind: MetricKind
    help: str = ""


def counter(help: str) -> dict[Any, Any]:
    """Metadata for a number that only grows."""
    return {Metric: Metric(MetricKind.COUNTER, help)}


def gauge(help: str) -> dict[Any, Any]:
    """Metadata for a number that goes up and down."""
    return {Metric: Metric(MetricKind.GAUGE, help)}


def label() -> dict[Any, Any]:
    """Metadata for a field that identifies the object of the snapshot."""
    return {Metric: Metric(MetricKind.LABEL)}


def state(help: str) -> dict[Any, Any]:
    """Metadata for a field that holds a word or an enum member."""
    return {Metric: Metric(MetricKind.STATE, help)}
