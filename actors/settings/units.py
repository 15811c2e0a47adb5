"""The units of configuration values: whole counts, sizes in bytes, durations in seconds, shares of one, and
text.

Owns: how a value of each unit is read ("64 MiB", "30 s", "60 %"), checked against its range, and shown. Pure
functions of their arguments. Does not own: which settings exist (``config.py``).

Promise: whatever ``Setting.show_toml`` writes, ``Setting.read`` reads back as the same number.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from decimal import Decimal
from fractions import Fraction
from typing import Any

import attrs

from ...storage_backends.base.errors import shown

KiB = 1 << 10
MiB = 1 << 20
GiB = 1 << 30

_BYTES = {"B": 1, "KiB": KiB, "MiB": MiB, "GiB": GiB, "TiB": 1 << 40}
_SECONDS = {"ms": Fraction(1, 1000), "s": Fraction(1), "min": Fraction(60), "h": Fraction(3600)}
_SHARES = {"%": Fraction(1, 100)}
_BITS_MAX = 64
_WITH_UNIT = re.compile(r"([0-9]{1,20}(?:\.[0-9]{1,40})?)\s*([A-Za-z%]{1,8})")


class UnitError(ValueError):
    """A value is not of its setting's unit, or out of its range; the message says what is allowed."""


@attrs.frozen
class Unit:
    """How values of one kind look."""

    noun: str
    whole: bool
    parse: Callable[[str], Fraction | None]
    """The number that a string stands for, or None if it is not of this unit."""
    show: Callable[[float], str]


@attrs.frozen
class Setting:
    """What is known about one setting: it lives in its field's metadata, under this class as the key."""

    unit: Unit
    default: float
    least: float
    most: float
    help: str

    @property
    def range(self) -> str:
        show = self.unit.show
        return f"from {show(self.least)} to {show(self.most)}, default {show(self.default)}"

    def read(self, value: object) -> float:
        """The number that a TOML value stands for. ``UnitError`` if it is of another kind; the range is
        ``check``'s."""
        if not isinstance(value, str):
            self._check_kind(value)
            return value if self.unit.whole else float(value)  # type: ignore[return-value, arg-type]  # _check_kind saw to it

        number = self.unit.parse(value.strip())
        if number is None:
            raise self._refused(repr(value))

        return self._exact(number, value)

    def check(self, value: object) -> None:
        """Raise ``UnitError`` unless ``value`` is a number of the right kind and in range."""
        self._check_kind(value)
        # Written so that NaN, which compares as false, is out of range.
        if not self.least <= value <= self.most:  # type: ignore[operator]  # _check_kind saw to it
            raise self._refused(self.show(value) if value == value else "nan")  # type: ignore[arg-type]  # noqa: PLR0124

    def show(self, value: float) -> str:
        return self.unit.show(value)

    def show_toml(self, value: float) -> str:
        """The value as it is written in a file: bare where it is a plain number, else in quotes with its
        unit."""
        text = self.show(value)
        return text if re.fullmatch(r"[0-9.]+", text) else f'"{text}"'

    def _check_kind(self, value: object) -> None:
        kinds = int if self.unit.whole else (int, float)
        # An int beyond all ranges is refused here: it may have no float, and no text.
        if (
            isinstance(value, bool)
            or not isinstance(value, kinds)
            or (isinstance(value, int) and value.bit_length() > _BITS_MAX)
        ):
            raise self._refused(shown(value))

    def _exact(self, number: Fraction, text: str) -> float:
        if not self.unit.whole:
            return float(number)

        if number.denominator != 1:
            raise self._refused(f"{text!r}, which is not a whole number of bytes,")

        return number.numerator

    def _refused(self, given: str) -> UnitError:
        return UnitError(f"{given} is not allowed; write {self.unit.noun}, {self.range}")


@attrs.frozen
class TextSetting:
    """A setting that is a word, such as an address; it lives in its field's metadata as ``Setting`` does."""

    default: str
    help: str

    @property
    def range(self) -> str:
        return f"default {self.show_toml(self.default)}"

    def read(self, value: object) -> str:
        """The text itself. ``UnitError`` if it is none."""
        self.check(value)
        return str(value)

    def check(self, value: object) -> None:
        """Raise ``UnitError`` unless ``value`` is text that stands on one line and needs no escapes."""
        if not isinstance(value, str) or not re.fullmatch(r'[^\x00-\x20"\\\x7f]{0,255}', value):
            raise UnitError(
                f"{shown(value)} is not allowed; write text in quotes, without blanks, {self.range}"
            )

    def show(self, value: str) -> str:
        return value

    def show_toml(self, value: str) -> str:
        return f'"{value}"'


@attrs.frozen
class SwitchSetting:
    """A setting that is on or off; it lives in its field's metadata as ``Setting`` does."""

    default: bool
    help: str

    @property
    def range(self) -> str:
        return f"true or false, default {self.show_toml(self.default)}"

    def read(self, value: object) -> bool:
        self.check(value)
        return bool(value)

    def check(self, value: object) -> None:
        if not isinstance(value, bool):
            raise UnitError(f"{shown(value)} is not allowed; write {self.range}")

    def show(self, value: bool) -> str:
        return "true" if value else "false"

    def show_toml(self, value: bool) -> str:
        return self.show(value)


@attrs.frozen
class ChoiceSetting:
    """A setting that is one of a few words; it lives in its field's metadata as ``Setting`` does."""

    default: str
    choices: tuple[str, ...]
    help: str

    @property
    def range(self) -> str:
        return (
            f"one of {', '.join(map(self.show_toml, self.choices))}, default {self.show_toml(self.default)}"
        )

    def read(self, value: object) -> str:
        """The word. ``UnitError`` if it is none of the choices."""
        self.check(value)
        return str(value)

    def check(self, value: object) -> None:
        if value not in self.choices:
            raise UnitError(f"{shown(value)} is not allowed; write {self.range}")

    def show(self, value: str) -> str:
        return value

    def show_toml(self, value: str) -> str:
        return f'"{value}"'


def _parser(units: Mapping[str, int | Fraction]) -> Callable[[str], Fraction | None]:
    def parse(text: str) -> Fraction | None:
        match = _WITH_UNIT.fullmatch(text)
        if match is None or match[2] not in units:
            return None

        return Fraction(match[1]) * units[match[2]]

    return parse


def _show_bytes(value: float) -> str:
    name, factor = max(
        (unit for unit in _BYTES.items() if value and value % unit[1] == 0),
        key=lambda unit: unit[1],
        default=("B", 1),
    )
    return f"{int(value) // factor} {name}" if factor > 1 else str(int(value))


def _plain(value: float) -> str:
    """The shortest decimal text, without an exponent, that reads back as the same number."""
    return format(Decimal(repr(value)), "f").removesuffix(".0")


def _show_seconds(value: float) -> str:
    return f"{_plain(value)} s"


_SIZE = Unit(
    noun='a size such as 1048576 or "1 MiB" (units B, KiB, MiB, GiB, TiB)',
    whole=True,
    parse=_parser(_BYTES),
    show=_show_bytes,
)
_DURATION = Unit(
    noun='a duration such as 0.5 or "500 ms" (units ms, s, min, h)',
    whole=False,
    parse=_parser(_SECONDS),
    show=_show_seconds,
)
_COUNT = Unit(noun="a whole number", whole=True, parse=_parser({}), show=str)
_SHARE = Unit(noun='a share such as 0.6 or "60 %"', whole=False, parse=_parser(_SHARES), show=_plain)


def size(default: int, least: int, most: int, help: str) -> Setting:
    """A setting in bytes."""
    return Setting(_SIZE, default, least, most, help)


def duration(default: float, least: float, most: float, help: str) -> Setting:
    """A setting in seconds."""
    return Setting(_DURATION, default, least, most, help)


def count(default: int, least: int, most: int, help: str) -> Setting:
    """A setting that counts things."""
    return Setting(_COUNT, default, least, most, help)


def share(default: float, least: float, most: float, help: str) -> Setting:
    """A setting that is a fraction of one."""
    return Setting(_SHARE, default, least, most, help)


def text(default: str, help: str) -> TextSetting:
    """A setting that is a word."""
    return TextSetting(default, help)


def switch(default: bool, help: str) -> SwitchSetting:
    """A setting that is on or off."""
    return SwitchSetting(default, help)


def choice(default: str, choices: tuple[str, ...], help: str) -> ChoiceSetting:
    """A setting that is one of a few words."""
    return ChoiceSetting(default, choices, help)


def setting_of(field: attrs.Attribute[Any]) -> Any:
    """The description that a configuration field carries: one of the ``...Setting`` classes above."""
    return field.metadata[Setting]
