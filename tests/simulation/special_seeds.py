"""What only some seeds have besides the steps of every plan. Each has chances and numbers of its own, so that
whatever is added here changes the meaning of no other seed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from random import Random

import attrs

from tierlog.actors.settings.layout_mode import LayoutMode
from tierlog.journal.log.bookkeeper_layout import BookKeeperLogOptions
from tierlog.journal.log.s3_layout import S3LogOptions
from tierlog.journal.log.s3_slot import SLOT_HEADER_BYTES

from .disk import BLOCK
from .legacy import draw
from .plan import BESIDE, ENDS, QUIET, RUNS, Action, FaultKind, Plan, PlannedFault, Verb
from .settings import ChunksKind, SiteKind, WalKind

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
"""From this seed on, that of all seeds is, up to those with ledgers."""
STALE_SHARE = 0.25
"""The share of these with owners that sleep until the log is truncated."""
LEDGER_SHARE = 0.3
"""The share of the other seeds with a log service, and without full disks, whose log is in ledgers."""
FIRST_ON_LEDGERS = (1 << 44) + (9 << 32)
"""From this seed on, that of all seeds is."""
GRACEFUL_SHARE = 0.25
"""The share of the seeds in which most ends of processes are graceful."""
CACHE_SHARE = 0.4
"""The share of the seeds with objects, and without what would be delayed, with a chunk cache."""
SLOW_SHARE = 0.15
"""The share of the seeds without either with slow lookups of cold segments."""


def add_specials(plan: Plan) -> Plan:
    """``plan`` with all that its seed has besides."""
    seed = plan.seed
    if seed < FIRST_IN_BUCKET:
        plan = _with_legacy(plan, Random(f"older {seed}"))
    plan = _with_beside(plan, Random(f"beside the writer 587 {seed}"))
    plan = _with_local_runs(plan, Random(f"local runs {seed}"))
    plan = _with_slow_runs(plan, Random(f"slow runs 216 {seed}"))
    plan = _with_backups(plan, Random(f"backups {seed}"))
    plan = _with_full_storage(plan, Random(f"full storage {seed}"))
    plan = _with_readers(plan, Random(f"readers {seed}"))
    plan = _with_gc_orders(plan, Random(f"gc orders {seed}"))
    if seed < FIRST_IN_BUCKET:
        plan = _with_full_disk(plan, Random(f"full disk {seed}"))
    plan = _with_chunk_cache(plan, Random(f"chunk cache {seed}"))
    plan = _with_graceful_ends(plan, Random(f"graceful ends {seed}"))
    if seed < FIRST_ON_LEDGERS:
        plan = _with_bucket(plan, Random(f"bucket 145 {seed}"))
    plan = _with_stale_owners(plan, Random(f"stale owners {seed}"))
    return _with_ledgers(plan, Random(f"ledgers 17 {seed}"))


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
    limits = attrs.evolve(
        site.limits,
        log_files=random.choice((4, 12)),
        small_group=random.choice((300, 2000, 64 << 10)),
        costly_files=random.choice((0, 40)),
        few_segments=random.choice((0, 1, 16)),
    )
    site = attrs.evolve(
        site, wal=WalKind.BUCKET, chunks=ChunksKind.OBJECTS, s3_log=log, limits=limits, latency=latency
    )
    return _with_remote_log(plan, site, FaultKind.BUCKET, random)


def _with_stale_owners(plan: Plan, random: Random) -> Plan:
    """``plan``, if its store is in a bucket perhaps with owners that sleep. None reads the register while it
    appends, and an opener keeps all that it has read: neither would find by that what it has slept over."""
    if plan.site.wal is not WalKind.BUCKET or random.random() >= STALE_SHARE:
        return plan

    faults = _faults(
        plan,
        random,
        random.choice((3, 8)),
        lambda: FaultKind.STALE_OWNER,
        up_to=plan.actions[-1].number,
    )
    log = attrs.evolve(
        plan.site.s3_log, check_after=1e6, start_bytes=64 << 10, kept_bytes=16 << 20, patience=1.0
    )
    site = attrs.evolve(plan.site, s3_log=log)
    return attrs.evolve(plan, site=site, beside=(*plan.beside, *faults))


def _with_ledgers(plan: Plan, random: Random) -> Plan:
    """``plan``, perhaps with its log in ledgers, and in most of these with faults of them. As
    ``_with_bucket``."""
    site = plan.site
    is_able = site.wal is WalKind.SERVICE and not site.storage_reserve
    if not (is_able and random.random() < LEDGER_SHARE) and plan.seed < FIRST_ON_LEDGERS:
        return plan

    ledgers = BookKeeperLogOptions(
        appends_max=random.choice((1, 2, 4, 16)),
        ledger_bytes=random.choice((300, 3000, 64 << 20)),
        patience=random.choice((1.0, 5.0, 30.0)),
        kept_bytes=random.choice((300, 16 << 20)),
        parallel=random.choice((1, 8)),
        reads=random.choice((1, 4)),
        swept_max=random.choice((2, 1000)),
    )
    late = random.choice((site.latency.log, 0.02))
    latency = attrs.evolve(site.latency, log=late, share=random.choice((0.1, 0.5)))
    site = attrs.evolve(site, wal=WalKind.LEDGERS, ledgers=ledgers, latency=latency)
    return _with_remote_log(plan, site, FaultKind.LEDGERS, random)


def _with_remote_log(plan: Plan, site: SiteKind, kind: FaultKind, random: Random) -> Plan:
    """``plan`` at ``site``, whose log is elsewhere, with faults of it unless other ones are checked."""
    kinds = {fault.kind for fault in plan.beside}
    faults = _faults(
        plan,
        random,
        random.choice((2, 6, 15)),
        lambda: kind,
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
