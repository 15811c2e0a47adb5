"""The check of what an element publishes, without runs and an event loop."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable

from tierlog.actors.container.published_check import Published, PublishedCheck
from tierlog.storage_backends.sorted_runs.rows import Row
from tierlog.storage_backends.sorted_runs.run_list import RunList
from tierlog.storage_backends.sorted_runs.scan import KeyRange, Page


def check_rows(
    rows: Iterable[Row],
    runs: RunList,
    container: int = 0,
    *,
    page: int = 8192,
    steps: list[None] | None = None,
) -> Published:
    """What is inconsistent in ``rows``, read in pages of ``page`` rows."""
    newest = {row.key: row for row in rows}
    live = sorted(row for row in newest.values() if row.value is not None)
    keys = [row.key for row in live]

    def read(wanted: KeyRange) -> Page:
        first = bisect_left(keys, wanted.start)
        end = len(keys) if wanted.end is None else bisect_left(keys, wanted.end)
        more = first + page < end
        return Page(live[first : min(first + page, end)], keys[first + page] if more else None)

    return check_pages(read, runs, container, steps)


def check_pages(
    read: Callable[[KeyRange], Page], runs: RunList, container: int = 0, steps: list[None] | None = None
) -> Published:
    """The same for rows that ``read`` reads; each step is entered into ``steps``."""
    check = PublishedCheck(runs, container).steps()
    page = Page([], None)
    try:
        keys = next(check)
        while True:
            if keys is not None:
                page = read(keys)
            elif steps is not None:
                steps.append(None)
            keys = check.send(page)
    except StopIteration as end:
        published: Published = end.value
        return published
