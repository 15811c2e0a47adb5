"""The service over plain HTTP requests, without tierlog's client (docs/protocols/http.md).

The checks read through this, so that no bug of the client can hide one of the server; writers use it with
``--client raw``, which tells whose bug it is. A request goes to the supervisor, which redirects it to the
owner; the owner is asked directly until it fails. Appends with a writer id and reads are always retried; an
append without one only if it was certainly not applied. Needs asyncio (httpx)."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from types import TracebackType
from typing import Self
from urllib.parse import urljoin

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
_BYTES = {"Content-Type": "application/octet-stream"}


class HttpStore:
    """The verbs that writers and checks use."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._owners: dict[str, str] = {}
        self._client = httpx.AsyncClient(
            timeout=_ATTEMPT, limits=httpx.Limits(max_connections=64, keepalive_expiry=60), trust_env=False
        )

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._client.aclose()

    async def create_segment(self, name: str) -> None:
        answer = await self._until_answered(
            "POST", name, Verb.CREATE, b"{}", {"Content-Type": "application/json"}, again=True
        )
        if not answer.is_success and answer.status_code != 409:
            raise _error(answer)

    async def append(
        self, name: str, data: bytes, *, writer_id: str | None = None, event_number: int | None = None
    ) -> None:
        headers = AppendHeaders((writer_id or "").encode(), event_number)
        await self._append(name, data, headers)

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
            answer = await self._until_answered("GET", name, Verb.BYTES, b"", headers, again=True)
            if answer.status_code == 416:
                return
            if not answer.is_success:
                raise _error(answer)
            yield answer.content
            offset += len(answer.content)

    async def _append(self, name: str, data: bytes, headers: AppendHeaders) -> None:
        answer = await self._until_answered(
            "POST", name, Verb.APPEND, data, {**_BYTES, **append_headers(headers)}, again=bool(headers.writer)
        )
        if not answer.is_success:
            raise _error(answer)

    async def _until_answered(
        self, method: str, name: str, verb: Verb, data: bytes, headers: Mapping[str, str], *, again: bool
    ) -> httpx.Response:
        """The first conclusive answer. Raises the last error after ``DEADLINE``."""
        last: Exception = tierlog.Unavailable(f"{self._url} did not answer within {DEADLINE:g} s")
        with anyio.move_on_after(DEADLINE):
            while True:
                try:
                    answer = await self._once(method, name, verb, data, headers)
                    if answer.status_code not in _NOT_APPLIED and not (
                        again and answer.status_code in (408, 500)
                    ):
                        return answer
                    last = _error(answer)
                except (httpx.ConnectError, httpx.ConnectTimeout, httpx.PoolTimeout) as error:
                    last = tierlog.Unavailable(f"no connection: {error!r}")
                except httpx.TransportError as error:
                    if not again:
                        raise tierlog.OutcomeUnknown(f"no answer: {error!r}") from error
                    last = tierlog.OutcomeUnknown(f"no answer: {error!r}")
                self._owners.pop(name, None)
                await anyio.sleep(_PAUSE)
        raise last

    async def _once(
        self, method: str, name: str, verb: Verb, data: bytes, headers: Mapping[str, str]
    ) -> httpx.Response:
        if method == "POST" and name not in self._owners:
            # A request that changes nothing finds the owner.
            asked = await self._client.get(self._url + segment_path(name, Verb.INFO))
            if asked.status_code != 307:
                return asked
            self._owners[name] = urljoin(asked.headers["location"], "/")
        base = self._owners.get(name, self._url).rstrip("/")
        answer = await self._client.request(
            method, base + segment_path(name, verb), content=data or None, headers=headers
        )
        if answer.status_code != 307:
            return answer
        self._owners[name] = urljoin(answer.headers["location"], "/")
        return await self._once(method, name, verb, data, headers)


def _error(answer: httpx.Response) -> tierlog.TierlogError:
    return from_problem(
        answer.status_code, answer.headers, answer.content, maybe_applied=answer.request.method == "POST"
    )
