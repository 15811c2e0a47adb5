"""Makes the plan of a seed.

A seed enables only some kinds of actions and faults, with weights of its own (swarm testing), because a world
in which everything happens hides bugs that need many of one kind. Some seeds have no faults, some only ends
of processes. What only some seeds have besides is added in ``special_seeds.py``.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from random import Random
from typing import TypeVar

import attrs

from .plan import ALL, ENDS, QUIET, Action, FaultKind, Plan, PlannedFault, Verb
from .settings import ChunksKind, Latency, Limits, SiteKind, WalKind
from .special_seeds import add_specials

T = TypeVar("T")

WEIGHTS: Mapping[Verb, int] = {
    Verb.CREATE: 9,
    Verb.APPEND: 18,
    Verb.APPEND_AT: 6,
    Verb.APPEND_EVENT: 14,
    Verb.APPEND_MANY: 8,
    Verb.READ: 10,
    Verb.READ_ALL: 4,
    Verb.TAIL: 4,
    Verb.SEAL: 4,
    Verb.TRUNCATE: 5,
    Verb.MERGE: 6,
    Verb.DELETE: 3,
    Verb.ATTRIBUTES: 6,
    Verb.EXPIRE: 1,
    Verb.LAST_NUMBER: 2,
    Verb.INFO: 4,
    Verb.LIST: 2,
    Verb.FLUSH: 3,
    Verb.WRONG: 1,
    Verb.WATCH: 2,
    Verb.BEGIN: 4,
    Verb.STAGE: 8,
    Verb.COMMIT: 5,
    Verb.ABORT: 2,
    Verb.JOB: 8,
    Verb.LATE: 2,
    Verb.TRANSACTION: 2,
    Verb.TRANSACTIONS: 1,
}
ALWAYS = (Verb.CREATE, Verb.APPEND, Verb.READ)
"""A world without these has nothing to be wrong about."""


def make_plan(seed: int, operations: int = 200) -> Plan:
    """What ``seed`` decides, with ``operations`` actions."""
    return _Planner(seed).plan(operations)


class _Planner:
    def __init__(self, seed: int) -> None:
        self._seed = seed
        self._random = Random(f"plan {seed}")

    def plan(self, operations: int) -> Plan:
        random = self._random
        # Chances of its own: what a seed meant before there were joins, it means still.
        site = _site(random, Random(f"joins {self._seed}"))
        families = self._families(random.randint(1, 3))
        clients = random.choice((3, 3, 4))
        verbs = self._swarm(WEIGHTS, ALWAYS)
        kinds = self._fault_kinds()
        first_opening = kinds.pop(FaultKind.FIRST_OPENING, 0)
        # About one step in twelve is a fault, where there are any.
        often = random.choice((0.02, 0.05, 0.1)) if kinds else 0.0
        actions: list[Action] = []
        faults = [self._fault(1, {FaultKind.FIRST_OPENING: first_opening})] if first_opening else []
        number = len(faults)
        while len(actions) < operations:
            number += 1
            if random.random() < often:
                faults.append(self._fault(number, kinds))
            else:
                actions.append(self._action(number, verbs, clients, families))
        return add_specials(Plan(self._seed, site, families, clients, tuple(actions), tuple(faults)))

    def _families(self, count: int) -> tuple[tuple[str, ...], ...]:
        suffixes = ("", "#a", "#b", "#c", "#d")
        return tuple(
            tuple(f"f{index}/s{suffix}" for suffix in suffixes[: self._random.randint(3, 5)])
            for index in range(count)
        )

    def _swarm(self, weights: Mapping[T, int], always: Collection[T]) -> dict[T, int]:
        """Some of ``weights``, each times a factor of this seed's own."""
        share = self._random.choice((0.4, 0.7, 1.0))
        chosen = [kind for kind in weights if kind in always or self._random.random() < share]
        return {kind: weights[kind] * self._random.choice((1, 2, 6)) for kind in chosen}

    def _fault_kinds(self) -> dict[FaultKind, int]:
        kinds: Sequence[FaultKind] = self._random.choice(((), QUIET, (*ENDS, *QUIET), ALL, ALL, ALL, ALL))
        return self._swarm(dict.fromkeys(kinds, 1), ()) if kinds else {}

    def _action(
        self, number: int, verbs: Mapping[Verb, int], clients: int, families: Sequence[Sequence[str]]
    ) -> Action:
        random = self._random
        family = random.randrange(len(families))
        return Action(
            number,
            client=random.randrange(clients),
            verb=_weighted(random, verbs),
            family=family,
            segment=random.randrange(len(families[family])),
            size=random.choice((0, 1, 3, 20, 100, 100, 300, 700, 1500)),
            pause=random.choice((0, 0, 0, 0, 0, 0, 0.001, 0.01, 0.1, 0.1, 1.5)),
            patience=random.randint(1, 60) if random.random() < 0.04 else None,
            chance=random.getrandbits(32),
        )

    def _fault(self, number: int, kinds: Mapping[FaultKind, int]) -> PlannedFault:
        random = self._random
        return PlannedFault(
            number,
            kind=_weighted(random, kinds),
            count=random.choice((1, 2, 3, 5, 8, 13, 30, 80, 200)),
            seconds=random.choice((0.01, 0.1, 1.0, 5.0, 20.0, 70.0)),
            chance=random.getrandbits(32),
        )


def _site(random: Random, joins: Random) -> SiteKind:
    wal = random.choice((WalKind.DISK, WalKind.DISK, WalKind.SERVICE))
    chunks = random.choice(tuple(ChunksKind))
    slow = random.choice((0.0, 0.001, 0.02))
    return SiteKind(
        wal=wal,
        chunks=chunks,
        containers=random.choice((1, 1, 2)),
        latency=Latency(files=slow / 4, sync=slow, log=slow, chunks=2 * slow),
        limits=_with_joins(_limits(random), joins),
        interleave=random.random() < 0.3,
    )


def _limits(random: Random) -> Limits:
    """Tight in one seed, wide in another: what is throttled is seldom evicted, and what flushes at once is
    never throttled."""
    cache = random.choice((2000, 6000, 24_000))
    return Limits(
        flush_bytes=random.choice((100, 1500, 10_000)),
        flush_age=random.choice((0.2, 2.0, 30.0)),
        cache_bytes=cache,
        soft_bytes=cache // 3,
        hard_bytes=2 * cache // 3,
        segment_bytes=cache // 4,
        rolling_size=random.choice((300, 4096)),
        active_segments=random.choice((1, 4, 100)),
        collect_after=random.choice((0.0, 1.0, 10.0)),
        checkpoint_bytes=random.choice((1000, 3000, 20_000)),
        pinned_bytes=random.choice((3000, 9000)),
        wal_file_bytes=random.choice((1000, 3000, 10_000)),
        group_bytes=random.choice((100, 500, 2000)),
        group_count=random.choice((2, 8)),
        tombstone=random.choice((2.0, 20.0, 86_400.0)),
    )


def _with_joins(limits: Limits, random: Random) -> Limits:
    """How chunks are joined and moved, and in how many steps; and whether unflushed bytes must leave
    memory."""
    return attrs.evolve(
        limits,
        index_spacing=random.choice((200, 1000)),
        small_max=random.choice((300, 2000)),
        native_min=random.choice((0, 100, 10_000)),
        growth=random.choice((2, 4)),
        loose_chunks=random.choice((2, 4)),
        join_inline=random.random() < 0.2,
        relocate_above=random.choice((0, 100)),
        inline_records=random.choice((1, 4)),
        maintenance_records=random.choice((2, 8)),
        cache_bytes=limits.cache_bytes // random.choice((1, 1, 4, 20)),
    )


def _weighted(random: Random, weights: Mapping[T, int]) -> T:
    return random.choices(list(weights), list(weights.values()))[0]
