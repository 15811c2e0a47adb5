"""Batch append: many appends to one container, in order, each with its own outcome.

All appends enter the mailbox before the first answer is awaited, so that they share groups.

Order: an append enters the mailbox after those before it in the batch, also if it has to wait for admission
or for room. A refused append does not stop those behind it. When the container stops, the appends that did
not enter its mailbox go to the next ownership, in order.

Cancellation: appends in the mailbox are carried out, and their outcomes are lost.
"""

from __future__ import annotations

from collections.abc import Sequence

import anyio.lowlevel

from ...storage_backends.base.errors import ClosedError, TierlogError, Unavailable
from ..kernel.slices import SLICE
from .container import Container
from .local_container import LocalContainer, RemoteContainer
from .operations.append import AppendRequest

Outcome = int | TierlogError | None
"""The offset, None for a repeat that is not the writer's latest append, or why it was not applied."""


async def append_batch(
    local: LocalContainer | RemoteContainer, requests: Sequence[AppendRequest]
) -> list[Outcome]:
    """One outcome for each request, once all are known. A ``TierlogError`` is an outcome and never raised."""
    outcomes: list[Outcome] = [None] * len(requests)
    left = list(range(len(requests)))
    # Each round gives what is left to one ownership, and waits for the answers.
    while left:
        try:
            # ``call`` waits for a container that recovers, and raises the reason if it will not.
            container: Container = await local.call(_active) if local.active is None else local.active
        except TierlogError as error:
            for index in left:
                outcomes[index] = as_value(error)
            break

        entered, rest = await _enter_all(local, container, requests, left, outcomes)
        again: list[int] = []
        # Most are there at once: without turns, thousands would be taken in one step.
        for number, index in enumerate(entered):
            if number and number % SLICE == 0:
                await anyio.lowlevel.checkpoint()
            try:
                outcomes[index] = await requests[index].reply.wait()
            except (Unavailable, ClosedError) as error:
                if local.active is container:
                    outcomes[index] = as_value(error)
                else:
                    # Its container stopped before it accepted the append, so nothing was applied: the next
                    # ownership may take it.
                    again.append(index)
            except TierlogError as error:
                outcomes[index] = as_value(error)
        # What entered the mailbox comes first, as in the batch.
        left = again + rest
    return outcomes


async def _enter_all(
    local: LocalContainer | RemoteContainer,
    container: Container,
    requests: Sequence[AppendRequest],
    left: list[int],
    outcomes: list[Outcome],
) -> tuple[list[int], list[int]]:
    """(what entered the mailbox, what was left when the container stopped)."""
    entered: list[int] = []
    for begin in range(0, len(left), SLICE):
        if begin:
            await anyio.lowlevel.checkpoint()
        part = left[begin : begin + SLICE]
        if container.offer_all([requests[index] for index in part]):
            entered += part
            continue

        for position, index in enumerate(part, begin):
            request = requests[index]
            try:
                if not container.offer(request):
                    await container.accept(request)
                entered.append(index)
            except (Unavailable, ClosedError) as error:
                if local.active is not container:
                    # With all that follow: an append must not overtake one before it in the batch.
                    return entered, left[position:]

                outcomes[index] = as_value(error)
            except TierlogError as error:
                outcomes[index] = as_value(error)
    return entered, []


def as_value(error: TierlogError) -> TierlogError:
    """Without its traceback, whose frame has all requests and outcomes: they would refer to each other, and
    all stay in memory until the garbage collector stops the event loop to find them."""
    return error.with_traceback(None)


async def _active(container: Container) -> Container:
    return container
