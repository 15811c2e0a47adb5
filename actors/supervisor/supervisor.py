"""The supervisor: reports to the fleet what happens to processes and connections, and executes the commands
that it returns.

Owns: its own host processes, the connections of all hosts, the timers.
Does not own: any decision (``fleet.py``), the container map (``published_map.py``), the form of messages
(``control/``), HTTP (``admin.py``), the port and the record for hosts that join (``join_listener.py``).

Every event goes through ``_execute``: its commands are executed in order in one synchronous step, so events
never interleave. A host's exit is seen from its process, a lost connection from the socket, a frozen host
from its missing heartbeats or, sooner, from its state in /proc (rules V5 and V6). The supervisor's own delays
do not count as a host's silence (rule V7).

Stop (rule V10): the hosts are ordered to drain; ``run`` returns when the last process has ended.
Cancellation, and the end of a superseded supervisor: the hosts go on serving until the next supervisor finds
them (rule V4). A crash is the same. Hosts that joined go on after a stop too (rule V11).
"""

from __future__ import annotations

import math
import os
import signal
import socket
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, suppress
from functools import partial
from random import Random

import anyio
import anyio.abc
import attrs

from ...storage_backends.base.errors import NotOwner, OutcomeUnknown, StorageFull, Unavailable, Unsupported
from ...storage_backends.chunks.s3_request_counts import S3RequestCounts
from ..folder.lock_files import Owner
from ..gateway.wire.bodies import ContainerMap
from ..gateway.wire.errors import Conflict, NoSuchContainer, NoSuchHost
from ..kernel.loop_lag import LoopLag
from ..telemetry.logging import get_logger
from .admission import Admission
from .assignment import AssignmentPhase
from .commands import (
    CloseContainer,
    Command,
    CutHost,
    DrainHost,
    ForgetHost,
    KillHost,
    OpenContainer,
    ReportSilence,
    SpawnHost,
)
from .control.channel import Connection, accept_each, listen
from .control.messages import (
    LEAVE_SINCE,
    Close,
    Closed,
    Drain,
    Ended,
    Failed,
    Fenced,
    Heartbeat,
    Hello,
    Message,
    Open,
    Opened,
    ProtocolError,
    Refuse,
    Unanswered,
    Welcome,
)
from .fleet import Fleet
from .hosts import HostPhase
from .join_listener import JoinListener
from .leaving import Leaving
from .options import SupervisorOptions
from .owner_news import OwnerNews
from .processes import HostProcess, spawn
from .published_map import PublishedMap
from .statistics import FailoverTimes, HostFacts, View
from .term import Term

_log = get_logger("supervisor")
_EXIT_FIRST = 0.05
"""Seconds that a lost connection waits for its process to end: a dying process loses its connection first."""
RETURN_SECONDS = 0.25
"""For which a joined host whose connection broke may say hello again before it counts as lost."""
_BEATS_MISSED = 2.5
"""Heartbeats missed before a host's state in /proc is read."""
GREETING_SECONDS = 0.5
"""Between two messages to a host that joined, by which it knows that this supervisor is there."""
_LATE = 0.02
"""Seconds that the supervisor may be late without extending the hosts' deadlines."""


class Supervisor:
    def __init__(
        self,
        containers: int,
        hosts: Sequence[str],
        *,
        command: Callable[[str], Sequence[str]],
        term: Term,
        orphans: Mapping[str, Owner],
        options: SupervisorOptions,
        random: Random,
        requests: S3RequestCounts | None = None,
        join_listener: JoinListener | None = None,
        awaited: Sequence[str] = (),
    ) -> None:
        """``command(host)``: the command line that starts a host. ``orphans``: an earlier supervisor's hosts
        that still run. ``requests`` counts those that the term makes to a bucket. ``join_listener``: where
        hosts of other machines join; ``awaited`` are those that had joined before."""
        self._control = options.control
        self._command = command
        self._term = term
        self._orphans = orphans
        self._options = options
        self._requests = requests
        self._join_listener = join_listener
        self.fleet = Fleet(containers, hosts, options.fleet, random, anyio.current_time(), awaited)
        self._admission = Admission(term, self.fleet, options.store)
        self.facts = {host: HostFacts() for host in self.fleet.hosts}
        self.failover_times = FailoverTimes()
        self.published = PublishedMap(self.fleet, options)
        self._processes: dict[str, HostProcess] = {}
        """The one process of each host."""
        self._watched: set[HostProcess] = set()
        self._connections: dict[str, Connection] = {}
        self._news = OwnerNews(self.fleet, self._connections)
        self._began = anyio.current_time()
        self._stops = 0
        self._loop_lag = LoopLag()
        self._planned = math.inf
        """When the timers' next round is due: a later one shows that this loop was late."""
        self._woken = anyio.Event()
        self._settled = anyio.Event()
        self._all_ended = anyio.Event()
        self._superseded: NotOwner | None = None
        self._leaving = Leaving()
        self._held_back: list[OpenContainer] = []
        """Openings that wait for a check of the term."""
        self._tasks: anyio.abc.TaskGroup | None = None

    # --- life ------------------------------------------------------------------------------------

    async def run(self, *, task_status: anyio.abc.TaskStatus[None] = anyio.TASK_STATUS_IGNORED) -> None:
        """Supervise until ``stop`` has ended every host. Raises ``NotOwner`` if a later supervisor took
        over."""
        listener = await listen(self._control) if self._control else None
        async with AsyncExitStack() as opened:
            self._tasks = await opened.enter_async_context(anyio.create_task_group())
            if listener is not None:
                self._tasks.start_soon(accept_each, listener, self._serve)
            if self._join_listener is not None:
                joined = partial(self._serve, listener=self._join_listener)
                self._tasks.start_soon(self._join_listener.serve, joined)
                self._tasks.start_soon(self._until_superseded, self._join_listener.publish)
                self._tasks.start_soon(self._greet_joined, self._join_listener)
            self._tasks.start_soon(self._run_timers)
            self._tasks.start_soon(self._news.run)
            self._tasks.start_soon(self._loop_lag.watch)
            self._tasks.start_soon(self._until_superseded, self._check_term)
            self._begin()
            task_status.started()
            # The hosts are processes: this returns when the last one has ended, or to leave them to a later
            # supervisor.
            await self._all_ended.wait()
            self._tasks.cancel_scope.cancel()
        if self._superseded is not None:
            if not self._stops:
                raise self._superseded
            _log.warning("superseded_while_stopping", advice="its hosts have the order to drain, and end")
            return
        if self._control:
            with suppress(FileNotFoundError):
                # Not after a later supervisor took over, whose socket has the same path.
                os.unlink(self._control)

    def _begin(self) -> None:
        now = anyio.current_time()
        unverified = set()
        for host_id, owner in sorted(self._orphans.items()):
            if owner.start:
                self._watch_existing(host_id, owner.pid, owner.start)
            else:
                unverified.add(host_id)  # It may connect, and is watched from then on (rule V4).
        # V4: hosts of an earlier supervisor are waited for before containers are ordered elsewhere.
        if not self._processes and not unverified:
            self._execute(self.fleet.start_at_once(now))
            return

        for host in self.fleet.hosts.values():
            if host.id not in self._processes and host.id not in unverified:  # joined ones have none to start
                host.start_due = now  # No process of it is left that could connect.
        self._execute(self.fleet.tick(now))

    def stop(self) -> None:
        """Stop: the first call drains all hosts, the second sends them SIGTERM, the third kills them."""
        self._stops += 1
        _log.info("stopping", hosts=len(self._watched), urgency=self._stops)
        if self._stops == 1:
            self._execute(self.fleet.stop(self._now()))
        for process in self._watched:
            if self._stops > 2:
                process.kill()
            # A host without a connection cannot get the order to drain, and a signal has the same effect.
            elif self._stops == 2 or not self._can_be_ordered(process):
                process.signal(signal.SIGTERM)
        self._check_ended()

    def _can_be_ordered(self, process: HostProcess) -> bool:
        return any(
            self._processes.get(host) is process and host in self._connections for host in self._processes
        )

    def _check_ended(self) -> None:
        if self._stops and not self._watched:
            self._all_ended.set()

    # --- state -----------------------------------------------------------------------------------

    @property
    def is_ready(self) -> bool:
        """Whether every container is served."""
        assignments = self.fleet.assignments
        return not self._stops and assignments.count(AssignmentPhase.SERVING) == len(assignments)

    @property
    def is_stopping(self) -> bool:
        return self._stops > 0

    @property
    def is_settled(self) -> bool:
        """Whether every container is served, fenced or quarantined."""
        return not self.fleet.assignments.unserved

    @property
    def connected(self) -> int:
        """How many hosts are connected."""
        return len(self._connections)

    async def wait_settled(self) -> None:
        await self._settled.wait()

    def view(self) -> View:
        """A snapshot for statistics and the status."""
        return View(
            self.fleet,
            self.facts,
            self.failover_times,
            now=anyio.current_time(),
            began=self._began,
            term=self._term.number,
            map_version=self.published.version,
            event_loop=self._loop_lag.statistics(),
            s3=None if self._requests is None else self._requests.statistics(),
            ready=self.is_ready,
            stopping=self.is_stopping,
        )

    def map(self) -> ContainerMap:
        found = self.published.map()
        # H21: the hosts may have another supervisor by now, which has opened the containers elsewhere.
        return found if self._term.is_held() else found.second_hand()

    # --- an operator's orders --------------------------------------------------------------------

    def move(self, index: int, host: str) -> None:
        """Move the container to ``host`` and keep it there. Raises ``Conflict`` if the host accepts none
        now."""
        index, host = self.checked_container(index), self._checked_host(host)
        try:
            self._execute(self.fleet.move(index, host, self._now()))
        except ValueError as error:
            raise Conflict(str(error)) from error

    def unpin(self, index: int) -> None:
        """Let the placement choose the container's host again."""
        self._execute(self.fleet.unpin(self.checked_container(index), self._now()))

    def release(self, index: int) -> None:
        """Open a fenced or quarantined container again; the host of one that is served confirms it."""
        self._execute(self.fleet.open_again(self.checked_container(index), self._now()))

    async def drain(self, host: str) -> None:
        """Returns when the host has confirmed it, and remembers it for the next supervisor (V10). Raises
        ``Conflict`` if the host does not serve, and ``OutcomeUnknown`` without a timely answer."""
        phase, connection = self.fleet.hosts[self._checked_host(host)].phase, self._connections.get(host)
        if phase is HostPhase.DRAINING:
            return
        if phase is not HostPhase.SERVING or connection is None:
            state = phase.value if phase is not HostPhase.SERVING else "not connected"
            raise Conflict(f"{host} is {state} and cannot be drained now")
        if connection.version < LEAVE_SINCE:
            # One of the release before has no such memory.
            self._execute(self.fleet.drain(host, self._now()))
            return

        await self._leaving.ask(host, connection, self._term.number)

    def start(self, host: str) -> None:
        """Raises ``Conflict`` if it joined."""
        found = self.fleet.hosts[self._checked_host(host)]
        if found.joined:
            raise Conflict(f"{host} joined from {found.machine}: only there can it be started")
        self._execute(self.fleet.start(self._checked_host(host), self._now()))

    def roll(self) -> None:
        """Raises ``Conflict`` if all hosts joined."""
        if all(host.joined for host in self.fleet.hosts.values()):
            raise Conflict("this supervisor has started no host: restart those that joined where they run")
        self._execute(self.fleet.roll(self._now()))

    def _checked_host(self, host: str) -> str:
        if host not in self.fleet.hosts:
            raise NoSuchHost(f"no host {host!r}: the hosts are {', '.join(self.fleet.hosts)}")
        return host

    def checked_container(self, index: int) -> int:
        if index not in range(len(self.fleet.assignments)):
            raise NoSuchContainer(
                f"no container {index}: the containers are 0 to {len(self.fleet.assignments) - 1}"
            )
        return index

    # --- commands --------------------------------------------------------------------------------

    def _execute(self, commands: Sequence[Command]) -> None:
        """Execute the fleet's commands, then publish what has changed."""
        for command in commands:
            # V1: who slept, or is cut off, may have a successor, whose owner an opening would fence.
            if isinstance(command, OpenContainer) and not self._term.is_held():
                _log.warning("opening_held_back", host=command.host, container=command.index)
                self._held_back.append(command)
            else:
                log_command(command)
                self._execute_one(command)
        self._publish()
        self._woken.set()

    def _execute_one(self, command: Command) -> None:
        term = self._term.number
        match command:
            case SpawnHost(host):
                self._spawn(host)
            # By its handle, not by the number, which another process may have by now (rule V4).
            case KillHost(host, pid):
                for process in [each for each in self._watched if each.pid == pid]:
                    process.kill()
            case ForgetHost(host=host) | CutHost(host):
                if host not in self.fleet.hosts:
                    self.facts.pop(host, None)
                # V11: it finds that, and joins again.
                if (connection := self._connections.pop(host, None)) is not None:
                    connection.abort()
            case DrainHost(host):
                self._send(host, Drain(term))
            case OpenContainer(host, index, request):
                self._send(host, Open(term, index, request))
            case CloseContainer(host, index, request):
                self._send(host, Close(term, index, request))

    def _send(self, host: str, order: Open | Close | Drain) -> None:
        connection = self._connections.get(host)
        if connection is not None:
            connection.send(order)  # A lost connection is reported to the fleet, which decides again.

    def _publish(self) -> None:
        now, assignments = anyio.current_time(), self.fleet.assignments
        stepped = [assignments[index] for index in sorted(assignments.changed)]
        assignments.changed.clear()
        for assignment in stepped:
            self.failover_times.note(assignment, now)
        if moved := self.published.note(stepped):
            self._news.note_moved(moved)
        if self._join_listener is not None:
            self._join_listener.note([host.id for host in self.fleet.hosts.values() if host.joined])
        if self.is_settled:
            self._settled.set()

    # --- processes -------------------------------------------------------------------------------

    def _spawn(self, host: str) -> None:
        assert self._tasks is not None
        earlier = self._processes.pop(host, None)
        if earlier is not None:
            earlier.kill()  # It did not connect in time, and a host has only one process.
        self.facts[host].starts += 1
        try:
            process = spawn(self._command(host))
        except OSError as error:
            self.facts[host].last_exit = f"could not be started: {error.strerror}"
            _log.error("host_not_started", host=host, error=str(error))
            # Later: this is one of the commands that ``_execute`` is executing, and events never interleave.
            self._tasks.start_soon(self._note_exit, host)
            return

        self._watch(host, process)

    async def _note_exit(self, host: str) -> None:
        self._execute(self.fleet.exited(host, self._now()))

    def _watch_existing(self, host: str, pid: int, start: str = "") -> None:
        """Watch a process of an earlier supervisor."""
        try:
            self._watch(host, HostProcess(pid, start=start))
        except ProcessLookupError:
            return
        _log.info("host_adopted", host=host, pid=pid)

    def _watch(self, host: str, process: HostProcess) -> None:
        assert self._tasks is not None
        self._watched.add(process)
        if host in self.fleet.hosts:
            self._processes[host] = process
        self._tasks.start_soon(self._wait, host, process)

    async def _wait(self, host: str, process: HostProcess) -> None:
        # By its handle, where the system has one: a killed host is noticed, and replaced, at once.
        await process.wait()
        self._watched.discard(process)
        _log.info("host_ended", host=host, pid=process.pid, how=process.how)
        if self._processes.get(host) is process:
            del self._processes[host]
            facts = self.facts[host]
            facts.last_exit = process.how
            facts.exits += not (self._stops or self.fleet.hosts[host].exits_by_order(process.code))
            self._execute(self.fleet.exited(host, self._now(), process.code))
        self._check_ended()

    # --- connections -----------------------------------------------------------------------------

    async def _serve(self, stream: anyio.abc.SocketStream, listener: JoinListener | None = None) -> None:
        """One connection, from a host of its own or, with ``listener``, from one that joins."""
        connection = Connection(stream)
        async with stream, anyio.create_task_group() as tasks:
            tasks.start_soon(connection.write)
            try:
                with connection.scope:
                    if listener is None or await listener.prove(connection):
                        await self._talk(connection, joined=listener is not None)
            except Unanswered as error:
                _log.warning("connection_closed", reason=str(error))
            except ProtocolError as error:
                _log.warning("connection_refused", reason=str(error))
                connection.send(Refuse(str(error)))
            finally:
                self._note_end(connection)
            connection.finish()
            # A host that does not read must not keep this task.
            with anyio.move_on_after(1):
                await connection.written.wait()
            tasks.cancel_scope.cancel()

    async def _talk(self, connection: Connection, *, joined: bool) -> None:
        hello = await connection.hello()
        if hello is None:
            return

        connection.version = await self._admit(hello, connection.peer, joined=joined)
        host = hello.host
        self.facts.setdefault(host, HostFacts())
        earlier = self._connections.get(host)
        # Replaced before the earlier connection is closed, whose end would otherwise count as the loss of
        # this host.
        self._connections[host] = connection
        if earlier is not None:
            earlier.close()
        # The first message: a host obeys nothing before its welcome.
        connection.send(self._welcome(connection.version))
        self._news.note_hello(host)
        # What it has is not in the message if it is a child of an earlier version.
        machine = hello.machine if joined else socket.gethostname()
        commands = self.fleet.hello(
            host,
            hello.pid,
            hello.url,
            hello.served,
            self._now(),
            joined=joined,
            instance=hello.instance,
            machine=machine,
            leaving=hello.leaving,
        )
        self._execute(commands)
        if hello.leaving:
            self._leaving.note(host)
        if host in self.fleet.hosts and self.fleet.hosts[host].exit_ordered:
            connection.send(Drain(self._term.number))  # The order went to the connection before.
        while (message := await connection.receive()) is not None:
            # A joined host that was forgotten meanwhile is none any more.
            if self._connections.get(host) is not connection:
                return
            self._handle(host, message)

    def _welcome(self, version: int) -> Welcome:
        options, held = self._options, self._term.is_held()
        return Welcome(self._term.number, options.heartbeat, options.orphan_grace, version, held)

    async def _admit(self, hello: Hello, peer: int, *, joined: bool) -> int:
        """The version to speak with the host. Raises ``ProtocolError`` unless it may connect. ``peer``: the
        process at the other end as the system reports it, 0 if unknown."""
        try:
            version = await self._admission.check(hello, joined=joined)
        except NotOwner as error:
            # V1: the hosts are left to the other supervisor.
            self._superseded = error
            self._all_ended.set()
            raise Unanswered(str(error)) from error
        if joined:
            _log.info("host_joined", host=hello.host, machine=hello.machine, pid=hello.pid, url=hello.url)
            return version

        known = self._processes.get(hello.host)
        if known is None:
            if peer and peer != hello.pid:
                # A number that only the message names could be any process, and would be killed.
                raise ProtocolError(f"the connection is of process {peer}, not process {hello.pid}")
            self._watch_existing(hello.host, hello.pid)
        elif known.pid != hello.pid:
            raise ProtocolError(f"process {known.pid} is {hello.host} now, not process {hello.pid}")
        return version

    def _handle(self, host: str, message: Message) -> None:
        now = self._now()
        match message:
            case Heartbeat():
                self._handle_heartbeat(host, message, now)
            case Opened(index, request, epoch):
                self._execute(self.fleet.opened(host, self._known(index), request, epoch, now))
            case Failed(index, request, kind, reason):
                _log.warning("opening_failed", host=host, container=index, kind=kind, reason=reason)
                self._execute(self.fleet.failed(host, self._known(index), request, kind, reason, now))
            case Closed(index):
                self._execute(self.fleet.closed(host, self._known(index), now))
            case Fenced(index, epoch, reason):
                _log.warning("container_fenced", host=host, container=index, epoch=epoch, reason=reason)
                self._execute(self.fleet.fenced(host, self._known(index), epoch, reason, now))
            case Ended(index, kind, reason):
                _log.warning("container_ended", host=host, container=index, kind=kind, reason=reason)
                self._execute(self.fleet.ended(host, self._known(index), kind, reason, now))
            case _:
                raise ProtocolError(f"a host does not send {type(message).__name__.lower()}")

    def _handle_heartbeat(self, host: str, beat: Heartbeat, now: float) -> None:
        commands = self.fleet.heartbeat(host, beat.lag, now)
        # Those of another build may have another form, and are for people only.
        with suppress(ValueError, TypeError, OverflowError):
            if beat.statistics:
                self.facts[host].learn(beat.statistics)
        if beat.leaving and self.fleet.hosts[host].phase is HostPhase.SERVING:
            _log.info("host_drain_requested", host=host)
            commands += self.fleet.drain(host, now)
        if commands:
            self._execute(commands)
        if beat.leaving:
            self._leaving.note(host)

    def _known(self, index: int) -> int:
        if index not in range(len(self.fleet.assignments)):
            raise ProtocolError(f"no container {index}")
        return index

    def _note_end(self, connection: Connection) -> None:
        assert self._tasks is not None
        for host in [host for host, known in self._connections.items() if known is connection]:
            del self._connections[host]
            self._tasks.start_soon(self._lose_connection, host)

    async def _lose_connection(self, host: str) -> None:
        process = self._processes.get(host)
        # A process that ends closes its socket first. Its exit is more precise than the loss of a connection.
        if process is not None:
            with anyio.move_on_after(_EXIT_FIRST):
                await process.ended.wait()
                return
        found = self.fleet.hosts.get(host)
        # V6: between machines a reset is no exit. One that was ordered to exit ends its connection by that.
        if found and found.joined and not found.exit_ordered:
            await anyio.sleep(RETURN_SECONDS)
        found = self.fleet.hosts.get(host)
        if host not in self._connections and found is not None:
            if found.phase is HostPhase.SERVING:
                _log.warning("host_disconnected", host=host)
            self._execute(self.fleet.disconnected(host, self._now()))

    async def _greet_joined(self, listener: JoinListener) -> None:
        """V4: a host on another machine may not see that its supervisor is gone, and looks for the next one
        when it hears nothing."""
        while not listener.published.is_set():
            # V11: nobody can find this supervisor yet.
            self.fleet.await_joined(self._now())
            with anyio.move_on_after(self.fleet.options.rejoin / 2):
                await listener.published.wait()
        self.fleet.await_joined(self._now())
        while True:
            await anyio.sleep(GREETING_SECONDS)
            for host in self.fleet.hosts.values():
                if host.joined and (connection := self._connections.get(host.id)) is not None:
                    connection.send(self._welcome(connection.version))

    # --- time ------------------------------------------------------------------------------------

    def _now(self) -> float:
        """The time of an event. If this loop was late until now, the hosts' deadlines are extended first:
        what follows from the event may depend on them (rule V7)."""
        now = anyio.current_time()
        if not self._term.is_held():
            self.fleet.doubt()
        # An event comes before the planned time, or the loop was late: the timer would have come first.
        late = now - self._planned
        if late > _LATE:
            self.fleet.extend_deadlines(late)
            self._planned = now
        return now

    async def _run_timers(self) -> None:
        """Tick when something is due. At each heartbeat interval, check for frozen hosts and for this loop's
        own lateness."""
        now = anyio.current_time()
        check_due = now + self._options.heartbeat
        while True:
            # From this round's time on: what the round itself took may be a delay too.
            self._planned = max(now, min(self.fleet.next_due(now), check_due))
            # Before the wait: an event that comes from now on is not lost.
            self._woken = anyio.Event()
            with anyio.move_on_at(self._planned):
                await self._woken.wait()
            now = self._now()
            # Woken by an event, of which there may be thousands a second: only what is due is another.
            if now < self._planned:
                continue
            if now >= check_due:
                check_due = now + self._options.heartbeat
                self._check_frozen(now)
            if now >= self.fleet.next_due(now):
                self._execute(self.fleet.tick(now))

    def _check_frozen(self, now: float) -> None:
        for host in self.fleet.hosts.values():
            # ``/proc`` is read only for hosts that are quiet: a heartbeat proves that its threads run.
            quiet = now - host.last_heard > _BEATS_MISSED * self._options.heartbeat
            process = self._processes.get(host.id)
            if host.phase is HostPhase.SERVING and quiet and process is not None and process.is_frozen():
                _log.warning("host_frozen", host=host.id, pid=host.pid)
                self._execute(self.fleet.disconnected(host.id, now))

    async def _until_superseded(self, work: Callable[[], Awaitable[None]]) -> None:
        try:
            await work()
        except NotOwner as error:
            self._superseded = error
            self._all_ended.set()

    async def _check_term(self) -> None:
        interval = self._term.interval
        due = anyio.current_time() + interval
        while True:
            await anyio.sleep_until(due)
            due = anyio.current_time() + interval
            # One request that nobody answers must not keep the next ones from renewing the lease.
            with anyio.move_on_at(due) as limit:
                try:
                    await self._term.check()
                    self._send_held_back()
                except (Unavailable, OutcomeUnknown, StorageFull, Unsupported) as error:
                    # D5: a lease that ends meanwhile fences nobody. The next check shows whose it is then.
                    _log.warning("term_not_checked", reason=str(error))
            if limit.cancelled_caught:
                _log.warning("term_not_checked", reason=f"no answer within {interval:g} s")

    def _send_held_back(self) -> None:
        if self._term.is_held():
            self._execute(self.fleet.trust(self._now()))
        if self._held_back:
            held_back, self._held_back = self._held_back, []
            # Not those that are outdated (V2), nor after the order to drain.
            self._execute(
                [
                    each
                    for each in held_back
                    if self.fleet.assignments[each.index].awaits(each.host, each.request)
                    and not self.fleet.hosts[each.host].exit_ordered
                ]
            )


def log_command(command: Command) -> None:
    """What costs containers their host, and not by order, is a warning."""
    fields = attrs.asdict(command)
    match command:
        case ReportSilence():
            _log.warning("host_silent", **fields, setting="server.silence")
        case ForgetHost(reason=reason) if reason:
            _log.warning("host_forgotten", **fields)
        case _:
            _log.info("command_issued", **fields, kind=type(command).__name__)
