"""A dict with its keys in order, and the view of one moment that a checkpoint takes while it changes."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import chain, islice

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tierlog.storage_backends.base.sorted_dict import RUN_MAX, SortedDict, SortedKeys, with_prefix

keys = st.text("ab", max_size=4)
changes = st.lists(st.tuples(keys, st.one_of(st.none(), st.integers())), max_size=60)


def change(table: SortedDict[str, int], model: dict[str, int], key: str, value: int | None) -> None:
    if value is not None:
        table[key] = model[key] = value
    elif key in model:
        del table[key], model[key]


@given(changes, keys)
def test_keys_with_a_prefix_come_in_order(steps: list[tuple[str, int | None]], prefix: str) -> None:
    table: SortedDict[str, int] = SortedDict()
    model: dict[str, int] = {}
    for key, value in steps:
        change(table, model, key, value)

    assert dict(table) == model
    assert list(with_prefix(table.runs_from(prefix), prefix)) == sorted(
        key for key in model if key.startswith(prefix)
    )


@given(changes, st.lists(st.tuples(keys, st.one_of(st.none(), st.integers()), st.booleans()), max_size=60))
def test_a_view_is_the_table_at_its_begin(
    before: list[tuple[str, int | None]], after: list[tuple[str, int | None, bool]]
) -> None:
    """C7: whatever changes, is removed or added while it is taken."""
    table: SortedDict[str, int] = SortedDict()
    model: dict[str, int] = {}
    for key, value in before:
        change(table, model, key, value)
    expected = sorted(model.items())

    view = iter(table.freeze())
    found: list[tuple[str, int]] = []
    for key, value, takes in after:
        found += islice(view, int(takes))
        change(table, model, key, value)

    assert [*found, *view] == expected
    assert dict(table) == model


@pytest.mark.parametrize(
    "numbers", [range(5000), range(4999, -1, -1), [n * 1237 % 5000 for n in range(5000)]]
)
def test_runs_stay_short_in_any_order_of_insertion(numbers: Iterable[int]) -> None:
    """A change copies one run, so its length bounds the cost of a change."""
    keys: SortedKeys[int] = SortedKeys()
    for number in numbers:
        keys.add(number)

    assert list(chain.from_iterable(keys.runs())) == list(range(5000))
    assert max(map(len, keys.runs())) <= RUN_MAX
    assert len(keys.runs()) <= 2 * 5000 // RUN_MAX + 1

    for number in numbers:
        keys.remove(number)
    assert keys.runs() == []


def test_a_listing_does_not_see_later_changes() -> None:
    keys: SortedKeys[str] = SortedKeys()
    for name in ("a", "c"):
        keys.add(name)
    listing = with_prefix(keys.runs_from(""), "")
    keys.add("b")
    keys.remove("c")

    assert list(listing) == ["a", "c"]
