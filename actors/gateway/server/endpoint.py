"""One row of the table of endpoints, and the ASGI application that it becomes.

Owns: what is known of an endpoint (its route, its handler, and everything that the OpenAPI document says
about it), and what happens around a handler: admission, the end of the call, and errors as problems. Does not
own: the handlers, nor the document's form (``openapi.py``).

A handler returns an ``Answer``, or sends one itself and returns None. What it raises becomes a problem if the
answer has not begun. Otherwise nothing true can be said any more: the connection breaks, so that no reader
takes half an answer for a whole one (rule H10).
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Generic

import attrs

from ....storage_backends.base.errors import InvalidArgument, TierlogError, Unavailable
from ...telemetry.logging import get_logger
from ..wire.errors import PROBLEM_TYPE, RequestTimeout, TooLarge, to_problem
from .call import Answer, Call, Disconnected, F, HttpCall, Receive, Scope, Send
from .gateway import Gateway

_log = get_logger("gateway")

Handler = Callable[[Call], Awaitable[Answer | None]]
Schema = Mapping[str, Any]


@attrs.frozen
class Parameter:
    name: str
    place: str
    """``query`` or ``header``."""
    schema: Schema
    help: str
    required: bool = False


@attrs.frozen
class Body:
    content_type: str
    schema: Schema
    required: bool = True


@attrs.frozen
class Success:
    status: int
    help: str
    content_type: str | None = None
    schema: Schema | None = None
    headers: Mapping[str, str] = attrs.field(factory=dict)
    """Names, and what each says."""


@attrs.frozen
class EndpointOf(Generic[F]):
    operation: str
    """Its name in the OpenAPI document and in metrics."""
    method: str
    path: str
    handler: Callable[[HttpCall[F]], Awaitable[Answer | None]]
    help: str
    successes: tuple[Success, ...]
    parameters: tuple[Parameter, ...] = ()
    body: Body | None = None
    errors: tuple[type[TierlogError], ...] = ()
    """Beside those that every endpoint may answer with."""
    tail: bool = False
    """It waits at tails, which have a bound of their own."""
    described: bool = True
    """False for what only leads to another server, whose document has it."""


Endpoint = EndpointOf[Gateway]


class EndpointApp(Generic[F]):
    """An endpoint of one server."""

    def __init__(self, server: F, endpoint: EndpointOf[F]) -> None:
        self.server = server
        self.endpoint = endpoint
        self._operation = server.metrics.operation(endpoint.operation)
        self._route = endpoint.path.replace(":path}", "}")

    async def __call__(self, scope: dict[str, Any], receive: Receive, send: Send) -> None:
        scope["tierlog.operation"] = self.endpoint.operation
        scope["tierlog.route"] = self._route
        call = HttpCall(self.server, self._operation, scope, receive, send)
        self._operation.in_flight += 1
        try:
            await self._answer(call)
        except Disconnected:
            scope["tierlog.disconnected"] = True
        finally:
            self._operation.in_flight -= 1
            call.release()

    async def _answer(self, call: HttpCall[F]) -> None:
        try:
            answer = await self._handle(call)
            if answer is not None:
                await call.answer(answer)
        except Disconnected:
            raise
        except Exception as error:  # noqa: BLE001 - every error has an answer
            await self._refuse(call, error)

    async def _handle(self, call: HttpCall[F]) -> Answer | None:
        if self.endpoint.tail:
            return await self.endpoint.handler(call)

        with self.server.request():
            return await self.endpoint.handler(call)

    async def _refuse(self, call: HttpCall[F], error: Exception) -> None:
        if call.started:
            _log.warning("answer_broken_off", operation=self.endpoint.operation, error=repr(error))
            return

        if not isinstance(error, TierlogError):
            _log.error("unexpected_error", operation=self.endpoint.operation, exc_info=error)
        await call.answer(problem_answer(call.scope, self.server.told(error, call.name or None)))


def problem_answer(scope: Scope, error: BaseException) -> Answer:
    problem = to_problem(error)
    document = {**problem.document, "request_id": scope.get("tierlog.request_id", "")}
    headers = {name: value for name, value in problem.headers.items() if name != "Content-Type"}
    if isinstance(error, TooLarge | RequestTimeout):
        headers["Connection"] = "close"  # the rest of the body may be on its way, and is no request
    return Answer(problem.status, attrs.evolve(problem, document=document).body(), PROBLEM_TYPE, headers)


COMMON_ERRORS: tuple[type[TierlogError], ...] = (InvalidArgument, Unavailable)
"""What every endpoint may answer with."""
