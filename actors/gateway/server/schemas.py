"""JSON Schemas of the bodies and parameters, for the OpenAPI document.

Owns: the schemas. Does not own: the bodies themselves (``wire/documents.py``); a test holds both together.
"""

from __future__ import annotations

from typing import Any

from ....storage_backends.base.segments import ATTRIBUTE_MAX, ATTRIBUTE_MIN, AttributeUpdateKind
from ..wire.errors import PROBLEM_TYPE, RetryHint
from ..wire.headers import NUMBER_MAX

Schema = dict[str, Any]

TEXT: Schema = {"type": "string"}
RAW: Schema = {"type": "string", "format": "binary"}
NUMBER: Schema = {"type": "integer", "minimum": 0, "maximum": NUMBER_MAX}
EVENT_NUMBER = NUMBER
PREVIOUS: Schema = {"type": "integer", "minimum": -1, "maximum": NUMBER_MAX}
WRITER: Schema = {"type": "string", "pattern": "^([A-Za-z0-9._~-]|%[0-9A-Fa-f]{2})+$", "minLength": 1, "maxLength": 192}
NAME: Schema = {"type": "string", "minLength": 1, "maxLength": 255}
_BOOLEAN: Schema = {"type": "boolean"}
_SIGNED: Schema = {"type": "integer", "minimum": ATTRIBUTE_MIN, "maximum": ATTRIBUTE_MAX}
_VALUES: Schema = {"type": "object", "additionalProperties": _SIGNED}


def ref(name: str) -> Schema:
    return {"$ref": f"#/components/schemas/{name}"}


def _object(required: dict[str, Schema], optional: dict[str, Schema] | None = None, *, strict: bool = False) -> Schema:
    schema: Schema = {"type": "object", "properties": {**required, **(optional or {})}}
    if required:
        schema["required"] = list(required)
    if strict:
        schema["additionalProperties"] = False
    return schema


def _list(items: Schema) -> Schema:
    return {"type": "array", "items": items}


def _or_null(schema: Schema) -> Schema:
    return {"anyOf": [schema, {"type": "null"}]}


SCHEMAS: dict[str, Schema] = {
    # requests: nothing but these members is taken
    "Nothing": _object({}, strict=True),
    "Create": _object({}, {"rolling_size": _or_null({"type": "integer", "minimum": 1, "maximum": 1 << 40})}, strict=True),
    "Truncate": _object({"offset": NUMBER}, strict=True),
    "Merge": _object({"sources": {**_list(NAME), "minItems": 1}}, {"attribute_updates": _list(ref("AttributeUpdate"))}, strict=True),
    "Attributes": _object({"updates": {**_list(ref("AttributeUpdate")), "minItems": 1}}, strict=True),
    "AttributeUpdate": _object(
        {"name": {"type": "string", "minLength": 1, "maxLength": 128}, "value": _SIGNED},
        {"kind": {"type": "string", "enum": [kind.value for kind in AttributeUpdateKind]}, "expected": _or_null(_SIGNED)},
        strict=True,
    ),
    "ExpireWriters": _object({"writer_ids": {**_list(WRITER), "minItems": 1}}, strict=True),
    # answers: later versions may add members
    "Empty": _object({}),
    "Offset": _object({"offset": _or_null(NUMBER)}),
    "MergeOffset": _object({"offset": NUMBER}),
    "Length": _object({"length": NUMBER}),
    "Values": _object({"attributes": _VALUES}),
    "Known": _object({"known": NUMBER}),
    "EventNumber": _object({"event_number": _or_null(NUMBER)}),
    "Names": _object({"segments": _list(NAME)}),
    "Results": _object({"results": _list({"anyOf": [NUMBER, {"type": "null"}, ref("Problem")]})}),
    "Info": _object(
        {
            "name": NAME,
            "segment_id": {"type": "integer", "minimum": 0},
            "length": NUMBER,
            "start_offset": NUMBER,
            "sealed": _BOOLEAN,
            "attributes": _VALUES,
            "flushed_length": NUMBER,
            "container": NUMBER,
        }
    ),
    "Map": _object(
        {
            "version": NUMBER,
            "containers": _list(_object({"container": NUMBER, "url": _or_null(TEXT), "epoch": _or_null(NUMBER)})),
        }
    ),
    "Health": _object({"alive": _BOOLEAN}),
    "Status": _object(
        {"ready": _BOOLEAN, "draining": _BOOLEAN, "containers": _list(_object({"container": NUMBER, "state": TEXT}))},
    ),
    "Problem": _object(
        {
            "type": TEXT,
            "title": TEXT,
            "status": {"type": "integer", "minimum": 400, "maximum": 599},
            "detail": TEXT,
            "code": TEXT,
            "retry": {"type": "string", "enum": [hint.value for hint in RetryHint]},
        },
        {"retry_after": {"type": "number", "minimum": 0}, "request_id": TEXT},
    ),
}

PROBLEM_CONTENT: Schema = {PROBLEM_TYPE: {"schema": ref("Problem")}}
