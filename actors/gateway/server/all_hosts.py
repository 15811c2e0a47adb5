"""Requests that concern all hosts (the lists, the flush), sent to each of them (rule H20)."""

from __future__ import annotations

import ssl
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property
from typing import TYPE_CHECKING, Any

import anyio

from ....storage_backends.base.errors import NotOwner, Throttled, TierlogError, Unavailable
from ....storage_backends.base.list_pages import PageAsked, transaction_text
from ..wire import paths
from ..wire.bodies import ContainerAssignment, SegmentNames
from ..wire.errors import from_problem
from ..wire.headers import FORWARDED
from .call import Answer, json_answer

if TYPE_CHECKING:
    import httpx

_REQUEST_SECONDS = 30.0
_ASKED_MAX = 16
"""Requests in flight that all hosts are asked for: 429."""


class AllHosts:
    """``assignments()``: which host serves which container now."""

    def __init__(self, assignments: Callable[[], Sequence[ContainerAssignment]]) -> None:
        self._assignments = assignments
        self._in_flight = 0

    @cached_property
    def _client(self) -> httpx.AsyncClient:
        """It keeps no connections, so nothing has to be closed, and loads no certificates, because hosts
        speak plain HTTP."""
        import httpx

        # ``trust_env``: a proxy of the environment would be asked for hosts of this machine.
        return httpx.AsyncClient(
            timeout=_REQUEST_SECONDS,
            trust_env=False,
            verify=ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT),
            limits=httpx.Limits(max_connections=None, max_keepalive_connections=0),
            # H22: each answers for its own containers.
            headers={FORWARDED: "1"},
        )

    @contextmanager
    def _counted(self) -> Iterator[None]:
        """Counts a request while the hosts are asked for it: each costs as much as one to every host."""
        if self._in_flight >= _ASKED_MAX:
            raise Throttled(f"{self._in_flight} requests to all hosts are in flight: slow down and try again")

        self._in_flight += 1
        try:
            yield
        finally:
            self._in_flight -= 1

    async def page_of_segments(self, asked: PageAsked) -> SegmentNames:
        answers = await self._ask_for_page(paths.SEGMENTS, asked)
        parts = (asked.part(answer["segments"], answer.get("token")) for answer in answers)
        return SegmentNames(*asked.page(parts, str))

    async def page_of_transactions(self, asked: PageAsked) -> Answer:
        answers = await self._ask_for_page(paths.TRANSACTIONS, asked)
        parts = (asked.part(answer["transactions"], answer.get("token")) for answer in answers)
        found, token = asked.page(
            parts, lambda info: transaction_text(info["target"], info["transaction_id"])
        )
        return json_answer({"transactions": found} | ({} if token is None else {"token": token}))

    async def _ask_for_page(self, listed: str, asked: PageAsked) -> list[dict[str, Any]]:
        hosts = {assignment.url for assignment in self._assignments()}
        return await self.ask("GET", paths.page_path(listed, asked, asked.share(len(hosts))))

    async def ask(self, method: str, path: str) -> list[dict[str, Any]]:
        """The documents that the hosts answer, each asked once. Raises what one of them refused it with, or
        ``Unavailable`` if a container has no host now, or moves meanwhile (rule H20)."""
        assignments = self._assignments()
        for assignment in assignments:
            # All or nothing: an answer without one container's segments would pass for a complete one.
            if assignment.url is None:
                unknown = f"no host is known here that serves container {assignment.container}: ask again"
                raise Unavailable(assignment.absence or unknown)

        answers: list[dict[str, Any]] = []
        refusals: list[TierlogError] = []
        with self._counted():
            async with anyio.create_task_group() as tasks:
                for url in sorted({each.url for each in assignments if each.url is not None}):
                    tasks.start_soon(_ask, self._client, method, url, path, answers, refusals)
        if refusals:
            raise refusals[0]
        if self._assignments() != assignments:
            # One that moved between two answers may be in none of them.
            raise Unavailable("containers moved meanwhile: ask again")
        return answers


async def _ask(
    client: httpx.AsyncClient,
    method: str,
    url: str,
    path: str,
    answers: list[dict[str, Any]],
    refusals: list[TierlogError],
) -> None:
    import httpx

    try:
        answer = await client.request(method, url + path)
        if answer.is_success:
            answers.append(answer.json() if answer.content else {})
            return

        refusal = from_problem(answer.status_code, answer.headers, answer.content, maybe_applied=False)
    except (httpx.HTTPError, ValueError) as error:
        reason = str(error) or type(error).__name__
        refusal = Unavailable(f"the host at {url} did not answer: {reason}; ask again")
    # The hosts were chosen here, so no other one has to be asked.
    refusals.append(Unavailable(str(refusal)) if isinstance(refusal, NotOwner) else refusal)
