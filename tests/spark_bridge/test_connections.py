"""Connections: kept for the next task of a process, never shared with a forked child."""

from __future__ import annotations

import os

import pytest
from msgspec.structs import replace

from tierlog import StoreMismatch, SyncClient
from tierlog.spark_bridge.connections import Connections
from tierlog.spark_bridge.options import Options, parse_options


@pytest.fixture
def options(url: str) -> Options:
    return parse_options({"endpoint": url, "segmentprefix": ""})


def test_a_process_keeps_one_client_for_each_endpoint(options: Options) -> None:
    pool = Connections()
    client = pool.client(options)

    assert pool.client(options) is client

    pool.close()
    again = pool.client(options)
    assert again is not client
    assert again.list_segments("none") == []
    pool.close()


def test_a_process_keeps_one_reader_for_each_storage(store: SyncClient, segment: str) -> None:
    """Once it has proved to be the store's."""
    pool = Connections()
    store.create_segment(segment)
    place = store.segment_layout(segment, 0, 1).place
    storage = pool.storage(place)

    assert pool.storage(place) is storage
    for _ in range(2):
        with pytest.raises(StoreMismatch):
            pool.storage(replace(place, store="00" * 16))

    pool.drop_storage(place)
    again = pool.storage(place)
    assert again is not storage
    pool.close()
    assert pool.storage(place) is not again
    pool.close()


def test_a_forked_child_opens_a_client_of_its_own(options: Options) -> None:
    """And the parent's goes on after the child has ended."""
    pool = Connections()
    client = pool.client(options)
    child = os.fork()
    if child == 0:
        status = 1
        try:
            pool.forget()
            status = (
                0
                if pool.client(options) is not client and pool.client(options).list_segments("none") == []
                else 2
            )
        finally:
            os._exit(status)

    assert os.waitpid(child, 0)[1] == 0
    assert client.list_segments("none") == []
    pool.close()
