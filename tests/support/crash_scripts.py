"""Scripts for crash tests: what the clients of a store do, session after session, as data.

A script is a list of sessions. In each, every client makes its calls one after the other, beside the others
and the racers, who append to one segment at the same time; the session then ends by closing the store or by
killing its process.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from random import Random

import anyio
import attrs
from simulation.model import State
from simulation.model_calls import Append, Create, Delete, Merge, Op, Seal, Truncate, UpdateAttributes

from support.crash_tier2 import Collect
from support.oracle import Oracle, Unseen
from tierlog.actors.store.store import SegmentStore
from tierlog.storage_backends.base.segments import AttributeUpdate

Call = Op | Unseen


@attrs.frozen
class Session:
    clients: Mapping[str, Sequence[Call]]
    """The calls of each client, by the prefix of the names that it works on."""
    race: str = ""
    """The segment that racers append to, if they do."""
    racers: Mapping[str, int] = attrs.field(factory=dict)
    """How many records each appends."""
    killed: bool = False


def alone(*calls: Call, killed: bool = False) -> Session:
    """A session of one client, whose names begin with ``a/``."""
    return Session({"a/": calls}, killed=killed)


# --- calls --------------------------------------------------------------------------------------


class Flush(Unseen):
    async def send(self, store: SegmentStore) -> None:
        await store.flush()


def create(name: str, rolling_size: int = 900) -> Create:
    return Create(name, rolling_size)


def events(tag: str, *sizes: int) -> tuple[bytes, ...]:
    return tuple((f"{tag}{index}:" * size)[:size].encode() for index, size in enumerate(sizes))


def append(name: str, tag: str, size: int) -> Append:
    return Append(name, events(tag, size))


def set_attribute(name: str, key: str, value: int) -> UpdateAttributes:
    return UpdateAttributes(name, (AttributeUpdate(key, value),))


def merge(name: str, *sources: str, batch: int) -> Merge:
    """The target gets an attribute in the same step."""
    return Merge(name, sources, (AttributeUpdate("batch", batch),))


# --- scripts ------------------------------------------------------------------------------------

LIFE = [
    Session(
        {
            "log/": [
                create("log/a"),
                Append("log/a", events("one", 300)),
                Append("log/a", events("two", 700), "w", 1),
                Append("log/a", events("many", 100, 200, 300), "w", 2),
                set_attribute("log/a", "epoch", 7),
                Append("log/a", events("at", 50), expected_offset=1600),
                Flush(),
                Truncate("log/a", 1000),
                Append("log/a", events("big", 1800), "w", 5),
                Append("log/a", events("big", 1800), "w", 5),
                Flush(),
                Append("log/a", events("tail", 20)),
                Flush(),
                Collect(),
            ],
            "txn/": [
                create("txn/t"),
                Append("txn/t", events("head", 200)),
                create("txn/t#1"),
                Append("txn/t#1", events("p1", 600)),
                create("txn/t#2"),
                Append("txn/t#2", events("p2", 900), "v", 10),
                Seal("txn/t#1"),
                Seal("txn/t#2"),
                merge("txn/t", "txn/t#1", "txn/t#2", batch=1),
                Append("txn/t", events("after", 100)),
            ],
        },
        race="race/r",
        racers={"x": 3, "y": 3},
    ),
    Session(
        {
            "log/": [
                Append("log/a", events("again", 400), "w", 6),
                Truncate("log/a", 3870),
                Seal("log/a"),
                create("log/b"),
                Append("log/b", events("b", 1600)),
            ],
            "txn/": [
                create("txn/t#1"),
                Append("txn/t#1", events("new life", 500)),
                Seal("txn/t#1"),
                Flush(),
                merge("txn/t", "txn/t#1", batch=2),
                create("txn/gone"),
                Append("txn/gone", events("gone", 1000)),
                Delete("txn/gone"),
                create("txn/gone"),
                Append("txn/gone", events("back", 150), "v", 1),
            ],
        },
        race="race/r",
        racers={"x": 2, "z": 3},
        killed=True,
    ),
    Session(
        {
            "log/": [
                Delete("log/a"),
                Append("log/b", events("c", 800), "w", 1),
                Flush(),
                Collect(),
                Delete("log/b"),
            ],
            "txn/": [Append("txn/t", events("end", 300), "w", 1), Seal("txn/t"), Truncate("txn/t", 1500)],
        },
        race="race/r",
        racers={"z": 1},
    ),
]
"""Every verb, two lives of one name, merges flushed and not, and sizes that make rolls, checkpoints,
truncations and collections happen."""


async def play(session: Session, oracle: Oracle, store: SegmentStore) -> None:
    if session.race and session.race not in oracle.checkers:
        await oracle.call(store, session.race, create(session.race))

    async def client(prefix: str) -> None:
        for op in session.clients[prefix]:
            await oracle.call(store, prefix, op)

    async def racer(name: str, count: int) -> None:
        done = oracle.segments()[session.race].last_event(name) or 0
        for number in range(done + 1, done + count + 1):
            record = events(f"{name}{number}.", 40 + 17 * number)
            await oracle.call(store, name, Append(session.race, record, name, number))

    async with anyio.create_task_group() as tasks:
        for prefix in session.clients:
            tasks.start_soon(client, prefix)
        for name, count in session.racers.items():
            tasks.start_soon(racer, name, count)


def random_script(seed: int, sessions: int, steps: int) -> list[Session]:
    """A script out of ``seed``; every operation in it is legal."""
    random, states = Random(seed), {"log/": State(), "txn/": State()}
    script = []
    for index in range(sessions):
        clients: dict[str, list[Call]] = {prefix: [] for prefix in states}
        for prefix, ops in clients.items():
            while len(ops) < steps:
                op = _random_op(random, prefix, states[prefix])
                ops.append(op)
                if isinstance(op, Op):
                    states[prefix], _ = op.apply(states[prefix])
        racers = {racer: random.randint(1, 4) for racer in random.sample("xyz", 2)}
        script.append(Session(clients, "race/r", racers, killed=index % 2 == 1))
    return script


def _random_op(random: Random, prefix: str, state: State) -> Call:
    segments = dict(state.segments)
    open_names = [name for name, segment in segments.items() if not segment.sealed]
    free = [name for name in _names(prefix) if name not in segments]
    if not open_names:
        return create(random.choice(free or [f"{prefix}t#{len(segments)}"]))

    name = random.choice(open_names)
    sealed = [other for other, segment in segments.items() if segment.sealed and not segment.start]
    kind = random.choices(
        ("append", "event", "many", "flush", "attribute", "truncate", "seal", "create", "merge", "delete"),
        (8, 6, 3, 3, 1, 3, 2, 3, 4, 1),
    )[0]
    if kind == "create" and free:
        return create(random.choice(free), random.choice((300, 900, 4000)))
    if kind == "merge" and sealed:
        sources = random.sample(sealed, random.randint(1, len(sealed)))
        return merge(name, *sources, batch=random.randrange(100))
    if kind == "truncate":
        return Truncate(name, random.randint(0, segments[name].length))
    if kind == "attribute":
        return set_attribute(name, "epoch", random.randrange(100))
    if kind in ("event", "many"):
        first = (segments[name].last_event("w") or 0) + 1
        sizes = [random.choice((10, 100, 600)) for _ in range(1 if kind == "event" else random.randint(2, 5))]
        return Append(name, events(f"w{first}.", *sizes), "w", first)
    simple: dict[str, Call] = {"flush": Flush(), "seal": Seal(name), "delete": Delete(name)}
    return simple.get(kind) or append(name, f"{len(segments)}.", random.choice((1, 40, 300, 1200, 2500)))


def _names(prefix: str) -> list[str]:
    return [f"{prefix}t", *(f"{prefix}t#{index}" for index in range(1, 5))]
