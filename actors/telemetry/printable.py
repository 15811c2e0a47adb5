"""Text that others choose, such as reasons and file names, made safe for a terminal."""

from __future__ import annotations

import re

_HIDDEN = "[\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]"
"""Control characters, those that change the direction of text, and what has no encoding."""


def printable(text: str) -> str:
    """``text`` with control characters escaped as in Python's literals."""
    return re.sub(_HIDDEN, lambda found: found[0].encode("unicode_escape").decode(), text)


def printable_json(text: str) -> str:
    """The same for the text of a JSON document, which stays the same document; its line breaks stay."""
    return re.sub(_HIDDEN, lambda found: found[0] if found[0] == "\n" else f"\\u{ord(found[0]):04x}", text)
