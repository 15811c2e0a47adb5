"""Endpoints: a decorator makes one out of a handler, with its route and everything that the OpenAPI document
has about it (rule H16), and ``EndpointApp`` serves it.

A handler's annotations declare which JSON body it takes and with which it answers, its docstring what it
does. A handler of raw bytes takes the call alone, and returns an ``Answer``, or sends one itself and returns
None. What a handler raises becomes a problem if the answer has not begun. Otherwise the connection breaks, so
that no reader takes half an answer for a whole one (rule H10)."""

from __future__ import annotations

import inspect
import typing
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from types import ModuleType
from typing import Any, Generic, TypeVar

import attrs
import msgspec

from ....storage_backends.base.errors import (
    InvalidArgument,
    NotOwner,
    OutcomeUnknown,
    SegmentNotFound,
    Throttled,
    TierlogError,
    TooLarge,
    Unavailable,
    WrongSegmentKind,
)
from ...telemetry.logging import get_logger
from ..wire import paths
from ..wire.bodies import JSON_TYPE, encode_json
from ..wire.errors import (
    PROBLEM_TYPE,
    CrossOrigin,
    RequestTimeout,
    UnknownHost,
    UnsupportedMediaType,
    to_problem,
)
from ..wire.paths import Verb
from .call import Answer, Disconnected, HttpCall, Receive, S, Scope, Send
from .context import ServerContext
from .request_metrics import OperationCounts

_log = get_logger("gateway")

Errors = tuple[type[TierlogError], ...]
Handler = TypeVar("Handler", bound=Callable[..., Awaitable[Any]])
COMMON_ERRORS: Errors = (InvalidArgument, UnknownHost, Unavailable)
"""Every endpoint may answer with these."""
BODY_ERRORS: Errors = (CrossOrigin, TooLarge, UnsupportedMediaType, RequestTimeout, OutcomeUnknown)
SEGMENT_ERRORS: Errors = (NotOwner, Throttled, SegmentNotFound, WrongSegmentKind)


@attrs.frozen
class Parameter:
    """A parameter of the query, or a header."""

    name: str
    type: Any
    """From which the schema is made."""
    help: str
    location: str = "query"
    required: bool = False


def page_parameters(prefix: str, noun: str, limit_max: int) -> tuple[Parameter, ...]:
    """Those of a page of a listing. ``prefix``: what its prefix is."""
    limit = typing.Annotated[int, msgspec.Meta(ge=1, le=limit_max)]
    return (
        Parameter("prefix", str, prefix),
        Parameter("token", str, "The `token` of the page before; the first page without it."),
        Parameter("limit", limit, f"The most {noun} of the page; {limit_max} by default."),
    )


@attrs.frozen
class Body:
    """A body. ``type``: the type from which the schema is made."""

    content_type: str
    type: Any
    required: bool = True


@attrs.frozen
class Success:
    status: int
    help: str
    content_type: str | None = None
    type: Any = None
    headers: Mapping[str, str] = attrs.field(factory=dict)
    """Names and descriptions."""


@attrs.frozen
class Endpoint:
    operation: str
    """Its name in the OpenAPI document and in metrics."""
    method: str
    path: str
    handler: Callable[..., Awaitable[Any]]
    help: str
    successes: tuple[Success, ...]
    parameters: tuple[Parameter, ...] = ()
    body: Body | None = None
    errors: Errors = ()
    """Errors that the endpoint may answer with besides ``COMMON_ERRORS``."""
    is_tail: bool = False
    """It waits at tails, which have a bound of their own."""
    is_documented: bool = True
    """False for a route that redirects several paths of another server."""
    body_limit: str = "json_bytes"
    """The field of ``ServerLimits`` that bounds a JSON body."""


def endpoint(
    method: str,
    path: str,
    operation: str,
    *errors: type[TierlogError],
    status: int = 200,
    help: str = "Done.",
    successes: tuple[Success, ...] = (),
    body: Body | None = None,
    **more: Any,
) -> Callable[[Callable[..., Awaitable[Any]]], Endpoint]:
    """Make an endpoint out of a handler.

    ``status`` and ``help`` describe its success, unless ``successes`` do. ``body``: of a handler that reads
    the body itself. ``more``: further fields of ``Endpoint``."""

    def decorate(handler: Callable[..., Awaitable[Any]]) -> Endpoint:
        hints = typing.get_type_hints(handler, include_extras=True)
        returned = hints.get("return")
        is_json = isinstance(returned, type) and not issubclass(returned, (Answer, type(None)))
        answers = (Success(status, help, JSON_TYPE, returned),) if is_json else successes
        json_body = hints.get("body")
        if json_body is None:
            given = body
        else:
            is_required = any(field.required for field in msgspec.structs.fields(json_body))
            given = Body(JSON_TYPE, json_body, is_required)
        text = " ".join((inspect.getdoc(handler) or "").split())
        return Endpoint(operation, method, path, handler, text, answers, body=given, errors=errors, **more)

    return decorate


def verb(
    verb: Verb, *errors: type[TierlogError], **more: Any
) -> Callable[[Callable[..., Awaitable[Any]]], Endpoint]:
    """The endpoint of a verb of one segment."""
    path = f"{paths.SEGMENTS}/{{name:path}}/{verb.value}"
    if verb.method == "GET":
        return endpoint("GET", path, verb.value, *SEGMENT_ERRORS, *errors, **more)

    more.setdefault("help", "Done, and durable.")
    return endpoint("POST", path, verb.value, *SEGMENT_ERRORS, *BODY_ERRORS, *errors, **more)


def endpoints_of(*modules: ModuleType) -> tuple[Endpoint, ...]:
    """All that the modules define."""
    return tuple(
        found for module in modules for found in vars(module).values() if isinstance(found, Endpoint)
    )


class EndpointApp(Generic[S]):
    """An endpoint of one server."""

    def __init__(self, server: S, endpoint: Endpoint) -> None:
        self.server = server
        self.endpoint = endpoint
        self._counts = server.metrics.operation(endpoint.operation)
        # Starlette's converter is no part of a route in OpenTelemetry's `http.route`.
        self._route = endpoint.path.replace(":path}", "}")
        body = endpoint.body
        self._json_body = body.type if body is not None and body.content_type == JSON_TYPE else None
        self._query_names = [
            parameter.name for parameter in endpoint.parameters if parameter.location == "query"
        ]

    async def __call__(self, scope: dict[str, Any], receive: Receive, send: Send) -> None:
        scope["tierlog.operation"] = self.endpoint.operation
        scope["tierlog.route"] = self._route
        call = HttpCall(self.server, self._counts, scope, receive, send, self._query_names)
        self._counts.in_flight += 1
        try:
            try:
                answer = await self._handle(call)
                if answer is not None:
                    await call.answer(answer)
            except Disconnected:
                raise
            except Exception as error:  # noqa: BLE001 - every error has an answer
                await self._refuse(call, error)
        except Disconnected:
            scope["tierlog.disconnected"] = True
        finally:
            self._counts.in_flight -= 1
            call.release()

    async def _handle(self, call: HttpCall[S]) -> Answer | None:
        endpoint, server = self.endpoint, self.server
        # Their bound is their own: twenty thousand parked readers must not keep one append out.
        counts = not endpoint.is_tail
        if counts:
            server.begin_request()
        try:
            if endpoint.is_documented:
                if call.scope["query_string"]:
                    call.query()  # one that is unknown or repeated is refused, whether it is read or not
                if server.forwarder and await server.forwards(call, parks=endpoint.is_tail):
                    return None

            if self._json_body is None:
                found = await endpoint.handler(call)
            else:
                limit = getattr(server.limits, endpoint.body_limit)
                found = await endpoint.handler(call, await call.json_body(self._json_body, limit))
        finally:
            if counts:
                server.end_request()
        if found is None or isinstance(found, Answer):
            return found

        return Answer(endpoint.successes[0].status, encode_json(found))

    async def _refuse(self, call: HttpCall[S], error: Exception) -> None:
        if call.started:
            # H10: after the head only a broken connection can show the error. That a container moves ends all
            # of its tails, which go on at its next host: it is logged once, by who moves it.
            if not (self.endpoint.is_tail and isinstance(error, NotOwner)):
                _log.warning("answer_aborted", operation=self.endpoint.operation, error=repr(error))
            return

        if not isinstance(error, TierlogError):
            _log.error("unexpected_error", operation=self.endpoint.operation, exc_info=error)
        await call.answer(problem_answer(call.scope, self.server.located(error, call.name or None)))


async def refuse(
    server: ServerContext, scope: dict[str, Any], receive: Receive, send: Send, error: TierlogError
) -> None:
    """Answer a request that reaches no endpoint."""
    scope["path_params"] = {}
    call = HttpCall(server, OperationCounts(), scope, receive, send)
    with suppress(Disconnected):
        await call.answer(problem_answer(scope, error))


def problem_answer(scope: Scope, error: BaseException) -> Answer:
    problem = to_problem(error)
    document = {**problem.document, "request_id": scope.get("tierlog.request_id", "")}
    headers = {name: value for name, value in problem.headers.items() if name != "Content-Type"}
    if isinstance(error, TooLarge | RequestTimeout):
        headers["Connection"] = "close"  # the rest of the body may be under way, and is not a request
    return Answer(problem.status, attrs.evolve(problem, document=document).body(), PROBLEM_TYPE, headers)
