"""The containers of an open store: finds the one of a name, and passes calls to it.

Refuses calls after the store was closed, in a forked child, and in another thread than its event loop's."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from threading import get_ident
from typing import Any, TypeVar

from ...storage_backends.base.errors import ClosedError
from ...storage_backends.base.names import check_segment_name, container_of
from ..container.container import Container
from ..container.local_container import LocalContainer, RemoteContainer
from ..container.requests import Request
from ..kernel.use_guard import UseGuard
from ..telemetry.tracing import SpanHook

T = TypeVar("T")
AnyContainer = LocalContainer | RemoteContainer
_CACHED_NAMES_MAX = 65_536
"""Checked names whose container is cached; the cache is cleared above it."""


class StoreContainers:
    def __init__(self, containers: Sequence[AnyContainer], span: SpanHook | None) -> None:
        self._all = containers
        self.span = span
        self.guard = UseGuard("store")
        self.is_closed = False
        self._cached_indexes: dict[str, int] = {}

    def __len__(self) -> int:
        return len(self._all)

    @property
    def local(self) -> list[LocalContainer]:
        """Those that this process serves, by index."""
        return [each for each in self._all if not isinstance(each, RemoteContainer)]

    def close(self) -> None:
        self.is_closed = True
        self._cached_indexes.clear()  # so that every later call is checked

    def check(self) -> None:
        """Raises ``ClosedError`` where the store cannot be used."""
        if self.is_closed:
            raise ClosedError("the store is closed: its `async with` body has ended, or `aclose` was called")

        self.guard.check()

    def index_of(self, name: str) -> int:
        return container_of(name, len(self._all))

    def find(self, name: str) -> AnyContainer:
        # Other types may have no hash; the check below refuses them with the right error.
        index = self._cached_indexes.get(name) if type(name) is str else None
        if index is None or self.guard.thread != get_ident():
            index = self._check_name(name)
        return self._all[index]

    def _check_name(self, name: str) -> int:
        self.check()
        check_segment_name(name)
        if len(self._cached_indexes) >= _CACHED_NAMES_MAX:
            self._cached_indexes.clear()
        index = self._cached_indexes[name] = self.index_of(name)
        return index

    async def ask(self, verb: str, name: str, request: Request) -> Any:
        # 256 bytes stand for the arguments of a request without data.
        return await self.call(verb, name, lambda owner: owner.ask(request, 256 + request.size))

    async def call(
        self, verb: str, name: str, act: Callable[[Container], Awaitable[T]], **about: object
    ) -> T:
        """``about``: further attributes of the call's span."""
        container = self.find(name)
        if self.span is None:
            return await container.call(act)

        with self.span(f"tierlog.{verb}", {"container": container.index, "segment": name, **about}):
            return await container.call(act)

    async def call_each(self, act: Callable[[Container], Awaitable[T]]) -> list[T]:
        self.check()
        return [await container.call(act) for container in self.local]

    async def call_at(self, index: int, act: Callable[[Container], Awaitable[T]]) -> T:
        self.check()
        return await self._all[index].call(act)
