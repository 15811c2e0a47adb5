"""A checker of linearizability to try out: short words for calls, answers and views of one family."""

from __future__ import annotations

from typing import Any

import pytest
from simulation.configuration import Pending
from simulation.linearize import Checker, Violation
from simulation.model_calls import Append, Create, Op, Read, UpdateAttributes
from simulation.view import SegmentView, View

from tierlog import AttributeUpdate, AttributeUpdateKind, SegmentInfo
from tierlog.storage_backends.base.errors import OutcomeUnknown, TierlogError

READ = Read("f", 0, 99)


class Bench:
    """A checker, and calls that return at once."""

    def __init__(self, limit: int = 4000) -> None:
        self.checker = Checker("f", limit=limit)
        self.owner = 0

    def begin(self, op: Op) -> Pending:
        return self.checker.begin(op, self.owner)

    def returns(self, op: Op, value: object = None) -> None:
        self.checker.answered(self.begin(op), value)

    def refused(self, op: Op, error: TierlogError) -> None:
        self.checker.refused(self.begin(op), error)

    def doubtful(self, op: Op) -> None:
        self.refused(op, OutcomeUnknown("in doubt"))

    def fence(self, view: View | None) -> None:
        self.owner += 1
        self.checker.fence(self.owner, view)


def bench_with_abc() -> Bench:
    """With a segment that holds ``abc``."""
    bench = Bench()
    bench.returns(Create("f"))
    bench.returns(append(b"abc"), 0)
    return bench


def append(*events: bytes, at: int | None = None, name: str = "f") -> Append:
    return Append(name, events, expected_offset=at)


def written(first: int, *events: bytes) -> Append:
    return Append("f", events, "w", first)


def adding(value: int) -> UpdateAttributes:
    return UpdateAttributes("f", (AttributeUpdate("a", value, AttributeUpdateKind.ACCUMULATE),))


def f(data: bytes = b"abc", **more: Any) -> dict[str, SegmentView]:
    return {"f": SegmentView(data=data, **more)}


def info(segment_id: int, length: int = 3, **more: Any) -> SegmentInfo:
    shown: dict[str, Any] = {
        "start_offset": 0,
        "sealed": False,
        "attributes": {},
        "flushed_length": 0,
        **more,
    }
    return SegmentInfo(name="f", segment_id=segment_id, length=length, container=0, **shown)


def impossible() -> Any:
    return pytest.raises(Violation)
