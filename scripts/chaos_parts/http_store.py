"""The service over plain HTTP requests, without tierlog's client (docs/protocols/http.md).

The checks read through this, so that no bug of the client can hide one of the server; writers use it with
``--client raw``, which shows whose bug it is. The supervisor redirects to a segment's owner, which is then
asked directly until it fails. Appends with a writer id and reads are always retried; an append without one
only if it was certainly not applied. Needs asyncio (httpx)."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from typing import Self

import anyio
import httpx

import tierlog
from tierlog.actors.gateway.wire.errors import from_problem
from tierlog.actors.gateway.wire.headers import AppendHeaders, append_headers
from tierlog.actors.gateway.wire.paths import Verb, segment_path

DEADLINE = 15.0
_ATTEMPT = 0.6
"""Seconds after which a request is sent again: its host may be frozen."""
_PAUSE = 0.01
_READ_BYTES = 4 << 20
_NOT_APPLIED = (421, 429, 503)
BYTES = {"Content-Type": "application/octet-stream"}


class HttpStore:
    """The verbs that writers and checks use."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._owners: dict[str, str] = {}
        limits = httpx.Limits(max_connections=64, keepalive_expiry=60)
        self._client = httpx.AsyncClient(
            timeout=_ATTEMPT, limits=limits, follow_redirects=True, trust_env=False
        )

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._client.aclose()

    async def create_segment(self, name: str) -> None:
        headers = {"Content-Type": "application/json"}
        answer = await self._request("POST", name, Verb.CREATE, b"{}", headers)
        if answer.status_code != 409:
            _check(answer)

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

    async def read_blocks(self, name: str) -> AsyncIterator[bytes]:
        """The whole segment, up to its tail."""
        offset = 0
        while True:
            headers = {"Range": f"bytes={offset}-{offset + _READ_BYTES - 1}"}
            answer = await self._request("GET", name, Verb.BYTES, b"", headers)
            if answer.status_code == 416:
                return
            _check(answer)
            yield answer.content
            offset += len(answer.content)

    async def _append(self, name: str, data: bytes, headers: AppendHeaders) -> None:
        fields = {**BYTES, **append_headers(headers)}
        _check(await self._request("POST", name, Verb.APPEND, data, fields, again=bool(headers.writer)))

    async def _request(
        self,
        method: str,
        name: str,
        verb: Verb,
        data: bytes,
        headers: Mapping[str, str],
        *,
        again: bool = True,
    ) -> httpx.Response:
        """The first conclusive answer. ``again``: whether a request may be repeated that was perhaps applied.
        Raises the last error after ``DEADLINE``."""
        repeated = (*_NOT_APPLIED, 408, 500) if again else _NOT_APPLIED
        last: Exception = tierlog.Unavailable(f"{self._url} did not answer within {DEADLINE:g} s")
        with anyio.move_on_after(DEADLINE):
            while True:
                try:
                    answer = await self._once(method, name, verb, data, headers)
                    if answer.status_code not in repeated:
                        return answer
                    last = _error(answer)
                except (httpx.ConnectError, httpx.ConnectTimeout, httpx.PoolTimeout) as error:
                    last = tierlog.Unavailable(f"no connection: {error!r}")
                except httpx.RequestError as error:
                    last = tierlog.OutcomeUnknown(f"no answer: {error!r}")
                    if not again:
                        raise last from error
                self._owners.pop(name, None)
                await anyio.sleep(_PAUSE)
        raise last

    async def _once(
        self, method: str, name: str, verb: Verb, data: bytes, headers: Mapping[str, str]
    ) -> httpx.Response:
        if name not in self._owners:
            # A request that changes nothing is redirected to the owner.
            found = await self._client.get(self._url + segment_path(name, Verb.INFO))
            if not found.is_success and found.status_code != 404:
                return found
            self._owners[name] = str(found.url.join("/")).rstrip("/")
        url = self._owners[name] + segment_path(name, verb)
        return await self._client.request(method, url, content=data or None, headers=headers)


def _error(answer: httpx.Response) -> tierlog.TierlogError:
    is_post = answer.request.method == "POST"
    return from_problem(answer.status_code, answer.headers, answer.content, maybe_applied=is_post)


def _check(answer: httpx.Response) -> None:
    if not answer.is_success:
        raise _error(answer)
