"""Spans: the seam through which a store, a server and a client tell a tracer what they do.

Owns: the shape of what they are given. Does not own: any tracer (``otel.py`` has the one that comes with
tierlog; anything of this shape fits), nor what is told (each part says it itself).

No tracer is the default, and costs nothing: the parts ask once whether there is one. Whoever enters a span
leaves it in the same task.
"""

from __future__ import annotations

from collections.abc import Mapping, MutableMapping, Sequence
from contextlib import AbstractContextManager
from typing import Protocol


class SpanHook(Protocol):
    """What ``open_store(span=...)`` takes."""

    def __call__(
        self, name: str, attributes: Mapping[str, object], links: Sequence[object] = ()
    ) -> AbstractContextManager[object]:
        """A context manager that is entered around the work. What entering it gives stands for the span in
        the ``links`` of others.

        A span with links is about work that several others wait for: it has no parent.
        """
        ...


class HttpSpan(Protocol):
    """The span of one request, on either side."""

    trace_id: str
    """In hexadecimal, for logs; empty if nothing is recorded."""

    def rename(self, name: str) -> None: ...
    def answered(self, status: int, attributes: Mapping[str, object] | None = None) -> None:
        """The request came to its end."""
        ...


class Tracing(SpanHook, Protocol):
    """What a server and a client take: spans that reach from one process into another."""

    def server(
        self, name: str, attributes: Mapping[str, object], headers: Mapping[str, str]
    ) -> AbstractContextManager[HttpSpan]:
        """Around the answer to a request; its parent is the one that ``headers`` name."""
        ...

    def client(
        self,
        name: str,
        attributes: Mapping[str, object],
        headers: MutableMapping[str, str],
        links: Sequence[object] = (),
    ) -> AbstractContextManager[HttpSpan]:
        """Around a request, whose ``headers`` it completes. One link is the parent; several are links."""
        ...
