"""The batches of one ``append_each``: its appends divided by container, each batch in the order of the call.
They are carried out side by side."""

from __future__ import annotations

from collections.abc import Awaitable, Sequence

import anyio
import anyio.lowlevel

from ...storage_backends.base.arguments import JoinedAppend, not_an_append
from ...storage_backends.base.errors import TierlogError
from ..container.batch_append import Outcome, append_batch, as_value
from ..container.operations.append import AppendRequest
from ..kernel.slices import SLICE
from .append_requests import joined_request
from .containers import AnyContainer, StoreContainers


class AppendBatches:
    def __init__(self, count: int) -> None:
        self.outcomes: list[Outcome] = [None] * count
        """In the order of the call."""
        self._batches: dict[int, tuple[AnyContainer, list[int], list[AppendRequest]]] = {}
        """By container: that, and its requests with their positions in the call."""

    @classmethod
    async def of(
        cls,
        appends: Sequence[JoinedAppend],
        containers: StoreContainers,
        bytes_max: int,
    ) -> AppendBatches:
        """Checks each append. One that is refused has its outcome already."""
        made = cls(len(appends))
        batches, outcomes = made._batches, made.outcomes
        for index, append in enumerate(appends):
            if index and index % SLICE == 0:
                await anyio.lowlevel.checkpoint()
            try:
                request = joined_request(append, bytes_max)
                container = containers.find(append.name)
            except AttributeError as error:
                raise not_an_append(append) from error
            except TierlogError as error:
                outcomes[index] = as_value(error)
                continue

            _, indexes, requests = batches.setdefault(container.index, (container, [], []))
            indexes.append(index)
            requests.append(request)
        return made

    def trace(self, span: object) -> None:
        """Link the appends to the span of the call."""
        for _, _, requests in self._batches.values():
            for request in requests:
                request.span = span

    def append(self) -> Awaitable[None]:
        """Carry out all of them; then each has its outcome."""
        if len(self._batches) == 1:
            [batch] = self._batches.values()
            return self._append(*batch)

        return self._append_side_by_side()

    async def _append_side_by_side(self) -> None:
        async with anyio.create_task_group() as tasks:
            for batch in self._batches.values():
                tasks.start_soon(self._append, *batch)

    async def _append(
        self, container: AnyContainer, indexes: list[int], requests: list[AppendRequest]
    ) -> None:
        outcomes = await append_batch(container, requests)
        for index, outcome in zip(indexes, outcomes, strict=True):
            self.outcomes[index] = outcome
