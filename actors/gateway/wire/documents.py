"""JSON bodies of requests and answers, as values and as documents (rule H8).

Owns: the shape of every JSON body but those of transactions (``transactions.py``), and how bodies are read.
Does not own: problems (``errors.py``) nor what the values mean.

Bodies of requests are read strictly: one object, exactly the members that the verb knows, of exactly their
types; else ``InvalidArgument`` that names the member, and nothing is done. Bodies of answers are read
leniently: members that a newer server added are passed over; one that is missing or of another type is a
``ValueError``, which the client turns into what it means for the verb (``errors.no_such_answer``).
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from typing import Any, NoReturn, TypeVar

import attrs

from ....storage_backends.base.errors import InvalidArgument, shown
from ....storage_backends.base.segments import AttributeUpdate, AttributeUpdateKind, SegmentInfo
from .headers import parse_writer, writer_text

T = TypeVar("T")
JSON_TYPE = "application/json"

_KINDS = {kind.value: kind for kind in AttributeUpdateKind}


# --- requests -----------------------------------------------------------------------------------


def create_document(rolling_size: int | None) -> bytes:
    return dump({} if rolling_size is None else {"rolling_size": rolling_size})


def parse_create(body: bytes) -> int | None:
    """The rolling size, if the body names one. An empty body is fine: all its members are optional."""
    document = read_request(body or b"{}", optional=("rolling_size",))
    return request_member(document, "rolling_size", int) if document.get("rolling_size") is not None else None


def truncate_document(offset: int) -> bytes:
    return dump({"offset": offset})


def parse_truncate(body: bytes) -> int:
    return request_member(read_request(body, ("offset",)), "offset", int)


def merge_document(sources: Sequence[str], updates: Sequence[AttributeUpdate]) -> bytes:
    document: dict[str, Any] = {"sources": list(sources)}
    if updates:
        document["attribute_updates"] = [_update_document(update) for update in updates]
    return dump(document)


def parse_merge(body: bytes) -> tuple[list[str], list[AttributeUpdate]]:
    document = read_request(body, ("sources",), ("attribute_updates",))
    return request_items(document, "sources", str), _updates(document, "attribute_updates")


def attributes_document(updates: Sequence[AttributeUpdate]) -> bytes:
    return dump({"updates": [_update_document(update) for update in updates]})


def parse_attributes(body: bytes) -> list[AttributeUpdate]:
    return _updates(read_request(body, ("updates",)), "updates")


def expire_writers_document(writers: Sequence[bytes]) -> bytes:
    return dump({"writer_ids": [writer_text(writer) for writer in writers]})


def parse_expire_writers(body: bytes) -> list[bytes]:
    texts = request_items(read_request(body, ("writer_ids",)), "writer_ids", str)
    return [parse_writer("a writer id", text) for text in texts]


def parse_nothing(body: bytes) -> None:
    """The body of a verb that takes none: empty, or an empty object."""
    read_request(body or b"{}")


# --- answers ------------------------------------------------------------------------------------


def info_document(info: SegmentInfo) -> dict[str, Any]:
    return {**attrs.asdict(info, recurse=False), "attributes": dict(info.attributes)}


def parse_info(body: bytes) -> SegmentInfo:
    document = load_answer(body)
    attributes = answer_member(document, "attributes", dict)
    if not all(type(value) is int for value in attributes.values()):
        raise ValueError("attributes are integers")

    types: dict[str, type] = {"name": str, "sealed": bool}
    names = [field.name for field in attrs.fields(SegmentInfo) if field.name != "attributes"]
    return SegmentInfo(
        **{name: answer_member(document, name, types.get(name, int)) for name in names}, attributes=attributes
    )


@attrs.frozen
class ContainerAssignment:
    """Where one container is served."""

    container: int
    url: str | None
    """The base URL of its host; None while nobody serves it, or nobody knows."""
    epoch: int | None
    """The epoch of its owner; None if it is not known. Of two maps the one with the larger epoch is right
    about this container."""


@attrs.frozen
class ContainerMap:
    """Which host serves which container: all of them, in order."""

    version: int
    """Grows with each change that its server makes; not comparable between servers."""
    containers: tuple[ContainerAssignment, ...]


def map_document(map: ContainerMap) -> dict[str, Any]:
    return attrs.asdict(map)


def parse_map(body: bytes) -> ContainerMap:
    document = load_answer(body)
    places = tuple(_place(item) for item in answer_member(document, "containers", list))
    if not places or [place.container for place in places] != list(range(len(places))):
        raise ValueError("the map lists every container once, in order")

    return ContainerMap(answer_member(document, "version", int), places)


def _place(item: object) -> ContainerAssignment:
    if not isinstance(item, dict):
        raise ValueError("a container's place is an object")  # noqa: TRY004 - a body of the wrong form, whichever member it is

    url, epoch = item.get("url"), item.get("epoch")
    if not (url is None or type(url) is str) or not (epoch is None or type(epoch) is int):
        raise ValueError("url is text and epoch an integer")

    return ContainerAssignment(answer_member(item, "container", int), url, epoch)


@attrs.frozen
class ContainerStatus:
    container: int
    state: str
    """``active``, ``starting``, ``recovering``, or how it ended."""


@attrs.frozen
class HostStatus:
    """What ``/ready`` says: whether everything that this process serves answers."""

    ready: bool
    draining: bool
    """It is about to stop: send nothing new."""
    containers: tuple[ContainerStatus, ...]


def status_document(status: HostStatus) -> dict[str, Any]:
    return attrs.asdict(status)


def parse_status(body: bytes) -> HostStatus:
    document = load_answer(body)
    items = [item if isinstance(item, dict) else {} for item in answer_member(document, "containers", list)]
    containers = tuple(
        ContainerStatus(answer_member(item, "container", int), answer_member(item, "state", str))
        for item in items
    )
    return HostStatus(
        answer_member(document, "ready", bool), answer_member(document, "draining", bool), containers
    )


def parse_offset(body: bytes) -> int | None:
    """Of an append: the offset, or None for an older duplicate."""
    return answer_optional(load_answer(body), "offset", int)


def parse_event_number(body: bytes) -> int | None:
    return answer_optional(load_answer(body), "event_number", int)


def parse_append_starts(body: bytes) -> list[int]:
    starts = answer_member(load_answer(body), "append_starts", list)
    if not all(type(start) is int for start in starts):
        raise ValueError("append starts are integers")

    return starts


def parse_length(body: bytes) -> int:
    return answer_member(load_answer(body), "length", int)


def parse_merged(body: bytes) -> int:
    return answer_member(load_answer(body), "offset", int)


def parse_known(body: bytes) -> int:
    return answer_member(load_answer(body), "known", int)


def parse_values(body: bytes) -> dict[str, int]:
    values = answer_member(load_answer(body), "attributes", dict)
    if not all(type(value) is int for value in values.values()):
        raise ValueError("attributes are integers")

    return values


def parse_names(body: bytes) -> list[str]:
    names = answer_member(load_answer(body), "segments", list)
    if not all(type(name) is str for name in names):
        raise ValueError("names are text")

    return names


def dump(document: object) -> bytes:
    return json.dumps(document, separators=(",", ":")).encode()


def load_answer(body: bytes) -> dict[str, Any]:
    """An answer's document; ``ValueError`` unless it is one object."""
    try:
        document = json.loads(body)
    except RecursionError as error:
        raise ValueError("nested too deeply") from error

    if not isinstance(document, dict):
        raise ValueError("an answer is a JSON object")  # noqa: TRY004 - one kind of error for every answer that makes no sense

    return document


def answer_member(document: Mapping[str, Any], name: str, kind: type[T]) -> T:
    value = document.get(name)
    if type(value) is not kind:
        raise ValueError(f"{name} is {kind.__name__}, not {shown(value)}")

    return value


def answer_optional(document: Mapping[str, Any], name: str, kind: type[T]) -> T | None:
    """Like ``answer_member``, for a member that may be null, but not missing."""
    return None if name in document and document[name] is None else answer_member(document, name, kind)


# --- reading strictly ---------------------------------------------------------------------------


def read_request(
    body: bytes, required: Collection[str] = (), optional: Collection[str] = ()
) -> dict[str, Any]:
    try:
        document = json.loads(body, object_pairs_hook=_object, parse_constant=_refuse_constant)
    except (ValueError, RecursionError) as error:
        raise InvalidArgument(f"the body is not a JSON object: {error}") from error

    return check_members("the body", document, required, optional)


def check_members(
    what: str, document: object, required: Collection[str], optional: Collection[str] = ()
) -> dict[str, Any]:
    """``document``, if it is an object that has all of the required members and no unknown one."""
    if not isinstance(document, dict):
        raise InvalidArgument(f"{what} is a JSON object, not {shown(document)}")

    unknown = [name for name in document if name not in required and name not in optional]
    if unknown:
        raise InvalidArgument(
            f"{what} has a member {shown(unknown[0])}; known are: "
            f"{', '.join([*required, *optional]) or 'none'}"
        )

    missing = [name for name in required if name not in document]
    if missing:
        raise InvalidArgument(f"{what} needs {missing[0]!r}")

    return document


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    document = dict(pairs)
    if len(document) != len(pairs):
        raise ValueError("a member is given twice")

    return document


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no JSON number")


def request_member(document: Mapping[str, Any], name: str, kind: type[T]) -> T:
    value = document[name]
    if type(value) is not kind:
        raise InvalidArgument(f"{name} is {kind.__name__}, not {shown(value)}")

    return value


def request_items(document: Mapping[str, Any], name: str, kind: type[T]) -> list[T]:
    values: list[T] = request_member(document, name, list)
    for value in values:
        if type(value) is not kind:
            raise InvalidArgument(f"{name} holds {kind.__name__}, not {shown(value)}")

    return values


def _update_document(update: AttributeUpdate) -> dict[str, Any]:
    document: dict[str, Any] = {"name": update.name, "value": update.value, "kind": update.kind.value}
    if update.expected is not None:
        document["expected"] = update.expected
    return document


def _updates(document: Mapping[str, Any], name: str) -> list[AttributeUpdate]:
    return [_update(item) for item in request_items(document, name, dict)] if name in document else []


def _update(item: dict[str, Any]) -> AttributeUpdate:
    unknown = item.keys() - {"name", "value", "kind", "expected"}
    if unknown or "name" not in item or "value" not in item:
        raise InvalidArgument(
            f"an attribute update has name, value and perhaps kind and expected, not {shown(item)}"
        )

    kind = item.get("kind", AttributeUpdateKind.REPLACE.value)
    if not isinstance(kind, str) or kind not in _KINDS:
        raise InvalidArgument(f"kind is one of {', '.join(_KINDS)}, not {shown(kind)}")

    return AttributeUpdate(item["name"], item["value"], _KINDS[kind], item.get("expected"))
