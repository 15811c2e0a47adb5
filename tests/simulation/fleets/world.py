"""A store's supervisors and hosts on many machines, in virtual time, and what must hold of them.

The supervisors are real, with their term, their lease and their record in a bucket; the hosts are simulated.
A seed decides everything.
"""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Sequence
from functools import partial
from random import Random

import anyio
import anyio.abc
import attrs
import trio

from support.memory_objects import Bucket, MemoryObjects
from tierlog.actors.folder.identity import StoreIdentity
from tierlog.actors.supervisor.assignment import AssignmentPhase
from tierlog.actors.supervisor.balance import shares
from tierlog.actors.supervisor.control.record import ControlRecord
from tierlog.actors.supervisor.fleet import FleetOptions
from tierlog.actors.supervisor.join_listener import JoinListener, find_predecessor
from tierlog.actors.supervisor.options import SupervisorOptions
from tierlog.actors.supervisor.placement import AVOIDED_SECONDS
from tierlog.actors.supervisor.supervisor import Supervisor
from tierlog.actors.supervisor.term import TermOptions, claim_term
from tierlog.journal.coordination.objects import ObjectCoordination
from tierlog.storage_backends.base.object_store import StoredObject
from tierlog.storage_backends.base.world import World

from .hosts import Logs, SimulatedHost, Timing, Violation
from .network import Agenda, Listener, Network

LEASE_SECONDS = 10.0
LOOK_SECONDS = 0.1
PATIENCE_SECONDS = 600.0
"""Virtual time in which every container must have an owner again."""
CURIOUS = 10
"""How many hosts of the first ones, and in proportion of later ones, keep the owners that they are sent."""


@attrs.frozen(kw_only=True)
class Size:
    hosts: int
    containers: int
    racks: int = 10
    heartbeat: float = 0.1
    slice_seconds: float = 0.0
    """As of ``Agenda``."""


SMALL = Size(hosts=20, containers=400, heartbeat=0.5)
FULL = Size(hosts=200, containers=20_000, heartbeat=0.5, slice_seconds=0.01)
"""Fewer heartbeats than by default, which would be most of the work, and so a longer silence."""


class _MortalObjects(MemoryObjects):
    """A bucket as one process sees it, which is not answered once that is dead."""

    def __init__(self, bucket: Bucket) -> None:
        super().__init__(bucket)
        self.is_dead = False

    async def put(self, key: str, data: Sequence[bytes], *, version: str = "") -> str | None:  # type: ignore[override]
        await self._live()
        return await super().put(key, data, version=version)

    async def get(self, key: str, size: int) -> StoredObject | None:
        await self._live()
        return await super().get(key, size)

    async def delete(self, key: str) -> None:
        await self._live()
        await super().delete(key)

    async def _live(self) -> None:
        if self.is_dead:
            await anyio.sleep(math.inf)


class SupervisorProcess:
    """A supervisor, or one that stands by."""

    def __init__(self, world: FleetWorld, number: int) -> None:
        self.supervisor: Supervisor | None = None
        self._world = world
        self._number = number
        self._objects = _MortalObjects(world.bucket)
        self._listener = Listener()
        self._scope = anyio.CancelScope()

    async def run(self) -> None:
        world, size, number = self._world, self._world.size, self._number
        ids = World(lambda: 0.0, Random(number), world.new_id)
        coordination = ObjectCoordination(self._objects, "", ids)
        identity = StoreIdentity(bytes(16), b"l" * 16, size.containers, 0)
        options = TermOptions.watched(LEASE_SECONDS, takes_over=False, stands_by=True)
        with self._scope:
            find = partial(find_predecessor, coordination, identity.store_id.hex())
            async with claim_term(coordination, identity, ids.id_bytes(), options, find) as term:
                world.network.listeners[number] = self._listener
                secret = ids.id_bytes() + ids.id_bytes()
                record = ControlRecord(
                    term.number, secret, "10.0.0.1", number, f"node-{number}", term.awaited, identity.store_id
                )
                self.supervisor = Supervisor(
                    size.containers,
                    [],
                    command=lambda host: [],
                    term=term,
                    orphans={},
                    options=SupervisorOptions(
                        fleet=FleetOptions(silence=7.5 * size.heartbeat),
                        control="",
                        heartbeat=size.heartbeat,
                    ),
                    random=Random(world.random.random()),
                    join_listener=JoinListener(coordination, self._listener, record, ids.id_bytes, term),
                    awaited=term.awaited,
                )
                await self.supervisor.run()

    @property
    def is_active(self) -> bool:
        return self.supervisor is not None and not self._objects.is_dead

    def kill(self) -> None:
        self._objects.is_dead = True
        self._listener.is_open = False
        for pipe in self._listener.pipes:
            pipe.break_off()
        self._scope.cancel()


class Steps(trio.abc.Instrument):
    """What the supervisors' tasks cost, in seconds of CPU."""

    def __init__(self) -> None:
        self.worst = 0.0
        self.sum = 0.0
        self.count = 0
        self._began = 0.0

    def before_task_step(self, task: trio.lowlevel.Task) -> None:
        self._began = time.thread_time()

    def after_task_step(self, task: trio.lowlevel.Task) -> None:
        if task.name.startswith("tierlog.actors.supervisor"):
            took = time.thread_time() - self._began
            self.worst, self.sum, self.count = max(self.worst, took), self.sum + took, self.count + 1


@attrs.frozen
class Episode:
    """What followed an event."""

    name: str
    owned: float
    """Virtual seconds until every container had an owner again."""
    balanced: float
    """And until no container had to move any more."""
    moves: int
    least: int
    """The fewest moves with which that is possible."""
    worst_step: float
    """The longest step of the supervisor, in seconds of CPU."""
    events: int
    cpu: float
    """Seconds of the supervisor."""
    sent: int
    """Bytes to hosts."""
    received: int


class FleetWorld:
    def __init__(self, seed: int, size: Size, tasks: anyio.abc.TaskGroup) -> None:
        self.size = size
        self.random = Random(seed)
        self.bucket = Bucket()
        self.agenda = Agenda(size.slice_seconds)
        self.network = Network(self.agenda, Random(self.random.random()))
        self.logs = Logs(size.containers)
        self.hosts: list[SimulatedHost] = []
        """Those that live."""
        self.episodes: list[Episode] = []
        self.steps = Steps()
        self._tasks = tasks
        self._numbers = itertools.count(1)
        self._supervisors: list[SupervisorProcess] = []
        self._names = itertools.count()
        trio.lowlevel.add_instrument(self.steps)
        tasks.start_soon(self.agenda.run)

    def new_id(self) -> str:
        return f"{next(self._numbers):032x}"

    # --- what an operator, or bad luck, does -----------------------------------------------------

    def start_supervisor(self) -> SupervisorProcess:
        found = SupervisorProcess(self, len(self._supervisors) + 1)
        self._supervisors.append(found)
        self._tasks.start_soon(found.run)
        return found

    def kill_supervisor(self) -> None:
        """SIGKILL to the active one. Another one stands by again."""
        next(each for each in self._supervisors if each.is_active).kill()
        self.start_supervisor()

    def start_host(self, rack: int, host_id: str = "") -> SimulatedHost:
        name = next(self._names)
        host_id = host_id or f"rack-{rack}-{name}"
        host = SimulatedHost(
            host_id,
            f"machine-{next(self._numbers)}-of-{rack}",
            next(self._numbers),
            self.network,
            self.logs,
            Random(self.random.random()),
            Timing(),
            is_curious=name % max(1, self.size.hosts // CURIOUS) == 0,
        )
        self.hosts.append(host)
        self.agenda.after(self.random.uniform(0, 0.5), lambda: host.start(self.bucket))
        return host

    def lose(self, hosts: Sequence[SimulatedHost], *, power: bool) -> None:
        for host in hosts:
            host.lose_power() if power else host.kill()
            self.hosts.remove(host)

    def of_rack(self, rack: int) -> list[SimulatedHost]:
        return [host for host in self.hosts if host.machine.endswith(f"-of-{rack}")]

    # --- what is ---------------------------------------------------------------------------------

    @property
    def supervisor(self) -> Supervisor | None:
        return next((each.supervisor for each in self._supervisors if each.is_active), None)

    def load(self, hosts: Sequence[SimulatedHost]) -> int:
        return sum(sum(1 for _ in host.owned()) for host in hosts)

    def excess(self) -> int:
        """How many containers at least must move until all living hosts have their share."""
        loads = {host.id: sum(1 for _ in host.owned()) for host in self.hosts}
        targets = shares(self.size.containers, loads)
        return sum(max(0, loads[host] - targets[host]) for host in loads)

    @property
    def is_owned(self) -> bool:
        """Whether each container has an owner that lives, and the supervisor knows it."""
        supervisor, logs = self.supervisor, self.logs
        return (
            supervisor is not None
            and supervisor.is_ready
            and all(
                owner is not None and owner.is_alive and owner.serves.get(index) == logs.epochs[index]
                for index, owner in enumerate(logs.owners)
            )
        )

    @property
    def is_balanced(self) -> bool:
        if any(not host.is_welcome for host in self.hosts) or not self.is_owned:
            return False
        loads = [len(host.serves) for host in self.hosts]
        # V8: so many containers may avoid their share's host.
        avoiding = sum(at > anyio.current_time() - AVOIDED_SECONDS for at in self.logs.failures)
        return max(loads) - min(loads) <= 1 + avoiding

    async def wait_owned(self) -> float:
        return await self._wait("owned")

    async def wait_balanced(self) -> float:
        return await self._wait("balanced")

    async def _wait(self, what: str) -> float:
        began = anyio.current_time()
        while not (self.is_owned if what == "owned" else self.is_balanced):
            await anyio.sleep(LOOK_SECONDS)
            self.check_quarantine()
            if anyio.current_time() - began > PATIENCE_SECONDS:
                raise Violation(
                    f"not all containers are {what} after {PATIENCE_SECONDS:g} s: {self._state()}"
                )
        return anyio.current_time() - began

    def _state(self) -> str:
        if self.supervisor is None:
            return "there is no supervisor"
        fleet = self.supervisor.fleet
        counts = {phase.value: fleet.assignments.count(phase) for phase in AssignmentPhase}
        loads = sorted({len(host.serves) for host in self.hosts})
        return f"{counts}, loads {loads}, hosts {sorted({host.phase.value for host in fleet.hosts.values()})}"

    def check_quarantine(self) -> None:
        """No exit here is a container's fault (V8)."""
        assignments = self.supervisor.fleet.assignments if self.supervisor else None
        if assignments and assignments.count(AssignmentPhase.QUARANTINED):
            raise Violation(next(each.absence for each in assignments if each.is_withheld))

    async def check(self) -> None:
        """What must hold once all is quiet."""
        await anyio.sleep(2.0)
        supervisor, logs = self.supervisor, self.logs
        assert supervisor is not None
        owners = {index: owner for index, owner in enumerate(logs.owners) if owner is not None}
        for assignment in supervisor.fleet.assignments:
            owner, epoch = owners[assignment.index], logs.epochs[assignment.index]
            if (assignment.host, assignment.epoch) != (owner.id, epoch):
                raise Violation(
                    f"container {assignment.index}: the supervisor knows {assignment.host} with epoch "
                    f"{assignment.epoch}, its log {owner.id} with epoch {epoch}"
                )
        serving: dict[int, str] = {}
        for host in self.hosts:
            for index in host.serves:
                if index in serving:
                    raise Violation(f"{host.id} and {serving[index]} believe that they own container {index}")
                serving[index] = host.id
        urls = {index: owner.url for index, owner in owners.items()}
        for host in self.hosts:
            if host.is_curious and {index: url for index, url in host.known.items() if url} != urls:
                raise Violation(f"{host.id} would send clients to containers' earlier owners")
        if logs.needless:
            raise Violation(f"{len(logs.needless)} owners were fenced without need: {logs.needless[0]}")
