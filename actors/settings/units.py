"""The kinds of settings: sizes in bytes, durations in seconds, counts, shares of one, text, switches and
choices.

A setting has a default, a range and a help text. It reads a value as a file has it ("64 MiB", "30 s",
"60 %"), checks it, and shows it: ``read`` accepts whatever ``show_toml`` writes and returns the same value.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import attrs

from ...storage_backends.base.errors import shown

if TYPE_CHECKING:
    from fractions import Fraction

KiB = 1 << 10
MiB = 1 << 20
GiB = 1 << 30

_BYTES = {"B": 1, "KiB": KiB, "MiB": MiB, "GiB": GiB, "TiB": 1 << 40}
_MILLISECONDS = {"ms": 1, "s": 1000, "min": 60_000, "h": 3_600_000}
_HUNDREDTHS = {"%": 1}
_BITS_MAX = 64
# Bounded: Python refuses to convert numbers of thousands of digits. Compiled at their first use, because
# defaults need none of them.
_WITH_UNIT = r"([0-9]{1,20}(?:\.[0-9]{1,40})?)\s*([A-Za-z%]{1,8})"
_PLAIN = r"[0-9]{1,20}(\.[0-9]{1,40})?"
_URL = r"https?://([^/?#:\[\]]+|\[[0-9a-fA-F:.]+\])(:[0-9]{1,5})?(/[^?#]*)?"
_TEXT = re.compile(r'[^\x00-\x20"\\\x7f]{0,255}')


class UnitError(ValueError):
    """A value is not of its setting's kind or is out of range; the message names what is allowed."""


@attrs.frozen(eq=False, repr=False)
class Setting(ABC):
    """One setting. A configuration's field carries it in its metadata, with this class as the key."""

    default: Any
    help: str

    @property
    @abstractmethod
    def range(self) -> str:
        """The allowed values and the default, for people."""

    @abstractmethod
    def check(self, value: object) -> None:
        """Raise ``UnitError`` unless ``value`` is of the right kind and in range."""

    def read(self, value: object) -> Any:
        """The value that a TOML value stands for. Raises ``UnitError`` if it is not allowed."""
        self.check(value)
        return value

    def read_text(self, text: str) -> Any:
        """The value that a text without quotes stands for, as an environment variable has it."""
        return self.read(text)

    def show(self, value: Any) -> str:
        return str(value)

    def show_toml(self, value: Any) -> str:
        """The value as a TOML file has it."""
        return f'"{value}"'


@attrs.frozen(eq=False, repr=False)
class Unit:
    """How numbers of one kind are written."""

    noun: str
    is_whole: bool
    parse: Callable[[str], Fraction | None]
    """The number that a string stands for, or None if it is not of this unit."""
    show: Callable[[float], str]


@attrs.frozen(eq=False, repr=False)
class NumberSetting(Setting):
    unit: Unit
    least: float
    most: float

    @property
    def range(self) -> str:
        return f"from {self.show(self.least)} to {self.show(self.most)}, default {self.show(self.default)}"

    def read(self, value: object) -> Any:
        if isinstance(value, str):
            number = self.unit.parse(value.strip())
            if number is None:
                has_unit = re.fullmatch(_WITH_UNIT, value.strip()) is not None
                raise self._refused(repr(value), "has an unknown unit" if has_unit else "is not allowed")

            # Fractions are exact: "0.1 KiB" would be 102.4 bytes.
            if self.unit.is_whole and number.denominator != 1:
                raise self._refused(f"{value!r}, which is not a whole number of bytes,")

            value = number.numerator if self.unit.is_whole else float(number)
        self.check(value)
        return value if self.unit.is_whole else float(value)  # type: ignore[arg-type]  # checked

    def read_text(self, text: str) -> Any:
        plain = text.strip()
        # The environment has no types: a plain number is one, and everything else is read as text.
        is_number = re.fullmatch(_PLAIN, plain) is not None
        return self.read((float if "." in plain else int)(plain) if is_number else text)

    def check(self, value: object) -> None:
        kinds = int if self.unit.is_whole else (int, float)
        # An int with more bits than any range allows may have no float and no text, so it is not compared.
        if (
            isinstance(value, bool)
            or not isinstance(value, kinds)
            or (isinstance(value, int) and value.bit_length() > _BITS_MAX)
        ):
            raise self._refused(shown(value))

        # Written so that NaN, which compares as false, is out of range.
        if not self.least <= value <= self.most:
            raise self._refused(self.show(value) if value == value else "nan", "is out of range")  # noqa: PLR0124

    def show(self, value: Any) -> str:
        return self.unit.show(value)

    def show_toml(self, value: Any) -> str:
        """Bare if it is a plain number, else in quotes with its unit."""
        text = self.show(value)
        return text if re.fullmatch(r"[0-9.]+", text) else f'"{text}"'

    def _refused(self, given: str, why: str = "is not allowed") -> UnitError:
        return UnitError(f"{given} {why}; write {self.unit.noun}, {self.range}")


@attrs.frozen(eq=False, repr=False)
class TextSetting(Setting):
    """A word such as an address: it stands on one line and needs no escapes in TOML."""

    @property
    def range(self) -> str:
        return f"default {self.show_toml(self.default)}"

    def check(self, value: object) -> None:
        if not isinstance(value, str) or not _TEXT.fullmatch(value):
            raise UnitError(
                f"{shown(value)} is not allowed; write text in quotes, without blanks, {self.range}"
            )


@attrs.frozen(eq=False, repr=False)
class UrlSetting(TextSetting):
    """The URL of a service. One with credentials is refused without being shown: settings are printed, and
    files of settings are readable."""

    def check(self, value: object) -> None:
        if isinstance(value, str) and "@" in value:
            raise UnitError(f"a URL must not contain a user name or a password; leave them out, {self.range}")
        super().check(value)
        if value and not re.fullmatch(_URL, str(value)):
            raise UnitError(
                f"{value!r} is not the URL of a service; write https://NAME or http://NAME:PORT, {self.range}"
            )


@attrs.frozen(eq=False, repr=False)
class SwitchSetting(Setting):
    @property
    def range(self) -> str:
        return f"true or false, default {self.show(self.default)}"

    def check(self, value: object) -> None:
        if not isinstance(value, bool):
            raise UnitError(f"{shown(value)} is not allowed; write {self.range}")

    def read_text(self, text: str) -> Any:
        return self.read({"true": True, "false": False}.get(text, text))

    def show(self, value: Any) -> str:
        return "true" if value else "false"

    show_toml = show


@attrs.frozen(eq=False, repr=False)
class ChoiceSetting(Setting):
    choices: tuple[str, ...]

    @property
    def range(self) -> str:
        return (
            f"one of {', '.join(map(self.show_toml, self.choices))}, default {self.show_toml(self.default)}"
        )

    def check(self, value: object) -> None:
        if value not in self.choices:
            raise UnitError(f"{shown(value)} is not allowed; write {self.range}")


def _parser(units: Mapping[str, int], in_one: int = 1) -> Callable[[str], Fraction | None]:
    """``in_one`` is how many of the least unit make up one of the parsed number."""

    def parse(text: str) -> Fraction | None:
        from fractions import Fraction  # the defaults are numbers: an opening does not wait for it

        match = re.fullmatch(_WITH_UNIT, text)
        if match is None or match[2] not in units:
            return None
        return Fraction(match[1]) * units[match[2]] / in_one

    return parse


def _show_bytes(value: float) -> str:
    """With the largest unit of which it is a whole number."""
    whole = [name for name, factor in _BYTES.items() if factor > 1 and value and value % factor == 0]
    return f"{int(value) // _BYTES[whole[-1]]} {whole[-1]}" if whole else str(int(value))


def _plain(value: float) -> str:
    """The shortest decimal text, without an exponent, that reads back as the same number."""
    from decimal import Decimal

    return format(Decimal(repr(value)), "f").removesuffix(".0")


_SIZE = Unit(
    'a size such as 1048576 or "1 MiB" (units B, KiB, MiB, GiB, TiB)',
    is_whole=True,
    parse=_parser(_BYTES),
    show=_show_bytes,
)
_DURATION = Unit(
    'a duration such as 0.5 or "500 ms" (units ms, s, min, h)',
    is_whole=False,
    parse=_parser(_MILLISECONDS, 1000),
    show=lambda value: f"{_plain(value)} s",
)
_COUNT = Unit("a whole number", is_whole=True, parse=_parser({}), show=str)
_SHARE = Unit('a share such as 0.6 or "60 %"', is_whole=False, parse=_parser(_HUNDREDTHS, 100), show=_plain)


def size(default: int, least: int, most: int, help: str) -> Setting:
    """A setting in bytes."""
    return NumberSetting(default, help, _SIZE, least, most)


def duration(default: float, least: float, most: float, help: str) -> Setting:
    """A setting in seconds."""
    return NumberSetting(default, help, _DURATION, least, most)


def count(default: int, least: int, most: int, help: str) -> Setting:
    """A setting that counts things."""
    return NumberSetting(default, help, _COUNT, least, most)


def share(default: float, least: float, most: float, help: str) -> Setting:
    """A setting that is a fraction of one."""
    return NumberSetting(default, help, _SHARE, least, most)
