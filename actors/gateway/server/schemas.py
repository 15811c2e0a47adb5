"""JSON Schemas of the bodies and parameters, for the OpenAPI document.

Owns: the schemas. Does not own: the bodies themselves (``wire/documents.py``); a test holds both together.
"""

from __future__ import annotations

from typing import Any

from ....storage_backends.base.arguments import OFFSET_MAX
from ....storage_backends.base.names import NAME_BYTES_MAX, SYSTEM_SCOPE
from ....storage_backends.base.segments import (
    ATTRIBUTE_MAX,
    ATTRIBUTE_MIN,
    ATTRIBUTE_NAME_BYTES_MAX,
    AttributeUpdateKind,
)
from ....storage_backends.base.transactions import (
    LEASE_MAX,
    LEASE_MIN,
    PART_NAME_MAX,
    PARTS_MAX,
    TRANSACTION_ID_MAX,
    WRITER_ATTRIBUTE,
    TransactionState,
)
from ..wire.errors import PROBLEM_TYPE, RetryHint
from ..wire.headers import NUMBER_MAX, WRITER_ID_BYTES_MAX

Schema = dict[str, Any]

_PART = r"[\w.\-#=@+~$:]+"
"""Of a name; letters and digits of every script are word characters here, as in ``base/names.py``."""

TEXT: Schema = {"type": "string"}
RAW: Schema = {"type": "string", "format": "binary"}
NUMBER: Schema = {"type": "integer", "minimum": 0, "maximum": NUMBER_MAX}
OFFSET: Schema = {"type": "integer", "minimum": 0, "maximum": OFFSET_MAX}
EVENT_NUMBER = NUMBER
PREVIOUS: Schema = {"type": "integer", "minimum": -1, "maximum": NUMBER_MAX}
WRITER: Schema = {
    "type": "string",
    "pattern": f"^([A-Za-z0-9._~-]|%[0-9A-Fa-f]{{2}}){{1,{WRITER_ID_BYTES_MAX}}}$",
}
WRITER_IN_QUERY: Schema = {"type": "string", "pattern": f"^[!-~]{{1,{WRITER_ID_BYTES_MAX}}}$"}
"""Without the ``%XX``, which are the query's own way to write bytes."""
NAME: Schema = {
    "type": "string",
    "maxLength": NAME_BYTES_MAX,
    "pattern": rf"^(?!{SYSTEM_SCOPE[:-1]}(/|$))(?!\.{{1,2}}(/|$)){_PART}(/(?!\.{{1,2}}(/|$)){_PART})*$",
}
RANGE: Schema = {"type": "string", "pattern": r"^bytes=([0-9]{1,18}-([0-9]{1,18})?|-[0-9]{1,18})$"}
WAIT: Schema = {"type": "string", "pattern": r"^([0-5]?[0-9](\.[0-9]{1,3})?|60(\.0{1,3})?)$"}
"""Seconds, from 0 to 60. A pattern says what a number with ``multipleOf`` cannot: which of its spellings are
read (rule H4)."""
TRANSACTION_ID: Schema = {"type": "string", "pattern": f"^[A-Za-z0-9_.:-]{{1,{TRANSACTION_ID_MAX}}}$"}
_TOKEN_WRITER: Schema = {
    "type": "string",
    "pattern": f"^[!-~]{{1,{ATTRIBUTE_NAME_BYTES_MAX - len(WRITER_ATTRIBUTE)}}}$",
}
"""Any printable text is taken; this is the part of it that a length in characters describes."""
_SECONDS: Schema = {"type": "number", "minimum": 0}
_BOOLEAN: Schema = {"type": "boolean"}
_SIGNED: Schema = {"type": "integer", "minimum": ATTRIBUTE_MIN, "maximum": ATTRIBUTE_MAX}
_VALUES: Schema = {"type": "object", "additionalProperties": _SIGNED}


def ref(name: str) -> Schema:
    return {"$ref": f"#/components/schemas/{name}"}


def _object(
    required: dict[str, Schema], optional: dict[str, Schema] | None = None, *, strict: bool = False
) -> Schema:
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
    "Create": _object(
        {}, {"rolling_size": _or_null({"type": "integer", "minimum": 1, "maximum": 1 << 40})}, strict=True
    ),
    "Truncate": _object({"offset": OFFSET}, strict=True),
    "Merge": _object(
        {"sources": {**_list(NAME), "minItems": 1}},
        {"attribute_updates": _list(ref("AttributeUpdate"))},
        strict=True,
    ),
    "Attributes": _object({"updates": {**_list(ref("AttributeUpdate")), "minItems": 1}}, strict=True),
    "AttributeUpdate": _object(
        {"name": {"type": "string", "minLength": 1, "maxLength": 128}, "value": _SIGNED},
        {
            "kind": {"type": "string", "enum": [kind.value for kind in AttributeUpdateKind]},
            "expected": _or_null(_SIGNED),
        },
        strict=True,
    ),
    "ExpireWriters": _object({"writer_ids": {**_list(WRITER), "minItems": 1}}, strict=True),
    "Begin": _object(
        {"transaction_id": TRANSACTION_ID},
        {"token": ref("Token"), "lease": {"type": "number", "minimum": LEASE_MIN, "maximum": LEASE_MAX}},
        strict=True,
    ),
    "Stage": _object(
        {
            "transaction_id": TRANSACTION_ID,
            "part": {"type": "string", "pattern": f"^[A-Za-z0-9_-]{{1,{PART_NAME_MAX}}}$"},
        },
        strict=True,
    ),
    "Commit": _object(
        {"transaction_id": TRANSACTION_ID, "parts": {**_list(ref("Part")), "maxItems": PARTS_MAX}},
        {"token": ref("Token")},
        strict=True,
    ),
    "Part": _object({"name": NAME, "length": NUMBER}, strict=True),
    "Abort": _object(
        {"transaction_id": TRANSACTION_ID}, {"reason": {**TEXT, "maxLength": 1_000}}, strict=True
    ),
    "Token": _object(
        {"writer": _TOKEN_WRITER, "epoch": {"type": "integer", "minimum": 0, "maximum": ATTRIBUTE_MAX}},
        strict=True,
    ),
    # answers: later versions may add members
    "Empty": _object({}),
    "Offset": _object({"offset": _or_null(NUMBER)}),
    "MergeOffset": _object({"offset": NUMBER}),
    "Length": _object({"length": NUMBER}),
    "Values": _object({"attributes": _VALUES}),
    "Known": _object({"known": NUMBER}),
    "EventNumber": _object({"event_number": _or_null(NUMBER)}),
    "AppendStarts": _object({"append_starts": _list(NUMBER)}),
    "Names": _object({"segments": _list(NAME)}),
    "Transaction": _object(
        {
            "transaction_id": TRANSACTION_ID,
            "target": NAME,
            "state": {"type": "string", "enum": [state.value for state in TransactionState]},
            "token": _or_null(_object({"writer": TEXT, "epoch": NUMBER})),
            "lease": _SECONDS,
            "expires_in": _SECONDS,
            "reason": TEXT,
            "offset": _or_null(NUMBER),
            "length": NUMBER,
            "staged": _list(_object({"name": NAME, "length": NUMBER})),
        }
    ),
    "Transactions": _object({"transactions": _list(ref("Transaction"))}),
    "Staged": _object({"segment": NAME}),
    "Committed": _object({"applied": _BOOLEAN, "offset": _or_null(NUMBER), "length": NUMBER}),
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
            "containers": _list(
                _object({"container": NUMBER, "url": _or_null(TEXT), "epoch": _or_null(NUMBER)})
            ),
        }
    ),
    "Health": _object({"alive": _BOOLEAN, "storage": _object({"state": TEXT, "cause": TEXT})}),
    "Status": _object(
        {
            "ready": _BOOLEAN,
            "draining": _BOOLEAN,
            "containers": _list(_object({"container": NUMBER, "state": TEXT})),
        },
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
