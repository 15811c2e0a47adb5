"""A supervisor that hosts can join over TCP, in this process, and hosts that only speak the protocol."""

from __future__ import annotations

import itertools
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from random import Random
from typing import Any, cast

import anyio
import anyio.abc
import attrs

from support.memory_objects import Bucket, MemoryObjects
from support.s3 import numbered_world
from tierlog.actors.supervisor.control.messages import (
    VERSION,
    Challenge,
    Hello,
    Lines,
    Message,
    Proved,
    Report,
    Welcome,
    encode,
)
from tierlog.actors.supervisor.control.proof import answer_challenge, is_confirmed
from tierlog.actors.supervisor.control.record import ControlRecord, decode_control
from tierlog.actors.supervisor.fleet import FleetOptions
from tierlog.actors.supervisor.join_listener import JoinListener
from tierlog.actors.supervisor.options import SupervisorOptions
from tierlog.actors.supervisor.supervisor import Supervisor
from tierlog.actors.supervisor.term import Term
from tierlog.journal.coordination.contract import CONTROL
from tierlog.journal.coordination.objects import ObjectCoordination

WORLD = numbered_world()
_numbers = itertools.count(1)


def coordination_in(bucket: Bucket) -> ObjectCoordination:
    return ObjectCoordination(MemoryObjects(bucket), "", WORLD)


class FixedTerm:
    """Nobody else takes it."""

    interval = 1.0

    def __init__(self, number: int) -> None:
        self.number = number

    def is_held(self) -> bool:
        return True

    async def check(self) -> None:
        await anyio.lowlevel.checkpoint()

    async def confirm(self) -> None:
        await anyio.lowlevel.checkpoint()


@attrs.define
class Joinable:
    """The supervisor, and the record that it has put."""

    supervisor: Supervisor
    bucket: Bucket

    async def record(self) -> ControlRecord:
        found = await coordination_in(self.bucket).load(CONTROL)
        assert found is not None
        return decode_control(found.data, "x")

    async def connect(self) -> Line:
        record = await self.record()
        return Line(await anyio.connect_tcp(record.address, record.port))


class Line:
    """The host's side of a connection."""

    def __init__(self, stream: anyio.abc.SocketStream) -> None:
        self.stream = stream
        self._lines = Lines()
        self._messages: list[Message] = []

    async def send(self, *reports: Report) -> None:
        await self.stream.send(b"".join(map(encode, reports)))

    async def receive(self) -> Message | None:
        """The next message; None at the end."""
        while not self._messages:
            try:
                self._messages += self._lines.feed(await self.stream.receive())
            except (anyio.EndOfStream, anyio.BrokenResourceError):
                return None
        return self._messages.pop(0)

    async def prove(self, secret: bytes) -> bool:
        """Whether the supervisor accepted the proof, and proved itself."""
        challenge = await self.receive()
        assert isinstance(challenge, Challenge)
        proof = answer_challenge(secret, challenge, f"{next(_numbers):032x}")
        await self.send(proof)
        proved = await self.receive()
        return isinstance(proved, Proved) and is_confirmed(secret, challenge, proof, proved)


def hello(host: str, instance: str = "1", term: int = 0, **more: object) -> Hello:
    return Hello(
        host,
        7,
        f"http://{host}",
        cast("dict[int, int]", more.get("served", {})),
        term,
        machine=f"machine-of-{host}",
        instance=instance,
        store=str(more.get("store", "")),
    )


@asynccontextmanager
async def joinable(
    bucket: Bucket,
    *,
    containers: int = 2,
    term: int = 1,
    awaited: Sequence[str] = (),
    options: FleetOptions | None = None,
    store: str = "",
) -> AsyncIterator[Joinable]:
    [listener] = (await anyio.create_tcp_listener(local_host="127.0.0.1")).listeners
    port = listener.extra(anyio.abc.SocketAttribute.local_port)
    record = ControlRecord(
        term,
        WORLD.id_bytes() * 2,
        "127.0.0.1",
        port,
        "node-a",
        tuple(awaited),
        bytes.fromhex(store) or bytes(16),
    )
    fixed = cast(Term, FixedTerm(term))
    supervisor = Supervisor(
        containers,
        [],
        command=lambda host: [],
        term=fixed,
        orphans={},
        options=SupervisorOptions(
            fleet=options or FleetOptions(silence=30, adoption=0), control="", heartbeat=1, store=store
        ),
        random=Random(1),
        join_listener=JoinListener(coordination_in(bucket), listener, record, WORLD.id_bytes, fixed),
        awaited=awaited,
    )
    found = Joinable(supervisor, bucket)
    async with anyio.create_task_group() as tasks:
        await tasks.start(supervisor.run)
        while CONTROL not in bucket.objects:
            await anyio.sleep(0.001)
        yield found
        tasks.cancel_scope.cancel()


@asynccontextmanager
async def connected(found: Joinable, host: str, **more: Any) -> AsyncIterator[Line]:
    """A host that has proven itself and said hello."""
    line = await found.connect()
    async with line.stream:
        assert await line.prove((await found.record()).secret)
        await line.send(attrs.evolve(hello(host), **{"newest": VERSION, **more}))
        assert isinstance(await line.receive(), Welcome)
        yield line
