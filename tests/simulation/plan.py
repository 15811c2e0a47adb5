"""What a seed decides: the kind of world, what each client intends, and the faults, as plain data.

Every step has a number; actions and faults share one sequence. A step is an *intent* with a random generator
of its own, never a finished call: so ``keep`` can cut any steps, and the meaning of the others stays the
same. A fault comes when an action with a higher number begins.

A seed enables only some kinds of actions and faults, with weights of its own (swarm testing), because a world
in which everything happens hides bugs that need many of one kind. Some seeds have no faults, some only ends
of processes.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from enum import StrEnum
from random import Random
from typing import TypeVar

import attrs

from tierlog.actors.settings.layout_mode import LayoutMode
from tierlog.journal.log.s3_layout import S3LogOptions
from tierlog.journal.log.s3_slot import SLOT_HEADER_BYTES

from .disk import BLOCK
from .legacy import LegacyFiles, draw
from .settings import ChunksKind, Latency, Limits, SiteKind, WalKind

T = TypeVar("T")


class Verb(StrEnum):
    """What a client means to do."""

    CREATE = "create"
    APPEND = "append"
    APPEND_AT = "append at an offset"
    APPEND_EVENT = "append an event"
    APPEND_MANY = "append many"
    READ = "read"
    READ_ALL = "read all"
    TAIL = "tail"
    SEAL = "seal"
    TRUNCATE = "truncate"
    MERGE = "merge"
    DELETE = "delete"
    ATTRIBUTES = "attributes"
    IMPORT = "import"
    """Only where there is something in the legacy layout."""
    EXPIRE = "expire writers"
    LAST_NUMBER = "last number"
    INFO = "info"
    LIST = "list"
    FLUSH = "flush"
    WRONG = "wrong call"
    WATCH = "tail while a merge comes"
    BEGIN = "begin a transaction"
    STAGE = "stage and append"
    COMMIT = "commit"
    ABORT = "abort"
    JOB = "a whole transaction"
    LATE = "late call for a transaction"
    TRANSACTION = "look up a transaction"
    TRANSACTIONS = "list transactions"


OF_TRANSACTIONS = (Verb.BEGIN, Verb.STAGE, Verb.COMMIT, Verb.ABORT, Verb.JOB, Verb.LATE, Verb.TRANSACTION)


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
AGAIN = 0.03
"""The share of the later actions about a name in the legacy layout that import it."""
BESIDE_SHARE = 0.15
"""The share of the seeds with defrags or hanging calls beside the writer."""
RUNS_SHARE = 0.2
"""The share of the other seeds with faults of local runs."""
BACKUP_SHARE = 0.15
"""The share of the seeds without any of these with backups."""
FULL_SHARE = 0.15
"""The share of the seeds without any of these in which users' data finds no room for a while."""
READER_SHARE = 0.15
"""The share of the seeds without any of these with readers that hold layouts."""
ORDER_SHARE = 0.15
"""The share of the seeds without any of these with an operator's orders to garbage collection."""
DISK_SHARE = 0.2
"""The share of the seeds without any of these in which the file system of the chunks is full for a while."""
BUCKET_SHARE = 0.5
"""The share of the seeds with a log service, and without a legacy layout and full disks, whose log is in the
bucket of the chunks instead."""
FIRST_IN_BUCKET = (1 << 44) + (7 << 32)
"""From this seed on, that of all seeds is."""
GRACEFUL_SHARE = 0.25
"""The share of the seeds in which most ends of processes are graceful."""
CACHE_SHARE = 0.4
"""The share of the seeds with objects, and without what would be delayed, with a chunk cache."""
SLOW_SHARE = 0.15
"""The share of the seeds without either with slow lookups of cold segments."""
ALWAYS = (Verb.CREATE, Verb.APPEND, Verb.READ)
"""A world without these has nothing to be wrong about."""


class FaultKind(StrEnum):
    """What goes wrong, or merely happens to the whole world."""

    ADVANCE = "time passes"
    STOP = "clean restart"
    KILL = "kill after steps"
    KILL_AT_CALL = "kill at a call"
    KILL_RECOVERY = "kill, and again in recovery"
    FAILOVER = "failover over a frozen owner"
    TAKE_OVER = "take-over of a living owner"
    POWER_LOSS = "power loss"
    FILE_ERROR = "error of a file call"
    FILE_ERRORS = "window of errors of file calls"
    LOG_ERROR = "error of a log call"
    CHUNK_ERROR = "error of a chunk call"
    CHUNK_ERRORS = "window of errors of chunk calls"
    DISK_FULL = "disk full for a while"
    DAMAGE = "damage of a chunk at rest, undone later"
    LOG_DAMAGE = "damage of a log file while nobody runs"
    CLOCK_JUMP = "jump of the wall clock"
    FAILED_SYNC = "failed sync, then power loss"
    OPENING = "kill before a sync, an opening, then power loss"
    HANGING_WRITE = "write of the log that hangs, then fails"
    LOST_REPLY = "append to a chunk in doubt"
    CRASH_AT_DELETE = "crash at the deletion of a chunk"
    FREEZE_AT_WRITE = "failover in the middle of an append"
    ZOMBIE_READ = "read of a superseded owner"
    FAILED_RAISE = "failed raise of the epoch, then a take-over"
    SLOW_READ = "slow read of a segment that changes"
    FIRST_OPENING = "the first opening fails, and much later a power loss"
    """Before the first action, or not at all."""
    DEFRAG = "defrag by an operator"
    HANGING_CHUNK_CALL = "call to a chunk storage that hangs"
    LOST_RUNS = "loss or damage of local runs"
    RUNS_WITHOUT_ROOM = "no room for local runs for a while"
    FROZEN_OPENING = "failover in the middle of an opening"
    UNREADABLE_RUNS = "runs that cannot be read while chunks are deleted"
    SLOW_RUNS = "slow reads of runs for a while"
    BACKUP = "backup that is made or removed"
    USERS_FULL = "no room for users' data, for longer than garbage waits"
    CHUNK_CACHE = "loss, damage or failure of the chunk cache"
    HELD_LAYOUT = "reader that holds a layout"
    FULL_DISK = "file system of chunks without room, for longer than garbage waits"
    GC_ORDER = "operator's order to garbage collection"
    BUCKET = "trouble with the bucket of the log"
    GRACEFUL_END = "graceful end within a budget"
    """In the place of another end."""


QUIET = (FaultKind.ADVANCE,)
ENDS = (
    FaultKind.STOP,
    FaultKind.KILL,
    FaultKind.KILL_AT_CALL,
    FaultKind.KILL_RECOVERY,
    FaultKind.FAILOVER,
    FaultKind.TAKE_OVER,
    FaultKind.POWER_LOSS,
)
COMPOUND = (
    FaultKind.FAILED_SYNC,
    FaultKind.OPENING,
    FaultKind.HANGING_WRITE,
    FaultKind.LOST_REPLY,
    FaultKind.CRASH_AT_DELETE,
    FaultKind.FREEZE_AT_WRITE,
    FaultKind.ZOMBIE_READ,
    FaultKind.FAILED_RAISE,
    FaultKind.SLOW_READ,
)
BESIDE = (FaultKind.DEFRAG, FaultKind.HANGING_CHUNK_CALL)
"""Carried out by themselves, in some seeds (``beside.py``)."""
RUNS = (
    FaultKind.LOST_RUNS,
    FaultKind.RUNS_WITHOUT_ROOM,
    FaultKind.FROZEN_OPENING,
    FaultKind.UNREADABLE_RUNS,
)
"""Carried out by themselves, in some other seeds (``local_runs.py``)."""
APART = (
    *BESIDE,
    *RUNS,
    FaultKind.SLOW_RUNS,
    FaultKind.BACKUP,
    FaultKind.CHUNK_CACHE,
    FaultKind.USERS_FULL,
    FaultKind.HELD_LAYOUT,
    FaultKind.GC_ORDER,
    FaultKind.FULL_DISK,
    FaultKind.BUCKET,
    FaultKind.GRACEFUL_END,
)
ALL = tuple(kind for kind in FaultKind if kind not in APART)


@attrs.frozen
class Action:
    """One intent of one client."""

    number: int
    client: int
    verb: Verb
    family: int
    segment: int
    """Which of the family's names, by index."""
    size: int
    """Bytes, or how many of something."""
    pause: float
    """Virtual seconds before it."""
    patience: int | None
    """After so many steps of the world the client cancels the call; None: it waits."""
    chance: int
    """The seed of everything else about it."""


@attrs.frozen
class PlannedFault:
    number: int
    kind: FaultKind
    count: int
    """How many steps or calls away it is, or how many of something."""
    seconds: float
    """How long it lasts."""
    chance: int
    """The seed of everything else about it."""


@attrs.frozen
class Plan:
    seed: int
    site: SiteKind
    families: tuple[tuple[str, ...], ...]
    """The names of each family; the first one is its placement key."""
    clients: int
    actions: tuple[Action, ...]
    faults: tuple[PlannedFault, ...]
    legacy: tuple[LegacyFiles, ...] = ()
    """What long-term storage holds in the legacy layout from before the first opening."""

    beside: tuple[PlannedFault, ...] = ()
    """What happens beside the writer. The ``count`` of each is the number of the action with which it
    begins."""

    @property
    def numbers(self) -> tuple[int, ...]:
        """The numbers of all steps, in order."""
        steps: Sequence[Action | PlannedFault] = (*self.actions, *self.faults, *self.beside)
        return tuple(sorted(step.number for step in steps))


def make_plan(seed: int, operations: int = 200) -> Plan:
    """What ``seed`` decides, with ``operations`` actions."""
    return _Planner(seed).plan(operations)


def keep(plan: Plan, numbers: Collection[int]) -> Plan:
    """``plan`` without the steps that ``numbers`` does not name."""
    wanted = frozenset(numbers)
    return attrs.evolve(
        plan,
        actions=tuple(action for action in plan.actions if action.number in wanted),
        faults=tuple(fault for fault in plan.faults if fault.number in wanted),
        beside=tuple(fault for fault in plan.beside if fault.number in wanted),
    )


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
        plan = Plan(self._seed, site, families, clients, tuple(actions), tuple(faults))
        if self._seed < FIRST_IN_BUCKET:
            plan = _with_legacy(plan, Random(f"older {self._seed}"))
        plan = _with_beside(plan, Random(f"beside the writer 587 {self._seed}"))
        plan = _with_local_runs(plan, Random(f"local runs {self._seed}"))
        plan = _with_slow_runs(plan, Random(f"slow runs 216 {self._seed}"))
        plan = _with_backups(plan, Random(f"backups {self._seed}"))
        plan = _with_full_storage(plan, Random(f"full storage {self._seed}"))
        plan = _with_readers(plan, Random(f"readers {self._seed}"))
        plan = _with_gc_orders(plan, Random(f"gc orders {self._seed}"))
        if self._seed < FIRST_IN_BUCKET:
            plan = _with_full_disk(plan, Random(f"full disk {self._seed}"))
        plan = _with_chunk_cache(plan, Random(f"chunk cache {self._seed}"))
        plan = _with_graceful_ends(plan, Random(f"graceful ends {self._seed}"))
        return _with_bucket(plan, Random(f"bucket 145 {self._seed}"))

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


def _with_legacy(plan: Plan, random: Random) -> Plan:
    """``plan``, perhaps with segments of the legacy layout. Chances of its own: all other seeds mean what
    they meant."""
    legacy = draw(random, plan.families)
    if not legacy:
        return plan

    layout = random.choice((LayoutMode.INSTALL_NEW, LayoutMode.CODE_ONLY_UPGRADE, LayoutMode.LAYOUT_UPGRADE))
    limits = attrs.evolve(plan.site.limits, adopt_bytes=random.choice((200, 256 << 10)))
    site = attrs.evolve(plan.site, layout=layout, limits=limits)
    # Where headers are written, a name that was never there may be refused as missing or as a header of the
    # store's own.
    other = 0.0 if layout.writes_headers else 0.005
    first = 0.1 if layout.imports_legacy else 0.7
    actions = _with_imports(plan, {segment.name: first for segment in legacy}, random, other)
    return attrs.evolve(plan, site=site, actions=actions, legacy=legacy)


def _with_imports(
    plan: Plan, legacy: Mapping[str, float], random: Random, other: float
) -> tuple[Action, ...]:
    """Some actions import instead: often the first one about a name that is in the legacy layout, seldom any
    later one, or another name."""
    met: set[str] = set()
    actions: list[Action] = []
    for action in plan.actions:
        name = plan.families[action.family][action.segment]
        share = legacy.get(name, other) if name not in met else AGAIN if name in legacy else other
        met.add(name)
        actions.append(attrs.evolve(action, verb=Verb.IMPORT) if random.random() < share else action)
    return tuple(actions)


def _faults(
    plan: Plan,
    random: Random,
    how_many: int,
    kind: Callable[[], FaultKind],
    seconds: Callable[[], float] = lambda: 0.0,
    up_to: int | None = None,
) -> tuple[PlannedFault, ...]:
    """Faults beside the steps of ``plan``, each at one of them, up to the step ``up_to`` or the last one."""
    last = plan.numbers[-1]
    return tuple(
        PlannedFault(
            last + number,
            kind=kind(),
            count=random.randint(1, up_to or last),
            seconds=seconds(),
            chance=random.getrandbits(32),
        )
        for number in range(1, how_many + 1)
    )


def _with_beside(plan: Plan, random: Random) -> Plan:
    """``plan``, perhaps with defrags and hanging calls beside the writer. Chances and numbers of its own: no
    step of any seed has another meaning."""
    if random.random() >= BESIDE_SHARE:
        return plan

    kinds = random.choice((*((kind,) for kind in BESIDE), BESIDE))
    beside = _faults(plan, random, random.choice((4, 14, 39)), lambda: random.choice(kinds))
    return attrs.evolve(plan, beside=beside)


def _with_local_runs(plan: Plan, random: Random) -> Plan:
    """``plan``, perhaps with faults of local runs and hardly any block cache. As ``_with_beside``, and never
    with it: a run that is fetched again delays a flush."""
    if plan.beside or random.random() >= RUNS_SHARE:
        return plan

    faults = _faults(
        plan,
        random,
        random.choice((3, 9)),
        lambda: random.choice(RUNS),
        lambda: random.choice((0.1, 1.0, 5.0, 20.0)),
    )
    limits = attrs.evolve(plan.site.limits, table_cache_bytes=random.choice((0, 3000)))
    return attrs.evolve(plan, site=attrs.evolve(plan.site, limits=limits), beside=faults)


def _with_backups(plan: Plan, random: Random) -> Plan:
    """``plan``, perhaps with backups. As ``_with_beside``."""
    if plan.beside or random.random() >= BACKUP_SHARE:
        return plan

    faults = _faults(plan, random, random.choice((4, 11, 24)), lambda: FaultKind.BACKUP)
    return attrs.evolve(plan, beside=faults)


def _with_full_storage(plan: Plan, random: Random) -> Plan:
    """``plan``, perhaps with a long-term storage that is full for users' data. As ``_with_beside``."""
    if plan.beside or random.random() >= FULL_SHARE:
        return plan

    faults = _faults(
        plan,
        random,
        random.choice((2, 5)),
        lambda: FaultKind.USERS_FULL,
        lambda: random.choice((20.0, 40.0, 70.0)),
    )
    return attrs.evolve(plan, beside=faults)


def _with_readers(plan: Plan, random: Random) -> Plan:
    """``plan``, perhaps with readers that hold layouts for about as long as garbage waits. As
    ``_with_beside``."""
    if plan.beside or random.random() >= READER_SHARE:
        return plan

    faults = _faults(plan, random, random.choice((20, 60)), lambda: FaultKind.HELD_LAYOUT)
    limits = attrs.evolve(plan.site.limits, collect_after=random.choice((0.5, 1.0, 3.0)))
    return attrs.evolve(plan, site=attrs.evolve(plan.site, limits=limits), beside=faults)


def _with_gc_orders(plan: Plan, random: Random) -> Plan:
    """``plan``, perhaps with an operator's orders to garbage collection, and deletions that fail. As
    ``_with_beside``."""
    if plan.beside or random.random() >= ORDER_SHARE:
        return plan

    faults = _faults(
        plan,
        random,
        random.choice((5, 15, 40)),
        lambda: FaultKind.GC_ORDER,
        lambda: random.choice((1.0, 5.0, 20.0)),
    )
    return attrs.evolve(plan, beside=faults)


def _with_full_disk(plan: Plan, random: Random) -> Plan:
    """``plan``, perhaps with chunks on a file system that has a reserve, and no other room for a while. The
    log is there too, or in a service. As ``_with_beside``."""
    if plan.beside or random.random() >= DISK_SHARE:
        return plan

    if random.random() < 0.5:
        plan = attrs.evolve(plan, faults=tuple(each for each in plan.faults if each.kind in QUIET))
    faults = _faults(
        plan,
        random,
        random.choice((2, 4)),
        lambda: FaultKind.FULL_DISK,
        lambda: random.choice((40.0, 70.0)),
    )
    limits = attrs.evolve(
        plan.site.limits, flush_age=random.choice((0.2, 2.0)), collect_after=random.choice((0.0, 1.0))
    )
    site = attrs.evolve(
        plan.site,
        chunks=ChunksKind.FOLDER,
        wal=random.choice((WalKind.DISK, WalKind.SERVICE)),
        storage_reserve=random.choice((16, 64)) * BLOCK,
        limits=limits,
    )
    return attrs.evolve(plan, site=site, beside=faults)


def _with_chunk_cache(plan: Plan, random: Random) -> Plan:
    """``plan``, perhaps with a chunk cache in front of its objects, and faults of it. Also beside backups and
    faults of local runs; otherwise as ``_with_beside``."""
    kinds = {fault.kind for fault in plan.beside}
    is_checked = not kinds.isdisjoint((*BESIDE, FaultKind.SLOW_RUNS))
    if is_checked or plan.site.chunks is not ChunksKind.OBJECTS or random.random() >= CACHE_SHARE:
        return plan

    faults = _faults(
        plan,
        random,
        random.choice((1, 5, 14)),
        lambda: FaultKind.CHUNK_CACHE,
        lambda: random.choice((0.1, 1.0, 5.0, 20.0)),
        up_to=plan.actions[-1].number,
    )
    size = random.choice((64, 64, 256, 1 << 10)) << 10
    site = attrs.evolve(plan.site, chunk_cache=size)
    return attrs.evolve(plan, site=site, beside=(*plan.beside, *faults))


def _with_graceful_ends(plan: Plan, random: Random) -> Plan:
    """``plan``, perhaps with a budget for ends, and with graceful ends in the place of most others."""
    if random.random() >= GRACEFUL_SHARE:
        return plan

    faults = tuple(
        attrs.evolve(fault, kind=FaultKind.GRACEFUL_END)
        if fault.kind in ENDS and random.random() < 0.7
        else fault
        for fault in plan.faults
    )
    limits = attrs.evolve(plan.site.limits, flush_budget=random.choice((0.05, 1.0, 10.0, 30.0)))
    return attrs.evolve(plan, site=attrs.evolve(plan.site, limits=limits), faults=faults)


def _with_bucket(plan: Plan, random: Random) -> Plan:
    """``plan``, perhaps with its log, its identity and its chunks in one bucket, and in most of these with
    faults of it. As ``_with_chunk_cache``."""
    site = plan.site
    is_able = site.wal is WalKind.SERVICE and not plan.legacy and not site.storage_reserve
    if not (is_able and random.random() < BUCKET_SHARE) and plan.seed < FIRST_IN_BUCKET:
        return plan

    pace = random.choice((0.0, 0.0, 0.05))
    log = S3LogOptions(
        # A graceful end has groups to put within its budget.
        pace=0.0 if 0 < site.limits.flush_budget < 10 else pace,
        check_after=random.choice((0.0, 1.0)),
        patience=random.choice((1.0, 5.0, 30.0)),
        kept_bytes=random.choice((300, 16 << 20)),
        start_bytes=random.choice((SLOT_HEADER_BYTES, 300, 64 << 10)),
        parallel=random.choice((1, 8)),
        appends_max=random.choice((1, 2, 4, 16)),
    )
    # In half of them several appends are often under way.
    late = random.choice((site.latency.log, 0.02))
    latency = attrs.evolve(site.latency, log=late, share=random.choice((0.1, 0.5)))
    limits = attrs.evolve(site.limits, log_files=random.choice((8, 30, 4096)))
    site = attrs.evolve(
        site, wal=WalKind.BUCKET, chunks=ChunksKind.OBJECTS, s3_log=log, limits=limits, latency=latency
    )
    kinds = {fault.kind for fault in plan.beside}
    faults = _faults(
        plan,
        random,
        random.choice((2, 6, 15)),
        lambda: FaultKind.BUCKET,
        lambda: random.choice((0.1, 1.0, 5.0, 20.0, 70.0)),
        up_to=plan.actions[-1].number,
    )
    is_checked = not kinds.isdisjoint((*BESIDE, FaultKind.SLOW_RUNS))
    return attrs.evolve(
        plan,
        site=site,
        # There is no file of the log whose sync could matter.
        faults=tuple(
            attrs.evolve(fault, kind=FaultKind.LOG_DAMAGE) if fault.kind is FaultKind.OPENING else fault
            for fault in plan.faults
        ),
        beside=plan.beside if is_checked else (*plan.beside, *faults),
    )


def _with_slow_runs(plan: Plan, random: Random) -> Plan:
    """``plan``, perhaps with one segment in memory, hardly any block cache, and slow reads of runs: calls of
    cold segments wait, and others about the same segments come behind them. As ``_with_beside``."""
    if plan.beside or random.random() >= SLOW_SHARE:
        return plan

    faults = _faults(plan, random, 5, lambda: FaultKind.SLOW_RUNS, lambda: random.choice((0.5, 2.0, 10.0)))
    limits = attrs.evolve(
        plan.site.limits, active_segments=1, flush_age=0.2, table_cache_bytes=random.choice((0, 3000))
    )
    return attrs.evolve(plan, site=attrs.evolve(plan.site, limits=limits), beside=faults)


def _weighted(random: Random, weights: Mapping[T, int]) -> T:
    return random.choices(list(weights), list(weights.values()))[0]
