"""The addresses and ports of the supervisor and its hosts, checked before a host starts."""

from __future__ import annotations

import logging

import pytest

from tierlog import InvalidArgument
from tierlog.actors.settings.configuration import ServerConfig
from tierlog.actors.supervisor.service import (
    check_advertised,
    check_host_ports,
    listen_of,
    warn_of_lease,
)


@pytest.mark.parametrize(
    "port, host_port, hosts, words",
    [
        (8470, 65_535, 2, "need ports up to 65536.*choose --host-port 65534 or less"),
        (8470, 8470, 1, "include 8470, on which the supervisor listens"),
        (8471, 8470, 2, "include 8471, on which the supervisor listens"),
    ],
)
def test_ports_that_a_host_cannot_have_are_refused(port: int, host_port: int, hosts: int, words: str) -> None:
    with pytest.raises(InvalidArgument, match=words):
        check_host_ports(port, host_port, hosts)


@pytest.mark.parametrize("port, host_port, hosts", [(8470, 65_534, 2), (8470, 8471, 4), (8470, 0, 256)])
def test_other_ports_are_accepted(port: int, host_port: int, hosts: int) -> None:
    check_host_ports(port, host_port, hosts)


@pytest.mark.parametrize("text", ["8470", "1:2:3", "127.0.0.1:65536", "127.0.0.1:http"])
def test_what_is_not_an_address_and_a_port_is_refused(text: str) -> None:
    with pytest.raises(InvalidArgument, match="is not ADDRESS:PORT"):
        listen_of(text, ServerConfig())


def test_an_empty_address_is_not_the_default() -> None:
    with pytest.raises(InvalidArgument, match="--listen is empty: name ADDRESS:PORT"):
        listen_of("", ServerConfig())


@pytest.mark.parametrize(
    "address, advertise, words",
    [
        ("0.0.0.0", "", "0.0.0.0 means every address of this machine"),
        ("::", "", "add --advertise NAME"),
        ("127.0.0.1", "http://store.example.org", "a name or an address without a port"),
        ("127.0.0.1", "store.example.org:80", "a name or an address without a port"),
        ("127.0.0.1", "https://store.example.org/page", "a name or an address without a port"),
    ],
)
def test_an_address_that_clients_could_not_reach_is_refused(address: str, advertise: str, words: str) -> None:
    with pytest.raises(InvalidArgument, match=words):
        check_advertised(address, advertise)


@pytest.mark.parametrize(("lease", "warns"), [(15.0, False), (39.0, False), (40.0, True)])
def test_v4_a_lease_that_outlasts_the_hosts_without_a_supervisor_is_warned_of(
    caplog: pytest.LogCaptureFixture, lease: float, warns: bool
) -> None:
    """All hosts that joined would close their containers before a standby can follow."""
    with caplog.at_level(logging.WARNING, logger="tierlog.service"):
        warn_of_lease(ServerConfig(lease=lease, orphan_grace=60.0))
    assert ("lease_outlasts_hosts" in caplog.text) is warns
