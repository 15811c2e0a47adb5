"""A day in the life of a fleet: a cold start, then everything that befalls one, in an order that the seed
decides. After each event every container has one owner again, the supervisor, the hosts and the logs agree,
the loads differ by one at most, and hardly more containers moved than had to.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection

import anyio
import attrs

from tierlog.actors.kernel.exits import first_leaf
from tierlog.actors.supervisor.fleet import FleetOptions

from ..loop import run_virtual
from .hosts import SimulatedHost, Violation
from .world import PATIENCE_SECONDS, Episode, FleetWorld, Size

COLD_START = "cold start"
RACK_LOST = "rack lost"
RACK_ADDED = "rack added"
UPGRADE = "rolling upgrade"
RACK_AND_SUPERVISOR_LOST = "rack and supervisor lost"
UPGRADE_WITHOUT_SUPERVISOR = "rolling upgrade, supervisor lost"
CUT_OFF = "half cut off"
CONNECTIONS_BROKEN = "connections broken"
DRAINED_WHILE_AN_OPENING_HANGS = "hosts drained while an opening hangs"
MOVES_FACTOR = 1.1
"""How many more moves than the fewest are allowed."""
CUT_OFF_SECONDS = (2.0, 12.0)
"""How long a host may be cut off at least and at most, from when it counts as silent: it may be forgotten
meanwhile, or not."""
AWAY_SECONDS = 10.0
"""How long a host whose connection broke does not find its supervisor."""
ROLLED_AT_ONCE = 20
"""Of so many hosts one restarts at a time."""


@attrs.frozen(kw_only=True)
class Report:
    seed: int
    size: Size
    episodes: tuple[Episode, ...]
    acks: int
    refused: int


def run_fleet(
    seed: int, size: Size, *, rolled: int | None = None, only: Collection[str] | None = None
) -> Report:
    """Raises ``Violation``. ``rolled``: how many hosts an upgrade restarts; all by default. ``only``: which
    events follow the cold start."""

    async def body() -> Report:
        async with anyio.create_task_group() as tasks:
            world = FleetWorld(seed, size, tasks)
            await _Day(world, size.hosts if rolled is None else rolled).live(only)
            tasks.cancel_scope.cancel()
        return Report(
            seed=seed,
            size=size,
            episodes=tuple(world.episodes),
            acks=world.logs.acks,
            refused=world.logs.refused,
        )

    try:
        return run_virtual(body, seed)
    except BaseExceptionGroup as group:
        # It is one of a task, or of the scenario.
        raise first_leaf(group) from None


class _Day:
    def __init__(self, world: FleetWorld, rolled: int) -> None:
        self._world = world
        self._rolled = rolled

    async def live(self, only: Collection[str] | None) -> None:
        await self._episode(COLD_START, self._start)
        events: list[tuple[str, Callable[[], Awaitable[int]]]] = [
            (RACK_LOST, self._lose_rack),
            (RACK_ADDED, self._add_rack),
            (UPGRADE, self._roll),
            (RACK_AND_SUPERVISOR_LOST, self._lose_rack_and_supervisor),
            (UPGRADE_WITHOUT_SUPERVISOR, self._roll_without_supervisor),
            (CUT_OFF, self._cut_off_half),
            (CONNECTIONS_BROKEN, self._break_connections),
            (DRAINED_WHILE_AN_OPENING_HANGS, self._drain_while_an_opening_hangs),
        ]
        self._world.random.shuffle(events)
        for name, event in events:
            if only is not None and name not in only:
                continue
            await self._episode(name, event)

    async def _episode(self, name: str, event: Callable[[], Awaitable[int]]) -> None:
        """``event`` returns the fewest moves that are possible."""
        world, steps, network = self._world, self._world.steps, self._world.network
        began, openings = anyio.current_time(), world.logs.openings
        steps.worst, events, cpu, sent = 0.0, steps.count, steps.sum, dict(network.bytes)
        least = await event()
        await world.wait_owned()
        owned = anyio.current_time() - began
        await world.wait_balanced()
        episode = Episode(
            name,
            owned,
            anyio.current_time() - began,
            world.logs.openings - openings,
            least,
            steps.worst,
            steps.count - events,
            steps.sum - cpu,
            network.bytes[True] - sent[True],
            network.bytes[False] - sent[False],
        )
        world.episodes.append(episode)
        await world.check()
        if episode.moves > MOVES_FACTOR * least:
            raise Violation(f"{name}: {episode.moves} containers moved, and {least} had to")

    # --- the events ------------------------------------------------------------------------------

    async def _start(self) -> int:
        world = self._world
        world.start_supervisor()
        world.start_supervisor()
        for number in range(world.size.hosts):
            world.start_host(number % world.size.racks)
        await anyio.sleep(0)
        return world.size.containers

    async def _lose_rack(self) -> int:
        world = self._world
        lost = max(map(world.of_rack, range(world.size.racks)), key=len)
        least = world.load(lost)
        world.lose(lost, power=world.random.random() < 0.5)
        await anyio.sleep(0)
        return least

    async def _add_rack(self) -> int:
        world = self._world
        for _ in range(world.size.hosts // world.size.racks):
            world.start_host(world.random.randrange(world.size.racks))
        least = world.excess()
        await self._all_welcome()
        return least

    async def _lose_rack_and_supervisor(self) -> int:
        world = self._world
        least = await self._lose_rack()
        await anyio.sleep(
            world.random.uniform(0, 2) + 7.5 * world.size.heartbeat * (world.random.random() < 0.5)
        )
        world.kill_supervisor()
        await anyio.sleep(1)
        return least

    async def _roll(self) -> int:
        """Host after host, or a few at a time: each hands over, exits and is started again."""
        world, least = self._world, 0
        waiting = sorted(world.hosts, key=lambda host: host.id)[: self._rolled]
        at_once = max(1, len(world.hosts) // ROLLED_AT_ONCE)
        while waiting:
            batch, waiting = waiting[:at_once], waiting[at_once:]
            least += world.load(batch)
            least += await self._restart(batch)
            await world.wait_balanced()
        return least

    async def _roll_without_supervisor(self) -> int:
        least = 0
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._kill_supervisor_soon)
            least += await self._roll()
        return least

    async def _kill_supervisor_soon(self) -> None:
        await anyio.sleep(self._world.random.uniform(0, 5))
        self._world.kill_supervisor()

    async def _cut_off_half(self) -> int:
        world = self._world
        cut_off = world.random.sample(world.hosts, len(world.hosts) // 2)
        least = world.load(cut_off)
        world.network.cut_off({host.machine for host in cut_off})
        await anyio.sleep(7.5 * world.size.heartbeat + world.random.uniform(*CUT_OFF_SECONDS))
        world.network.heal()
        least += world.excess()
        await self._all_welcome()
        return least

    async def _break_connections(self) -> int:
        world = self._world
        broken = world.random.sample(world.hosts, max(1, len(world.hosts) // 20))
        least = world.load(broken)
        for host in broken:
            host.break_connection(AWAY_SECONDS)
        await anyio.sleep(AWAY_SECONDS / 2)
        least += world.excess()
        await self._all_welcome()
        return least

    async def _drain_while_an_opening_hangs(self) -> int:
        """Whoever opens a container of a lost host is drained, and ordered to exit with it: more hosts in a
        row than may exit while they open it."""
        world = self._world
        lost = world.random.choice(world.hosts)
        index = next(lost.owned())
        least = world.load([lost])
        world.logs.hanging.add(index)
        world.lose([lost], power=False)
        gone = [lost]
        for _ in range(FleetOptions().crashes_max + 1):
            opening = await self._opening(index)
            least += world.load([opening])
            opening.leave()
            while opening.is_alive:
                await anyio.sleep(0.1)
            world.hosts.remove(opening)
            gone.append(opening)
        world.logs.answer_again()
        await world.wait_owned()
        for host in gone:
            world.start_host(int(host.machine.rpartition("-")[2]))
        least += world.excess()
        await self._all_welcome()
        return least

    # --- parts of them ---------------------------------------------------------------------------

    async def _restart(self, hosts: list[SimulatedHost]) -> int:
        """Returns the fewest moves with which they get their share again."""
        world = self._world
        for host in hosts:
            host.leave()
        while any(host.is_alive for host in hosts):
            await anyio.sleep(0.1)
        for host in hosts:
            world.hosts.remove(host)
        await anyio.sleep(world.random.uniform(1, 3))
        for host in hosts:
            world.start_host(int(host.machine.rpartition("-")[2]), host.id)
        least = world.excess()
        await self._all_welcome()
        return least

    async def _opening(self, index: int) -> SimulatedHost:
        """Which host was ordered to open the container."""
        with anyio.fail_after(PATIENCE_SECONDS):
            while (found := next((host for host in self._world.hosts if host.opens(index)), None)) is None:
                await anyio.sleep(0.1)
                self._world.check_quarantine()
            return found

    async def _all_welcome(self) -> None:
        while not all(host.is_welcome for host in self._world.hosts):
            await anyio.sleep(0.1)
