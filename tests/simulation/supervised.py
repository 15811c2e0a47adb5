"""Worlds in which processes contend for the supervision of one store, in a bucket or in a data folder (rules
D1 to D6 and V1).

Seeds from ``FIRST_SUPERVISED`` on are such worlds. Processes take the lease, raise the term and order
openings; meanwhile they are killed at any await, stand still for longer than the lease, with their machine or
alone, lose the bucket, and their requests fail in every way. Two hosts greet whichever supervisor they find,
and orders reach them late.

At every moment: one process at most believes that the lease is its own (D4), no two supervisors have the
same term, none orders an opening while its lease may have ended, and a host obeys no order of
a lower term than one that it has met (V1). At the end, once nothing fails any more, one supervisor is
left, and whoever starts follows it in time: after a take-over, a death, and a clean end, and when it stands
still (D3).
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from functools import partial
from random import Random
from typing import cast

import anyio
import anyio.abc
import attrs
import trio

from tierlog.actors.host.dialing import Dialer
from tierlog.actors.host.heartbeat import HeartbeatWriter, LoopMonitor
from tierlog.actors.host.link import Link
from tierlog.actors.supervisor.commands import OpenContainer
from tierlog.actors.supervisor.control.messages import Close, Drain, Hello, Open, Welcome
from tierlog.actors.supervisor.term import TermOptions
from tierlog.journal.coordination.contract import SUPERVISOR, TERM
from tierlog.journal.coordination.objects import OBSERVED
from tierlog.storage_backends.base.errors import TierlogError

from .copies import FIRST
from .faults import Fault, Kind, Nth, Target, Window, any_fault
from .invariants import Broken
from .loop import after_steps
from .machines import HOSTS, RATES, Machine, OrderingSupervisor, Started, SupervisedSite
from .process import Process, ProcessDied
from .trace import Trace

FIRST_SUPERVISED = FIRST + (8 << 32)
LOOKS = 8
"""How often a lease that is waited for is looked at in its duration, at least."""
SLACK = 2.0
"""Seconds for requests that no fault meets."""
_RECORDS = (f"leases/{SUPERVISOR}", TERM)


class SupervisedRun:
    """One seed's run; ``body`` raises what it finds."""

    def __init__(self, seed: int, trace: Trace) -> None:
        self._random = random = Random(f"supervised {seed}")
        self._trace = trace
        self._in_bucket = random.random() < 0.8
        started = Started(lease=random.choice((3.0, 10.0, 30.0)), patience=random.choice((1.0, 5.0, 30.0)))
        self._lease = started.lease
        self.site = SupervisedSite(self._in_bucket, started, Random(f"site {seed}"), trace, self._send)
        self.operations = 0
        self._is_healed = False
        self._hosts = [_Host(f"joined-{number}", self.site) for number in range(HOSTS)]
        self._tasks: anyio.abc.TaskGroup

    @property
    def title(self) -> str:
        return f"supervisors of a store in a {'bucket' if self._in_bucket else 'folder'}"

    async def body(self) -> None:
        async with anyio.create_task_group() as self._tasks:
            self._tasks.start_soon(self._watch)
            for host in self._hosts:
                self._tasks.start_soon(host.run, Random(f"{self._random.random()} {host.name}"))
            acts = self._swarm()
            for _ in range(self._random.randint(20, 60)):
                self._keep_contending()
                self._random.choice(acts)()
                await trio.sleep(self._random.choice((0.0, 0.01, 0.1, 0.1, 0.5)) * self._lease)
            await self._to_the_end()
            self.site.kill_all()
            self._tasks.cancel_scope.cancel()

    async def _watch(self) -> None:
        await self.site.breached.wait()
        # What stands still would not let go of its calls.
        self.site.kill_all()
        raise Broken(str(self.site.breach))

    # --- processes -------------------------------------------------------------------------------

    def _keep_contending(self) -> None:
        living = [process for process in self.site.processes if not process.ended.is_set()]
        while len(living) < 3 and self._random.random() < 0.7:
            living.append(self._begin(self._any_options()))

    def _any_options(self) -> TermOptions:
        if not self._in_bucket:
            return attrs.evolve(TermOptions(), lease=self._lease, interval=self._lease / 3)
        return TermOptions.watched(
            self._lease, takes_over=self._random.random() < 0.2, stands_by=self._random.random() < 0.5
        )

    def _begin(self, options: TermOptions) -> Process:
        self.operations += 1
        process = self.site.begin(self._tasks)
        self.site.options[process] = options
        return process

    def _any_process(self) -> Process | None:
        """An active one, half of the time."""
        living = [process for process in self.site.processes if process.alive]
        active = self.site.active()
        return self._random.choice(active if active and self._random.random() < 0.5 else living or [None])

    # --- what happens ----------------------------------------------------------------------------

    def _swarm(self) -> list[Callable[[], None]]:
        """Some of the acts, so that a seed has many of one kind."""
        acts = [self._kill, self._kill_later, self._freeze, self._disturb, self._stop, self._strike]
        if self._in_bucket:
            acts += [self._suspend, self._jump, self._cut_off, self._delay_a_put]
            acts += [self._freeze_at_the_term, self._freeze_behind_a_put, self._freeze_and_put_back]
        else:
            acts.append(self._lose_power)
        share = self._random.choice((0.25, 0.5, 1.0))
        return [act for act in acts if self._random.random() < share] or acts

    @property
    def _target(self) -> Target:
        return Target.OBJECTS if self._in_bucket else Target.FILES

    def _seconds(self) -> float:
        """Up to three leases."""
        return self._random.choice((0.1, 0.5, 1.0, 1.2, 3.0)) * self._lease

    def _kill(self) -> None:
        if (process := self._any_process()) is not None:
            process.kill()

    def _kill_later(self) -> None:
        """At any await of anybody."""
        if (process := self._any_process()) is not None:
            after_steps(self._random.randint(1, 200), partial(self._unless_healed, process.kill))

    def _stop(self) -> None:
        if (process := self._any_process()) is not None:
            self._tasks.start_soon(process.stop)

    def _freeze(self) -> None:
        """As SIGSTOP: its clocks go on."""
        if (process := self._any_process()) is not None:
            self._freeze_one(process)

    def _freeze_one(self, process: Process) -> None:
        if process.alive and not process.frozen:
            process.freeze()
            self._tasks.start_soon(self._later, self._seconds(), partial(self._resume, process))

    def _freeze_and_put_back(self) -> None:
        """Nothing but the monotonic clock shows how long a supervisor stood still."""
        for process in self.site.active():
            self._freeze_one(process)
            self._jump_on(self.site.machine_of[process], -3 * self._lease)

    def _resume(self, process: Process) -> None:
        """Unless it stands still with its machine."""
        machine = self.site.machine_of.get(process)
        if machine is None or not machine.stands_still:
            process.resume()

    def _suspend(self) -> None:
        """Its monotonic clock stands still too."""
        process = self._any_process()
        machine = None if process is None else self.site.machine_of.get(process)
        if machine is None or not machine.is_suspended:
            return
        processes = [each for each, where in self.site.machine_of.items() if where is machine and each.alive]
        self._trace.note(machine.name, "is suspended")
        machine.suspend()
        for process in processes:
            process.freeze()

        def resume() -> None:
            machine.resume()
            for process in processes:
                process.resume()

        self._tasks.start_soon(self._later, self._seconds(), resume)

    def _unless_healed(self, act: Callable[[], None]) -> None:
        """What was to come at some later step or time comes too late at the end."""
        if not self._is_healed:
            act()

    async def _later(self, seconds: float, act: Callable[[], None]) -> None:
        await trio.sleep(seconds)
        act()

    def _jump(self) -> None:
        self._jump_on(self._random.choice(self.site.machines), self._random.choice((-1, 1)) * self._seconds())

    def _jump_on(self, machine: Machine, seconds: float) -> None:
        self._trace.note(machine.name, f"wall clock jumps by {seconds:g} s")
        machine.jump(seconds)
        self.site.check_leases()

    def _disturb(self) -> None:
        """Some calls fail in every way for a while."""
        window = Window(self._seconds(), self._random.choice((0.02, 0.1, 0.5)))
        self.site.faults.add(any_fault(self._target, window, self._seconds(), self._random))

    def _cut_off(self) -> None:
        """A process reaches nothing for a while."""
        if (process := self._any_process()) is not None:
            window = Window(self._seconds(), 1.0)
            self.site.faults.add(Fault(self._target, Kind.BEFORE, window, process=process.number))

    def _strike(self) -> None:
        """A process ends or stands still at a call."""
        kind, count = self._random.choice((Kind.KILL, Kind.FREEZE)), self._random.choice((1, 2, 3, 6))
        seconds = self._seconds()
        self.site.faults.add(Fault(self._target, kind, Nth(count), then=partial(self._resume_later, seconds)))

    def _resume_later(self, seconds: float, number: int) -> None:
        self._tasks.start_soon(self._later, seconds, partial(self._resume, self.site.processes[number - 1]))

    def _freeze_at_the_term(self) -> None:
        """Who has the lease stands still before it raises the term, until the next one has raised it."""

        def succeed(number: int) -> None:
            self._begin(self._standing_by())
            self._resume_later(self._random.choice((1.3, 1.6, 2.0)) * self._lease, number)

        self.site.faults.add(Fault(self._target, Kind.FREEZE, Nth(), verbs=("put",), part=TERM, then=succeed))

    def _freeze_behind_a_put(self) -> None:
        """A process stands still while a put of it is on its way, which arrives."""

        def freeze(number: int) -> None:
            self._tasks.start_soon(
                self._later,
                0.1,
                partial(self._unless_healed, partial(self._freeze_one, self.site.processes[number - 1])),
            )

        part = self._random.choice(_RECORDS)
        self.site.faults.add(
            Fault(self._target, Kind.STALL, Nth(), verbs=("put",), part=part, seconds=0.2, then=freeze)
        )

    def _delay_a_put(self) -> None:
        kind, part = self._random.choice((Kind.LATE, Kind.AGAIN, Kind.AFTER)), self._random.choice(_RECORDS)
        count, seconds = self._random.choice((1, 1, 2)), self._seconds()
        self.site.faults.add(
            Fault(self._target, kind, Nth(count), verbs=("put",), part=part, seconds=seconds)
        )

    def _lose_power(self) -> None:
        self.site.lose_power(self._random.choice(("none", "all", "random")))

    # --- orders ----------------------------------------------------------------------------------

    def _send(self, supervisor: OrderingSupervisor, command: OpenContainer) -> None:
        """The order reaches the hosts that the supervisor has welcomed, at any later time."""
        if not supervisor.lease.is_held():
            self.site.break_rule("it does not hold that an opening is ordered under a lease only")
        order = Open(supervisor.number, command.index, command.request)
        for host in self._hosts:
            if host.name in supervisor.greeted:
                seconds = self._random.choice((0.0, 0.01, 0.5)) * self._lease
                self._tasks.start_soon(self._later, seconds, partial(host.receive, order))

    # --- the end ---------------------------------------------------------------------------------

    async def _to_the_end(self) -> None:
        site, lease = self.site, self._lease
        self._is_healed = True
        site.faults.clear()
        for machine in site.machines:
            machine.resume()
        for process in site.processes:
            process.resume()
        # What is late arrives, and who was superseded finds that.
        await trio.sleep(max(0.0, site.faults.late_until - trio.current_time()) + 3 * lease)
        if not site.active():
            await self._expect("who stands by", self._standing_by(), self._ended)
        await self._expect_one()
        if self._in_bucket:
            await self._follow_one_that_stands_still()
            await self._expect_one()
            take_over = attrs.evolve(self._standing_by(), takes_over=True)
            await self._expect("who takes over", take_over, lease / 3 + lease / LOOKS)
            await self._expect_one()
        self._kill_but()
        await self._expect("who follows a dead one", self._usual(), self._ended)
        await self._expect_one()
        for process in site.processes:
            await process.stop()
        if self._in_bucket:
            kind = self._random.choice((Kind.AFTER, Kind.REPEATED))
            site.faults.add(Fault(self._target, kind, verbs=("put",), part=f"leases/{SUPERVISOR}"))
        await self._expect("who finds a free lease", self._usual(), 0.0)

    async def _follow_one_that_stands_still(self) -> None:
        """D3 and D4, where they are closest to each other: the fastest clock has seen the last renewal."""
        (holder,) = self.site.active()
        follower = self._begin(self._standing_by())
        self.site.machine_of[follower] = max(self.site.machines, key=lambda machine: machine.rate)
        await trio.sleep(self._lease)
        holder.freeze()
        await self._expect_active("who follows one that stands still", follower, self._ended)
        holder.resume()

    def _kill_but(self, *spared: Process) -> None:
        for process in self.site.processes:
            if process not in spared:
                process.kill()

    def _usual(self) -> TermOptions:
        return TermOptions.watched(self._lease, takes_over=False) if self._in_bucket else TermOptions()

    def _standing_by(self) -> TermOptions:
        if not self._in_bucket:
            return TermOptions()
        return TermOptions.watched(self._lease, takes_over=False, stands_by=True)

    @property
    def _ended(self) -> float:
        """D3: seconds after which a lease that nobody renews is taken, by the slowest clock."""
        return (OBSERVED / RATES[0] + 1 / LOOKS) * self._lease if self._in_bucket else 0.0

    async def _expect(self, who: str, options: TermOptions, seconds: float) -> None:
        """A process that starts now is active in time."""
        await self._expect_active(who, self._begin(options), seconds)

    async def _expect_active(self, who: str, process: Process, seconds: float) -> None:
        with trio.move_on_after(seconds + SLACK):
            await process.opened.wait()
        if not process.serving:
            raise Broken(
                f"it does not hold that a free lease is taken in time\n{who}: {process} is not active after "
                f"{seconds + SLACK:g} s, {process.error}"
            )

    async def _expect_one(self) -> None:
        """V1: the ones before find at their next check that they were superseded. Others end here."""
        await trio.sleep(2 * self._lease / 3 + SLACK)
        active = self.site.active()
        if len(active) != 1:
            raise Broken(f"it does not hold that one supervisor goes on\n{active}")
        self._kill_but(*active)


class _Host:
    """A host that greets any supervisor it finds. What it obeys is decided by the product's link."""

    def __init__(self, name: str, site: SupervisedSite) -> None:
        self.name = name
        self._site = site
        self._link = Link(
            cast(Dialer, None),
            hello=_no_hello,
            redirect=_ignore,
            monitor=LoopMonitor(trio.current_time),
            grace=1.0,
        )
        self._known = 0
        """The highest term that it has met."""

    async def run(self, random: Random) -> None:
        while True:
            await trio.sleep(random.choice((0.05, 0.5, 2.0)))
            if active := self._site.active():
                # One that stands still answers later, or never.
                with trio.move_on_after(3.0), suppress(TierlogError, ProcessDied):
                    await self._greet(random.choice(active), random.choice((0.0, 0.01, 1.0)))

    async def _greet(self, process: Process, seconds: float) -> None:
        welcome = await process.call(lambda _: self._hello(process))
        await trio.sleep(seconds)
        self._known = max(self._known, welcome.term)
        if self._link._is_welcome(welcome, _WRITER):
            self._site.supervisors[process].greeted.add(self.name)

    async def _hello(self, process: Process) -> Welcome:
        supervisor = self._site.supervisors[process]
        hello = Hello(self.name, 7, "http://host", {}, self._link.term, instance="1")
        version = await supervisor._admit(hello, 0, joined=True)
        await trio.lowlevel.checkpoint()
        return supervisor._welcome(version)

    def receive(self, order: Open) -> None:
        self._link._handle(order, self._obey)

    def _obey(self, order: Open | Close | Drain) -> None:
        if order.term < self._known:
            self._site.break_rule(
                f"it does not hold that a host obeys the highest term that it knows\n{self.name} knows "
                f"{self._known} and obeys {order}"
            )


class _SilentWriter:
    """Sends nothing."""

    def begin_heartbeats(self, version: int) -> None:
        pass


_WRITER = cast(HeartbeatWriter, _SilentWriter())


async def _no_hello(term: int) -> Hello:
    raise AssertionError("the simulation makes its own")


def _ignore(owners: object) -> None:
    pass
