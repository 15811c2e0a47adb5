"""Arbitrary and damaged bytes give a value or the one clear error: never a hang, a foreign exception, or
another value."""

from __future__ import annotations

import time
import tracemalloc
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fuzz.mutations import arbitrary, mutated, systematic
from fuzz.target import Target, examine
from fuzz.targets import TARGETS

_EXAMPLES = settings().max_examples
_EXAMPLES_SHORT = 100
EXAMPLES = 8 if _EXAMPLES <= _EXAMPLES_SHORT else _EXAMPLES
SECONDS_MAX = 10.0
"""CPU time of one decode of less than 10 KiB; far above what any takes, even if a hypervisor's pauses count,
and far below a hang."""
MEMORY_SLACK = 4 << 20

each_target = pytest.mark.parametrize("target", TARGETS.values(), ids=TARGETS.keys())
few = settings(
    max_examples=EXAMPLES, suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much]
)


@contextmanager
def bounded(target: Target, data: bytes) -> Iterator[None]:
    """No decode takes long, or more memory than its input's size warrants: a length field is not believed
    before its bytes are there."""
    begin = time.thread_time()
    tracemalloc.start()
    try:
        yield
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak <= MEMORY_SLACK + target.bytes_per_byte * len(data), (
        f"{target.name}: {peak} bytes for {data[:80].hex()}"
    )
    assert time.thread_time() - begin < SECONDS_MAX, f"{target.name}: too slow for {data[:80].hex()}"


@each_target
def test_every_example_is_accepted_and_written_again(target: Target) -> None:
    for example in target.examples:
        with bounded(target, example):
            assert examine(target, example) is not None


@each_target
def test_every_cut_and_every_flipped_bit_is_covered(target: Target, pytestconfig: pytest.Config) -> None:
    for example in target.examples:
        for data in systematic(example, everything=pytestconfig.getoption("--long")):
            examine(target, data)


@each_target
def test_past_findings_are_covered(target: Target) -> None:
    for data in target.hostile:
        with bounded(target, data):
            examine(target, data)


@each_target
@few
@given(data=st.data())
def test_any_bytes_give_a_value_or_the_clear_error(target: Target, data: st.DataObject) -> None:
    given_bytes = data.draw(arbitrary)
    with bounded(target, given_bytes):
        examine(target, given_bytes)


@each_target
@few
@given(data=st.data())
def test_damaged_bytes_give_a_value_or_the_clear_error(target: Target, data: st.DataObject) -> None:
    given_bytes = data.draw(mutated(target.examples))
    with bounded(target, given_bytes):
        examine(target, given_bytes)


@pytest.mark.parametrize(
    "target", [each for each in TARGETS.values() if each.values is not None], ids=lambda each: each.name
)
@few
@given(data=st.data())
def test_values_come_back_as_they_were(target: Target, data: st.DataObject) -> None:
    assert target.values is not None
    assert target.encode is not None
    value = data.draw(target.values)

    assert target.decode(target.encode(value)) == value
