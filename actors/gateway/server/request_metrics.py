"""What a server counts about its requests, and the Prometheus families made of it.

Units are bytes and seconds. The label is the operation of the OpenAPI document, so the number of series is
bounded whatever paths clients ask for."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING

import attrs

from ...telemetry.metrics import StatisticsCollector

if TYPE_CHECKING:
    from prometheus_client.metrics_core import Metric as Family
    from prometheus_client.registry import Collector

CLIENT_GONE = 499
"""The status in metrics of a request whose client did not wait for its answer."""
BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
"""Upper bounds, in seconds."""


@attrs.define
class OperationCounts:
    """The numbers of one endpoint."""

    in_flight: int = 0
    forwarded: int = 0
    """Requests that were passed on to another host."""
    request_bytes: int = 0
    response_bytes: int = 0
    seconds: float = 0.0
    buckets: list[int] = attrs.field(factory=lambda: [0] * (len(BUCKETS) + 1))
    answers: dict[tuple[str, int], int] = attrs.field(factory=dict)
    """By method and status; 499 is a client that disconnected."""


class RequestMetrics:
    def __init__(self) -> None:
        self._operations: dict[str, OperationCounts] = {}

    def operation(self, name: str) -> OperationCounts:
        found = self._operations.get(name)
        if found is None:
            found = self._operations[name] = OperationCounts()
        return found

    def note(self, name: str, method: str, status: int, seconds: float) -> None:
        """Counts a request that ended."""
        operation = self._operations.get(name) or self.operation(name)
        key = (method, status)
        operation.answers[key] = operation.answers.get(key, 0) + 1
        operation.seconds += seconds
        # Prometheus' bounds are inclusive (`le`).
        operation.buckets[bisect_left(BUCKETS, seconds)] += 1

    def requests(self, status: int | None = None) -> int:
        """Requests that ended, of all endpoints, with that status or with any."""
        counts = (
            (key, count)
            for operation in self._operations.values()
            for key, count in operation.answers.items()
        )
        return sum(count for (_, answered), count in counts if status is None or status == answered)

    # --- the scrape ------------------------------------------------------------------------------

    def collect(self) -> Iterator[Family]:
        # By the first scrape: many processes are never scraped.
        from prometheus_client.metrics_core import (
            CounterMetricFamily,
            GaugeMetricFamily,
            HistogramMetricFamily,
        )

        label = ["operation"]
        answers = CounterMetricFamily(
            "tierlog_http_requests", "Requests answered.", labels=[*label, "method", "status"]
        )
        durations = HistogramMetricFamily(
            "tierlog_http_request_duration_seconds", "From the head of a request to its end.", labels=label
        )
        received = CounterMetricFamily("tierlog_http_request_bytes", "Bytes of request bodies.", labels=label)
        sent = CounterMetricFamily("tierlog_http_response_bytes", "Bytes of response bodies.", labels=label)
        in_flight = GaugeMetricFamily(
            "tierlog_http_requests_in_flight", "Requests in progress.", labels=label
        )
        forwarded = CounterMetricFamily(
            "tierlog_http_forwarded_requests", "Requests passed on to the owner.", labels=label
        )
        for name, operation in self._operations.items():
            for (method, status), count in operation.answers.items():
                answers.add_metric([name, method, str(status)], count)
            durations.add_metric([name], list(_cumulative(operation.buckets)), operation.seconds)
            received.add_metric([name], operation.request_bytes)
            sent.add_metric([name], operation.response_bytes)
            in_flight.add_metric([name], operation.in_flight)
            if operation.forwarded:
                forwarded.add_metric([name], operation.forwarded)

        yield from (answers, durations, received, sent, in_flight, forwarded)

    def describe(self) -> Iterable[Family]:
        """Nothing, as for the store's own collector."""
        return ()

    def render(self, snapshots: Callable[[], Iterable[object]], *more: Collector) -> bytes:
        """One scrape of these numbers, of the snapshots' and of ``more``."""
        from prometheus_client import CollectorRegistry, generate_latest

        # Of its own: the process-wide one is the application's. To describe a collector is to collect it once
        # more.
        registry = CollectorRegistry(auto_describe=False)
        registry.register(StatisticsCollector(snapshots))
        for collector in (self, *more):
            registry.register(collector)
        return generate_latest(registry)


def _cumulative(counts: list[int]) -> Iterator[tuple[str, float]]:
    total = 0
    for bound, count in zip((*map(str, BUCKETS), "+Inf"), counts, strict=True):
        total += count
        yield bound, total
