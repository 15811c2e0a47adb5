"""A crash at every I/O call of a long and mixed life of a store: nothing acked is lost, nothing happens
twice, nothing leaks.

The short scenarios, one for each protocol, are in ``test_crash_enumeration.py`` and run always; most of this
needs ``--long``.

The disk is simulated. ``none``, ``all`` and ``random`` are power losses that keep nothing, all or anything of
what was not synced; ``kill`` ends the process and the page cache survives. Each recovered store is checked
against an oracle, then loses power again at a random call of its own, is checked again, flushes, and must
have exactly the chunks that its metadata names.

A failure names its case; ``TIERLOG_CRASH=script:schedule:mode:seed:call`` runs that one alone.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from functools import lru_cache, partial
from random import Random

import pytest
from simulation.file_layer import SimulatedDisk, SimulatedFiles

from support.crash_enumeration import Instant, Recorder, Scenario, live
from support.crash_scenarios import SCENARIOS
from support.crash_scripts import LIFE, random_script
from support.crash_world import Ending, Mode, after, check_chunks, image_at, live_and_end, opened
from support.oracle import Oracle, observe
from support.virtual import run_virtual
from tierlog.actors.store.store import SegmentStore
from tierlog.storage_backends.base.files import IoCall

pytestmark = pytest.mark.timeout(600)

NAMED = os.environ.get("TIERLOG_CRASH", "")
ONLY = "" if NAMED.partition(":")[0] in SCENARIOS else NAMED
SKIPPED = pytest.mark.skipif(bool(NAMED), reason="TIERLOG_CRASH names one case")


@lru_cache(maxsize=1)
def life_of(script: str, schedule: int, backend: str = "trio") -> Recorder:
    """``life``, ``short-<seed>`` or ``long-<seed>``."""
    kind, _, seed = script.partition("-")
    sessions, steps = (2, 6) if kind == "short" else (4, 14)
    scenario = Scenario(
        rules="", sessions=LIFE if kind == "life" else random_script(int(seed), sessions, steps)
    )
    return run_virtual(partial(live, scenario, schedule), schedule, backend)


@pytest.fixture(scope="module", autouse=True)
def _forget() -> Iterator[None]:
    """A life has an image of the disk for each of its calls."""
    yield
    life_of.cache_clear()


# --- what every crash is followed by ------------------------------------------------------------


async def recover(instant: Instant, mode: Mode, random: Random) -> None:
    """Crash, recover, check; crash again somewhere in the recovered store's life, recover, check
    everything."""
    oracle = instant.oracle.after_crash()
    disk = after(instant.disk, mode, random)
    disk, oracle = await second_owner(disk, oracle, random)
    async with opened(SimulatedFiles(disk, interleave=False), 102) as store:
        oracle.check(await observe(store, oracle.writers))
        await oracle.repeat_latest(store)
        await store.flush()
        await check_chunks(store, disk)
        oracle.check(await observe(store, oracle.writers))

    if mode != "none":
        return

    # Everything from long-term storage and metadata alone.
    async with opened(SimulatedFiles(disk, interleave=False), 103) as store:
        oracle.check(await observe(store, oracle.writers))


async def second_owner(disk: SimulatedDisk, oracle: Oracle, random: Random) -> tuple[SimulatedDisk, Oracle]:
    """Recover, check, work; lose power at one random call, with what was not synced. Returns what the third
    owner finds, and what is known then."""
    fatal = random.randrange(0, 190)
    crashed: list[tuple[SimulatedDisk, Oracle]] = []

    def watch(index: int, call: IoCall) -> None:
        if index == fatal:
            crashed.append(
                (
                    after(image_at(disk, call, random), random.choice(LOSSES), random),
                    oracle.after_crash(),
                )
            )
            ending.end()

    ending = Ending(watch)

    async def work(store: SegmentStore) -> None:
        oracle.check(await observe(store, oracle.writers))
        await oracle.repeat_latest(store)
        await store.flush()

    await live_and_end(SimulatedFiles(disk, ending, interleave=False), 101, ending, work)
    return crashed[0] if crashed else (after(disk, "none", random), oracle)


def crash_everywhere(
    script: str, schedule: int, mode: Mode, seed: int, backend: str = "trio", every: int = 1
) -> None:
    instants = life_of(script, schedule, backend).instants
    possible = [instant for instant in instants if mode == "kill" or not instant.killed_only]
    for instant in possible[::every]:
        case = f"{script}:{schedule}:{mode}:{seed}:{instant.name}"
        if ONLY not in ("", case):
            continue
        try:
            run_virtual(partial(recover, instant, mode, Random(case)), seed, backend)
        except BaseException as error:
            error.add_note(
                f"crash at call {instant.name} ({instant.call}); run it alone with TIERLOG_CRASH={case}"
            )
            raise


# --- the tests ----------------------------------------------------------------------------------

LOSSES: tuple[Mode, ...] = ("none", "random")
MODES: list[tuple[Mode, int]] = [("none", 0), ("all", 0), ("random", 0), ("kill", 0)]
CASES = [
    *[("life", 0, *mode) for mode in MODES],
    *[(f"short-{n}", n, mode, n) for n in (1, 2) for mode in ("random", "kill")],
]
LONG = [
    *[("life", schedule, *mode) for schedule in range(1, 5) for mode in [*MODES, ("random", 1)]],
    *[(f"long-{n}", n, *mode) for n in range(10) for mode in [*MODES, ("random", 1), ("kill", 1)]],
]


@pytest.mark.long
@SKIPPED
@pytest.mark.parametrize("script, schedule, mode, seed", CASES)
def test_and_38_a_crash_at_any_call_loses_nothing_acked(
    script: str, schedule: int, mode: Mode, seed: int
) -> None:
    crash_everywhere(script, schedule, mode, seed)


@pytest.mark.long
@SKIPPED
@pytest.mark.parametrize("script, schedule, mode, seed", LONG)
def test_and_38_more_scripts_and_seeds(script: str, schedule: int, mode: Mode, seed: int) -> None:
    crash_everywhere(script, schedule, mode, seed)


@SKIPPED
def test_a_crash_on_asyncio() -> None:
    """A sample: there the clock is real, and the order of tasks is always the same."""
    crash_everywhere("short-3", 0, "random", 0, backend="asyncio", every=8)


def test_the_life_reaches_what_it_should() -> None:
    """The crashes above would prove little if the script never rolled, truncated, flushed, collected or
    recovered a backlog."""
    events = life_of("life", 0).events

    def count(verb: str, part: str) -> int:
        return sum(event.startswith(verb) and part in event for event in events)

    assert count("Open", ".wal") > 6
    assert count("Unlink", ".wal") > 4
    assert count("Link", "/lts/containers/") > 10
    assert count("Unlink", "/lts/containers/") > 3


@pytest.mark.extended
def test_the_same_seed_gives_the_same_life() -> None:
    """The base of every case above: one that failed fails again."""
    first, second = (life_of.__wrapped__("short-1", 5) for _ in range(2))
    assert first.events == second.events
    assert [at.oracle.known() for at in first.instants] == [at.oracle.known() for at in second.instants]
    assert first.events != life_of("short-1", 0).events


if ONLY:

    def test_one_case() -> None:
        script, schedule, mode, seed, _ = ONLY.split(":")
        crash_everywhere(script, int(schedule), mode, int(seed))  # type: ignore[arg-type]
