"""From an action to calls of transactions: drivers that retry what got no answer, and tasks that write,
twice, or too late.

Pure: the same action and memory give the same calls. A driver takes a token's next epoch, repeats calls of
unknown outcome with the same arguments, and sometimes replays a token under another id. A task writes at the
offset that it knows. Some clients are wrong on purpose: they give another length, another token, or an ended
transaction.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from random import Random
from typing import TYPE_CHECKING

import attrs
from msgspec.structs import replace

from tierlog.storage_backends.base.transactions import StagedPart, TransactionToken, staged_name

from .model import STAGED_PARTS, TRANSACTION_IDS
from .model_calls import Append, Create, Delete, Info, LastEventNumber, Merge, Op, Read, Seal, Truncate
from .model_transactions import Abort, Begin, Commit, LookUp, Stage
from .plan import Action, Verb

if TYPE_CHECKING:
    from .intents import Memory

LEASES = (1.0, 1.0, 5.0, 30.0, 100_000.0)
TOKEN_WRITERS = ("q0", "q1")
REPEATS_MAX = 2


class Transacting:
    """The calls of one action on one target."""

    def __init__(
        self,
        action: Action,
        names: Sequence[str],
        memory: Memory,
        data: Callable[[int, str], bytes],
        random: Random,
    ) -> None:
        self._names = names
        self._target = names[action.segment]
        self._size = action.size
        self._memory = memory
        self._data = data
        self._random = random
        self._id = random.choice(TRANSACTION_IDS)
        self._verbs: Mapping[Verb, Callable[[], Iterator[Op]]] = {
            Verb.BEGIN: lambda: iter([self._begin()]),
            Verb.STAGE: self._stage,
            Verb.COMMIT: self._commit,
            Verb.ABORT: lambda: iter([self._abort()]),
            Verb.JOB: self._job,
            Verb.LATE: self._late,
            Verb.TRANSACTION: lambda: iter([LookUp(self._target, self._id)]),
        }

    def calls(self, verb: Verb) -> Iterator[Op]:
        return self._verbs[verb]()

    def _is_likely(self, share: float) -> bool:
        return self._random.random() < share

    @property
    def _hears_nothing(self) -> bool:
        """Whether the newest call is in doubt, although it was repeated: then one gives up, and leaves all as
        it may be."""
        return self._memory.newest_doubt is not None

    # --- a driver ---

    def _token(self) -> TransactionToken | None:
        if self._is_likely(0.4):
            return None

        writer = self._random.choice(TOKEN_WRITERS)
        newest = self._memory.epochs.get(f"{self._target} {writer}", -1)
        return TransactionToken(writer, max(0, newest + self._random.choice((1, 1, 1, 1, 0, 3))))

    def _begin(self, token: TransactionToken | None = None) -> Begin:
        return Begin(self._target, self._id, token or self._token(), self._random.choice(LEASES))

    def _abort(self) -> Abort:
        return Abort(self._target, self._id, self._random.choice(("", "task failed")))

    def _parts(self) -> tuple[StagedPart, ...]:
        """What the client knows to be staged; at times a part of it, at times with a length that is wrong."""
        names = [name for name in self._staged_names() if name in self._memory.known]
        self._random.shuffle(names)
        if self._is_likely(0.3):
            names = names[:-1]
        parts = [StagedPart(name, self._memory.lengths.get(name, 0)) for name in names]
        if self._is_likely(0.1):
            off = self._random.choice((1, -1, -1))
            return (*(replace(part, length=max(0, part.length + off)) for part in parts[:1]), *parts[1:])
        if self._is_likely(0.04):
            return (*parts, *parts[:1], StagedPart(self._random.choice(self._staged_names()), 0))
        return tuple(parts)

    def _staged_names(self) -> list[str]:
        return [staged_name(self._target, self._id, part) for part in STAGED_PARTS]

    def _commit(self) -> Iterator[Op]:
        token = self._memory.tokens.get((self._target, self._id))
        if self._is_likely(0.5):
            yield LookUp(self._target, self._id)
        if self._is_likely(0.1):
            token = self._token()
        yield from self._again(
            Commit(self._target, self._id, self._parts(), token if self._is_likely(0.7) else None)
        )

    def _again(self, op: Op) -> Iterator[Op]:
        """The call, once more if its outcome is unknown, and sometimes just so."""
        for _ in range(REPEATS_MAX):
            yield op
            if not self._hears_nothing and not self._is_likely(0.3):
                return

    def _job(self) -> Iterator[Op]:
        """A whole transaction, with what can come after it."""
        begin = self._begin()
        yield from self._again(begin)
        if self._hears_nothing or ((self._target, self._id) in self._memory.over and self._is_likely(0.7)):
            return

        for part in self._random.sample(STAGED_PARTS, self._random.randint(1, len(STAGED_PARTS))):
            yield from self._write(part)
            if self._hears_nothing:
                return
        if self._is_likely(0.1):
            yield self._abort()
        yield from self._again(
            Commit(self._target, self._id, self._parts(), begin.token if self._is_likely(0.8) else None)
        )
        if self._hears_nothing:
            return

        if self._is_likely(0.2):
            yield from self._late()
        if self._is_likely(0.1):
            yield self._abort()
        if self._is_likely(0.2):
            yield from self._replay(begin)

    def _replay(self, begin: Begin) -> Iterator[Op]:
        """A driver that lost its memory: the same token, another transaction."""
        self._id = self._random.choice(TRANSACTION_IDS)
        yield attrs.evolve(begin, transaction=self._id)
        if self._is_likely(0.6):
            yield from self._write(STAGED_PARTS[0])
            yield Commit(self._target, self._id, self._parts(), begin.token)

    # --- a task ---

    def _stage(self) -> Iterator[Op]:
        yield from self._write(self._random.choice(STAGED_PARTS))

    def _write(self, part: str) -> Iterator[Op]:
        yield Stage(self._target, self._id, part)
        name = staged_name(self._target, self._id, part)
        for number in range(self._random.choice((0, 1, 1, 2))):
            if self._hears_nothing:
                return
            yield from self._again(self._append(name, f".{part}.{number}"))

    def _append(self, name: str, tag: str) -> Append:
        data = (self._data(self._size, tag),)
        match self._random.choice(("plain", "offset", "offset", "event")):
            case "plain":
                return Append(name, data)
            case "offset":
                return Append(name, data, expected_offset=self._memory.lengths.get(name, 0))
            case _:
                last = self._memory.events(name).last
                return Append(name, data, self._memory.writer, 0 if last is None else last + 1)

    def _late(self) -> Iterator[Op]:
        """A client with stale knowledge: mostly a task that goes on writing."""
        name = self._random.choice(self._staged_names())
        if self._is_likely(0.6):
            yield self._append(name, ".late")
            return

        yield self._random.choice(
            (
                Stage(self._target, self._id, self._random.choice(STAGED_PARTS)),
                Read(name, 0, 1000),
                Info(name),
                LastEventNumber(name, self._memory.writer),
                Create(name),
                Seal(name),
                Truncate(name, 1),
                Delete(name),
                Merge(self._target, (name,)),
            )
        )
