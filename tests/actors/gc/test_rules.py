"""What is garbage and when it may go (rule G1): the whole table."""

from __future__ import annotations

from itertools import product

import pytest

from tierlog.actors.gc.rules import Garbage, creator_of, is_ready, orphans

NAME = "containers/0000/x"


@pytest.mark.parametrize(("late", "referenced", "open_"), list(product([False, True], repeat=3)))
def test_a_name_is_deleted_only_when_nothing_uses_it(late: bool, referenced: bool, open_: bool) -> None:
    """G1: delay over, in no record, in no transaction."""
    found = is_ready(
        Garbage(NAME, 100.0),
        now=100.0 if late else 99.9,
        referenced={NAME} if referenced else set(),
        in_transaction={NAME} if open_ else set(),
    )

    assert found == (late and not referenced and not open_)


def test_only_leftovers_of_dead_owners_are_orphans() -> None:
    """G1: an owner's own names may belong to a transaction that is not over."""
    listed = [("old", 4), ("old and referenced", 4), ("own", 5), ("later", 6), ("older", 1)]

    assert orphans(listed, epoch=5, referenced={"old and referenced"}) == ["old", "older"]


CHUNK, RUN = f"{9:016x}/{3:016x}-{0:016x}-id", f"runs/{4:016x}-{1:016x}-id"


def test_what_has_its_creator_in_its_name() -> None:
    """G1: of others it is not known, so they are never garbage by themselves."""
    assert creator_of(f"containers/0000/{CHUNK}") == 3
    assert creator_of(f"_system/containers/0000/{RUN}") == 4


@pytest.mark.parametrize(
    "name",
    [
        f"containers/0000/containers/0000/{CHUNK}",
        f"containers/0000/lts/containers/0000/{CHUNK}",
        f"app/0000/{CHUNK}",
        f"_system/containers/0000/runs/_system/containers/0000/{RUN}",
        f"_system/containers/0000/lts/{RUN}",
        "containers/0000/store",
    ],
)
def test_what_belongs_to_a_store_that_lies_inside_has_no_creator(name: str) -> None:
    assert creator_of(name) is None
