"""A dict of small dicts: what it holds, before and after it is divided, and that they do not grow in the same
step."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from sys import getsizeof

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tierlog.storage_backends.base import sharded_dict
from tierlog.storage_backends.base.sharded_dict import ShardedDict

CHANGES = st.lists(st.tuples(st.integers(-5, 40), st.one_of(st.none(), st.integers())), max_size=60)


@pytest.fixture(autouse=True, scope="module", params=[sharded_dict.UNDIVIDED_MAX, 7])
def undivided_max(request: pytest.FixtureRequest) -> Iterator[None]:
    """With a small bound the few keys of these tests are divided, in the midst of their changes."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sharded_dict, "UNDIVIDED_MAX", request.param)
        yield


def change(table: ShardedDict[int, int], model: dict[int, int], key: int, value: int | None) -> None:
    if value is None:
        assert table.pop(key, None) == model.pop(key, None)
    else:
        table[key] = model[key] = value


@given(CHANGES)
def test_it_holds_what_a_dict_holds(changes: list[tuple[int, int | None]]) -> None:
    table: ShardedDict[int, int] = ShardedDict()
    model: dict[int, int] = {}
    for key, value in changes:
        change(table, model, key, value)
        assert (key in table, table.get(key), table.get(key, 7)) == (
            key in model,
            model.get(key),
            model.get(key, 7),
        )

    assert table == model
    assert len(table) == len(model)
    assert bool(table) is bool(model)
    assert sorted(table.items()) == sorted(model.items())


def test_a_missing_key_is_an_error() -> None:
    table: ShardedDict[str, int] = ShardedDict()
    with pytest.raises(KeyError):
        table["missing"]
    with pytest.raises(KeyError):
        del table["missing"]


@given(st.sets(st.integers(0, 200)), CHANGES)
def test_what_stays_is_given_once_while_others_come_and_go(
    before: set[int], changes: list[tuple[int, int | None]]
) -> None:
    table: ShardedDict[int, int] = ShardedDict()
    table.update(dict.fromkeys(before, 0))
    model, touched = dict.fromkeys(before, 0), {key for key, _ in changes}
    keys, found = iter(table), list[int]()
    for key, value in changes:
        found += islice(keys, 1)
        change(table, model, key, value)
    for key in keys:
        assert key in table
        found.append(key)

    assert len(found) == len(set(found))
    assert before - touched <= set(found) <= before | touched


@pytest.mark.parametrize("first", [0, 7 << 40])
def test_a_few_additions_copy_few_of_the_entries(first: int) -> None:
    """A dict of 200,000 copies all of them at 174,763. Each of the small ones is copied as often, but in
    steps of their own."""
    table: ShardedDict[int, None] = ShardedDict()
    together, most = 512, 0
    table.update(dict.fromkeys(range(first - 2 * sharded_dict.UNDIVIDED_MAX, first)))  # so it is divided
    for start in range(first, first + 200_000, together):
        sizes = [getsizeof(shard) for shard in table._shards]
        table.update(dict.fromkeys(range(start, start + together)))
        grown = (
            len(shard)
            for shard, size in zip(table._shards, sizes, strict=True)
            if getsizeof(shard) != size and start > first + 20_000
        )
        most = max(most, sum(grown))

    assert 0 < most < 25_000
