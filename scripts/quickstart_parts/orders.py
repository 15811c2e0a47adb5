"""What the quickstart tells its writers to do, and what they answer: one JSON line each, on their standard
input and output.

Owns: the form of orders and answers, and a writer's loop. Does not own: what an order does
(``client_writer``, ``spark_driver``), nor the processes (``jobs``). A writer ends when its input ends, so
none outlives the quickstart.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterable, Iterator
from enum import StrEnum
from typing import Any

import attrs
import cattrs

from chaos_parts.spark_session import in_short
from quickstart_parts.shares import Part, Piece, Share
from tierlog.actors.kernel.exits import first_leaf

Answer = dict[str, Any]
ANSWER_BYTES_MAX = 16 << 20


class Do(StrEnum):
    WRITE = "write"
    READ = "read"


@attrs.frozen
class Assignment:
    """What is to be done with one segment."""

    name: str
    pieces: list[Piece]
    """To be appended, in order."""


@attrs.frozen
class Order:
    do: Do
    url: str
    port: int
    """The gate's; 0 where nobody passes one."""
    segments: list[Assignment]

    def line(self) -> bytes:
        return json.dumps(cattrs.unstructure(self)).encode() + b"\n"


def writing(shares: list[Share], part: Part, url: str, port: int) -> Order:
    return Order(Do.WRITE, url, port, [Assignment(share.name, share.pieces_of(part)) for share in shares])


def reading(shares: list[Share], url: str) -> Order:
    return Order(Do.READ, url, 0, [Assignment(share.name, []) for share in shares])


def carry_out(handle: Callable[[Order], Answer], expected: tuple[type[Exception], ...]) -> None:
    """A writer's life: do what each line of the standard input orders, and answer on the standard output."""
    say({"ready": True})
    for order in read_orders(sys.stdin):
        try:
            answer = handle(order)
        except* expected as errors:
            answer = {"failed": in_short(first_leaf(errors))}
        say(answer)


def read_orders(lines: Iterable[str]) -> Iterator[Order]:
    for line in lines:
        yield cattrs.structure(json.loads(line), Order)


def say(answer: Answer) -> None:
    print(json.dumps(answer), flush=True)
