"""What a decoder is to its fuzzers: a name, valid bytes, and what may come out.

The hypothesis tests and the coverage-guided runs share ``examine``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any

import attrs
from hypothesis import strategies as st

from tierlog.storage_backends.base.codec import DecodeError, NewerFormat
from tierlog.storage_backends.base.errors import DataCorruption

Encode = Callable[[Any], bytes]


@attrs.frozen(slots=False)
class Target:
    name: str
    decode: Callable[[bytes], Any]
    """None is a refusal too, if the decoder's contract allows it."""
    examples: Sequence[bytes]
    """Valid bytes: what mutations start from."""
    errors: tuple[type[Exception], ...] = (DecodeError, NewerFormat)
    """Exactly these classes, without their subclasses: anything else is foreign."""
    encode: Encode | None = None
    canonical: bool = True
    """What decodes was written by ``encode`` in just these bytes; else it encodes to something that decodes
    as an equal value."""
    values: st.SearchStrategy[Any] | None = None
    """Values that must survive ``encode`` and ``decode``."""
    checksummed: bool = False
    """Mutated bytes never decode as another value than an example's."""
    genuine: Callable[[Any], bool] | None = None
    """For checksummed bytes of several records: whether a value is a part of the example's that its contract
    lets through."""
    hostile: Sequence[bytes] = ()
    """Bytes that caused failures, or could: deep nests, huge numbers, found failures."""
    bytes_per_byte: int = 512
    """How much memory a decode may use for each byte of its input."""

    @cached_property
    def genuine_values(self) -> list[Any]:
        return [self.decode(example) for example in self.examples]


def examine(target: Target, data: bytes, *, forged: bool = False) -> Any:
    """Decode ``data``; the value, or None for a refusal. ``AssertionError``, or the foreign error itself, if
    the contract is broken.

    ``forged``: the bytes may carry a right checksum on purpose, so that they need not be an example's.
    """
    try:
        value = target.decode(data)
    except Exception as error:
        if type(error) not in target.errors:
            raise
        _check_clear(target, error)
        return None

    if value is not None:
        if not forged:
            _check_true(target, value)
        _check_written_again(target, value, data)
    return value


def _check_clear(target: Target, refusal: Exception) -> None:
    assert str(refusal), f"{target.name}: an error without a word"
    assert not isinstance(refusal, DataCorruption) or refusal.file, (
        f"{target.name}: {refusal!r} does not say where"
    )


def _check_true(target: Target, value: object) -> None:
    if target.genuine is not None:
        assert target.genuine(value), f"{target.name}: damaged bytes were taken for {value!r}"
    elif target.checksummed:
        assert value in target.genuine_values, f"{target.name}: damaged bytes were taken for {value!r}"


def _check_written_again(target: Target, value: object, data: bytes) -> None:
    if target.encode is None:
        return
    again = target.encode(value)
    if target.canonical:
        assert again == data, (
            f"{target.name}: {value!r} is written as {again.hex()}, and was read from {data.hex()}"
        )
    else:
        assert target.decode(again) == value, (
            f"{target.name}: {value!r} is written as {again.hex()}, which is read as something else"
        )
