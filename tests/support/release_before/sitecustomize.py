"""Makes every process that has this folder in PYTHONPATH one of the release before, as far as the supervisor
and its hosts can tell: it sends and understands of the control protocol what the golden lines have, and
nothing else. The interpreter imports this module when it starts, before anything of tierlog."""

from __future__ import annotations

import json
from pathlib import Path

import attrs

from tierlog.actors.supervisor.control import messages
from tierlog.actors.supervisor.control.messages import Hello, Message, ProtocolError

_LINES = Path(__file__).parents[2] / "golden" / "control_lines_v1.jsonl"
_BEFORE_HELLO = {"challenge": {"nonce"}, "proof": {"nonce", "mac"}, "proved": {"mac"}}
"""What a host that joins sends before a version is agreed upon: no release can change it."""
_FIELDS = {
    **_BEFORE_HELLO,
    **{line.pop("type"): set(line) for line in map(json.loads, _LINES.read_text().splitlines())},
}

_encode, _decode = messages.encode, messages.decode


def _as_before(line: bytes) -> bytes:
    """Without the fields that the release before has not. Raises ``ProtocolError`` for a type of its own."""
    document = json.loads(line)
    known = _FIELDS.get(document["type"])
    if known is None:
        raise ProtocolError(f"the release before knows no {document['type']}")
    return (
        json.dumps({name: document[name] for name in document if name in {"type", *known}}).encode() + b"\n"
    )


def _encode_as_before(message: Message) -> bytes:
    return _as_before(_encode(attrs.evolve(message, version=1) if isinstance(message, Hello) else message))


def _decode_as_before(line: bytes) -> Message:
    return _decode(_as_before(line))


def _agreed_version_as_before(hello: Hello) -> int:
    if hello.version != 1:
        raise ProtocolError(f"the host speaks version {hello.version}, the supervisor version 1")
    return 1


messages.OLDEST, messages.VERSION = 1, 1
messages.encode, messages.decode = _encode_as_before, _decode_as_before
messages.agreed_version = _agreed_version_as_before  # type: ignore[assignment]  # one range
