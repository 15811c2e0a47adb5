"""Pages of what a store lists over all containers: names of segments, and transactions (rule M22). What is
asked for, and how the answers of containers, or of hosts, become one page."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import AsyncGenerator, Callable, Iterable, Sequence
from itertools import chain
from typing import Protocol, TypeVar

from msgspec import Struct

from .arguments import check_int, check_prefix
from .codec import DecodeError, Encoder
from .errors import InvalidArgument
from .page_tokens import check_token, decode_token, encode_token
from .segments import SEGMENTS_PAGE_MAX
from .transactions import TRANSACTIONS_PAGE_MAX, TransactionInfo

T = TypeVar("T")
Part = tuple[Sequence[T], str | None]
"""Items in the order of their texts, and the least text that the others are not below; None if there are no
others."""


class Listing(Struct, frozen=True, eq=False):
    limit_max: int
    mark: bytes
    """Is in the checksums of its tokens: those of other listings are refused."""
    foreign: str
    """The refusal."""


SEGMENTS = Listing(
    SEGMENTS_PAGE_MAX, b"", "the token is not one that a page of segments with this prefix gave"
)
"""The text of a name is the name."""
TRANSACTIONS = Listing(
    TRANSACTIONS_PAGE_MAX, b"t", "the token is not one that a page of transactions with this prefix gave"
)
"""The text of a transaction is ``transaction_text``."""


def transaction_text(target: str, transaction_id: str) -> str:
    """Sorts as (target, transaction id), because no name has a zero."""
    return f"{target}\0{transaction_id}"


def text_of(info: TransactionInfo) -> str:
    return transaction_text(info.target, info.transaction_id)


class _Page(Protocol):
    @property
    def token(self) -> str | None: ...


P = TypeVar("P", bound=_Page)
P_co = TypeVar("P_co", bound=_Page, covariant=True)


class AskPage(Protocol[P_co]):
    async def __call__(self, prefix: str, *, token: str | None) -> P_co: ...


async def all_pages(ask: AskPage[P], prefix: str) -> AsyncGenerator[P, None]:
    """All pages from the first one on."""
    token: str | None = None
    while True:
        page = await ask(prefix, token=token)
        yield page
        if (token := page.token) is None:
            return


class PageAsked(Struct, frozen=True):
    """What a page is asked for with."""

    listing: Listing
    prefix: str
    token: str | None
    start: str
    """What has this text, or a later one, which the token says."""
    limit: int

    @classmethod
    def of(cls, listing: Listing, prefix: object, token: object, limit: object) -> PageAsked:
        """Raises ``InvalidArgument``."""
        chosen = check_prefix(prefix)
        after = check_token(token, listing.foreign)
        start = "" if after is None else _start_of(listing, chosen, after)
        return cls(listing, chosen, after, start, check_int("limit", limit, 1, listing.limit_max))

    def share(self, parts: int) -> int:
        """The limit for each of ``parts`` that together have all: they are spread evenly, as a rule."""
        return max(1, self.limit // max(1, parts))

    def part(self, items: Sequence[T], token: str | None) -> Part[T]:
        """What a page from ``start`` on contributes. Raises ``InvalidArgument``."""
        return items, None if token is None else _start_of(self.listing, self.prefix, token)

    def page(self, parts: Iterable[Part[T]], text: Callable[[T], str]) -> tuple[list[T], str | None]:
        """The items of one page of ``parts``, which may overlap, and its token. ``text``: of an item."""
        found = tuple(parts)
        items = {text(item): item for item in chain.from_iterable(items for items, _ in found)}
        texts = sorted(items)
        # Above the least of these, items of that part are missing.
        start = min((start for _, start in found if start is not None), default=None)
        if start is not None:
            del texts[bisect_left(texts, start) :]
        if len(texts) > self.limit:
            start = texts[self.limit]
            del texts[self.limit :]
        token = None if start is None else encode_token(_asked(self.listing, self.prefix), start.encode())
        return [items[each] for each in texts], token


def _asked(listing: Listing, prefix: str) -> bytes:
    return Encoder().text(prefix).raw(listing.mark).finish()


def _start_of(listing: Listing, prefix: str, token: str) -> str:
    try:
        return decode_token(_asked(listing, prefix), token).decode()
    except (DecodeError, UnicodeDecodeError) as error:
        raise InvalidArgument(listing.foreign) from error
