"""Random calls of one family, for tests of the model, of the checker and of the store: few names, few
writers, every verb."""

from __future__ import annotations

from random import Random

from msgspec.structs import replace
from simulation.model import STAGED_PARTS, TRANSACTION_IDS, State, staged_names
from simulation.model_calls import (
    Append,
    Create,
    Delete,
    ExpireWriters,
    Info,
    LastEventNumber,
    ListNames,
    Merge,
    Op,
    Read,
    Seal,
    Truncate,
    UpdateAttributes,
)
from simulation.model_transactions import Abort, Begin, Commit, LookUp, Stage

from tierlog import AttributeUpdate, AttributeUpdateKind, StagedPart, TransactionToken

NAMES = ("f", "f#1", "f#2")
WRITERS = ("v", "w")
TARGETS = ("f", "f#1")
LEASE = 1000.0


def random_call(random: Random, number: int) -> Op:
    name = random.choice(NAMES)
    data = b"%d." % number
    match random.choice(
        ("append", "append", "append", "write", "write", "read", "read", "look", "attributes", "rare")
    ):
        case "append":
            return Append(name, (data,), expected_offset=random.choice((None, None, None, 0, 4)))
        case "write":
            first = random.randrange(5)
            return Append(
                name,
                (data,) * random.choice((1, 1, 2)),
                random.choice(WRITERS),
                first,
                random.choice((None, None, first - 1)),
            )
        case "read":
            return Read(name, random.choice((0, 0, 2, 6, 20)), random.choice((1, 5, 100)))
        case "look":
            return random.choice((Info(name), ListNames("f"), LastEventNumber(name, random.choice(WRITERS))))
        case "attributes":
            value, kind = random.randrange(3), random.choice(list(AttributeUpdateKind))
            expected = 1 if kind is AttributeUpdateKind.REPLACE_IF_EQUALS else None
            update = AttributeUpdate("a", value, kind, expected)
            return UpdateAttributes(name, (update,) * random.choice((1, 2)))
    merge = Merge(
        "f",
        random.choice((("f#1",), ("f#2", "f#1"), ("f#1", "f#1"), ("f#1", "f"), ())),
        random.choice(((), (AttributeUpdate("m", number),))),
    )
    return random.choice(
        (
            Create(name),
            Create(name),
            Seal(name),
            Seal(name),
            Truncate(name, 3),
            Delete(name),
            merge,
            merge,
            ExpireWriters(name, ("w",)),
        )
    )


def random_transaction_call(random: Random, state: State, number: int) -> Op:
    target, transaction = random.choice(TARGETS), random.choice(TRANSACTION_IDS[:3])
    names = staged_names(target, transaction)
    token = random.choice((None, None, TransactionToken("q", random.randrange(6)), TransactionToken("r", 1)))
    staged = state.staged(target, transaction)
    parts = tuple(
        StagedPart(name, len(segment.data))
        for name, segment in random.sample(sorted(staged.items()), random.randint(0, len(staged)))
    )
    match random.choice(
        ("begin", "stage", "stage", "append", "append", "commit", "abort", "look", "wrong", "rare")
    ):
        case "begin":
            return Begin(target, transaction, token, LEASE)
        case "stage":
            return Stage(target, transaction, random.choice(STAGED_PARTS))
        case "append":
            return Append(
                random.choice((target, *names)),
                (b"%d." % number,),
                expected_offset=random.choice((None, None, 0)),
            )
        case "commit":
            return Commit(target, transaction, parts, token)
        case "abort":
            return Abort(target, transaction, random.choice(("", "why")))
        case "look":
            return random.choice(
                (
                    LookUp(target, transaction),
                    Info(names[0]),
                    Read(names[0], 0, 50),
                    ListNames("f"),
                    Info(target),
                )
            )
        case "wrong":
            wrong = tuple(replace(part, length=part.length + 1) for part in parts)
            foreign = (StagedPart(random.choice(staged_names("f", "t4") + names), 0), StagedPart("f", 0))
            return Commit(
                target,
                transaction,
                random.choice((wrong, (*parts, *parts), (*parts, random.choice(foreign)))),
                token,
            )
    return random.choice(
        (
            Create(target),
            Create(target),
            Create(target),
            Delete(target),
            Seal(target),
            Truncate(target, 1),
            Merge("f", ("f#1",)),
            Seal(names[0]),
        )
    )
