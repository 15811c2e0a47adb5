"""Values: attrs classes that compare and print by their fields, without methods of their own for that. attrs
compiles each such method when the class is made, which the first opening of a store waits for."""

from __future__ import annotations

from typing import Any

import attrs


class Value:
    """The base of classes that say ``@attrs.frozen(eq=False, repr=False)`` and are seldom compared: each
    comparison looks at the fields' declarations."""

    __slots__ = ()

    def _fields(self) -> tuple[attrs.Attribute[Any], ...]:
        cls: Any = type(self)
        found: tuple[attrs.Attribute[Any], ...] = attrs.fields(cls)
        return found

    def _compared(self) -> tuple[object, ...]:
        return tuple(getattr(self, field.name) for field in self._fields() if field.eq)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Value) or type(other) is not type(self):
            return NotImplemented
        return self._compared() == other._compared()

    def __hash__(self) -> int:
        return hash(self._compared())

    def __repr__(self) -> str:
        shown = (f"{field.name}={getattr(self, field.name)!r}" for field in self._fields() if field.repr)
        return f"{type(self).__qualname__}({', '.join(shown)})"
