"""I/O programs with some of their calls changed, for planted bugs."""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import Any

from tierlog.storage_backends.base.files import IoCall, Program, T

_Program = Generator[IoCall, Any, Any]


def rerouted(program: Program[T], perform: Callable[[IoCall], _Program]) -> Program[T]:
    """The same I/O program, with each of its calls made by ``perform``."""
    answer: Any = None
    error: Exception | None = None
    try:
        while True:
            call = program.send(answer) if error is None else program.throw(error)
            answer = error = None
            try:
                answer = yield from perform(call)
            except Exception as failed:  # noqa: BLE001 - whatever it is, it is the program's
                error = failed
    except StopIteration as end:
        result: T = end.value
        return result


def without(program: _Program, *kinds: type[IoCall]) -> _Program:
    """The same I/O program without its calls of these kinds."""

    def perform(call: IoCall) -> _Program:
        if not isinstance(call, kinds):
            return (yield call)

    return rerouted(program, perform)


def trying_twice(program: _Program, kind: type[IoCall]) -> _Program:
    """The same I/O program, which makes a failed call of this kind once more."""

    def perform(call: IoCall) -> _Program:
        try:
            return (yield call)
        except OSError:
            if not isinstance(call, kind):
                raise
        return (yield call)

    return rerouted(program, perform)
