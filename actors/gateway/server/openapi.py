"""The OpenAPI 3.1 document, made from the endpoints and the types of their bodies and parameters (rule
H16)."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from ....storage_backends.base.errors import TierlogError
from ..wire.bodies import SegmentName, described
from ..wire.errors import PROBLEM_TYPE, ProblemDocument, Row, row_of
from ..wire.headers import REQUEST_ID
from .endpoint import COMMON_ERRORS, Endpoint, Parameter, Success

_PLACEHOLDER = re.compile(r"\{(\w+)(?::\w+)?\}")
_PATH_PARAMETERS = {
    "name": Parameter(
        "name",
        SegmentName,
        "The segment's name, percent-encoded. It may have slashes: the last component of the path is always "
        "the verb. A # is written as %23.",
        "path",
        required=True,
    ),
    "container": Parameter(
        "container",
        Annotated[int, Meta(ge=0, le=999_999_999)],
        "The container's number.",
        "path",
        required=True,
    ),
    "host": Parameter(
        "host", Annotated[str, described("^host-[0-9]{1,9}$")], "The host's id.", "path", required=True
    ),
}
_REQUEST_ID = Parameter(
    REQUEST_ID,
    str,
    "An id for logs, of up to 128 plain characters; the answer repeats it. Generated if absent.",
    "header",
)
Schema = dict[str, Any]


def openapi_document(endpoints: Sequence[Endpoint], version: str, title: str, summary: str) -> dict[str, Any]:
    """One path for each endpoint, with every answer that it can give."""
    documented = [endpoint for endpoint in endpoints if endpoint.is_documented]
    # All at once, so that types of one name share one component.
    types = [ProblemDocument, *(kind for endpoint in documented for kind in _types(endpoint))]
    found, components = msgspec.json.schema_components(types, ref_template="#/components/schemas/{name}")
    # Annotated types are not hashable; each is one object, though.
    schemas = {id(kind): schema for kind, schema in zip(types, found, strict=True)}

    def schema_of(kind: Any) -> Schema:
        return schemas[id(kind)]

    return {
        "openapi": "3.1.0",
        "info": {"title": title, "version": version, "summary": summary},
        "paths": {
            _PLACEHOLDER.sub(r"{\1}", endpoint.path): {
                endpoint.method.lower(): _operation(endpoint, schema_of)
            }
            for endpoint in documented
        },
        "components": {"schemas": components},
    }


def _parameters(endpoint: Endpoint) -> list[Parameter]:
    in_path = [_PATH_PARAMETERS[name] for name in _PLACEHOLDER.findall(endpoint.path)]
    return [*in_path, *endpoint.parameters, _REQUEST_ID]


def _types(endpoint: Endpoint) -> list[Any]:
    body = [] if endpoint.body is None else [endpoint.body.type]
    successes = [success.type for success in endpoint.successes if success.type is not None]
    return [*body, *successes, *(parameter.type for parameter in _parameters(endpoint))]


def _operation(endpoint: Endpoint, schema_of: Callable[[Any], Schema]) -> dict[str, Any]:
    operation: dict[str, Any] = {
        "operationId": endpoint.operation,
        "summary": endpoint.help,
        "parameters": [
            {
                "name": parameter.name,
                "in": parameter.location,
                "required": parameter.required,
                "description": parameter.help,
                "schema": schema_of(parameter.type),
            }
            for parameter in _parameters(endpoint)
        ],
        "responses": _responses(endpoint, schema_of),
    }
    if endpoint.body is not None:
        content = {endpoint.body.content_type: {"schema": schema_of(endpoint.body.type)}}
        operation["requestBody"] = {"required": endpoint.body.required, "content": content}
    return operation


def _responses(endpoint: Endpoint, schema_of: Callable[[Any], Schema]) -> dict[str, Any]:
    problem = {PROBLEM_TYPE: {"schema": schema_of(ProblemDocument)}}
    responses = {str(success.status): _success(success, schema_of) for success in endpoint.successes}
    for status, rows in sorted(_by_status((*COMMON_ERRORS, *endpoint.errors)).items()):
        codes = {row.kind.code for row in rows} | ({"internal"} if status == 500 else set())
        # For /ready 503 is a regular answer, and an error too.
        response = responses.setdefault(str(status), {"description": f"Refused: {', '.join(sorted(codes))}."})
        response["content"] = {**response.get("content", {}), **problem}

    # Every handler may have a bug.
    responses.setdefault("500", {"description": "Refused: internal.", "content": problem})
    return responses


def _success(success: Success, schema_of: Callable[[Any], Schema]) -> dict[str, Any]:
    response: dict[str, Any] = {"description": success.help}
    if success.content_type is not None:
        response["content"] = {success.content_type: {"schema": schema_of(success.type)}}
    if success.headers:
        response["headers"] = {
            name: {"description": help, "schema": {"type": "string"}}
            for name, help in success.headers.items()
        }
    return response


def _by_status(kinds: Iterable[type[TierlogError]]) -> dict[int, list[Row]]:
    found: dict[int, list[Row]] = {}
    for kind in kinds:
        # Without ``__init__``, whose arguments differ: only the class counts.
        row = row_of(kind.__new__(kind))
        assert row is not None
        found.setdefault(row.status, []).append(row)
    return found
