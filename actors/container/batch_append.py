"""Many appends to one container at once, in order, each with its own answer.

Owns: how a list of appends is taken in and answered: all of them are offered before the first answer is
awaited, so that they share groups. Does not own: what an append is (``requests.py``), nor what happens to it
(the pipeline).

Order: an append enters the mailbox after those before it in the list, also when it has to wait at a gate or
for room. One that is refused does not stop those behind it. When the container stops, what it had not come to
is offered to the next ownership, in order.

Cancellation: what was taken in is carried out, nobody hears of it.
"""

from __future__ import annotations

from collections.abc import Sequence

from ...storage_backends.base.errors import ClosedError, TierlogError, Unavailable
from .container import Container
from .local import LocalContainer, RemoteContainer
from .operations.append import AppendRequest

Outcome = int | TierlogError | None
"""The offset, None for an older duplicate, or why it was not applied."""


async def append_each(
    host: LocalContainer | RemoteContainer, requests: Sequence[AppendRequest]
) -> list[Outcome]:
    """One outcome for each request, once all are known. Raises nothing but a cancellation and what is no
    error of tierlog's."""
    outcomes: list[Outcome] = [None] * len(requests)
    left = list(range(len(requests)))
    while left:
        left = await _round(host, requests, left, outcomes)

    return outcomes


async def _round(
    host: LocalContainer | RemoteContainer,
    requests: Sequence[AppendRequest],
    left: list[int],
    outcomes: list[Outcome],
) -> list[int]:
    """Offer what is left to one ownership and wait for the answers; returns what it never came to."""
    try:
        container: Container = await host.call(_itself) if host.active is None else host.active
    except TierlogError as error:
        for index in left:
            outcomes[index] = error
        return []

    taken, rest = await _offer_all(host, container, requests, left, outcomes)
    again: list[int] = []
    for index in taken:
        try:
            outcomes[index] = await requests[index].reply.wait()
        except (Unavailable, ClosedError) as error:
            if host.active is container:
                outcomes[index] = error
            else:
                again.append(index)
        except TierlogError as error:
            outcomes[index] = error

    return again + rest


async def _offer_all(
    host: LocalContainer | RemoteContainer,
    container: Container,
    requests: Sequence[AppendRequest],
    left: list[int],
    outcomes: list[Outcome],
) -> tuple[list[int], list[int]]:
    """What ``container`` took in, and what was left when it stopped: none of that goes to the next one before
    what it failed to do."""
    taken: list[int] = []
    for place, index in enumerate(left):
        request = requests[index]
        try:
            if not container.offer(request):
                await container.accept(request)
            taken.append(index)
        except (Unavailable, ClosedError) as error:
            if host.active is not container:
                return taken, left[place:]

            outcomes[index] = error
        except TierlogError as error:
            outcomes[index] = error

    return taken, []


async def _itself(container: Container) -> Container:
    return container
