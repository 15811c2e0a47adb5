"""The OpenAPI document of the supervisor's own endpoints.

Owns: their description for programs. Does not own: the data endpoints, which each host describes at its own ``/openapi.json``.
"""

from __future__ import annotations

from typing import Any

_PROBLEM = {"application/problem+json": {"schema": {"$ref": "#/components/schemas/Problem"}}}
_OBJECT = {"application/json": {"schema": {"type": "object"}}}
_INDEX = {"name": "index", "in": "path", "required": True, "schema": {"type": "integer", "minimum": 0}, "description": "The container."}
_HOST = {"name": "host", "in": "path", "required": True, "schema": {"type": "string"}, "description": "The host's id, such as host-0."}
_AFTER = {"name": "after", "in": "query", "schema": {"type": "integer", "minimum": 0}, "description": "Wait until the version is another."}
_WAIT = {
    "name": "wait",
    "in": "query",
    "schema": {"type": "number", "minimum": 0, "maximum": 60},
    "description": "Seconds to wait at most, with up to three decimals.",
}
_MOVE_BODY = {
    "required": True,
    "content": {
        "application/json": {
            "schema": {
                "type": "object",
                "properties": {"host": {"type": "string"}},
                "required": ["host"],
                "additionalProperties": False,
            }
        }
    },
}


def openapi_document(version: str) -> dict[str, Any]:
    return {
        "openapi": "3.1.0",
        "info": {"title": "tierlog supervisor", "version": version, "description": "Hosts, containers and where they are."},
        "paths": {
            "/health": _get("Whether the supervisor lives.", {"200": _answer("It does.", _OBJECT)}),
            "/ready": _get("Whether every container is served.", {"200": _answer("Yes.", _OBJECT), "503": _answer("No.", _OBJECT)}),
            "/metrics": _get("Numbers in Prometheus' text format.", {"200": _answer("The numbers.", {"text/plain": {}})}),
            "/": _get("The status as a page.", {"200": _answer("The page.", {"text/html": {}})}),
            "/openapi.json": _get("This document.", {"200": _answer("The document.", _OBJECT)}),
            "/v1/status": _get("Hosts, containers, failovers.", {"200": _answer("The status.", _OBJECT)}),
            "/v1/containers": _get(
                "The container map; with `after` as a long poll.",
                {"200": _answer("The map.", _OBJECT), "400": _answer("A bad query.", _PROBLEM)},
                [_AFTER, _WAIT],
            ),
            "/v1/containers/{index}/move": _order("Serve a container by another host.", [_INDEX], _MOVE_BODY),
            "/v1/containers/{index}/open": _order("Open a container that was set aside.", [_INDEX]),
            "/v1/hosts/{host}/drain": _order("Move a host's containers away and start it again.", [_HOST]),
            "/v1/hosts/{host}/start": _order("Start a host that was given up.", [_HOST]),
            "/v1/roll": _order("Start every host again, one after the other."),
            "/v1/segments": _get(
                "The names of all hosts' segments; every path below leads (307) to the host that has the container.",
                {"200": _answer("The names, sorted.", _OBJECT), "503": _answer("A container has no host now.", _PROBLEM)},
            ),
            "/v1/flush": _post(
                "Flush every container.", {"200": _answer("Done.", _OBJECT), "503": _answer("A container has no host now.", _PROBLEM)}
            ),
            "/v1/batch": _post("Nobody's owner is here: batches go to hosts.", {"421": _answer("Look at the container map.", _PROBLEM)}),
        },
        "components": {"schemas": {"Problem": _problem()}},
    }


def _get(summary: str, answers: dict[str, Any], parameters: list[dict[str, Any]] | None = None) -> dict[str, Any]:
    return {"get": {"summary": summary, "parameters": parameters or [], "responses": answers}}


def _post(summary: str, answers: dict[str, Any]) -> dict[str, Any]:
    return {"post": {"summary": summary, "parameters": [], "responses": answers}}


def _order(summary: str, parameters: list[dict[str, Any]] | None = None, body: dict[str, Any] | None = None) -> dict[str, Any]:
    answers = {"202": _answer("The order was taken; the status tells how it goes.", _OBJECT), "400": _answer("It cannot be.", _PROBLEM)}
    operation: dict[str, Any] = {"summary": summary, "parameters": parameters or [], "responses": answers}
    return {"post": operation if body is None else {**operation, "requestBody": body}}


def _answer(description: str, content: dict[str, Any]) -> dict[str, Any]:
    return {"description": description, "content": content}


def _problem() -> dict[str, Any]:
    text = {"type": "string"}
    return {
        "type": "object",
        "properties": {"type": text, "title": text, "status": {"type": "integer"}, "detail": text, "code": text, "retry": text},
        "required": ["type", "title", "status", "detail", "code"],
    }
