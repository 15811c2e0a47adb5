"""What a seed decides: the kind of world, what each client intends, and the faults, as plain data.

Every step has a number; actions and faults share one sequence. A step is an *intent* with a random generator
of its own, never a finished call: so ``keep`` can cut any steps, and the meaning of the others stays the
same. A fault comes when an action with a higher number begins.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from enum import StrEnum

import attrs

from .legacy import LegacyFiles
from .settings import SiteKind


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
    LEDGERS = "trouble with the ledgers of the log"
    STALE_OWNER = "owner or opener that sleeps until the log is truncated"
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
    FaultKind.LEDGERS,
    FaultKind.STALE_OWNER,
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


def keep(plan: Plan, numbers: Collection[int]) -> Plan:
    """``plan`` without the steps that ``numbers`` does not name."""
    wanted = frozenset(numbers)
    return attrs.evolve(
        plan,
        actions=tuple(action for action in plan.actions if action.number in wanted),
        faults=tuple(fault for fault in plan.faults if fault.number in wanted),
        beside=tuple(fault for fault in plan.beside if fault.number in wanted),
    )
