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
from ..wire.headers import only_values

_SAFE = frozenset({"GET", "HEAD", "OPTIONS"})
_KNOWN_MAX = 1024
_HOST = re.compile(r"(\[[0-9A-Fa-f:.]+\]|[^\[\]:/]+)(?::([0-9]*))?")
_TLS = "https://"
_DEFAULT_PORTS = {"http": "80", "https": "443"}
_Address = IPv4Address | IPv6Address


class Guard:
    """``names``: the server's own, besides loopback's and the address to which a connection was made. One
    with ``https://`` is the origin of its pages behind a proxy that terminates TLS."""

    def __init__(self, names: Iterable[str] = ()) -> None:
        names = [name for name in names if name]
        self._names = frozenset(_normal(advertised_name(name)) for name in names)
        self._origins = frozenset(_origin(name) for name in names if name.startswith(_TLS))
        self._known: set[bytes] = set()
        """Values of ``Host`` that passed: a check costs more than a lookup."""

    def refusal(self, scope: Mapping[str, Any]) -> TierlogError | None:
        """Why the request is not taken; None if it is."""
        try:
            found = only_values(scope["headers"], _WANTED)
            host = found.get(b"host")
            if host is None:
                # HTTP/1.0 does not know the header, and no browser speaks it.
                if scope["http_version"] != "1.0":
                    raise InvalidArgument("the request has no Host header, which RFC 9112 requires")
            elif host not in self._known:
                self._check_host(host, scope["server"])
            # Programs send neither.
            if (b"origin" in found or b"sec-fetch-site" in found) and scope["method"] not in _SAFE:
                self._check_origin(found, scope["scheme"], host)
        except TierlogError as error:
            return error
        return None

    def _check_host(self, host: bytes, server: tuple[str, int] | None) -> None:
        name, _ = _host_and_port(host.decode("latin-1"), "http") or ("", "")
        # The address to which the client connected is ours. A page behind a rebound name sends that name.
        if not (name in self._names or _is_loopback(name) or (server and name == _normal(server[0]))):
            raise UnknownHost(
                f"{shown(host.decode('latin-1'))} is not a name of this server: to use it, set "
                f"server.advertise (serve --advertise NAME)"
            )

        # A client can invent spellings and ports of one name without end.
        if len(self._known) < _KNOWN_MAX:
            self._known.add(host)

    def _check_origin(self, found: Mapping[bytes, bytes], scheme: str, host: bytes | None) -> None:
        site = found.get(b"sec-fetch-site", b"").partition(b";")[0].strip().lower()
        origin = found.get(b"origin")
        # Old browsers send no ``Sec-Fetch-Site``, and programs send no ``Origin``: both are looked at,
        # neither is required.
        if site == b"cross-site" or (origin is not None and not self._is_own(origin, scheme, host)):
            sender = shown((origin or b"another site").decode("latin-1"))
            raise CrossOrigin(
                f"a page of {sender} must not change anything on this server; if that is the server's own "
                f"page, behind a proxy with TLS, start the service with --advertise https://NAME"
            )

    def _is_own(self, origin: bytes, scheme: str, host: bytes | None) -> bool:
        """Whether the origin is the advertised one, or has the scheme, host and port of the request."""
        given = _origin(origin.decode("latin-1"))
        return given is not None and (
            given in self._origins
            or (host is not None and given == _origin(f"{scheme}://{host.decode('latin-1')}"))
        )


_WANTED = frozenset({b"host", b"origin", b"sec-fetch-site"})


def names_of(listen: str, advertise: str, names: str) -> tuple[str, ...]:
    """The names of a server: the address listened on and the settings ``server.advertise`` and
    ``server.names``."""
    return (listen, advertise, *(name.strip() for name in names.split(",")))


def advertised_name(advertised: str) -> str:
    """The name or address in the setting ``server.advertise``."""
    if not advertised.startswith(_TLS):
        return advertised

    return (_host_and_port(advertised.removeprefix(_TLS), "https") or ("", ""))[0]


def _origin(text: str) -> tuple[str, str, str] | None:
    """Scheme, host and port of an origin (RFC 6454); None if it is malformed."""
    scheme, separator, authority = text.partition("://")
    scheme = scheme.lower()
    named = _host_and_port(authority, scheme) if separator and scheme in _DEFAULT_PORTS else None
    return None if named is None else (scheme, *named)


def _host_and_port(host: str, scheme: str) -> tuple[str, str] | None:
    """Name or address and port; None if ``host`` is malformed."""
    match = _HOST.fullmatch(host)
    return None if match is None else (_normal(match[1]), match[2] or _DEFAULT_PORTS[scheme])


def _normal(name: str) -> str:
    """One form of a name or address, whichever way it is written."""
    address = _address(name)
    # A fully qualified name ends with a dot and means the same host.
    return name.lower().removesuffix(".") if address is None else str(address)


def _address(name: str) -> _Address | None:
    try:
        address: _Address = ip_address(name.removeprefix("[").removesuffix("]"))
    except ValueError:
        return None
    # A socket for both families shows IPv4 as ``::ffff:127.0.0.1``.
    return getattr(address, "ipv4_mapped", None) or address


def _is_loopback(name: str) -> bool:
    address = _address(name)
    # Names below ``localhost`` never leave the machine (RFC 6761, 6.3).
    return name == "localhost" or name.endswith(".localhost") or (address is not None and address.is_loopback)
