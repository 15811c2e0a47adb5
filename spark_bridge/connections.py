"""One client for each endpoint and process, and one reader for each long-term storage, kept for later tasks;
clock and random ids of this process.

Spark reuses its Python workers, so a kept client saves each task the connecting. Workers are forked: a client
belongs to the process that opened it, and a child opens its own. Clients are safe for many threads; a storage
is for one thread at a time, which keeps it while it reads."""

from __future__ import annotations

import atexit
import os
import threading
import time
import uuid
from contextlib import ExitStack

from ..actors.direct_read.storage import DirectStorage, open_storage
from ..actors.gateway.client.connect import connect_sync
from ..actors.gateway.client.sync_client import SyncClient
from ..storage_backends.base.segment_layout import StoragePlace
from .options import Options

_Key = tuple[int, str, float]


class Connections:
    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._clients: dict[_Key, SyncClient] = {}
        self._storages: dict[tuple[int, int, StoragePlace], DirectStorage] = {}
        self._ends = ExitStack()
        self._inherited: list[ExitStack] = []

    def client(self, options: Options) -> SyncClient:
        """Raises ``Unavailable`` if no server answers at the endpoint."""
        # By process too: a connection that two processes use mixes up their answers.
        key = (os.getpid(), options.endpoint, options.call_timeout)
        with self._lock:
            client = self._clients.get(key)
            if client is None:
                client = self._ends.enter_context(
                    connect_sync(options.endpoint, deadline=options.call_timeout)
                )
                self._clients[key] = client
            return client

    def storage(self, place: StoragePlace) -> DirectStorage:
        """Raises as ``open_storage``."""
        key = (os.getpid(), threading.get_ident(), place)
        with self._lock:
            storage = self._storages.get(key)
        if storage is None:
            # Outside of the lock: a bucket may take seconds to answer.
            storage = open_storage(place)
            with self._lock:
                self._storages[key] = storage
        return storage

    def drop_storage(self, place: StoragePlace) -> None:
        """Open it anew the next time, and let it prove again what it is: it may have been unmounted."""
        with self._lock:
            storage = self._storages.pop((os.getpid(), threading.get_ident(), place), None)
        if storage is not None:
            storage.close()

    def close(self) -> None:
        with self._lock:
            self._clients.clear()
            for storage in self._storages.values():
                storage.close()
            self._storages.clear()
            self._ends.close()

    def forget(self) -> None:
        """In the child of a fork: leave the parent's connections open and unused, and its lock, which another
        thread may have held."""
        self._inherited.append(self._ends)
        self._lock, self._clients, self._storages, self._ends = threading.Lock(), {}, {}, ExitStack()


connections = Connections()
os.register_at_fork(after_in_child=connections.forget)
atexit.register(connections.close)


def pause(seconds: float) -> None:
    time.sleep(seconds)


def new_id() -> str:
    return uuid.uuid4().hex
