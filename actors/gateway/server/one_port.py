"""What a host does for clients that reach one port only (rule H22): requests for containers of other hosts
are passed on to their owners, those that concern all hosts are sent to each of them, and batches are
divided. What another host has passed on is for this host alone."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ....storage_backends.base.list_pages import SEGMENTS, TRANSACTIONS
from ...telemetry.tracing import Tracing
from ..wire import paths
from ..wire.batch import BatchItem, Outcome
from ..wire.bodies import ContainerMap, Empty, Nothing
from ..wire.errors import OwnedElsewhere
from .all_hosts import AllHosts
from .call import Call, json_answer
from .forwarding import Forwarder
from .passing import is_forwarded


class OnePort:
    def __init__(
        self,
        serves: Callable[[int], bool],
        owner_of: Callable[[int], str | None],
        container_map: Callable[[], ContainerMap],
        tracing: Tracing | None,
    ) -> None:
        """``serves(index)``: whether a container is served here. ``owner_of(index)``: the URL of the host
        that serves another one, if it is known."""
        self.forwarder = Forwarder(owner_of, serves, tracing)
        self._all_hosts = AllHosts(lambda: container_map().containers)

    async def takes(self, call: Call, *, parks: bool) -> bool:
        """Whether ``call`` was for other hosts, and is answered. ``parks``: it is a tail."""
        path = call.scope["path"]
        if path in (paths.SEGMENTS, paths.TRANSACTIONS, paths.FLUSH):
            return not is_forwarded(call.scope) and await self._ask_all(call, path)

        index = _container_of(call)
        url = None if index is None else self.forwarder.other_host(index)
        if index is None or url is None:
            return False

        if is_forwarded(call.scope):
            # Before a body is read: whoever sent it can send it to the owner.
            raise OwnedElsewhere(f"container {index} is served by another host", owner=url)

        await self.forwarder.forward(call, index, url, call.server.store.append_bytes_max, parks=parks)
        return True

    async def _ask_all(self, call: Call, path: str) -> bool:
        if path == paths.FLUSH:
            await call.json_body(Nothing, call.server.limits.json_bytes)
            await self._all_hosts.ask("POST", path)
            answer = json_answer(Empty())
        elif path == paths.SEGMENTS:
            asked = paths.query_page(SEGMENTS, call.query())
            answer = json_answer(await self._all_hosts.page_of_segments(asked))
        else:
            asked = paths.query_page(TRANSACTIONS, call.query())
            answer = await self._all_hosts.page_of_transactions(asked)
        await call.answer(answer)
        return True

    async def append_each(self, call: Call, items: Sequence[BatchItem]) -> list[Outcome]:
        store = call.server.store
        if is_forwarded(call.scope):
            return await store.append_each(items)

        return await self.forwarder.append_each(call, items, store.container_of, store.append_each)


def _container_of(call: Call) -> int | None:
    """The container that the request is about, of those that there are."""
    if call.name:
        return call.server.store.container_of(call.name)
    if "container" not in call.scope["path_params"]:
        return None

    index = call.container
    return index if index < call.server.store.containers else None
