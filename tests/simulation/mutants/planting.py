"""Planting a bug: functions of the product are replaced with broken ones for a while.

A function is named by reference, so that type checkers and renames see it. Its *code* is replaced, so that
every reference to it is broken too: imported names, tables, bound methods.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from types import FunctionType
from typing import Any, Concatenate, ParamSpec, TypeVar

import attrs

P = ParamSpec("P")
T = TypeVar("T")


class Planter:
    """Replaces functions until its stack is closed."""

    def __init__(self, stack: ExitStack) -> None:
        self._stack = stack

    def __call__(self, function: Callable[P, T], broken: Callable[Concatenate[Callable[P, T], P], T]) -> None:
        """``broken`` is called instead of ``function``, with the original in front of the arguments."""
        if not isinstance(function, FunctionType) or function.__closure__:
            raise TypeError(f"{function!r} is not a plain function or method")

        code = function.__code__
        original = FunctionType(
            code, function.__globals__, function.__name__, function.__defaults__, function.__closure__
        )
        original.__kwdefaults__ = function.__kwdefaults__
        function.__code__ = _calling(partial(broken, original))
        self._stack.callback(setattr, function, "__code__", code)


def _calling(target: Callable[..., Any]) -> Any:
    """The code of a function that passes its arguments on to ``target``, one of the code's constants."""

    def forward(*arguments: Any, **named: Any) -> Any:
        function: Any = "target"
        return function(*arguments, **named)

    code = forward.__code__
    return code.replace(
        co_consts=tuple(target if constant == "target" else constant for constant in code.co_consts)
    )


@attrs.frozen
class Mutant:
    name: str
    rule: str
    """The rule of docs/protocols that it breaks."""
    story: str
    """What goes wrong for a user, in one sentence."""
    plant: Callable[[Planter], None]
    worlds_from: int = 0
    """The first seed of the worlds that can notice it."""

    @contextmanager
    def planted(self) -> Iterator[None]:
        """With the bug in this process's product."""
        with ExitStack() as stack:
            self.plant(Planter(stack))
            yield


CATALOGUE: dict[str, Mutant] = {}
"""All planted bugs, by name."""


def mutant(
    rule: str, *, worlds_from: int = 0
) -> Callable[[Callable[[Planter], None]], Callable[[Planter], None]]:
    """Put a function that plants a bug into the catalogue: its name and its docstring are the mutant's."""

    def add(plant: Callable[[Planter], None]) -> Callable[[Planter], None]:
        name = plant.__name__.replace("_", "-")
        if name in CATALOGUE:
            raise ValueError(f"two mutants are called {name}")

        CATALOGUE[name] = Mutant(name, rule, " ".join((plant.__doc__ or "").split()), plant, worlds_from)
        return plant

    return add
