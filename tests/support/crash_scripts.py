"""Scripts for crash tests: what the clients of a store do, session after session, as data.

A script is a list of sessions. In each, every client calls its operations one after the other, beside the
others and the racers; the session then ends by closing the store or by killing its process.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from random import Random

import anyio
import attrs

from support.oracle import Oracle
from support.segment_model import (
    Append,
    Create,
    Delete,
    Family,
    Flush,
    Merge,
    Op,
    Seal,
    SetAttribute,
    Truncate,
)
from tierlog.actors.store.store import SegmentStore


@attrs.frozen
class Session:
    clients: Mapping[str, Sequence[Op]]
    """By the prefix of the names that the client works on."""
    race: str = ""
    """The segment that racers append to, if they do."""
    racers: Mapping[str, int] = attrs.field(factory=dict)
    """How many records each appends."""
    killed: bool = False


def _bytes(tag: str, size: int) -> bytes:
    return (f"{tag}:".encode() * (size // (len(tag) + 1) + 1))[:size]


def _events(tag: str, *sizes: int) -> tuple[bytes, ...]:
    return tuple(_bytes(f"{tag}{index}", size) for index, size in enumerate(sizes))


LIFE = [
    Session(
        {
            "log/": [
                Create("log/a"),
                Append("log/a", _events("one", 300)),
                Append("log/a", _events("two", 700), "w", 1),
                Append("log/a", _events("many", 100, 200, 300), "w", 2),
                SetAttribute("log/a", "epoch", 7),
                Append("log/a", _events("at", 50), conditional=True, at=1600),
                Flush(),
                Truncate("log/a", 1000),
                Append("log/a", _events("big", 1800), "w", 5),
                Append("log/a", _events("big", 1800), "w", 5),
                Flush(),
                Append("log/a", _events("tail", 20)),
                Flush(),
            ],
            "txn/": [
                Create("txn/t"),
                Append("txn/t", _events("head", 200)),
                Create("txn/t#1"),
                Append("txn/t#1", _events("p1", 600)),
                Create("txn/t#2"),
                Append("txn/t#2", _events("p2", 900), "v", 10),
                Seal("txn/t#1"),
                Seal("txn/t#2"),
                Merge("txn/t", ("txn/t#1", "txn/t#2"), ("batch", 1)),
                Append("txn/t", _events("after", 100)),
            ],
        },
        race="race/r",
        racers={"x": 3, "y": 3},
    ),
    Session(
        {
            "log/": [
                Append("log/a", _events("again", 400), "w", 6),
                Truncate("log/a", 3870),
                Seal("log/a"),
                Create("log/b"),
                Append("log/b", _events("b", 1600)),
            ],
            "txn/": [
                Create("txn/t#1"),
                Append("txn/t#1", _events("new life", 500)),
                Seal("txn/t#1"),
                Flush(),
                Merge("txn/t", ("txn/t#1",), ("batch", 2)),
                Create("txn/gone"),
                Append("txn/gone", _events("gone", 1000)),
                Delete("txn/gone"),
                Create("txn/gone"),
                Append("txn/gone", _events("back", 150), "v", 1),
            ],
        },
        race="race/r",
        racers={"x": 2, "z": 3},
        killed=True,
    ),
    Session(
        {
            "log/": [Delete("log/a"), Append("log/b", _events("c", 800), "w", 1), Flush(), Delete("log/b")],
            "txn/": [Append("txn/t", _events("end", 300), "w", 1), Seal("txn/t"), Truncate("txn/t", 1500)],
        },
        race="race/r",
        racers={"z": 1},
    ),
]
"""Every verb, two lives of one name, merges flushed and not, and sizes that make rolls, checkpoints,
truncations and collections happen."""


async def play(session: Session, oracle: Oracle, store: SegmentStore) -> None:
    if session.race and session.race not in oracle.races:
        await oracle.create_race(store, session.race)

    async def client(prefix: str) -> None:
        for op in session.clients[prefix]:
            await oracle.call(store, prefix, op)

    async def racer(name: str, count: int) -> None:
        done = oracle.races[session.race].tried.get(name, 0)
        for number in range(done + 1, done + count + 1):
            await oracle.race(store, session.race, name, number, size=40 + 17 * number)

    async with anyio.create_task_group() as tasks:
        for prefix in session.clients:
            tasks.start_soon(client, prefix)
        for name, count in session.racers.items():
            tasks.start_soon(racer, name, count)


def random_script(seed: int, sessions: int, steps: int) -> list[Session]:
    """A script out of ``seed``; every operation in it is legal."""
    random = Random(seed)
    families: dict[str, Family] = {"log/": {}, "txn/": {}}
    numbers: dict[str, int] = {}
    script = []
    for index in range(sessions):
        clients = {prefix: _random_client(random, prefix, families, numbers, steps) for prefix in families}
        racers = {racer: random.randint(1, 4) for racer in random.sample("xyz", 2)}
        script.append(Session(clients, "race/r", racers, killed=index % 2 == 1))
    return script


def _random_client(
    random: Random, prefix: str, families: dict[str, Family], numbers: dict[str, int], steps: int
) -> list[Op]:
    ops: list[Op] = []
    while len(ops) < steps:
        op = _random_op(random, prefix, families[prefix], numbers)
        families[prefix] = op.apply(families[prefix])
        ops.append(op)
    return ops


def _random_op(random: Random, prefix: str, family: Family, numbers: dict[str, int]) -> Op:
    open_names = [name for name, life in family.items() if not life.sealed]
    if not open_names:
        return Create(
            random.choice(
                [name for name in _names(prefix) if name not in family] or [f"{prefix}t#{len(family)}"]
            )
        )

    name = random.choice(open_names)
    sealed = [other for other, life in family.items() if life.sealed and not life.start and other != name]
    free = [other for other in _names(prefix) if other not in family]
    kind = random.choices(
        ("append", "event", "many", "flush", "attribute", "truncate", "seal", "create", "merge", "delete"),
        (8, 6, 3, 3, 1, 3, 2, 3, 4, 1),
    )[0]
    if kind == "create" and free:
        return Create(random.choice(free), random.choice((300, 900, 4000)))
    if kind == "merge" and sealed:
        return Merge(
            name,
            tuple(random.sample(sealed, random.randint(1, len(sealed)))),
            ("batch", random.randrange(100)),
        )
    if kind == "truncate":
        return Truncate(name, random.randint(0, family[name].length))
    if kind == "attribute":
        return SetAttribute(name, "epoch", random.randrange(100))
    if kind in ("event", "many"):
        return _random_events(random, name, family, numbers, 1 if kind == "event" else random.randint(2, 5))
    simple = {"flush": Flush(), "seal": Seal(name), "delete": Delete(name)}
    return simple.get(kind) or Append(
        name, _events(f"{len(numbers)}.", random.choice((1, 40, 300, 1200, 2500)))
    )


def _random_events(random: Random, name: str, family: Family, numbers: dict[str, int], count: int) -> Op:
    known = family[name].writers.get("w")
    first = 1 if known is None else known.last + 1
    return Append(
        name, _events(f"w{first}.", *(random.choice((10, 100, 600)) for _ in range(count))), "w", first
    )


def _names(prefix: str) -> list[str]:
    return [f"{prefix}t", *(f"{prefix}t#{index}" for index in range(1, 5))]
