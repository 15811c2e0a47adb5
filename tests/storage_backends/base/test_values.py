"""Values compare, hash and print as attrs classes do, without compiled methods of their own."""

from __future__ import annotations

import attrs
import pytest

from tierlog.storage_backends.base.values import Value


@attrs.frozen(eq=False, repr=False)
class Point(Value):
    x: int
    y: int = 0
    seen: int = attrs.field(default=0, eq=False)
    secret: str = attrs.field(default="", repr=False)


@attrs.frozen
class Plain:
    x: int
    y: int = 0
    seen: int = attrs.field(default=0, eq=False)
    secret: str = attrs.field(default="", repr=False)


@attrs.frozen(eq=False, repr=False)
class Special(Point):
    z: int = 0


@pytest.mark.parametrize("other", [(1, 2), (1, 3), (2, 2), (1, 2, 9), (1, 2, 0, "s")])
def test_values_are_equal_and_print_as_classes_of_attrs_do(other: tuple[int, int]) -> None:
    value, plain = Point(1, 2), Plain(1, 2)
    assert (value == Point(*other)) == (plain == Plain(*other))
    assert len({value, Point(*other)}) == len({plain, Plain(*other)})
    assert repr(Point(*other)) == repr(Plain(*other)).replace("Plain", "Point")


def test_values_of_different_classes_differ() -> None:
    assert Point(1, 2) != Special(1, 2)
    assert Special(1, 2, z=3) == Special(1, 2, z=3) != Special(1, 2, z=4)
    assert Point(1, 2) != (1, 2)


def test_values_are_copied_with_changes_and_hidden_fields_stay_hidden() -> None:
    value = attrs.evolve(Point(1, secret="key"), y=5)
    assert (value.y, value.secret) == (5, "key")
    assert "key" not in repr(value)
    with pytest.raises(attrs.exceptions.FrozenInstanceError):
        value.x = 2  # type: ignore[misc]
