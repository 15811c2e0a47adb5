"""Reads of chunks in S3 by plain threads: an event loop of its own runs in a thread and serves them all.

The thread is a daemon, so that a reader that was not closed does not keep its process alive. A call that is
interrupted goes on in the background until its answer or its time limit."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine
from typing import Any, TypeVar

from ..base.world import NO_WORLD
from .s3 import S3ChunkReader
from .s3_location import S3Location
from .s3_requests import S3Options

T = TypeVar("T")


class S3ThreadReader:
    """Opened once, closed once. Safe for many threads."""

    def __init__(self, location: S3Location, options: S3Options) -> None:
        self._reader = S3ChunkReader(location, options, NO_WORLD)
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="tierlog-s3", daemon=True)

    def open(self) -> None:
        """Raises ``ConfigError`` if something must be corrected, such as missing credentials."""
        self._thread.start()
        try:
            self._run(self._reader.open())
        except BaseException:
            self._end()
            raise

    def read(self, name: str, offset: int, size: int) -> bytes:
        return self._run(self._reader.read(name, offset, size))

    def close(self) -> None:
        try:
            self._run(self._reader.close())
        finally:
            self._end()

    def _run(self, call: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(call, self._loop).result()

    def _end(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()
