"""Prometheus metrics, made from statistics snapshots.

Live objects return snapshots from ``statistics()`` and know nothing of metrics; this module reads any attrs
class. A metric's name is the snapshot's class and field: ``ContainerStatistics.append_bytes``, marked as a
counter, is ``tierlog_container_append_bytes_total``. Labels:

- a field marked ``label()``, or named like its own class (``ContainerStatistics.container``), is a label of
  the whole snapshot and of the snapshots nested in it;
- in a mapping of snapshots the key is a label, named like the field in the singular
  (``lanes: Mapping[str, LaneStatistics]`` gives ``lane="user"``);
- where several fields hold snapshots of one class, the field's name is a label named like that class
  (``normal: LaneStatistics`` beside ``internal: LaneStatistics`` gives ``lane="normal"``).

Unmarked text, None and private fields are left out. Two snapshots that give the same series raise
``ValueError``: a scrape with duplicates is rejected or counts twice.

Collecting is synchronous: call it in the event loop's thread. ``prometheus_client`` is imported on first use,
because it takes half of the import budget.
"""

from __future__ import annotations

import enum
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import attrs

from ...storage_backends.base.statistics import Metric, MetricKind

if TYPE_CHECKING:
    from prometheus_client.metrics_core import Metric as Family

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

Labels = tuple[tuple[str, str], ...]

Snapshots = Callable[[], Iterable[object]]
"""Returns the snapshots of one scrape, all of them attrs instances."""

_WORD_BOUNDARY = re.compile(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])")


@attrs.frozen
class Sample:
    """One number of a scrape."""

    name: str
    kind: str
    """``counter``, ``gauge`` or ``unknown``."""
    help: str
    labels: Labels
    value: float


class StatisticsCollector:
    """A ``prometheus_client`` collector for any registry; ``render_metrics`` renders one alone."""

    def __init__(self, snapshots: Snapshots) -> None:
        self._snapshots = snapshots

    def describe(self) -> Iterable[Family]:
        """No families: they are known from snapshots only, and registering must not take one."""
        return ()

    def collect(self) -> Iterator[Family]:
        from prometheus_client.metrics_core import Metric as Family

        families: dict[str, Family] = {}
        for sample in samples(self._snapshots()):
            family = families.get(sample.name)
            if family is None:
                family = families[sample.name] = Family(sample.name, sample.help, sample.kind)

            suffix = "_total" if sample.kind == "counter" else ""
            family.add_sample(sample.name + suffix, dict(sample.labels), sample.value)

        yield from families.values()


def render_metrics(snapshots: Snapshots) -> bytes:
    """The text of one scrape; its content type is ``CONTENT_TYPE``."""
    from prometheus_client import CollectorRegistry, generate_latest

    registry = CollectorRegistry(auto_describe=False)
    registry.register(StatisticsCollector(snapshots))

    return generate_latest(registry)


def samples(snapshots: Iterable[object]) -> Iterator[Sample]:
    """Every number in the snapshots and the nested ones. Raises ``ValueError`` if two have the same name and
    labels."""
    seen: set[tuple[str, Labels]] = set()
    for snapshot in snapshots:
        for sample in _of_snapshot(snapshot, ()):
            key = (sample.name, sample.labels)
            if key in seen:
                shown = ", ".join(f'{name}="{value}"' for name, value in sample.labels)
                raise ValueError(
                    f"two snapshots give {sample.name}{{{shown}}}; mark a field that distinguishes them with "
                    f"label()"
                )

            seen.add(key)
            yield sample


def _of_snapshot(snapshot: Any, outer: Labels) -> Iterator[Sample]:
    subsystem = _subsystem(type(snapshot))
    fields = [
        (field, getattr(snapshot, field.name))
        for field in attrs.fields(type(snapshot))
        if not field.name.startswith("_")
    ]
    own = tuple((field.name, _word(value)) for field, value in fields if _is_label(field, subsystem))
    labels = _merged(outer, own)
    classes = [type(value) for _, value in fields]
    for field, value in fields:
        if attrs.has(type(value)):
            # Snapshots of one class would give the same series: the field's name distinguishes them.
            apart = ((_subsystem(type(value)), field.name),) if classes.count(type(value)) > 1 else ()
            yield from _of_snapshot(value, _merged(labels, apart))
        elif not _is_label(field, subsystem):
            yield from _of_field(field, value, f"tierlog_{subsystem}_", labels)


def _of_field(field: attrs.Attribute[Any], value: Any, prefix: str, labels: Labels) -> Iterator[Sample]:
    metric = field.metadata.get(Metric)
    name = prefix + field.name
    if metric is not None and metric.kind is MetricKind.STATE:
        # The state is a label: a number for each state would need a legend.
        yield Sample(name, "gauge", metric.help, _merged(labels, ((field.name, _word(value)),)), 1)
    elif isinstance(value, int | float):
        kind = "unknown" if metric is None else metric.kind.value
        yield Sample(_base_name(name, kind), kind, "" if metric is None else metric.help, labels, value)
    else:
        for extra, snapshot in _nested(field.name, value):
            yield from _of_snapshot(snapshot, _merged(labels, extra))


def _nested(name: str, value: Any) -> Iterator[tuple[Labels, Any]]:
    """The snapshots in a mapping or a sequence, each with the labels of its position."""
    if isinstance(value, Mapping):
        for key, nested in value.items():
            if attrs.has(type(nested)):
                yield ((name.removesuffix("s"), _word(key)),), nested
    elif isinstance(value, Sequence) and not isinstance(value, str | bytes):
        for nested in value:
            if attrs.has(type(nested)):
                # The position is no label: it changes when an earlier snapshot goes.
                yield (), nested


def _merged(outer: Labels, inner: Labels) -> Labels:
    """The inner label wins where both have the same name."""
    return tuple({**dict(outer), **dict(inner)}.items()) if inner else outer


def _is_label(field: attrs.Attribute[Any], subsystem: str) -> bool:
    metric = field.metadata.get(Metric)
    return field.name == subsystem if metric is None else metric.kind is MetricKind.LABEL


def _base_name(name: str, kind: str) -> str:
    # The format adds `_total` itself.
    return name.removesuffix("_total") if kind == "counter" else name


def _subsystem(kind: type) -> str:
    """``ChunkStorageStatistics`` gives ``chunk_storage``."""
    return _WORD_BOUNDARY.sub("_", kind.__name__.removesuffix("Statistics")).lower()


def _word(value: Any) -> str:
    return str(value.value if isinstance(value, enum.Enum) else value)
