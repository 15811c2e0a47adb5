"""The verbs' documentation reaches every class that has the verbs."""

from __future__ import annotations

import inspect

import tierlog
from tierlog.storage_backends.base.verbs import ReadVerbs, SegmentVerbs, copy_docstrings

VERBS = [name for name in (*vars(ReadVerbs), *vars(SegmentVerbs)) if not name.startswith("_")]


def test_every_verb_is_documented() -> None:
    assert len(VERBS) == 33
    assert [verb for verb in VERBS if not inspect.getdoc(getattr(SegmentVerbs, verb))] == []


def test_the_stores_verbs_show_the_shared_text() -> None:
    differing = [
        verb
        for verb in VERBS
        if inspect.getdoc(getattr(tierlog.SegmentStore, verb)) != inspect.getdoc(getattr(SegmentVerbs, verb))
    ]
    assert differing == []


def test_copying_leaves_docstrings_of_their_own_alone() -> None:
    @copy_docstrings(SegmentVerbs)
    class Twin:
        def seal_segment(self) -> None: ...

        def flush(self) -> None:
            """Its own text."""

        def _append(self) -> None: ...

        def close(self) -> None: ...

    assert Twin.seal_segment.__doc__ == SegmentVerbs.seal_segment.__doc__
    assert Twin.flush.__doc__ == "Its own text."
    assert (Twin._append.__doc__, Twin.close.__doc__) == (None, None)
