"""Segment names: the grammar, and the container that each belongs to (part of the store's format)."""

from __future__ import annotations

import os

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tierlog.storage_backends.base.errors import InvalidArgument
from tierlog.storage_backends.base.names import (
    check_segment_name,
    container_of,
    placement_key,
)


@pytest.mark.parametrize("name", [None, 5, b"a", ["a"]])
def test_a_name_is_a_str(name: object) -> None:
    with pytest.raises(InvalidArgument, match="is a str"):
        check_segment_name(name)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "name, size", [("", 0), ("x" * 300, 300), ("\xe9" * 200, 400)], ids=["empty", "ascii", "not ascii"]
)
def test_a_refused_length_is_that_in_bytes(name: object, size: int) -> None:
    with pytest.raises(InvalidArgument, match=f"has 1 to 255 UTF-8 bytes, not {size}: "):
        check_segment_name(name)  # type: ignore[arg-type]


@given(st.text(max_size=20) | st.text("abc./_-#\\ \0", max_size=20))
def test_no_accepted_name_leaves_its_folder(name: str) -> None:
    try:
        check_segment_name(name)
    except InvalidArgument:
        return

    assert os.path.normpath(f"/store/{name}") == f"/store/{name}"
    assert not name.startswith("_system/")
    assert "\0" not in name


@pytest.mark.parametrize(
    ("name", "key"),
    [
        ("app/events", "app/events"),
        ("app/events#part-7", "app/events"),
        ("a#b#c", "a"),
        ("#a", "#a"),
        ("a/b#c/d", "a/b"),
        ("a#", "a"),
    ],
)
def test_everything_up_to_the_first_hash_decides_the_container(name: str, key: str) -> None:
    assert placement_key(name) == key


CONTAINERS_OF_NAMES = {
    1: [0, 0, 0, 0, 0],
    2: [1, 1, 1, 1, 0],
    4: [2, 3, 3, 3, 1],
    16: [8, 13, 13, 14, 6],
    1000: [500, 844, 844, 900, 376],
}


@pytest.mark.parametrize("containers", CONTAINERS_OF_NAMES)
def test_container_hashes_never_change(containers: int) -> None:
    """A store finds its segments by these numbers: they can never change."""
    assert [
        container_of(name, containers) for name in ("a", "app/events", "app/events#part-7", "größe", "#x")
    ] == CONTAINERS_OF_NAMES[containers]


@given(st.text(min_size=1, max_size=20), st.integers(1, 1000))
def test_the_result_is_one_of_the_containers(name: str, containers: int) -> None:
    assert 0 <= container_of(name, containers) < containers


def test_similar_names_are_spread() -> None:
    containers = [container_of(f"app/events-{number}", 4) for number in range(400)]

    assert all(60 < containers.count(container) < 140 for container in range(4))
