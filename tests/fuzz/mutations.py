"""Bytes for decoders: any at all, and valid ones after damage.

Hypothesis strategies, and systematic damage: every cut, every flipped bit.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from hypothesis import strategies as st

SIZE_MAX = 600
_SYSTEMATIC_MAX = 60
_NUMBERS = (
    0,
    1,
    0x7F,
    0x80,
    0xFF,
    0xFFFF,
    0x7FFF_FFFF,
    0xFFFF_FFFF,
    1 << 60,
    (1 << 63) - 1,
    1 << 63,
    (1 << 64) - 1,
)
_positions = st.integers(0, 1 << 16)

arbitrary = st.binary(max_size=SIZE_MAX)


@st.composite
def mutated(draw: st.DrawFn, examples: Sequence[bytes]) -> bytes:
    """An example after one to six changes."""
    data = draw(st.sampled_from(examples))
    for change in draw(st.lists(st.sampled_from(_CHANGES), min_size=1, max_size=6)):
        data = change(draw, data, examples)

    return data


def _flip(draw: st.DrawFn, data: bytes, examples: Sequence[bytes]) -> bytes:
    if not data:
        return data
    at = draw(_positions) % len(data)
    return data[:at] + bytes([data[at] ^ 1 << draw(st.integers(0, 7))]) + data[at + 1 :]


def _set_number(draw: st.DrawFn, data: bytes, examples: Sequence[bytes]) -> bytes:
    """An extreme number over whatever is there: lengths and counts are what loops and allocations believe."""
    width = draw(st.sampled_from((1, 2, 4, 8)))
    at = draw(_positions) % (len(data) + 1)
    number = draw(st.sampled_from(_NUMBERS)) & ((1 << 8 * width) - 1)
    return data[:at] + number.to_bytes(width, "big") + data[at + width :]


def _cut(draw: st.DrawFn, data: bytes, examples: Sequence[bytes]) -> bytes:
    start, end = sorted((draw(_positions) % (len(data) + 1), draw(_positions) % (len(data) + 1)))
    return data[:start] + data[end:]


def _insert(draw: st.DrawFn, data: bytes, examples: Sequence[bytes]) -> bytes:
    at = draw(_positions) % (len(data) + 1)
    return data[:at] + draw(st.binary(min_size=1, max_size=24)) + data[at:]


def _splice(draw: st.DrawFn, data: bytes, examples: Sequence[bytes]) -> bytes:
    other = draw(st.sampled_from(examples))
    return data[: draw(_positions) % (len(data) + 1)] + other[draw(_positions) % (len(other) + 1) :]


def _repeat(draw: st.DrawFn, data: bytes, examples: Sequence[bytes]) -> bytes:
    start, end = sorted((draw(_positions) % (len(data) + 1), draw(_positions) % (len(data) + 1)))
    return data[:end] + data[start:end] * draw(st.integers(1, 8)) + data[end:]


def _blank(draw: st.DrawFn, data: bytes, examples: Sequence[bytes]) -> bytes:
    start, end = sorted((draw(_positions) % (len(data) + 1), draw(_positions) % (len(data) + 1)))
    return data[:start] + bytes(end - start) + data[end:]


_CHANGES = (_flip, _set_number, _cut, _insert, _splice, _repeat, _blank)


def systematic(example: bytes, *, everything: bool) -> Iterator[bytes]:
    """The example cut at every byte and with every bit flipped; of long ones at some bytes only, unless
    ``everything`` is true."""
    step = 1 if everything else 1 + len(example) // _SYSTEMATIC_MAX
    for at in range(0, len(example), step):
        yield example[:at]
        for bit in range(8):
            yield example[:at] + bytes([example[at] ^ 1 << bit]) + example[at + 1 :]

    yield example + b"\0"
    yield example + example
