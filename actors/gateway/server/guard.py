"""Which requests a server takes at all, by the host that they name and the page that sent them (rule H18).

A browser sends what any page asks it to, but no page can choose ``Host``, ``Origin`` and ``Sec-Fetch-Site``.
A foreign name that resolves to this machine (DNS rebinding) shows in ``Host``, a foreign page in the other
two. There is no other access control: programs that reach the port may send anything."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from ipaddress import IPv4Address, IPv6Address, ip_address
from typing import Any

from ....storage_backends.base.errors import InvalidArgument, TierlogError, shown
from ..wire.errors import CrossOrigin, UnknownHost

_SAFE = frozenset({"GET", "HEAD", "OPTIONS"})
_KNOWN_MAX = 1024
_HOST = re.compile(r"(\[[0-9A-Fa-f:.]+\]|[^\[\]:/]+)(?::([0-9]*))?")
_DEFAULT_PORTS = {"http": "80", "https": "443"}
_Address = IPv4Address | IPv6Address


class Guard:
    """``names``: the server's own, besides loopback's and the address to which a connection was made."""

    def __init__(self, names: Iterable[str] = ()) -> None:
        self._names = frozenset(_normal(name) for name in names if name)
        self._known: set[bytes] = set()
        """Values of ``Host`` that passed: a check costs more than a look."""

    def refusal(self, scope: Mapping[str, Any]) -> TierlogError | None:
        """Why the request is not taken; None if it is."""
        try:
            found = _headers(scope)
            host = found.get(b"host")
            if host is None:
                if scope["http_version"] != "1.0":
                    raise InvalidArgument("a request names its server in Host: see RFC 9112")
            elif host not in self._known:
                self._check_host(host, scope["server"])
            if scope["method"] not in _SAFE:
                _check_origin(found, scope["scheme"], host)
        except TierlogError as error:
            return error
        return None

    def _check_host(self, host: bytes, server: tuple[str, int] | None) -> None:
        name, _ = _host_and_port(host.decode("latin-1"), "http") or ("", "")
        if not (name in self._names or _is_loopback(name) or (server and name == _normal(server[0]))):
            raise UnknownHost(
                f"{shown(host.decode('latin-1'))} is not a name of this server: the setting server.advertise "
                f"(serve --advertise NAME) gives it one"
            )

        if len(self._known) < _KNOWN_MAX:
            self._known.add(host)


_WANTED = frozenset({b"host", b"origin", b"sec-fetch-site"})


def _headers(scope: Mapping[str, Any]) -> dict[bytes, bytes]:
    found: dict[bytes, bytes] = {}
    for name, value in scope["headers"]:
        if name in _WANTED:
            if name in found:
                raise InvalidArgument(f"{name.decode().title()} is given twice")

            found[name] = value
    return found


def _check_origin(found: Mapping[bytes, bytes], scheme: str, host: bytes | None) -> None:
    site = found.get(b"sec-fetch-site", b"").partition(b";")[0].strip().lower()
    origin = found.get(b"origin")
    if site == b"cross-site" or (origin is not None and not _is_own(origin, scheme, host)):
        raise CrossOrigin(
            f"a page of {shown((origin or b'another site').decode('latin-1'))} may change nothing here"
        )


def _is_own(origin: bytes, scheme: str, host: bytes | None) -> bool:
    """Whether the origin has the server's scheme, host and port (RFC 6454)."""
    given, separator, place = origin.decode("latin-1").partition("://")
    named = _host_and_port(place, scheme)
    return (
        bool(separator and named)
        and given.lower() == scheme
        and host is not None
        and named == _host_and_port(host.decode("latin-1"), scheme)
    )


def _host_and_port(host: str, scheme: str) -> tuple[str, str] | None:
    """Name or address and port; None if ``host`` is malformed."""
    match = _HOST.fullmatch(host)
    return None if match is None else (_normal(match[1]), match[2] or _DEFAULT_PORTS[scheme])


def _normal(name: str) -> str:
    """One form of a name or address, whichever way it is written."""
    address = _address(name)
    return name.lower().removesuffix(".") if address is None else str(address)


def _address(name: str) -> _Address | None:
    try:
        address: _Address = ip_address(name.removeprefix("[").removesuffix("]"))
    except ValueError:
        return None
    return getattr(address, "ipv4_mapped", None) or address


def _is_loopback(name: str) -> bool:
    address = _address(name)
    return name == "localhost" or name.endswith(".localhost") or (address is not None and address.is_loopback)
