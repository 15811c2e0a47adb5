"""One call from its first attempt to its outcome, as a program without I/O: a generator that yields what it
wants done (``Send``, ``Pause``, ``RefreshMap``) and gets the result from ``async_client`` or ``sync_client``.
Calls to all hosts and the opening of a client are such programs too.

Cancellation: a program may be dropped at any yield; it holds nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import suppress
from operator import attrgetter
from random import Random
from typing import Any, TypeVar

import attrs

from ....storage_backends.base.backups import Steps
from ....storage_backends.base.errors import TierlogError, Unavailable
from ....storage_backends.base.list_pages import SEGMENTS, TRANSACTIONS, Listing, PageAsked, Part, text_of
from ....storage_backends.base.segments import SegmentPage
from ....storage_backends.base.transactions import TransactionInfo, TransactionPage
from ..wire.errors import OwnedElsewhere, UnknownHost
from . import requests
from .addresses import nobody_answers
from .container_map import ContainerMapCache, is_complete
from .requests import POLL_SECONDS, Call, Request, StartsStream, TailCursor, interpret
from .retries import ANSWERED, Failure, Kind, Repeat, decide, given_up

T = TypeVar("T")
P = TypeVar("P", SegmentPage, TransactionPage)
REFRESH_SECONDS = 2.0
"""Seconds that one server may take to answer a request for the map."""
WATCH_SECONDS = 4 * REFRESH_SECONDS
"""Seconds for a map while attempts wait for their answers. The base may be the frozen host: the next ones are
asked behind it."""
HEAD_START_SECONDS = 0.25
"""Seconds after which an opening client asks the next of several addresses, doubled with each round; and that
a client waits for one address more when another one has answered."""
OPENING_SECONDS = 5.0
"""Seconds that an opening client tries to reach its server: enough for a restart, and short for a wrong
URL."""
_CONTAINER_NONE: tuple[int, ...] = ()


@attrs.frozen
class Send:
    """One request. Its result is a ``Response`` or a ``TransportFailure``."""

    url: str
    request: Request
    seconds: float
    containers: tuple[int, ...] = ()
    """The containers that the request is for: when they have moved, the attempt is pointless."""
    parks: bool = False
    """It goes through the pool for tails."""
    links: tuple[object, ...] = ()
    """The spans of the calls that share the request, if they are traced."""

    def described(self, what: str) -> str:
        """``what`` became of it, with its target."""
        return f"{self.request.method} {self.url}{self.request.path}: {what}"


@attrs.frozen
class Pause:
    seconds: float


@attrs.frozen
class RefreshMap:
    """Get a newer map, unless its generation is another already; for at most ``seconds``."""

    generation: int
    seconds: float


Effect = Send | Pause | RefreshMap
Program = Generator[Effect, Any, T]


@attrs.frozen
class ClientContext:
    """What all calls of one client share."""

    map: ContainerMapCache
    deadline: float
    """Seconds for one call, all attempts included."""
    map_refresh: float
    """Seconds between refreshes of the map while calls have no answer, or are too large for the known
    limit."""
    clock: Callable[[], float]
    random: Random


def run_call(context: ClientContext, call: Call[T]) -> Program[T]:
    """Returns the call's value, or raises its error."""
    # What a long poll waits by itself does not count as time without an answer.
    patience = context.deadline + call.wait
    give_up = context.clock() + patience
    attempt, doubt, is_longer = 0, False, False
    earlier: TierlogError | None = None
    while True:
        generation = context.map.generation
        containers = _containers_of(context, call)
        target = _target(context.map, containers)
        began = context.clock()
        answer = yield Send(target, call.request, give_up - began, containers, parks=call.parks)
        result = interpret(call, answer)
        if not isinstance(result, Failure):
            return result

        result, left = context.map.explained(result), give_up - context.clock()
        # One attempt that took most of the time, and had no answer, does not show that there is no service.
        is_late = context.clock() - began > patience / 2 and result.kind not in ANSWERED
        if call.asks_once_more and not is_longer and is_late:
            is_longer, give_up, left = True, give_up + patience, left + patience
        retry = decide(call.repeat, result, doubt=doubt, attempt=attempt, left=left, random=context.random)
        if isinstance(retry, TierlogError):
            final = with_attempt_before(retry, earlier, left)
            raise final from (None if final is result.error else result.error)

        doubt, attempt, earlier = retry.doubt, attempt + 1, result.error
        # Two hosts may name each other as the owner while a container moves.
        if containers and follows_hint(context.map, containers[0], result.error) and attempt <= 2:
            continue

        if retry.refresh and (containers or context.map.has_choice):
            yield RefreshMap(generation, left)
            # A new owner need not be spared: the pause is for the one that refused.
            if _target(context.map, containers) != target:
                continue
            context.map.asks_all = True
            if result.kind in ANSWERED and (closed := context.map.withheld(containers)):
                raise given_up(closed, doubt=doubt) from result.error

        yield Pause(retry.pause)


def _target(map: ContainerMapCache, containers: tuple[int, ...]) -> str:
    return map.url_of(containers[0]) if containers else map.base


def _containers_of(context: ClientContext, call: Call[T]) -> tuple[int, ...]:
    if call.container is not None:
        return (call.container,)
    return _CONTAINER_NONE if call.segment is None else (context.map.container_of(call.segment),)


def with_attempt_before(final: TierlogError, earlier: TierlogError | None, left: float) -> TierlogError:
    """``final``; if the deadline cut the last attempt short, with the failure before it, which says why there
    is no answer."""
    if earlier is None or left > 0 or type(final) is not Unavailable:
        return final

    return Unavailable(f"{final}; the attempt before failed: {earlier}")


def follows_hint(map: ContainerMapCache, container: int, error: TierlogError) -> bool:
    """Whether the answer named an owner that the map did not have."""
    return isinstance(error, OwnedElsewhere) and map.hint(container, error.owner)


def stream(context: ClientContext, tail: TailCursor) -> tuple[Send, StartsStream]:
    """The request for the rest of a tail, to the owner that is known, and the check whether its answer is the
    stream."""
    container = context.map.container_of(tail.name)
    send = Send(context.map.url_of(container), tail.stream(), POLL_SECONDS, (container,), parks=True)
    return send, tail.starts_stream


# --- the map ------------------------------------------------------------------------------------


def refresh_map(context: ClientContext, seconds: float) -> Program[None]:
    """Ask the base, and what else is needed (rule H21). The search ends with the first map of a server that
    knows all containers; the map of a host ends it when the other given addresses have been asked. If none of
    these answers, or a fresh map did not help before, every known host is asked for what it serves itself.
    Raises nothing: the caller continues with the old map."""
    map, call = context.map, requests.container_map()
    give_up = context.clock() + seconds
    asks_all, map.asks_all = map.asks_all, False
    # The base may be cut off from the others, and not know: they are asked before it.
    first = map.next_address if asks_all else map.base
    failures: dict[str, Failure] = {}
    asked: set[str] = set()
    has_base = False
    while (url := _next_source(map, first, asked)) and (left := give_up - context.clock()) > 0:
        is_given = url in map.addresses
        if has_base and not is_given and not asks_all:
            break

        asked.add(url)
        # The base, which answered, is still to be asked.
        has_other = has_base or map.base not in asked
        found = interpret(
            call, (yield Send(url, call.request, min(_patience(map, has_base=has_other), left)))
        )
        if not isinstance(found, Failure):
            found = map.checked(found)
        if not isinstance(found, Failure):
            is_last = is_given and is_complete(found)
            if is_last or (is_given and not has_base):
                map.use_base(url)
                has_base = True
            map.learn(found, url)
            if is_last:
                break
        elif is_given:
            # The user knows these and can correct them; the other hosts come and go.
            failures[url] = found
    map.note_failures(failures, has_base=has_base)
    # Also without an answer: those who waited for this refresh must not make one each.
    map.generation += 1


def _next_source(map: ContainerMapCache, first: str, asked: set[str]) -> str | None:
    # Anew each time: an answer may name more of them.
    return next((url for url in map.sources(first) if url not in asked), None)


def _patience(map: ContainerMapCache, *, has_base: bool) -> float:
    """Seconds for one address. Without a map all the others wait behind it, and with an answer it is asked
    only because it may know more."""
    if len(map.addresses) == 1 or (map.assignments and not has_base):
        return REFRESH_SECONDS

    return min(REFRESH_SECONDS, HEAD_START_SECONDS * (1 if map.assignments else 2 ** min(map.generation, 8)))


def load_first_map(context: ClientContext) -> Program[None]:
    """Get the first map. Raises ``Unavailable`` if no tierlog server answers: at once if all answers are
    final (rule H3), since the URLs are then those of other servers. Raises ``UnknownHost`` if the servers
    refuse the URLs' names."""
    map = context.map
    give_up = context.clock() + min(context.deadline, OPENING_SECONDS)
    attempt = 0
    earlier: TierlogError | None = None
    while True:
        yield RefreshMap(map.generation, give_up - context.clock())
        if map.assignments:
            return

        # None if the time was over before the first answer.
        failures = map.failures or {map.base: Failure(Kind.NOT_SENT, Unavailable("no answer in time"))}
        failure = next((each for each in failures.values() if each.kind is not Kind.REFUSED), None)
        failure = failure or next(iter(failures.values()))
        left = give_up - context.clock()
        retry = decide(Repeat.READS, failure, doubt=False, attempt=attempt, left=left, random=context.random)
        if isinstance(retry, TierlogError):
            if all(isinstance(each.error, UnknownHost) for each in failures.values()):
                raise failure.error  # a server did answer

            reasons = {url: str(each.error) for url, each in failures.items()}
            if len(reasons) == 1:
                reasons = {map.base: str(with_attempt_before(failure.error, earlier, left))}
            raise nobody_answers(reasons) from failure.error

        attempt, earlier = attempt + 1, failure.error
        yield Pause(retry.pause)


# --- all hosts ----------------------------------------------------------------------------------


def call_all_hosts(context: ClientContext, call: Call[T]) -> Program[list[tuple[set[int], T]]]:
    """The call's value on every host, with the containers that the host had during the whole call.

    If a container moves meanwhile, every host is asked again: the new owner may not have been asked, or was
    asked before it owned the container.
    """
    give_up = context.clock() + context.deadline
    attempt = 0
    earlier: TierlogError | None = None
    while True:
        before, generation = context.map.assignments, context.map.generation
        found, failure = yield from _ask_all(context, call, give_up)
        # One server has all containers, so that none can have moved between two answers.
        if failure is None and context.map.is_single:
            return found

        yield RefreshMap(generation, give_up - context.clock())
        # A container that moved between two answers may be in both of them or in none.
        if (
            failure is None
            and context.map.assignments == before
            and all(assignment.url is not None for assignment in before)
        ):
            return found

        failure = failure or Failure(
            Kind.LATER, Unavailable("containers kept moving during the call: try again")
        )
        if failure.kind in ANSWERED and (closed := context.map.withheld(range(len(before)))):
            raise closed

        left = give_up - context.clock()
        retry = decide(call.repeat, failure, doubt=False, attempt=attempt, left=left, random=context.random)
        if isinstance(retry, TierlogError):
            raise with_attempt_before(retry, earlier, left)

        attempt, earlier = attempt + 1, failure.error
        yield Pause(retry.pause)


def _ask_all(
    context: ClientContext, call: Call[T], give_up: float
) -> Program[tuple[list[tuple[set[int], T]], Failure | None]]:
    """One attempt on each host, up to the first that fails."""
    found: list[tuple[set[int], T]] = []
    for url, containers in context.map.by_url().items():
        result = interpret(
            call, (yield Send(url, call.request, give_up - context.clock(), tuple(sorted(containers))))
        )
        if isinstance(result, Failure):
            return found, result

        found.append((containers, result))

    return found, None


def page_of_segments(context: ClientContext, asked: PageAsked) -> Program[SegmentPage]:
    """The page of all hosts (rule H20)."""
    page = yield from _page(context, asked, requests.page_of_segments, str, str)
    return SegmentPage(*page)


def page_of_transactions(context: ClientContext, asked: PageAsked) -> Program[TransactionPage]:
    """The page of all hosts (rule H20)."""
    target = attrgetter("target")
    page = yield from _page(context, asked, requests.page_of_transactions, text_of, target)
    return TransactionPage(*page)


def _page(
    context: ClientContext,
    asked: PageAsked,
    call: Callable[[PageAsked, int], Call[Part[T]]],
    text: Callable[[T], str],
    name: Callable[[T], str],
) -> Program[tuple[list[T], str | None]]:
    """A host's answer counts for its own containers only. ``name``: the segment's, of an item."""
    share = asked.share(len(context.map.by_url()))
    found = yield from call_all_hosts(context, call(asked, share))
    parts = (
        ([item for item in items if context.map.container_of(name(item)) in containers], start)
        for containers, (items, start) in found
    )
    return asked.page(parts, text)


def list_segments(context: ClientContext, prefix: str) -> Program[list[str]]:
    """The names of all pages, each of which has the time of a call."""
    pages = yield from _all_pages(context, SEGMENTS, page_of_segments, prefix)
    return [name for page in pages for name in page.names]


def take_steps(context: ClientContext, steps: Steps) -> Program[None]:
    """Make or remove a backup. Each step has the time of a call."""
    with suppress(StopIteration):
        step = next(steps)
        while True:
            try:
                answer = yield from run_call(context, requests.take_backup_step(step))
            except TierlogError as error:
                step = steps.throw(error)
            else:
                step = steps.send(answer)


def list_transactions(context: ClientContext, prefix: str) -> Program[list[TransactionInfo]]:
    """The transactions of all pages, each of which has the time of a call."""
    pages = yield from _all_pages(context, TRANSACTIONS, page_of_transactions, prefix)
    return [info for page in pages for info in page.transactions]


def _all_pages(
    context: ClientContext,
    listing: Listing,
    page_of: Callable[[ClientContext, PageAsked], Program[P]],
    prefix: str,
) -> Program[list[P]]:
    pages: list[P] = []
    token: str | None = None
    while True:
        page = yield from page_of(context, PageAsked.of(listing, prefix, token, listing.limit_max))
        pages.append(page)
        if (token := page.token) is None:
            return pages
