"""The processes that contend for the supervision of one store, each on a machine with clocks of its own.

The code is the product's: records and leases in a bucket or a data folder, the term, and the supervisor's own
decisions; only its hosts are simulated (``support/fake_hosts.py``). The machines' monotonic clocks run at
rates that differ by less than the quarter of rule D3, and stand still while a machine is suspended. Wall
clocks jump. A machine that is suspended has a wall clock that jumps forward only: if it were put back by as
much as the machine stood still, no clock would show it.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from random import Random
from typing import Any

import anyio
import attrs
import trio

from support.fake_hosts import FakeHostsSupervisor
from tierlog.actors.folder.identity import StoreIdentity
from tierlog.actors.folder.local_coordination import LocalCoordination
from tierlog.actors.gateway.wire.errors import Conflict
from tierlog.actors.supervisor.commands import Command, OpenContainer
from tierlog.actors.supervisor.fleet import FleetOptions
from tierlog.actors.supervisor.term import Term, TermOptions, claim_term
from tierlog.journal.coordination.contract import Coordination, Lease, Record
from tierlog.journal.coordination.objects import Moment, ObjectCoordination, ObjectCoordinationOptions
from tierlog.storage_backends.base.world import World

from .bucket import SimulatedObjects
from .gates import GatedFiles
from .process import Process
from .settings import Latency, SiteKind, WalKind
from .trace import Trace
from .world import BEGIN, FOLDER, ServiceFolder, Site, ids_of

CONTAINERS, HOSTS = 2, 2
IDENTITY = StoreIdentity(b"supervised-store", b"supervised-log..", CONTAINERS, int(BEGIN * 1000))
RATES = (0.9, 1.12)
"""The slowest and the fastest clock: an observer's 1.25 durations are longer than its holder's one."""


class Machine:
    """``rate``: seconds of its clocks in a true one."""

    def __init__(self, name: str, rate: float, *, is_suspended: bool) -> None:
        self.name = name
        self.rate = rate
        self.is_suspended = is_suspended
        """Whether it ever stands still. Its wall clock is never put back then."""
        self._offset = 0.0
        self._stood = 0.0
        self._since: float | None = None
        self._awake = trio.Event()
        self._awake.set()

    def now(self) -> Moment:
        true = trio.current_time()
        awake = (true if self._since is None else self._since) - self._stood
        return Moment(self.rate * awake, BEGIN + self.rate * true + self._offset)

    @property
    def stands_still(self) -> bool:
        return self._since is not None

    def suspend(self) -> None:
        if self._since is None:
            self._since, self._awake = trio.current_time(), trio.Event()

    def resume(self) -> None:
        if self._since is not None:
            self._stood += trio.current_time() - self._since
            self._since = None
            self._awake.set()

    async def awake(self) -> None:
        while self.stands_still:
            await self._awake.wait()

    def jump(self, seconds: float) -> None:
        self._offset += abs(seconds) if self.is_suspended else seconds


class MachineCoordination(ObjectCoordination):
    """Records and leases in the bucket, by a machine's clocks."""

    def __init__(self, machine: Machine, objects: SimulatedObjects, world: World, patience: float) -> None:
        super().__init__(objects, "", world, ObjectCoordinationOptions(patience=patience))
        self._machine = machine

    def now(self) -> Moment:
        return self._machine.now()


@attrs.define(eq=False)
class NotedLease(Lease):
    _inner: Lease
    _check: Callable[[], None]
    """Called whenever the holder may have begun to believe in it."""

    def is_held(self) -> bool:
        return self._inner.is_held()

    async def renew(self, confirm: Callable[[], Awaitable[None]] | None = None) -> None:
        await self._inner.renew(confirm)
        self._check()

    async def release(self) -> None:
        await self._inner.release()


class NotedCoordination(Coordination):
    """``inner``, whose leases are known to the simulation."""

    def __init__(self, inner: Coordination, process: Process, site: SupervisedSite) -> None:
        self._inner = inner
        self._process = process
        self._site = site

    def place(self, name: str) -> str:
        return self._inner.place(name)

    async def load(self, name: str) -> Record | None:
        return await self._inner.load(name)

    async def compare_and_set(self, name: str, data: bytes, version: str = "") -> str | None:
        return await self._inner.compare_and_set(name, data, version)

    async def take_lease(self, name: str, holder: str, duration: float) -> Lease:
        # The holder's name is of the real process, which no seed decides.
        taken = await self._inner.take_lease(name, self._process.gate.name, duration)
        lease = NotedLease(taken, self._site.check_leases)
        self._site.leases.append((self._process, lease))
        self._site.trace.note(self._process.gate.name, "has the lease")
        self._site.check_leases()
        return lease


class OrderingSupervisor(FakeHostsSupervisor):
    """A supervisor whose own hosts obey at once; ``ordered`` is called at each opening."""

    def __init__(
        self, term: Term, lease: Lease, ordered: Callable[[OrderingSupervisor, OpenContainer], None]
    ) -> None:
        self.number = term.number
        self.lease = lease
        self.greeted: set[str] = set()
        """The simulated hosts that it has welcomed."""
        self._ordered = ordered
        super().__init__(CONTAINERS, HOSTS, term=term, options=FleetOptions(adoption=0))

    def _obey(self, command: Command, now: float) -> None:
        if isinstance(command, OpenContainer):
            self._ordered(self, command)
        super()._obey(command, now)

    async def until_superseded(self) -> None:
        """Raises ``NotOwner`` when a host has reported a later one."""
        await self._all_ended.wait()
        assert self._superseded is not None
        raise self._superseded


@attrs.frozen
class Started:
    """How the processes of a world are started."""

    lease: float
    patience: float
    """Seconds for which a request is repeated."""


class SupervisedSite(Site):
    """``ordered``: called when a supervisor orders an opening."""

    def __init__(
        self,
        in_bucket: bool,
        started: Started,
        random: Random,
        trace: Trace,
        ordered: Callable[[OrderingSupervisor, OpenContainer], None],
    ) -> None:
        latency = Latency(files=0.002, sync=0.01, log=random.choice((0.005, 0.05)), share=0.5)
        wal = WalKind.BUCKET if in_bucket else WalKind.DISK
        super().__init__(SiteKind(wal=wal, latency=latency), random, trace)
        # The data folder is older than any of its supervisors.
        self.disk.put(f"{FOLDER.path}/tierlog.toml", b"")
        self.in_bucket = in_bucket
        self.started = started
        rates = [random.choice((1.0, random.uniform(*RATES), *RATES)) for _ in range(random.randint(2, 4))]
        self.machines = [
            Machine(f"m{number}", rate, is_suspended=random.random() < 0.5)
            for number, rate in enumerate(rates if in_bucket else [1.0])
        ]
        self.machine_of: dict[Process, Machine] = {}
        self.leases: list[tuple[Process, Lease]] = []
        """All that were ever taken."""
        self.supervisors: dict[Process, OrderingSupervisor] = {}
        """All that there ever were."""
        self.breach: str | None = None
        """What does not hold."""
        self.breached = trio.Event()
        self.options: dict[Process, TermOptions] = {}
        self._ordered = ordered
        self._orders = self._random("orders")
        self._next_machine = self._random("machines")

    def break_rule(self, what: str) -> None:
        """Ends the run, whatever process it is found in."""
        self.breach = self.breach or what
        self.breached.set()

    def check_leases(self) -> None:
        """D4: at no instant do two believe that the lease is theirs, also of those that stand still."""
        holders = [process for process, lease in self.leases if process.alive and lease.is_held()]
        if len(holders) > 1:
            self.break_rule(f"it does not hold that one process at a time has a lease\n{holders}")

    def active(self) -> list[Process]:
        """The supervisors that have started, and go on."""
        return [process for process in self.supervisors if process.serving]

    @asynccontextmanager
    async def _opened(self, process: Process, files: GatedFiles, folder: ServiceFolder) -> AsyncIterator[Any]:
        """What `tierlog supervise` does, with simulated parts."""
        machine = self.machine_of.setdefault(process, self._next_machine.choice(self.machines))
        await machine.awake()
        before = max((each.number for each in self.supervisors.values()), default=0)
        new_id, random = ids_of(process), self._random(f"process {process.number}")
        world = World(lambda: machine.now().wall, random, new_id)
        coordination: Coordination = LocalCoordination(files, FOLDER, new_id)
        if self.in_bucket:
            objects = SimulatedObjects(self.bucket, process.number, process.gate, self.faults)
            coordination = MachineCoordination(machine, objects, world, self.started.patience)
        noted = NotedCoordination(coordination, process, self)
        async with claim_term(noted, IDENTITY, world.id_bytes(), self.options[process]) as term:
            await process.gate.stay()
            self._check_term(process, term.number, before)
            lease = next(lease for of, lease in reversed(self.leases) if of is process)
            supervisor = OrderingSupervisor(term, lease, self._ordered)
            self.supervisors[process] = supervisor
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(supervisor.check_term)
                tasks.start_soon(supervisor.until_superseded)
                tasks.start_soon(self._operate, process, supervisor)
                yield supervisor
                tasks.cancel_scope.cancel()

    def _check_term(self, process: Process, number: int, before: int) -> None:
        """V1: no two supervisors have the same term, and one has a higher term than all that it followed."""
        self.trace.note(process.gate.name, f"has the term {number}")
        taken = {each.number for each in self.supervisors.values()}
        if number in taken or number <= before:
            self.break_rule(f"it does not hold that terms grow\n{process} has {number} after {sorted(taken)}")

    async def _operate(self, process: Process, supervisor: OrderingSupervisor) -> None:
        """Move containers to and fro, each of which is an opening."""
        random = self._orders
        while True:
            await trio.sleep(random.choice((0.05, 0.5, 2.0)))
            await process.gate.stay()
            index, host = random.randrange(CONTAINERS), f"host-{random.randrange(HOSTS)}"
            try:
                supervisor.move(index, host)
            except Conflict as error:
                self.trace.note(process.gate.name, f"cannot move: {error}")
