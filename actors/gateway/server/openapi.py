"""The OpenAPI 3.1 document, made from the table of endpoints (rule H16). Pure.

Owns: the document's form. Does not own: the table (``endpoints.py``), the schemas (``schemas.py``), nor which
error has which status.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Any

from ....storage_backends.base.errors import TierlogError
from ..wire.errors import Row, row_of
from ..wire.headers import REQUEST_ID
from .endpoint import COMMON_ERRORS, EndpointOf, Parameter, Success
from .schemas import NAME, PROBLEM_CONTENT, SCHEMAS, TEXT, Schema

_PLACEHOLDER = re.compile(r"\{(\w+)(?::\w+)?\}")
_NAME_HELP = (
    "The segment's name, percent-encoded. It may have slashes: the last component of the path is "
    "always the verb. A # is written as %23."
)


_PLACES: dict[str, tuple[str, Schema]] = {
    "name": (_NAME_HELP, NAME),
    "container": ("The container's number.", {"type": "integer", "minimum": 0, "maximum": 999_999_999}),
    "host": ("The host's id.", {"type": "string", "pattern": "^host-[0-9]{1,9}$"}),
}
"""What stands in paths."""


def openapi_document(
    endpoints: Sequence[EndpointOf[Any]], version: str, title: str, summary: str
) -> dict[str, Any]:
    """One path for each endpoint, with every answer that it can give."""
    return {
        "openapi": "3.1.0",
        "info": {"title": title, "version": version, "summary": summary},
        "paths": {
            _PLACEHOLDER.sub(r"{\1}", e.path): {e.method.lower(): _operation(e)}
            for e in endpoints
            if e.described
        },
        "components": {"schemas": SCHEMAS},
    }


def _operation(endpoint: EndpointOf[Any]) -> dict[str, Any]:
    operation: dict[str, Any] = {
        "operationId": endpoint.operation,
        "summary": endpoint.help,
        "parameters": [
            *_path_parameters(endpoint.path),
            *map(_parameter, endpoint.parameters),
            _parameter(_REQUEST_ID),
        ],
        "responses": _responses(endpoint),
    }
    if endpoint.body is not None:
        content = {endpoint.body.content_type: {"schema": endpoint.body.schema}}
        operation["requestBody"] = {"required": endpoint.body.required, "content": content}
    return operation


_REQUEST_ID = Parameter(
    REQUEST_ID,
    "header",
    TEXT,
    "An id for logs, of up to 128 plain characters; the answer has it too. Made where it is left out.",
)


def _path_parameters(path: str) -> list[dict[str, Any]]:
    found = [(name, *_PLACES[name]) for name in _PLACEHOLDER.findall(path)]
    return [
        {"name": name, "in": "path", "required": True, "description": help, "schema": schema}
        for name, help, schema in found
    ]


def _parameter(parameter: Parameter) -> dict[str, Any]:
    return {
        "name": parameter.name,
        "in": parameter.place,
        "required": parameter.required,
        "description": parameter.help,
        "schema": parameter.schema,
    }


def _responses(endpoint: EndpointOf[Any]) -> dict[str, Any]:
    responses = {str(success.status): _success(success) for success in endpoint.successes}
    for status, rows in sorted(_by_status((*COMMON_ERRORS, *endpoint.errors)).items()):
        codes = ", ".join(
            sorted({row.kind.code for row in rows} | ({"internal"} if status == 500 else set()))
        )
        refusal: dict[str, Any] = {"description": f"Refused: {codes}.", "content": dict(PROBLEM_CONTENT)}
        if str(status) in responses:  # /ready says 503 in its own words, and may still fail
            responses[str(status)]["content"] = {
                **responses[str(status)].get("content", {}),
                **refusal["content"],
            }
        else:
            responses[str(status)] = refusal

    responses.setdefault("500", {"description": "Refused: internal.", "content": dict(PROBLEM_CONTENT)})
    return responses


def _success(success: Success) -> dict[str, Any]:
    response: dict[str, Any] = {"description": success.help}
    if success.content_type is not None:
        response["content"] = {success.content_type: {"schema": success.schema or {}}}
    if success.headers:
        response["headers"] = {
            name: {"description": help, "schema": TEXT} for name, help in success.headers.items()
        }
    return response


def _by_status(kinds: Iterable[type[TierlogError]]) -> dict[int, list[Row]]:
    found: dict[int, list[Row]] = {}
    for kind in kinds:
        row = row_of(kind.__new__(kind))
        assert row is not None
        found.setdefault(row.status, []).append(row)
    return found
