"""An object store whose requests arrive, take effect and are answered when a seed says so.

A request waits until ``Requests.step`` picks it: it takes effect, perhaps twice, or never, or after its
caller has given up; its answer arrives or is lost; or it is refused. A caller can be stopped, so that it
hears nothing while others go on. Lists come in pages of three, each its own request.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Sequence
from random import Random
from typing import Any

import attrs
import trio

from support.memory_objects import Bucket
from tierlog.storage_backends.base.checksum import Buffer
from tierlog.storage_backends.base.errors import OutcomeUnknown, TierlogError, Unavailable
from tierlog.storage_backends.base.object_store import ListedKey, ObjectStore, StoredObject

_PAGE = 3


@attrs.define(eq=False)
class Request:
    caller: int
    changes: bool
    effect: Callable[[], Any]
    arrived: bool = False
    answer: Any = None
    error: TierlogError | None = None
    """What its caller hears."""
    refusal: TierlogError | None = None
    """What the service answered."""
    heard: trio.Event = attrs.field(factory=trio.Event)
    abandoned: bool = False
    """Nobody waits for the answer, and it may still take effect."""

    def take_effect(self) -> None:
        self.arrived = True
        try:
            self.answer = self.effect()
        except TierlogError as error:
            self.refusal = error


class Requests:
    """``faults``: the share of requests with one."""

    def __init__(self, random: Random, faults: float) -> None:
        self.pending: list[Request] = []
        self.stopped: set[int] = set()
        """Callers that hear nothing."""
        self._random = random
        self._faults = faults

    async def ask(self, caller: int, effect: Callable[[], Any], *, changes: bool) -> Any:
        request = Request(caller, changes, effect)
        self.pending.append(request)
        try:
            await request.heard.wait()
        except trio.Cancelled:
            request.abandoned = True
            raise
        if request.error is not None:
            raise request.error
        return request.answer

    def step(self) -> bool:
        """Have something happen; False if nothing can."""
        able = [each for each in self.pending if not (each.arrived and each.caller in self.stopped)]
        if not able:
            return False
        request = self._random.choice(able)
        if request.abandoned:
            self._late(request)
        elif self._random.random() < self._faults:
            self._fail(request)
        elif not request.arrived:
            request.take_effect()
        else:
            self._end(request, request.refusal)
        return True

    def settle(self) -> None:
        """What is still under way takes effect, or not."""
        while self.pending:
            self._late(self.pending[0])

    def _late(self, request: Request) -> None:
        if not request.arrived and self._random.random() < 0.5:
            request.take_effect()
        self.pending.remove(request)

    def _end(self, request: Request, error: TierlogError | None = None) -> None:
        request.error = error
        self.pending.remove(request)
        request.heard.set()

    def _fail(self, request: Request) -> None:
        if not request.changes:
            return self._end(request, Unavailable("no answer"))
        if request.arrived:
            return self._end(request, OutcomeUnknown("the answer was lost"))
        kind = self._random.choice(["refused", "lost", "late", "repeated"])
        if kind == "refused":
            return self._end(request, Unavailable("a conflict"))
        if kind == "lost":
            return self._end(request, OutcomeUnknown("the request was lost"))
        if kind == "late":
            late = Request(request.caller, True, request.effect, abandoned=True)
            self._end(request, OutcomeUnknown("no answer yet"))
            return self.pending.append(late)
        # Twice, and the second answer is the one that arrives.
        request.take_effect()
        request.take_effect()
        return None


class ScheduledObjects(ObjectStore):
    """The store as ``caller`` sees it."""

    def __init__(self, requests: Requests, bucket: Bucket, caller: int) -> None:
        self._requests = requests
        self._bucket = bucket
        self._caller = caller

    async def open(self) -> None:
        await trio.lowlevel.checkpoint()

    async def close(self) -> None:
        await trio.lowlevel.checkpoint()

    def place(self, key: str) -> str:
        return key

    async def put(self, key: str, data: Sequence[Buffer], *, version: str = "") -> str | None:
        body = b"".join(data)
        made: str | None = await self._requests.ask(
            self._caller, lambda: self._bucket.put(key, body, version), changes=True
        )
        return made

    async def get(self, key: str, size: int) -> StoredObject | None:
        found: StoredObject | None = await self._requests.ask(
            self._caller, lambda: self._bucket.get(key, size), changes=False
        )
        return found

    async def list(self, prefix: str) -> AsyncGenerator[ListedKey, None]:
        after = ""
        while True:
            page = await self._requests.ask(self._caller, self._page_of(prefix, after), changes=False)
            for each in page:
                yield each
            if len(page) < _PAGE:
                return
            after = page[-1].key

    def _page_of(self, prefix: str, after: str) -> Callable[[], Sequence[ListedKey]]:
        return lambda: sorted(each for each in self._bucket.list(prefix) if each.key > after)[:_PAGE]

    async def delete(self, key: str) -> None:
        await self._requests.ask(self._caller, lambda: self._bucket.delete(key), changes=True)
