"""Many appends to one container at once, in order, each with its own answer.

Owns: how a list of appends is taken in and answered: all of them are offered before the first answer is awaited, so that they share groups.
Does not own: what an append is (``requests.py``), nor what happens to it (the pipeline).

Order: an append enters the mailbox after those before it in the list, also when it has to wait at a gate or for room. One that is refused
does not stop those behind it. When the container stops, what it had not come to is offered to the next ownership, in order.

Cancellation: what was taken in is carried out, nobody hears of it.
"""

from __future__ import annotations

from collections.abc import Sequence

from ...storage_backends.base.errors import ClosedError, TierlogError, Unavailable
from .container import Container
from .host import AbsentContainer, ContainerHost
from .requests import AppendRequest

Outcome = int | TierlogError | None
"""The offset, None for an older duplicate, or why it was not applied."""


async def append_each(host: ContainerHost | AbsentContainer, requests: Sequence[AppendRequest]) -> list[Outcome]:
    """One outcome for each request, once all are known. Raises nothing but a cancellation and what is no error of tierlog's."""
    outcomes: list[Outcome] = [None] * len(requests)
    left = list(range(len(requests)))
    while left:
        left = await _round(host, requests, left, outcomes)

    return outcomes


async def _round(
    host: ContainerHost | AbsentContainer, requests: Sequence[AppendRequest], left: list[int], outcomes: list[Outcome]
) -> list[int]:
    """Offer what is left and wait for the answers; returns what a stopped container never came to."""
    taken: list[tuple[int, Container]] = []
    for index in left:
        request, container = requests[index], host.active
        try:
            if container is None or not container.offer(request):
                container = await _take_in(host, request)
            taken.append((index, container))
        except TierlogError as error:
            outcomes[index] = error

    again: list[int] = []
    for index, container in taken:
        try:
            outcomes[index] = await requests[index].reply.wait()
        except (Unavailable, ClosedError) as error:
            if host.active is container:
                outcomes[index] = error
            else:
                again.append(index)
        except TierlogError as error:
            outcomes[index] = error

    return again


async def _take_in(host: ContainerHost | AbsentContainer, request: AppendRequest) -> Container:
    """Wait for a container, for its gates and for room; returns the container that has the request."""

    async def take_in(container: Container) -> Container:
        await container.take_in(request)
        return container

    return await host.call(take_in)
