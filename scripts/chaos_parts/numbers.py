"""Numbers among a program's arguments."""

from __future__ import annotations

import argparse
from collections.abc import Callable


def count(least: int, most: int) -> Callable[[str], int]:
    def number(text: str) -> int:
        if not text.isdecimal() or not least <= int(text) <= most:
            raise argparse.ArgumentTypeError(f"a whole number from {least} to {most}, not {text!r}")
        return int(text)

    return number
