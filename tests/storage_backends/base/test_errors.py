"""Errors as users meet them: by the names that they import."""

from __future__ import annotations

import pickle
import traceback

import tierlog
from tierlog.storage_backends.base import errors

KINDS = {
    kind.__name__: kind
    for kind in vars(errors).values()
    if isinstance(kind, type) and issubclass(kind, tierlog.TierlogError)
}


def test_a_traceback_shows_an_error_as_it_is_imported() -> None:
    [line] = traceback.format_exception_only(tierlog.SegmentNotFound("no segment s"))
    assert line == "tierlog.SegmentNotFound: no segment s\n"


def test_exactly_the_public_errors_name_the_package() -> None:
    public = {name for name, kind in KINDS.items() if kind.__module__ == "tierlog"}
    assert public == KINDS.keys() & set(tierlog.__all__)


def test_errors_can_be_pickled_for_other_processes() -> None:
    for kind in KINDS.values():
        assert pickle.loads(pickle.dumps(kind)) is kind
    [message] = pickle.loads(pickle.dumps(tierlog.Unavailable("later"))).args
    assert message == "later"
