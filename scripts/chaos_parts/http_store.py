"""The service over plain HTTP requests, without tierlog's client (docs/protocols/http.md).

The checks read through this, so that no bug of the client can hide one of the server; writers use it with
``--client raw``, which shows whose bug it is. The supervisor redirects to a segment's owner, which is then
asked directly until it fails. Appends with a writer id and reads are always retried; an append without one
only if it was certainly not applied."""

from __future__ import annotations

import math
from collections.abc import AsyncIterator
from typing import Any, Self

import anyio
import httpx

import tierlog
from tierlog.actors.gateway.wire.errors import from_problem
from tierlog.actors.gateway.wire.headers import AppendHeaders, append_headers
from tierlog.actors.gateway.wire.paths import Verb, segment_path

DEADLINE = 15.0
_ATTEMPT = 0.6
"""Seconds after which a request is sent again: its host may be frozen."""
_READ_ATTEMPT = 5.0
"""The same for a read, which may fetch many chunks."""
_PAUSE = 0.01
_READ_BYTES = 4 << 20
_NOT_APPLIED = (421, 429, 503)
BYTES = {"Content-Type": "application/octet-stream"}


class HttpStore:
    """The verbs that writers and checks use."""

    def __init__(self, url: str) -> None:
        """``url`` may be several, with commas between them: those of supervisors and hosts."""
        self._url = url
        self._urls = [httpx.URL(each) for each in url.split(",")]
        self._failures = 0
        self._owners: dict[str, httpx.URL] = {}
        limits = httpx.Limits(max_connections=64, keepalive_expiry=60)
        self._client = httpx.AsyncClient(
            timeout=_ATTEMPT, limits=limits, follow_redirects=True, trust_env=False
        )

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._client.aclose()

    async def create_segment(self, name: str) -> None:
        await self._request("POST", name, Verb.CREATE, accepted=409, json={})

    async def append(
        self, name: str, data: bytes, *, writer_id: str | None = None, event_number: int | None = None
    ) -> None:
        await self._append(name, data, AppendHeaders((writer_id or "").encode(), event_number))

    async def append_many(
        self, name: str, events: list[bytes], *, writer_id: str, first_event_number: int
    ) -> None:
        last = first_event_number + len(events) - 1
        # A writer's first append has no predecessor.
        before = first_event_number - 1 if first_event_number else None
        await self._append(name, b"".join(events), AppendHeaders(writer_id.encode(), last, before))

    async def _append(self, name: str, data: bytes, append: AppendHeaders) -> None:
        headers = BYTES | append_headers(append)
        again = bool(append.writer)
        await self._request("POST", name, Verb.APPEND, again=again, content=data, headers=headers)

    async def length(self, name: str) -> int:
        answer = await self._request("GET", name, Verb.INFO)
        return int(answer.json()["length"])

    async def read_blocks(self, name: str, offset: int = 0, end: float = math.inf) -> AsyncIterator[bytes]:
        """The segment from ``offset`` to ``end``, or to its tail."""
        block = b" "
        while block and offset < end:
            last = int(min(offset + _READ_BYTES, end)) - 1
            headers = {"Range": f"bytes={offset}-{last}"}
            answer = await self._request(
                "GET", name, Verb.BYTES, accepted=416, headers=headers, timeout=_READ_ATTEMPT
            )
            block = answer.content if answer.is_success else b""
            offset += len(block)
            yield block

    async def _request(
        self, method: str, name: str, verb: Verb, *, accepted: int = 200, again: bool = True, **content: Any
    ) -> httpx.Response:
        """The answer, if it is a success or has the status ``accepted``. ``again``: whether a request may be
        repeated that was perhaps applied. Raises the last error after ``DEADLINE``."""
        repeated = (*_NOT_APPLIED, 408, 500) if again else _NOT_APPLIED
        last: tierlog.TierlogError = tierlog.Unavailable(f"{self._url}: no answer within {DEADLINE:g} s")
        with anyio.move_on_after(DEADLINE):
            while True:
                try:
                    answer = await self._once(method, name, verb, **content)
                    if answer.is_success or answer.status_code == accepted:
                        return answer
                    is_post = answer.request.method == "POST"
                    last = from_problem(
                        answer.status_code, answer.headers, answer.content, maybe_applied=is_post
                    )
                    if answer.status_code not in repeated:
                        raise last
                except (httpx.ConnectError, httpx.ConnectTimeout, httpx.PoolTimeout) as error:
                    last = tierlog.Unavailable(f"no connection: {error!r}")
                except httpx.RequestError as error:
                    last = tierlog.OutcomeUnknown(f"no answer: {error!r}")
                    if not again:
                        raise last from error
                self._owners.pop(name, None)
                self._failures += 1
                await anyio.sleep(_PAUSE)
        raise last

    async def _once(self, method: str, name: str, verb: Verb, **content: Any) -> httpx.Response:
        if name not in self._owners:
            # A request that changes nothing is redirected to the owner.
            known = self._urls[self._failures % len(self._urls)]
            found = await self._client.get(known.join(segment_path(name, Verb.INFO)))
            if not found.is_success and found.status_code != 404:
                return found
            self._owners[name] = found.url
        return await self._client.request(
            method, self._owners[name].join(segment_path(name, verb)), **content
        )
