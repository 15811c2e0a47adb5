"""What the supervisor shows of itself: the status document, the container map, metrics.

All of it is made from the fleet on request, except for the histogram of failovers.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Mapping
from math import inf
from typing import TYPE_CHECKING, Any

import attrs

from ...storage_backends.base.ids import EPOCH_MAX
from ...storage_backends.base.statistics import counter, gauge, label, state
from ...storage_backends.chunks.s3_request_counts import S3RequestStatistics
from ..gateway.wire.bodies import ContainerAssignment, ContainerMap
from ..kernel.statistics import EventLoopStatistics
from .assignment import WITHHELD, Assignment, AssignmentPhase
from .control.messages import COUNT_MAX
from .fleet import Fleet
from .hosts import Host, HostPhase

if TYPE_CHECKING:
    from prometheus_client.metrics_core import HistogramMetricFamily

Facts = Mapping[str, int]
"""What a host's last heartbeats reported about one container."""
_FACTS = ("epoch", "wal_bytes", "unflushed_bytes", "segments", "unconfirmed")
_BUCKETS = (0.01, 0.025, 0.05, 0.1, 0.2, 0.3, 0.5, 0.75, 1.0, 1.5, 2.5, 5.0, 10.0, 30.0)
_RECENT_MAX = 20
_HEALTHY = "ok"
_NO_TROUBLE = {"state": _HEALTHY, "cause": ""}
_ADOPTION_SECONDS = 2.0
"""Seconds for which the host of an outdated order, which fenced the owner, may still report the container
(V2)."""


@attrs.frozen
class SupervisedHostStatistics:
    host: str = attrs.field(metadata=label())
    phase: str = attrs.field(
        metadata=state("The host's phase: down, starting, serving, silent, draining, given up.")
    )
    containers: int = attrs.field(metadata=gauge("Containers that it was ordered to serve."))
    lag_seconds: float = attrs.field(metadata=gauge("How late its event loop runs."))
    storage: str = attrs.field(
        metadata=state("Health of long-term storage as it sees it: ok, full, unreachable, slow.")
    )
    starts: int = attrs.field(metadata=counter("Processes started for it."))
    exits: int = attrs.field(metadata=counter("Exits of its processes without an order."))


@attrs.frozen
class AssignmentStatistics:
    container: int = attrs.field(metadata=label())
    phase: str = attrs.field(
        metadata=state("The container's phase: unassigned, opening, serving, closing, fenced, quarantined.")
    )
    epoch: int = attrs.field(metadata=gauge("The epoch of its newest known owner."))


@attrs.frozen
class SupervisorStatistics:
    term: int = attrs.field(metadata=gauge("This supervisor's term."))
    active_seconds: float = attrs.field(metadata=gauge("For how long it has been the active supervisor."))
    failovers: int = attrs.field(metadata=counter("Containers that lost their host without an order."))
    serving_containers: int = attrs.field(metadata=gauge("Containers that are served now."))
    misplaced_containers: int = attrs.field(
        metadata=gauge("Containers that are still to move to other hosts.")
    )
    map_version: int = attrs.field(metadata=gauge("The version of the container map."))
    event_loop: EventLoopStatistics
    s3: S3RequestStatistics | None
    hosts: tuple[SupervisedHostStatistics, ...]
    assignments: tuple[AssignmentStatistics, ...]


class FailoverTimes:
    """How long containers had no owner: from the loss of a host until the next one serves."""

    def __init__(self) -> None:
        self.counts = [0] * (len(_BUCKETS) + 1)
        self.sum = 0.0
        self.recent: list[float] = []
        self._seen: dict[int, float] = {}

    def note(self, assignment: Assignment, now: float) -> None:
        """Note a failover that has ended."""
        # A failover is counted once, whatever happens to the container later.
        if (
            assignment.phase is AssignmentPhase.SERVING
            and assignment.failovers
            and self._seen.get(assignment.index) != assignment.failovers[-1]
        ):
            self._seen[assignment.index] = assignment.failovers[-1]
            self._add(now - assignment.failovers[-1])

    def _add(self, seconds: float) -> None:
        self.counts[bisect_left(_BUCKETS, seconds)] += 1
        self.sum += seconds
        # A new list: a status that was handed out does not change.
        self.recent = [*self.recent, round(seconds, 6)][-_RECENT_MAX:]

    def collect(self) -> Iterator[HistogramMetricFamily]:
        """For a ``prometheus_client`` registry."""
        # By the first scrape: many services are never scraped.
        from prometheus_client.metrics_core import HistogramMetricFamily

        total, buckets = 0, []
        for bound, count in zip((*map(str, _BUCKETS), "+Inf"), self.counts, strict=True):
            # Prometheus' buckets are cumulative.
            total += count
            buckets.append((bound, total))
        help = (
            "Seconds from the loss of a container's host until the next one serves it, without the time to "
            "detect the loss."
        )
        yield HistogramMetricFamily("tierlog_failover_seconds", help, buckets=buckets, sum_value=self.sum)


@attrs.define
class HostFacts:
    """What is known about a host besides its phase."""

    starts: int = 0
    exits: int = 0
    last_exit: str = ""
    containers: Mapping[int, Facts] = attrs.field(factory=dict)
    """By the last heartbeat that had them."""
    logs: Mapping[int, Mapping[str, str]] = attrs.field(factory=dict)
    """Likewise: the health of the containers' logs."""
    storage: Mapping[str, str] = attrs.field(factory=lambda: storage_health(None))
    """Likewise: the health of long-term storage and its cause."""
    requests: S3RequestStatistics | None = None
    """Likewise: its process's requests to the bucket, if there is one."""

    def learn(self, statistics: Mapping[str, Any]) -> None:
        """Those of a heartbeat. Raises ``ValueError`` or ``TypeError``, and learns none of them, if they have
        another form."""
        found, requests = statistics.get("containers"), requests_of(statistics.get("requests"))
        if isinstance(found, dict):
            self.containers = {
                int(index): {name: _count(facts.get(name, 0)) for name in _FACTS}
                for index, facts in found.items()
                if isinstance(facts, dict)
            }
            self.logs = {
                int(index): storage_health(facts.get("log"))
                for index, facts in found.items()
                if isinstance(facts, dict)
            }
        self.storage, self.requests = storage_health(statistics.get("storage")), requests


def storage_health(found: object) -> dict[str, str]:
    """The health of long-term storage, or of a log, out of a heartbeat; what is missing counts as healthy.

    A host of an earlier build outlives the upgrade of its supervisor (rule V4): it sends ``trouble`` for
    ``state``, and ``none`` for ``ok``.
    """
    found = found if isinstance(found, dict) else {}
    state = str(found.get("state", found.get("trouble", _HEALTHY)))
    return {"state": _HEALTHY if state == "none" else state, "cause": str(found.get("cause", ""))}


def requests_of(found: object) -> S3RequestStatistics | None:
    """The requests to the bucket out of a heartbeat; a host of an earlier build sends none."""
    if not isinstance(found, dict):
        return None
    return S3RequestStatistics(
        **{field.name: _count(found.get(field.name, 0)) for field in attrs.fields(S3RequestStatistics)}
    )


def _count(found: Any) -> int:
    """A count out of a heartbeat."""
    count = int(found)
    # Who asks for the status decodes no others.
    if not 0 <= count <= COUNT_MAX:
        raise ValueError(f"{count} is no count")
    return count


def container_map(
    fleet: Fleet, version: int, append_bytes_max: int, now: float, store: str = ""
) -> ContainerMap:
    assignments = tuple(_assignment(fleet, assignment, now) for assignment in fleet.assignments)
    return ContainerMap(version, assignments, append_bytes_max, store)


def map_end(fleet: Fleet, now: float) -> float:
    """Until when a map of ``now`` is right if nothing happens."""
    ends = (
        fleet.assignments[index].since + _ADOPTION_SECONDS
        for phase in WITHHELD
        for index in fleet.assignments.of("", phase)
    )
    return min((end for end in ends if end > now), default=inf)


def url_of(fleet: Fleet, index: int) -> str | None:
    """The URL of the container's host; None if none serves it."""
    assignment = fleet.assignments[index]
    return fleet.hosts[assignment.host].url if assignment.phase is AssignmentPhase.SERVING else None


def owners(fleet: Fleet) -> dict[int, str]:
    """The URL of each container that is served."""
    found = ((assignment.index, url_of(fleet, assignment.index)) for assignment in fleet.assignments)
    return {index: url for index, url in found if url}


def absences(fleet: Fleet) -> dict[int, str]:
    """Why each container that stays closed does."""
    indexes = sorted(index for phase in WITHHELD for index in fleet.assignments.of("", phase))
    return {index: fleet.assignments[index].absence for index in indexes}


def _assignment(fleet: Fleet, assignment: Assignment, now: float) -> ContainerAssignment:
    # Not while it opens or closes: a client that is sent there would be refused.
    if assignment.phase is not AssignmentPhase.SERVING:
        is_withheld = assignment.is_withheld and now - assignment.since >= _ADOPTION_SECONDS
        return ContainerAssignment(assignment.index, None, None, assignment.absence, is_withheld)
    return ContainerAssignment(assignment.index, fleet.hosts[assignment.host].url, assignment.epoch)


@attrs.frozen
class View:
    """The supervisor at one moment."""

    fleet: Fleet
    facts: Mapping[str, HostFacts]
    failover_times: FailoverTimes
    now: float
    began: float
    """Since when it has been active."""
    term: int
    map_version: int
    event_loop: EventLoopStatistics
    s3: S3RequestStatistics | None
    """The supervisor's own requests to the bucket of the store."""
    ready: bool
    stopping: bool

    @property
    def active_seconds(self) -> float:
        return round(self.now - self.began, 3)

    def document(self) -> dict[str, Any]:
        """The status, for programs and pages."""
        return {
            "term": self.term,
            "active_seconds": self.active_seconds,
            "ready": self.ready,
            "stopping": self.stopping,
            "map_version": self.map_version,
            "failovers": self.fleet.failovers,
            "failover_seconds": self.failover_times.recent,
            "requests": self._requests(),
            "imbalance": attrs.asdict(self.fleet.imbalance(self.now)),
            "hosts": [self._host(host) for host in self.fleet.hosts.values()],
            "containers": [self._container(assignment) for assignment in self.fleet.assignments],
        }

    def statistics(self) -> SupervisorStatistics:
        assignments = tuple(
            AssignmentStatistics(assignment.index, assignment.phase.value, assignment.epoch)
            for assignment in self.fleet.assignments
        )
        serving = self.fleet.assignments.count(AssignmentPhase.SERVING)
        hosts = tuple(self._host_statistics(host) for host in self.fleet.hosts.values())
        return SupervisorStatistics(
            self.term,
            self.active_seconds,
            self.fleet.failovers,
            serving,
            self.fleet.imbalance(self.now).containers,
            self.map_version,
            self.event_loop,
            self.s3,
            hosts,
            assignments,
        )

    def unhealthy_storage(self) -> dict[str, dict[str, str]]:
        """The health of long-term storage by host, of the hosts that serve and see it unhealthy."""
        # What a lost host reported last may be long over.
        serving = [host for host in self.fleet.hosts.values() if host.phase is HostPhase.SERVING]
        health = {host.id: dict(self.facts[host.id].storage) for host in serving}
        return {host: storage for host, storage in health.items() if storage["state"] != _HEALTHY}

    def _requests(self) -> dict[str, int] | None:
        """Those to the bucket by the supervisor and its hosts' last processes; None if there is no bucket."""
        counted = [each for each in (self.s3, *(facts.requests for facts in self.facts.values())) if each]
        if not counted:
            return None
        columns = zip(*map(attrs.astuple, counted), strict=True)
        names = (field.name for field in attrs.fields(S3RequestStatistics))
        return dict(zip(names, (min(sum(column), COUNT_MAX) for column in columns), strict=True))

    def _host_statistics(self, host: Host) -> SupervisedHostStatistics:
        facts = self.facts[host.id]
        held, health = self.fleet.assignments.load(host.id), facts.storage["state"]
        return SupervisedHostStatistics(
            host.id, host.phase.value, held, host.lag, health, facts.starts, facts.exits
        )

    def _host(self, host: Host) -> dict[str, Any]:
        facts = self.facts[host.id]
        return {
            "id": host.id,
            "pid": host.pid,
            "phase": host.phase.value,
            "url": host.url,
            "machine": host.machine,
            "joined": host.joined,
            "lag_seconds": round(host.lag, 4),
            "phase_seconds": max(0.0, round(self.now - host.since, 3)),
            "containers": [assignment.index for assignment in self.fleet.assignments.held(host.id)],
            "starts": facts.starts,
            "exits": facts.exits,
            "last_exit": facts.last_exit,
            "storage": dict(facts.storage),
        }

    def _container(self, assignment: Assignment) -> dict[str, Any]:
        # Of the host that has it now: an earlier one's are of another ownership.
        index, known = assignment.index, self.facts[assignment.host] if assignment.host else HostFacts()
        facts = known.containers.get(index, {})
        return {
            "container": index,
            "host": assignment.host,
            "phase": assignment.phase.value,
            # Its host opens it again by itself if its owner fails.
            "epoch": max(assignment.epoch, min(facts.get("epoch", 0), EPOCH_MAX)),
            "phase_seconds": round(self.now - assignment.since, 3),
            "reason": assignment.reason,
            "wal_bytes": facts.get("wal_bytes", 0),
            "unflushed_bytes": facts.get("unflushed_bytes", 0),
            "segments": facts.get("segments", 0),
            "unconfirmed": bool(facts.get("unconfirmed", 0)),
            "log": dict(known.logs.get(index, _NO_TROUBLE)),
        }
