"""A reset that anyio and uvloop report as an ``AttributeError``, and mistakes that are none."""

from __future__ import annotations

import socket

import pytest

from support.lost_sockets import ask_lost_socket
from tierlog.actors.kernel.lost_sockets import lost_sockets


def test_a_socket_that_the_loop_took_away_is_a_reset_connection() -> None:
    with pytest.raises(AttributeError, match="'NoneType' object has no attribute 'getpeername'"):
        ask_lost_socket()
    with pytest.raises(ConnectionResetError, match="reset"), lost_sockets():
        ask_lost_socket()


@pytest.mark.parametrize("found", [None, socket])
def test_any_other_missing_attribute_is_a_mistake(found: object) -> None:
    with pytest.raises(AttributeError, match="has no attribute 'getpeername'"), lost_sockets():
        found.getpeername()  # type: ignore[attr-defined]
