"""Where a store is, as users write it."""

from __future__ import annotations

from pathlib import Path

import pytest

from tierlog import InvalidArgument
from tierlog.actors.folder.paths import StoreFolder, check_path
from tierlog.actors.folder.place import BookKeeperLocation, shared_location, store_place


@pytest.mark.parametrize(
    ("text", "servers", "path"),
    [
        ("bookkeeper://zk1:2181/store", ("zk1:2181",), "/store"),
        ("bookkeeper://zk1/store", ("zk1:2181",), "/store"),
        ("bookkeeper://zk1,zk2:2182,[::1]:2183/a/b/", ("zk1:2181", "zk2:2182", "[::1]:2183"), "/a/b"),
    ],
)
def test_a_store_on_bookkeeper_is_named_by_the_servers_of_zookeeper_and_a_path(
    text: str, servers: tuple[str, ...], path: str
) -> None:
    found = shared_location(text)
    assert isinstance(found, BookKeeperLocation)
    assert (found.servers, found.path) == (servers, path)
    assert shared_location(str(found)) == found


@pytest.mark.parametrize(
    "text",
    [
        "bookkeeper://",
        "bookkeeper://zk1",
        "bookkeeper://zk1/",
        "bookkeeper:///store",
        "bookkeeper://zk1,/store",
        "bookkeeper://zk1:0/store",
        "bookkeeper://zk1:65536/store",
        "bookkeeper://zk1:port/store",
        "bookkeeper://zk1//store",
        "bookkeeper://zk1/../store",
        "bookkeeper://zk1/st ore",
        "bookkeeper://zk1/" + "x" * 400,
        "bookkeeper://" + ",".join(["zk"] * 17) + "/store",
    ],
)
def test_a_malformed_place_is_refused_with_how_to_write_it(text: str) -> None:
    with pytest.raises(InvalidArgument, match="write bookkeeper://NAME:PORT"):
        shared_location(text)


def test_a_password_is_not_shown() -> None:
    with pytest.raises(InvalidArgument, match="no user name or password") as caught:
        shared_location("bookkeeper://user:secret@zk1/store")
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize("path", ["/ledgers", "/ledgers/store", "/zookeeper/store"])
def test_the_records_of_bookkeeper_and_zookeeper_are_no_place_for_a_store(path: str) -> None:
    with pytest.raises(InvalidArgument, match="name another path, such as bookkeeper://zk1/tierlog/"):
        shared_location(f"bookkeeper://zk1{path}")


@pytest.mark.parametrize("text", ["s3:/bucket/store", "bookkeeper:/zk1/store"])
def test_a_slash_too_few_is_said(text: str) -> None:
    with pytest.raises(InvalidArgument, match=f"write {text.partition(':')[0]}://"):
        store_place(text)


@pytest.mark.parametrize(
    "text", ["bookeeper://zk1/store", "http://127.0.0.1:8470", "zookeeper://zk1:2181/store"]
)
def test_another_scheme_makes_no_folder_of_that_name(text: str) -> None:
    with pytest.raises(
        InvalidArgument, match="is not where a store can be: .* bookkeeper://ZOOKEEPER:PORT/PATH"
    ):
        store_place(text)


def test_a_path_that_was_a_place_is_refused() -> None:
    """It has lost a slash."""
    with pytest.raises(InvalidArgument, match="is on BookKeeper, and this needs a data folder"):
        store_place(Path("bookkeeper://zk1/store"))


def test_anything_else_is_a_data_folder(tmp_path: Path) -> None:
    for path in (tmp_path, str(tmp_path)):
        assert store_place(path) == StoreFolder(str(tmp_path))


@pytest.mark.parametrize("text", ["s3://bucket/store", "bookkeeper://zk1/store"])
def test_a_place_is_shown_as_it_was_written_where_only_a_folder_can_be(text: str) -> None:
    for given in (text, Path(text)):  # which has lost a slash
        with pytest.raises(InvalidArgument, match=f"^'{text}' is"):
            check_path(given)
