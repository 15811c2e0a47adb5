"""The merger, fed in batches of any size (M1)."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tierlog.storage_backends.sorted_runs.merging import Merger
from tierlog.storage_backends.sorted_runs.rows import Row

SOURCES = st.lists(
    st.dictionaries(st.binary(min_size=1, max_size=2), st.integers(1, 9), max_size=20), max_size=5
)


@given(SOURCES, st.integers(1, 5), st.integers(1, 7))
def test_the_newest_row_of_each_key_comes_out_in_order(
    sources: list[dict[bytes, int]], batch: int, at_a_time: int
) -> None:
    queues = [[Row(key, source[key], b"") for key in sorted(source)] for source in sources]
    merger = Merger(len(sources))
    merged: list[Row] = []
    while merger.drained:
        for number in tuple(merger.drained):
            merger.feed(number, queues[number][:batch])
            del queues[number][:batch]
        progress = True
        while progress:  # left in the middle, and called again
            before = len(merged)
            for row in merger.rows():
                merged.append(row)
                if len(merged) - before == at_a_time:
                    break
            progress = len(merged) > before

    keys = sorted({key for source in sources for key in source})
    assert merged == [Row(key, max(source.get(key, 0) for source in sources), b"") for key in keys]
