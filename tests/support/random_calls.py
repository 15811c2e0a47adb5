"""Random calls of one family, for tests of the model and of the checker: few names, few writers, every
verb."""

from __future__ import annotations

from random import Random

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

from tierlog import AttributeUpdate, AttributeUpdateKind

NAMES = ("f", "f#1", "f#2")
WRITERS = ("v", "w")


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
            update = AttributeUpdate(
                "a", random.randrange(3), random.choice(list(AttributeUpdateKind)), expected=1
            )
            return UpdateAttributes(name, (update,))
    merge = Merge(
        "f", random.choice((("f#1",), ("f#2", "f#1"))), random.choice(((), (AttributeUpdate("m", number),)))
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
