"""Pages of the names of a store's segments (rule M22): what is asked for, and how the answers of containers,
or of hosts, become one page."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import AsyncGenerator, Iterable, Sequence
from contextlib import aclosing
from itertools import chain
from typing import Protocol

import attrs

from .arguments import check_int, check_prefix
from .codec import DecodeError, Encoder
from .errors import InvalidArgument
from .page_tokens import check_token, decode_token, encode_token
from .segments import SEGMENTS_PAGE_MAX, SegmentPage

FOREIGN_PAGE = "the token is not one that a page of segments with this prefix gave"
NamesPart = tuple[Sequence[str], str | None]
"""Names, and the least text that the others are not below; None if there are no others."""


class AskPage(Protocol):
    async def __call__(self, prefix: str, *, token: str | None) -> SegmentPage: ...


async def pages_of_names(ask: AskPage, prefix: str) -> AsyncGenerator[list[str], None]:
    """The names of each page."""
    token: str | None = None
    while True:
        page = await ask(prefix, token=token)
        yield page.names
        if (token := page.token) is None:
            return


async def all_names(ask: AskPage, prefix: str) -> list[str]:
    """The names of all pages."""
    names: list[str] = []
    async with aclosing(pages_of_names(ask, prefix)) as pages:
        async for page in pages:
            names += page
    return names


@attrs.frozen
class SegmentsAsked:
    """What a page is asked for with."""

    prefix: str
    token: str | None
    start: str
    """The names from this text on, which the token says."""
    limit: int

    @classmethod
    def of(cls, prefix: object, token: object, limit: object) -> SegmentsAsked:
        """Raises ``InvalidArgument``."""
        chosen = check_prefix(prefix)
        after = check_token(token, FOREIGN_PAGE)
        start = "" if after is None else _start_of(chosen, after)
        return cls(chosen, after, start, check_int("limit", limit, 1, SEGMENTS_PAGE_MAX))

    def share(self, parts: int) -> int:
        """The limit for each of ``parts`` that together have the names: they are spread evenly, as a rule."""
        return max(1, self.limit // max(1, parts))

    def part(self, page: SegmentPage) -> NamesPart:
        """What a page from ``start`` on contributes. Raises ``InvalidArgument``."""
        return page.names, None if page.token is None else _start_of(self.prefix, page.token)

    def page(self, parts: Iterable[NamesPart]) -> SegmentPage:
        """One page of ``parts``, which may overlap."""
        found = tuple(parts)
        names = sorted(set(chain.from_iterable(names for names, _ in found)))
        # Above the least of these, names of that part are missing.
        start = min((start for _, start in found if start is not None), default=None)
        if start is not None:
            del names[bisect_left(names, start) :]
        if len(names) > self.limit:
            start = names[self.limit]
            del names[self.limit :]
        return SegmentPage(
            names, None if start is None else encode_token(_asked(self.prefix), start.encode())
        )


def _asked(prefix: str) -> bytes:
    return Encoder().text(prefix).finish()


def _start_of(prefix: str, token: str) -> str:
    try:
        return decode_token(_asked(prefix), token).decode()
    except (DecodeError, UnicodeDecodeError) as error:
        raise InvalidArgument(FOREIGN_PAGE) from error
