"""One-port mode (rule H22): requests for the containers of other hosts are passed on to their owners, and the
answers back, piece by piece, so that clients need to reach one address only.

A request without an answer is passed on a second time, to another owner, if that can do no harm: nothing was
sent, the first one refused it, or it only reads. Otherwise what may have been applied is ``OutcomeUnknown``,
as it is between a client and the owner. If the client disconnects, the exchange with the owner ends, or never
begins. Passes on what it holds of a body before it takes more: bytes of both directions wait in the
senders."""

from __future__ import annotations

import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from typing import Any

import anyio
import attrs
import httpx

from ....storage_backends.base.errors import (
    NotOwner,
    OutcomeUnknown,
    Throttled,
    TierlogError,
    Unavailable,
)
from ...kernel.connection_pools import ConnectionPools
from ...kernel.lost_sockets import lost_sockets
from ...telemetry.tracing import Tracing
from ..wire.batch import BatchItem, Outcome, decode_outcomes, encode_batch
from ..wire.errors import OwnedElsewhere, from_problem, is_problem
from .call import HttpCall
from .context import IDLE_MAX
from .passing import Parts, PassedRequest, SentBody, batch_request, end_early, pass_back

MOVED_SECONDS = 0.5
"""How often forwarded requests whose containers have moved are looked for: a frozen host never answers
them."""
POOL_EXCHANGES = 32
"""Exchanges with owners that share a pool."""
# ``IDLE_MAX`` is for eight pools, of 256 exchanges. More of them have taken connections for their exchanges,
# and keep a part of these for the seconds of the expiry.
_LIMITS = httpx.Limits(
    max_connections=POOL_EXCHANGES, max_keepalive_connections=IDLE_MAX // 8, keepalive_expiry=30.0
)
CLIENT_EXCHANGES = 128
"""Exchanges of one connection with one owner at a time, besides tails: a session may begin thousands of calls
at once. Of tails, so many begin at a time."""
_NOT_SENT = (httpx.ConnectError, httpx.ConnectTimeout, httpx.PoolTimeout)


def new_pool() -> httpx.AsyncBaseTransport:
    # Hosts speak plain HTTP: no certificates. The proxies of the environment are meant for other servers.
    verify = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    return httpx.AsyncHTTPTransport(verify=verify, trust_env=False, http2=False, limits=_LIMITS)


@attrs.frozen(eq=False)
class _Flight:
    """An exchange with an owner."""

    containers: tuple[int, ...]
    url: str
    scope: anyio.CancelScope = attrs.field(factory=anyio.CancelScope)


@attrs.frozen
class _Refusal:
    """Why an owner did not answer."""

    error: TierlogError
    may_repeat: bool
    owner: str | None = None
    """The owner that it named."""


class Forwarder:
    """``owner_of(index)``: the URL of the host that serves a container, if it is known. ``serves(index)``:
    whether it is served here."""

    def __init__(
        self,
        owner_of: Callable[[int], str | None],
        serves: Callable[[int], bool] = lambda index: False,
        tracing: Tracing | None = None,
        make: Callable[[], httpx.AsyncBaseTransport] = new_pool,
    ) -> None:
        self._owner_of = owner_of
        self._serves = serves
        self.exchanges_max = 1 << 20
        """The most exchanges with owners at a time, each of which takes a connection."""
        self.client_exchanges = CLIENT_EXCHANGES
        self._tracing = tracing
        self._pools = ConnectionPools(make, POOL_EXCHANGES)
        self._parking = ConnectionPools(make, POOL_EXCHANGES)
        """For tails, which would take the connections that wait for the next request."""
        self._shares: dict[object, anyio.Semaphore] = {}
        """What is left of ``client_exchanges``, for the connections and owners that have some."""
        self._flights: set[_Flight] = set()

    def other_host(self, index: int) -> str | None:
        """The URL of the host that serves the container; None if it is not known, or is this one."""
        return None if self._serves(index) else self._owner_of(index)

    async def run(self) -> None:
        while True:
            await anyio.sleep(MOVED_SECONDS)
            self.end_moved()

    async def aclose(self) -> None:
        await self._pools.aclose()
        await self._parking.aclose()

    def end_moved(self) -> None:
        """End the exchanges whose containers are all known to have other owners."""
        for flight in list(self._flights):
            if all(self._has_left(index, flight.url) for index in flight.containers):
                flight.scope.cancel()

    def _has_left(self, index: int, url: str) -> bool:
        return self._serves(index) or self._owner_of(index) not in (None, url)

    # --- one request -----------------------------------------------------------------------------

    async def forward(
        self, call: HttpCall[Any], index: int, url: str, append_bytes_max: int, *, parks: bool = False
    ) -> None:
        """Pass ``call`` on to the owner of the container ``index``, at ``url``, and its answer back.
        ``parks``: it is a tail. Raises why there is no answer."""
        request, is_done = PassedRequest(call, append_bytes_max), False
        call.counts.forwarded += 1
        async with call.while_connected(request.body.ended, is_tail=parks) as scope:
            with call.server.parked(scope) if parks else call.server.holding(request.body.ahead):
                await self._pass_on(call, request, index, url, parks=parks)
            is_done = True
        if not is_done:  # H15: the server stops
            if not call.started:
                call.server.check_serving()
            await end_early(call, request)

    async def _pass_on(
        self, call: HttpCall[Any], request: PassedRequest, index: int, url: str, *, parks: bool
    ) -> None:
        refusal = await self._attempt(call, request, _Flight((index,), url), parks=parks)
        # H22: at most once, or two hosts that name each other would go on forever.
        if refusal is not None and refusal.may_repeat and request.body.rewind():
            other = self._other(index, url, refusal.owner)
            if other is not None:
                refusal = await self._attempt(call, request, _Flight((index,), other), parks=parks)
        if refusal is not None:
            raise refusal.error

    def _other(self, index: int, url: str, named: str | None) -> str | None:
        """Another owner than the one at ``url``."""
        return next((each for each in (named, self.other_host(index)) if each not in (None, url)), None)

    async def _attempt(
        self, call: HttpCall[Any], request: PassedRequest, flight: _Flight, *, parks: bool
    ) -> _Refusal | None:
        """One exchange. Returns why there is no answer, unless one was passed back."""
        reason = "its containers have moved"
        is_sent = False
        with self._flying(flight):
            try:
                async with self._pool(call, flight.url, parks=parks) as pool:
                    is_sent = True
                    async with _Answered(pool, request.to(flight.url), self._tracing) as answer:
                        refusal = await _refusal_of(answer)
                        if refusal is None:
                            await pass_back(call, request, answer)
                        return refusal
            except (httpx.HTTPError, OSError) as error:
                if call.started:
                    raise  # H10: half an answer does not pass for a whole one
                is_sent = not isinstance(error, _NOT_SENT)
                reason = str(error) or type(error).__name__
        if call.started:
            await end_early(call, request)
            return None

        is_sent = is_sent and request.body.is_begun and not request.body.is_cut
        return _lost(flight, reason, is_sent=is_sent, changes=request.changes)

    @contextmanager
    def _flying(self, flight: _Flight) -> Iterator[None]:
        self._flights.add(flight)
        try:
            with flight.scope:
                yield
        finally:
            self._flights.discard(flight)

    @asynccontextmanager
    async def _pool(
        self, call: HttpCall[Any], url: str, *, parks: bool = False
    ) -> AsyncIterator[httpx.AsyncBaseTransport]:
        """A pool for one exchange with the owner at ``url``, once the client has fewer than it may have, and
        in its turn. Raises ``Throttled``."""
        key = (call.scope["client"], url, parks)
        share = self._shares.get(key)
        if share is None:
            share = self._shares[key] = anyio.Semaphore(self.client_exchanges, fast_acquire=True)
        try:
            async with share:
                # An exchange costs the loop about a millisecond.
                await call.server.wait_turn()
                # H12: descriptors remain for the log and chunks.
                count = self._pools.exchanges + self._parking.exchanges
                if count >= self.exchanges_max:
                    raise Throttled(f"{count} requests are passed on: slow down and try again")

                if not parks:
                    async with self._pools.one() as pool:
                        yield pool
            # A tail takes its time, and its share is for its beginning alone.
            if parks:
                async with self._parking.one() as pool:
                    yield pool
        finally:
            if share.value == self.client_exchanges:
                self._shares.pop(key, None)

    # --- batches ---------------------------------------------------------------------------------

    async def append_each(
        self,
        call: HttpCall[Any],
        items: Sequence[BatchItem],
        container_of: Callable[[str], int],
        append_here: Callable[[Sequence[BatchItem]], Awaitable[list[Outcome]]],
    ) -> list[Outcome]:
        """The outcome of each append, whichever hosts own the segments. ``append_here`` takes those that no
        other one is known to own. Raises ``Disconnected`` if the client leaves while others are asked."""
        places = [container_of(item.name) for item in items]
        parts: dict[str | None, list[int]] = {}
        for number, index in enumerate(places):
            parts.setdefault(self.other_host(index), []).append(number)
        outcomes: list[Outcome] = [None] * len(items)

        async def append(url: str | None, numbers: list[int]) -> None:
            part = [items[number] for number in numbers]
            found: list[Outcome]
            try:
                if url is None:
                    found = await append_here(part)
                else:
                    found = await self._append_at(call, url, part, {places[number] for number in numbers})
            except TierlogError as error:
                found = [error] * len(part)
            for number, outcome in zip(numbers, found, strict=True):
                outcomes[number] = outcome

        async def append_all() -> None:
            async with anyio.create_task_group() as tasks:
                for url, numbers in parts.items():
                    tasks.start_soon(append, url, numbers)

        if set(parts) <= {None}:
            await append_all()
        else:
            # A frozen owner must not keep the batch in memory for a client that has left.
            async with call.while_connected(is_tail=False):
                await append_all()
        return [
            without_owner(outcome) if isinstance(outcome, TierlogError) else outcome for outcome in outcomes
        ]

    async def _append_at(
        self, call: HttpCall[Any], url: str, items: Sequence[BatchItem], containers: set[int]
    ) -> list[Outcome]:
        call.counts.forwarded += 1
        found = await self._send_batch(call, url, items, containers)
        # The same limit as for one request: a fresh look for the owner, if all of it was refused.
        if all(isinstance(outcome, NotOwner) for outcome in found):
            named = next((each.owner for each in found if isinstance(each, OwnedElsewhere)), None)
            others = {
                self._other(index, url, named if len(containers) == 1 else None) for index in containers
            }
            if len(others) == 1 and (other := others.pop()) is not None:
                return await self._send_batch(call, other, items, containers)
        return found

    async def _send_batch(
        self, call: HttpCall[Any], url: str, items: Sequence[BatchItem], containers: set[int]
    ) -> list[Outcome]:
        body = Parts(encode_batch(items))
        flight = _Flight(tuple(containers), url)
        reason, is_sent = "its containers have moved", True
        with self._flying(flight):
            try:
                request = batch_request(call, url, body)
                async with (
                    self._pool(call, url) as pool,
                    _Answered(pool, request, self._tracing) as answer,
                ):
                    document = b"".join([piece async for piece in answer.aiter_raw()])
                    if answer.status_code == 200:
                        return decode_outcomes(document, len(items))
                    raise from_problem(answer.status_code, answer.headers, document, maybe_applied=True)
            except TierlogError:
                raise  # of which some are a ``ValueError`` too
            except (httpx.HTTPError, OSError, ValueError) as error:
                is_sent = not isinstance(error, _NOT_SENT)
                reason = str(error) or type(error).__name__
        raise _lost(flight, reason, is_sent=is_sent and body.is_begun, changes=True).error


def _lost(flight: _Flight, reason: str, *, is_sent: bool, changes: bool) -> _Refusal:
    if not is_sent:
        error: TierlogError = Unavailable(
            f"the owner at {flight.url} does not answer: {reason}; nothing was done"
        )
    elif changes:
        words = f"the owner at {flight.url} did not answer: {reason}; the request may have been applied"
        return _Refusal(OutcomeUnknown(words), may_repeat=False)
    else:
        error = Unavailable(f"the owner at {flight.url} did not answer: {reason}")
    return _Refusal(error, may_repeat=True)


def without_owner(error: TierlogError) -> TierlogError:
    """``error`` for a client, which need not reach the owner."""
    return NotOwner(str(error)) if isinstance(error, OwnedElsewhere) else error


async def _refusal_of(answer: httpx.Response) -> _Refusal | None:
    """What the answer of a host that is not the owner means; None of any other answer."""
    if answer.status_code != 421 or not is_problem(answer.headers):
        return None

    error = from_problem(421, answer.headers, await answer.aread(), maybe_applied=False)
    if isinstance(error, NotOwner):
        owner = error.owner if isinstance(error, OwnedElsewhere) else None
        return _Refusal(without_owner(error), may_repeat=True, owner=owner)

    return _Refusal(Unavailable(f"the owner refuses this host: {error}"), may_repeat=False)


class _Answered:
    """The answer to one request, with its span: ``async with`` ends both."""

    def __init__(
        self, pool: httpx.AsyncBaseTransport, request: httpx.Request, tracing: Tracing | None
    ) -> None:
        self._pool = pool
        self._request = request
        self._tracing = tracing
        self._answer: httpx.Response | None = None

    async def __aenter__(self) -> httpx.Response:
        request, tracing = self._request, self._tracing
        if tracing is None:
            self._answer = await self._send()
            return self._answer

        headers: dict[str, str] = {}
        about = {
            "http.request.method": request.method,
            "url.full": str(request.url),
            "server.address": request.url.host,
            "server.port": request.url.port or 80,
        }
        with tracing.client(request.method, about, headers) as span:
            request.headers.update(headers)
            self._answer = await self._send()
            span.answered(self._answer.status_code)
        return self._answer

    async def _send(self) -> httpx.Response:
        try:
            with lost_sockets():
                return await self._pool.handle_async_request(self._request)
        except ConnectionResetError as error:
            body = self._request.stream
            if isinstance(body, SentBody) and not body.is_asked:
                raise httpx.ConnectError("the connection was reset") from error
            raise

    async def __aexit__(self, *_: object) -> None:
        assert self._answer is not None
        with anyio.CancelScope(shield=True):
            await self._answer.aclose()
