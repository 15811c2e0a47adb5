"""What the requests of a host share besides limits and counters: the store, and where other owners are (rule
H13)."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

import anyio

from ....storage_backends.base.backups import Backup, BackupStep, StepAnswer
from ....storage_backends.base.checksum import Buffer
from ....storage_backends.base.errors import NotOwner, OutcomeUnknown, Unavailable
from ....storage_backends.base.segment_layout import SegmentLayout
from ....storage_backends.base.segments import (
    ATTRIBUTE_PAGE,
    SEGMENTS_PAGE_MAX,
    AttributeName,
    AttributePage,
    AttributeUpdate,
    SegmentInfo,
    SegmentPage,
)
from ....storage_backends.base.table import TableAccess
from ....storage_backends.base.transactions import (
    LEASE_DEFAULT,
    TRANSACTIONS_PAGE_MAX,
    CommitResult,
    StagedPart,
    TransactionInfo,
    TransactionPage,
    TransactionToken,
)
from ....storage_backends.base.world import World
from ...telemetry.tracing import Tracing
from ..wire.batch import BatchItem, Outcome
from ..wire.bodies import ContainerAssignment, ContainerMap, ContainerStatus, HostStatus
from ..wire.errors import OwnedElsewhere
from .context import ServerContext, ServerLimits
from .fan_out import FanOuts

if TYPE_CHECKING:
    from ...container.container import Container
    from ...container.waiters import Watch
    from .call import HttpCall
    from .one_port import OnePort

T = TypeVar("T")


class Store(Protocol):
    """The verbs of ``SegmentStore`` that are served: anything that has them can stand behind a server."""

    append_bytes_max: int
    store_id: str

    @property
    def tables(self) -> TableAccess:
        """What endpoints of tables ask."""
        ...

    async def create_segment(
        self, name: str, *, rolling_size: int | None = None, exist_ok: bool = False
    ) -> None: ...
    async def create_table(self, name: str, *, exist_ok: bool = False) -> None: ...
    async def append(
        self,
        name: str,
        data: bytes,
        *,
        writer_id: bytes | None = None,
        event_number: int | None = None,
        previous_event_number: int | None = None,
        expected_offset: int | None = None,
        history: int | None = None,
    ) -> int | None: ...
    async def append_each(self, appends: Sequence[BatchItem]) -> list[Outcome]: ...
    async def seal_segment(self, name: str) -> int: ...
    async def truncate_segment(self, name: str, offset: int, *, history: int | None = None) -> None: ...
    async def delete_segment(self, name: str) -> None: ...
    async def merge_segments(
        self, target: str, sources: Sequence[str], *, attribute_updates: Sequence[AttributeUpdate] = ()
    ) -> int: ...
    async def update_attributes(
        self, name: str, updates: Sequence[AttributeUpdate]
    ) -> dict[AttributeName, int]: ...
    async def expire_writers(self, name: str, writer_ids: Iterable[bytes]) -> int: ...
    async def read(self, name: str, offset: int, size: int, *, history: int | None = None) -> bytes: ...
    async def read_view(self, name: str, offset: int, size: int, *, history: int | None = None) -> Buffer: ...
    def tail(
        self, name: str, offset: int = 0, *, block_size: int = 1 << 20
    ) -> AsyncGenerator[bytes, None]: ...
    async def read_or_watch(
        self, name: str, segment_id: int, offset: int, size: int, wake: Callable[[], None]
    ) -> Buffer | Watch | None: ...
    async def segment_info(self, name: str) -> SegmentInfo: ...
    async def list_attributes(
        self,
        name: str,
        prefix: AttributeName = "",
        *,
        after: AttributeName | None = None,
        limit: int = ATTRIBUTE_PAGE,
    ) -> AttributePage: ...
    async def append_starts(self, name: str, start: int, end: int) -> list[int]: ...
    async def segment_layout(self, name: str, start: int, end: int) -> SegmentLayout: ...
    async def page_of_segments(
        self, prefix: str = "", *, token: str | None = None, limit: int = SEGMENTS_PAGE_MAX
    ) -> SegmentPage: ...
    async def last_event_number(self, name: str, writer_id: bytes) -> int | None: ...
    async def begin_transaction(
        self,
        target: str,
        transaction_id: str,
        token: TransactionToken | None = None,
        lease: float = LEASE_DEFAULT,
    ) -> TransactionInfo: ...
    async def stage_segment(self, target: str, transaction_id: str, part: str) -> str: ...
    async def commit_transaction(
        self,
        target: str,
        transaction_id: str,
        parts: Sequence[StagedPart],
        token: TransactionToken | None = None,
    ) -> CommitResult: ...
    async def abort_transaction(
        self, target: str, transaction_id: str, reason: str = ""
    ) -> TransactionInfo: ...
    async def transaction_info(self, target: str, transaction_id: str) -> TransactionInfo: ...
    async def page_of_transactions(
        self, prefix: str = "", *, token: str | None = None, limit: int = TRANSACTIONS_PAGE_MAX
    ) -> TransactionPage: ...
    async def flush(self) -> None: ...
    async def backups(self) -> list[Backup]: ...
    async def take_backup_step(self, step: BackupStep) -> StepAnswer: ...
    def statistics(self) -> Any: ...
    def container_of(self, name: str) -> int: ...
    @property
    def containers(self) -> int: ...
    async def on_container(self, index: int, act: Callable[[Container], Awaitable[T]]) -> T: ...


class Gateway(ServerContext):
    def __init__(
        self,
        store: Store,
        world: World,
        limits: ServerLimits,
        container_map: Callable[[], ContainerMap] | None,
        owner_of: Callable[[int], str | None] | None,
        tracing: Tracing | None = None,
        names: Iterable[str] = (),
        *,
        serves: Callable[[int], bool] | None = None,
        absence_of: Callable[[int], str] | None = None,
    ) -> None:
        """``serves(index)``: whether the container is served here; with it, requests for others are passed on
        to their owners."""
        super().__init__(world, limits, tracing, names)
        self.store = store
        self._known_map = container_map or self._own_map
        self._owner_of = owner_of
        self._absence_of = absence_of
        self._one_port: OnePort | None = None
        if serves is not None and owner_of is not None:
            from .one_port import OnePort  # takes 0.1 s

            self._one_port = OnePort(serves, owner_of, self._known_map, tracing)
            self.forwarder = self._one_port.forwarder
        self.fan_outs = FanOuts(store, limits.block_bytes)

    async def run(self) -> None:
        if self.forwarder is None:
            await self.fan_outs.run()
            return

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self.forwarder.run)
            await self.fan_outs.run()

    def container_map(self) -> ContainerMap:
        """As clients get it: in one-port mode they send everything here (rule H22)."""
        found = self._known_map()
        return found if self.forwarder is None else found.behind_one_port()

    async def forwards(self, call: HttpCall[Any], *, parks: bool) -> bool:
        return self._one_port is not None and await self._one_port.takes(call, parks=parks)

    def append_each(self, call: HttpCall[Any], items: Sequence[BatchItem]) -> Awaitable[list[Outcome]]:
        """The outcome of each append of a batch."""
        if self._one_port is None:
            return self.store.append_each(items)

        return self._one_port.append_each(call, items)

    def located(self, error: BaseException, name: str | None) -> BaseException:
        """``error``, with the owner's URL if another host owns the segment and this one knows which, or with
        the reason if none does until an operator opens the container. If this host lost the container,
        without its files and what its operator may do, which are in its log."""
        if name is None or self._owner_of is None:
            return error
        # Before the name is looked at: it may be what is refused.
        if not isinstance(error, NotOwner) and not isinstance(error.__cause__, NotOwner):
            return error
        index = self.store.container_of(name)
        if isinstance(error.__cause__, NotOwner):
            error = _worded_for_clients(error, index)
        # Not a subclass: those know their owner.
        if type(error) is not NotOwner:
            return error
        # Second hand, so it ends no client's search (H21), but explains why that was in vain.
        if self._absence_of is not None and (why := self._absence_of(index)):
            return NotOwner(f"{error}: {why}")
        # In one-port mode the client need not reach it.
        if self.forwarder is None and (owner := self._owner_of(index)) is not None:
            return OwnedElsewhere(str(error), owner=owner)

        return error

    def status(self) -> HostStatus:
        """Whether all that is served here answers."""
        containers = tuple(
            ContainerStatus(host.container, host.state) for host in self.store.statistics().containers
        )
        ready = not self.draining and all(container.state == "active" for container in containers)
        return HostStatus(ready, self.draining, containers)

    def _own_map(self) -> ContainerMap:
        """For a process that serves all containers: its clients know its URL better than it does."""
        hosts = self.store.statistics().containers
        return ContainerMap(
            0,
            tuple(
                ContainerAssignment(host.container, None, host.current and host.current.epoch)
                for host in hosts
            ),
            self.store.append_bytes_max,
            self.store.store_id,
        )


def _worded_for_clients(error: BaseException, index: int) -> BaseException:
    """``error`` of a call that failed because this host lost the container."""
    # Not subclasses: what those add would be lost.
    if type(error) is NotOwner:
        return NotOwner(f"container {index} is no longer served here")
    if type(error) is OutcomeUnknown:
        return OutcomeUnknown(
            f"this host lost container {index} before this was known to be durable: it may or may not "
            f"have been applied (clients repeat an append that has a writer_id)"
        )
    if type(error) is Unavailable:
        return Unavailable(
            f"this host lost container {index} before the operations that this answer depends on were "
            f"durable: repeat the call"
        )
    return error
