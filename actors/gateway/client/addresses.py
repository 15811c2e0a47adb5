"""The addresses at which a client finds a service (rule H21): one URL or several, of the supervisor or of
hosts, in any order. Plain checks, and the error of a service that answers at none of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from urllib.parse import SplitResult, urlsplit

from ....storage_backends.base.errors import InvalidArgument, Unavailable, shown

ADDRESSES_MAX = 32
_REASON_MAX = 160
_REASONS_MAX = 2000
_PORTS = {"http": 80, "https": 443}


def check_addresses(given: object) -> tuple[str, ...]:
    """The addresses of a service: ``given`` is one URL, several in a text with commas between them, or a
    sequence of such texts. Raises ``InvalidArgument`` that names the wrong one."""
    entries = _entries(given)
    if len(entries) > ADDRESSES_MAX:
        raise InvalidArgument(f"{len(entries)} addresses were given, and at most {ADDRESSES_MAX} are used")

    # The ones with a password first, before anything shows a part of it.
    for entry in sorted(entries, key=lambda entry: not (isinstance(entry, str) and "@" in entry)):
        if entry == "" and len(entries) > 1:
            place = entries.index("") + 1
            raise InvalidArgument(
                f"address {place} of {len(entries)} is empty: expected URLs like {_EXAMPLE}"
            )

        check_url(entry)

    found = [check_url(entry) for entry in entries]

    known: dict[tuple[str | None, int | None], str] = {}
    for url in found:
        parts = urlsplit(url)
        if parts.scheme != urlsplit(found[0]).scheme:
            raise InvalidArgument(
                f"{shown(url)} and {shown(found[0])} have different schemes: a service has http or https at "
                "all of its addresses"
            )
        if (earlier := known.setdefault(_place(parts), url)) is not url:
            raise InvalidArgument(f"{shown(url)} is given twice{_as_other(earlier, url)}: leave out one")
    return tuple(found)


_EXAMPLE = "http://127.0.0.1:8470"


def _entries(given: object) -> list[object]:
    if isinstance(given, str):
        # One that is empty altogether is a URL that is missing.
        return [part.strip() for part in given.split(",")] if given.strip(", ") else [given]
    if not isinstance(given, Sequence) or isinstance(given, (bytes, bytearray, memoryview)):
        return [given]
    if not given:
        raise InvalidArgument(f"no address was given: expected URLs like {_EXAMPLE}")

    return [part for each in given for part in (_entries(each) if isinstance(each, str) else [each])]


def _place(parts: SplitResult) -> tuple[str | None, int | None]:
    return parts.hostname, parts.port or _PORTS.get(parts.scheme)


def _as_other(earlier: str, url: str) -> str:
    return "" if earlier == url else f", as {shown(earlier)} before"


def check_url(url: object) -> str:
    """A server's base URL, without a slash at its end. One with a password is refused without being shown."""
    if isinstance(url, str) and "@" in url:
        raise InvalidArgument(f"a server's URL is like {_EXAMPLE}, without a user name or password")

    try:
        parts = urlsplit(url) if isinstance(url, str) else None
        is_good = (
            parts is not None
            and parts.scheme in ("http", "https")
            and bool(parts.hostname)
            and not any(sign.isspace() for sign in parts.netloc)
            and parts.port != 0
        )
    # `urlsplit` raises it for an IPv6 address without its bracket, `port` for a number above 65,535.
    except ValueError:
        parts, is_good = None, False
    if parts is None or not is_good or parts.query or parts.fragment:
        raise InvalidArgument(f"a server's URL is like {_EXAMPLE}, not {shown(url)}{_with_scheme(url)}")

    if parts.path.strip("/"):
        raise InvalidArgument(f"a server's URL has no path: {shown(url)} must end before {shown(parts.path)}")

    return parts.geturl().rstrip("/")


def _with_scheme(url: object) -> str:
    """What to do about one that is good but for its scheme."""
    if not isinstance(url, str) or "://" in url or not url:
        return ""
    try:
        return f": write {check_url(f'http://{url}')}"
    except InvalidArgument:
        return ""


def nobody_answers(reasons: Mapping[str, str]) -> Unavailable:
    """The error when none of the addresses that the user gave answers, with the reason of each, as one line
    of bounded length."""
    if len(reasons) == 1:
        [(url, reason)] = reasons.items()
        return Unavailable(
            f"no tierlog server answers at {url}: {_alone(url, reason)}; check the URL, and that `tierlog "
            "serve` runs there"
        )

    return Unavailable(
        f"no tierlog server answers at any of {len(reasons)} addresses: {listed(reasons)}; check the URLs, "
        "and that `tierlog serve` runs there"
    )


def no_supervisor(
    hosts: Sequence[str], reasons: Mapping[str, str], standbys: Mapping[str, str]
) -> Unavailable:
    """The error when some addresses are ``hosts`` or ``standbys`` and none is the active supervisor;
    ``reasons`` are why the others do not answer, and those of standbys whom they wait for."""
    others = {**standbys, **reasons}
    away = f" ({listed(others)})" if others else ""
    count = len(hosts) + len(others)
    where = "this address" if count == 1 else f"any of {count} addresses"
    served = f"; hosts, which go on serving: {', '.join(hosts)}" if hosts else ""
    # Of the usual lease of 20 s.
    follows = "follows when the lease of the one before has ended, after about 25 s: try again then"
    advice = (
        f"Add the URL of the one that has the lease. If that is gone, one that stands by {follows}"
        if standbys
        else f"If a supervisor stands by, it {follows}. Otherwise start one, `tierlog supervise`, or add its "
        f"URL"
    )
    return Unavailable(f"no supervisor is active at {where}{away}{served}. {advice}")


def listed(reasons: Mapping[str, str]) -> str:
    """Each address with its reason, cut where they become too long."""
    parts = (f"{url} ({_short(_alone(url, reason))})" for url, reason in reasons.items())
    return _cut("; ".join(parts), _REASONS_MAX)


def _alone(url: str, reason: str) -> str:
    """Without the request that a client began with, which has the URL."""
    return reason.rpartition(f"{url}/v1/containers: ")[2]


def _short(reason: str) -> str:
    return _cut(" ".join(reason.split()), _REASON_MAX)


def _cut(text: str, maximum: int) -> str:
    return text if len(text) <= maximum else f"{text[:maximum]}..."
