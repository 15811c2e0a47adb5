"""Connections: kept for the next task of a process, never shared with a forked child; and waiting for bytes at the service."""

from __future__ import annotations

import os
import threading

import pytest

from tierlog import SyncClient
from tierlog.spark_bridge.connections import Connections, wait_for_bytes
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


def test_a_forked_child_opens_a_client_of_its_own(options: Options) -> None:
    """And the parent's goes on after the child has ended."""
    pool = Connections()
    client = pool.client(options)
    child = os.fork()
    if child == 0:
        status = 1
        try:
            pool.forget()
            status = 0 if pool.client(options) is not client and pool.client(options).list_segments("none") == [] else 2
        finally:
            os._exit(status)

    assert os.waitpid(child, 0)[1] == 0
    assert client.list_segments("none") == []
    pool.close()


def test_bytes_end_the_wait(store: SyncClient, segment: str) -> None:
    store.create_segment(segment)
    found: list[bool] = []
    waiter = threading.Thread(target=lambda: found.append(wait_for_bytes(store, segment, 0, 20.0)))
    waiter.start()
    store.append(segment, b"x")
    waiter.join(15.0)

    assert found == [True]


def test_a_wait_ends_without_bytes_too_and_tells_if_there_will_never_be_any(store: SyncClient, segment: str) -> None:
    store.create_segment(segment)

    assert wait_for_bytes(store, segment, 0, 0.01)
    store.seal_segment(segment)
    assert not wait_for_bytes(store, segment, 0, 20.0)
