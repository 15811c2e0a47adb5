"""One call from its first attempt to its outcome, as a program without I/O.

Owns: the order of attempts, looks at the container map and pauses; how a call to all hosts is put together;
the opening. Does not own: the decisions (``retries.py``), nor the I/O: a program yields what it wants done
and gets the result, from ``async_client`` or ``sync_client``.

Cancellation: a program is simply dropped at a yield; it holds nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from random import Random
from typing import Any, TypeVar

import attrs

from ....storage_backends.base.errors import TierlogError, Unavailable
from ..wire.errors import OwnedElsewhere
from . import calls
from .calls import Call, Request, understand
from .container_map import ContainerMapCache
from .retries import Again, Kind, Repeat, Trouble, decide

T = TypeVar("T")
LOOK_SECONDS = 2.0
"""How long one server may take to tell its map."""
OPENING_SECONDS = 5.0
"""How long an opening client looks for its server: enough for a restart, short enough that a wrong URL is
told soon."""
_CONTAINER_NONE: tuple[int, ...] = ()


@attrs.frozen
class Send:
    """Gives a ``Response`` or a ``Lost``."""

    url: str
    request: Request
    seconds: float
    containers: tuple[int, ...] = ()
    """Whose owner is asked: when they are elsewhere, the attempt is pointless."""
    parks: bool = False
    """The server holds the answer back on purpose."""
    links: tuple[object, ...] = ()
    """The spans of the calls that share it, where they are traced."""


@attrs.frozen
class Pause:
    seconds: float


@attrs.frozen
class Look:
    """Get a newer map, unless somebody did since the map had ``looks``; at most so long."""

    looks: int
    seconds: float


Effect = Send | Pause | Look
Program = Generator[Effect, Any, T]


@attrs.frozen
class Terms:
    """What all calls of one client share."""

    map: ContainerMapCache
    deadline: float
    """Seconds for one call, all attempts included."""
    clock: Callable[[], float]
    random: Random


def converse(terms: Terms, call: Call[T]) -> Program[T]:
    """The call's value, or its error."""
    give_up = terms.clock() + terms.deadline + call.wait
    attempt, doubt = 0, False
    while True:
        looks = terms.map.looks
        containers = _CONTAINER_NONE if call.segment is None else (terms.map.container_of(call.segment),)
        target = terms.map.url_of(containers[0]) if containers else terms.map.base
        answer = yield Send(target, call.request, give_up - terms.clock(), containers, parks=call.wait > 0)
        result = understand(call, answer)
        if not isinstance(result, Trouble):
            return result

        left = give_up - terms.clock()
        verdict = decide(call.repeat, result, doubt=doubt, attempt=attempt, left=left, random=terms.random)
        if isinstance(verdict, TierlogError):
            raise verdict from (None if verdict is result.error else result.error)

        doubt, attempt = verdict.doubt, attempt + 1
        if containers and follows_hint(terms.map, containers[0], result.error) and attempt <= 2:
            continue

        yield from _prepare(terms, verdict, looks, containers, target, left)


def _prepare(
    terms: Terms, verdict: Again, looks: int, containers: tuple[int, ...], target: str, left: float
) -> Program[None]:
    """What comes before the next attempt."""
    if verdict.refresh and containers:
        yield Look(looks, left)
        if terms.map.url_of(containers[0]) != target:
            return

    yield Pause(verdict.pause)


def follows_hint(map: ContainerMapCache, container: int, error: TierlogError) -> bool:
    """Whether the answer said who the owner is, and that is news."""
    return isinstance(error, OwnedElsewhere) and map.hint(container, error.owner)


# --- the map ------------------------------------------------------------------------------------


def look(terms: Terms, seconds: float) -> Program[None]:
    """Ask the given URL, and if that is silent every host that is known: each tells what it serves itself.
    Raises nothing: who wanted a newer map goes on with the old one."""
    map, call = terms.map, calls.containers()
    give_up = terms.clock() + seconds
    for url in map.sources:
        left = give_up - terms.clock()
        if left <= 0:
            break

        found = understand(call, (yield Send(url, call.request, min(LOOK_SECONDS, left))))
        if isinstance(found, Trouble):
            map.trouble = map.trouble if url != map.base else found.error
        else:
            map.learn(found, url)
            if url == map.base:
                break
    map.looks += 1


def opening(terms: Terms) -> Program[None]:
    """Get the first map. ``Unavailable`` if nobody answers."""
    give_up = terms.clock() + min(terms.deadline, OPENING_SECONDS)
    attempt = 0
    while not terms.map.places:
        left = give_up - terms.clock()
        yield Look(terms.map.looks, left)
        if not terms.map.places:
            verdict = _opening_verdict(terms, attempt, give_up - terms.clock())
            yield Pause(verdict.pause)
            attempt += 1


def _opening_verdict(terms: Terms, attempt: int, left: float) -> Again:
    trouble = terms.map.trouble or Unavailable("it does not answer")
    verdict = decide(
        Repeat.READS,
        Trouble(Kind.LATER, trouble),
        doubt=False,
        attempt=attempt,
        left=left,
        random=terms.random,
    )
    if isinstance(verdict, TierlogError):
        raise Unavailable(f"no tierlog server answers at {terms.map.base}: {trouble}") from trouble

    return verdict


# --- all hosts ----------------------------------------------------------------------------------


def everywhere(terms: Terms, call: Call[T]) -> Program[list[tuple[set[int], T]]]:
    """The call's value on every host, with the containers that each had from before the first answer until
    after the last one.

    Where a container moves meanwhile, all of it is done again: the new owner may not have been asked, or
    asked before it was the owner.
    """
    give_up = terms.clock() + terms.deadline
    attempt = 0
    while True:
        before, looks = terms.map.places, terms.map.looks
        found, trouble = yield from _ask_all(terms, call, give_up)
        if trouble is None and terms.map.is_single:
            return found

        yield Look(looks, give_up - terms.clock())
        if trouble is None and terms.map.places == before and all(place.url is not None for place in before):
            return found

        trouble = trouble or Trouble(
            Kind.LATER, Unavailable("containers were moving all the time: try again")
        )
        left = give_up - terms.clock()
        verdict = decide(call.repeat, trouble, doubt=False, attempt=attempt, left=left, random=terms.random)
        if isinstance(verdict, TierlogError):
            raise verdict

        yield Pause(verdict.pause)
        attempt += 1


def _ask_all(
    terms: Terms, call: Call[T], give_up: float
) -> Program[tuple[list[tuple[set[int], T]], Trouble | None]]:
    """One attempt on each host, up to the first that fails."""
    found: list[tuple[set[int], T]] = []
    for url, containers in terms.map.by_url().items():
        result = understand(
            call, (yield Send(url, call.request, give_up - terms.clock(), tuple(sorted(containers))))
        )
        if isinstance(result, Trouble):
            return found, result

        found.append((containers, result))

    return found, None


def list_segments(terms: Terms, prefix: str) -> Program[list[str]]:
    found = yield from everywhere(terms, calls.list_segments(prefix))
    return sorted(
        name for containers, names in found for name in names if terms.map.container_of(name) in containers
    )
