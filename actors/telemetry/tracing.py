"""The tracer interface: what a store, a server and a client call to record spans.

``opentelemetry.py`` implements it; any object of this shape works. No tracer is the default and costs
nothing. A span is entered and left in the same task.
"""

from __future__ import annotations

from collections.abc import Mapping, MutableMapping, Sequence
from contextlib import AbstractContextManager
from typing import Protocol


class SpanHook(Protocol):
    """The type of ``open_store(span=...)``."""

    def __call__(
        self, name: str, attributes: Mapping[str, object], links: Sequence[object] = ()
    ) -> AbstractContextManager[object]:
        """A context manager around the work. The value of ``with ... as`` is the span in the ``links`` of
        others.

        A span with links covers work that several other spans wait for; it has no parent.
        """
        ...


class HttpSpan(Protocol):
    """The span of one request, on either side."""

    trace_id: str
    """In hexadecimal, for logs; empty if the span is not recorded."""

    def rename(self, name: str) -> None: ...
    def answered(self, status: int, attributes: Mapping[str, object] | None = None) -> None:
        """The request ended."""
        ...


class Tracing(SpanHook, Protocol):
    """The type of a server's and a client's tracer: its spans cross processes."""

    def server(
        self, name: str, attributes: Mapping[str, object], headers: Mapping[str, str]
    ) -> AbstractContextManager[HttpSpan]:
        """Around the answer to a request. ``headers`` name its parent."""
        ...

    def client(
        self,
        name: str,
        attributes: Mapping[str, object],
        headers: MutableMapping[str, str],
        links: Sequence[object] = (),
    ) -> AbstractContextManager[HttpSpan]:
        """Around a request; adds the trace context to ``headers``. A single link becomes the parent."""
        ...
