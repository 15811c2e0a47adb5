"""What a call without an answer raises, and when: its program is driven on a clock of the test's own."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest

from support.client_programs import ProgramDriver
from tierlog import Unavailable
from tierlog.actors.gateway.client import requests
from tierlog.actors.gateway.client.attempts import (
    ClientContext,
    Send,
    call_all_hosts,
    load_first_map,
    run_call,
)
from tierlog.actors.gateway.client.container_map import ContainerMapCache
from tierlog.actors.gateway.client.requests import Response, TailCursor, TransportFailure
from tierlog.actors.gateway.wire.bodies import ContainerAssignment, ContainerMap, encode_json
from tierlog.storage_backends.base.list_pages import TRANSACTIONS, PageAsked

ALL = PageAsked.of(TRANSACTIONS, "", None, 1)
BASE, TYPE = "http://host", {"content-type": "text/html"}
BAD_GATEWAY, NOT_FOUND = Response(502, TYPE, b"<html>"), Response(404, TYPE, b"<html>")
MAP = Response(200, {}, encode_json(ContainerMap(1, (ContainerAssignment(0, BASE, 1),))))


class Server(ProgramDriver):
    """Gives these answers to calls (or to the opening's requests for the map), one after the other, and then
    none: each attempt takes all its time."""

    def __init__(self, *answers: Response, is_open: bool = True) -> None:
        self.now, self.requests = 0.0, 0
        self._answers = list(answers)
        self._is_open = is_open
        self.context = ClientContext(ContainerMapCache(BASE), 1.0, 0.5, lambda: self.now, Random(0))
        if is_open:
            self.drive(load_first_map(self.context))

    def _send(self, effect: Send) -> Response | TransportFailure:
        if self._is_open and effect.request.path == requests.container_map().request.path:
            return MAP

        self.requests += 1
        if self._answers:
            return self._answers.pop(0)
        self.now += effect.seconds
        return TransportFailure(sent=True, reason="no answer in time")


def test_a_step_of_a_tail_is_repeated_once_behind_an_answer_that_did_not_come() -> None:
    """It had all the time that there was; a call on its own is over."""
    for call, seconds in ((TailCursor("s", 0, 100, None).poll(), 2.0), (requests.segment_info("s"), 1.0)):
        server = Server()
        with pytest.raises(Unavailable, match="no answer in time"):
            server.drive(run_call(server.context, call))
        assert server.now == seconds


def test_a_step_of_a_tail_has_no_more_time_than_a_call_while_no_attempt_lasts() -> None:
    server = Server(*[BAD_GATEWAY] * 1000)
    with pytest.raises(Unavailable, match="502"):
        server.drive(run_call(server.context, TailCursor("s", 0, 100, None).poll()))
    assert server.now <= 1.0


@pytest.mark.parametrize(
    "program",
    [
        lambda context: run_call(context, requests.segment_info("s")),
        lambda context: call_all_hosts(context, requests.page_of_transactions(ALL, 1)),
    ],
    ids=["one", "all"],
)
def test_a_call_whose_last_attempt_the_deadline_cut_short_raises_the_failure_before_too(program: Any) -> None:
    server = Server(BAD_GATEWAY)
    with pytest.raises(Unavailable, match=r"no answer in time; the attempt before failed: .*502"):
        server.drive(program(server.context))
    assert server.requests == 2


def test_an_opening_that_the_deadline_cuts_short_raises_the_failure_before_too() -> None:
    server = Server(BAD_GATEWAY, is_open=False)
    with pytest.raises(Unavailable, match=r"no answer in time; the attempt before failed: .*502"):
        server.drive(load_first_map(server.context))
    assert server.now == 1.0


def test_h3_an_opening_raises_a_final_foreign_answer_at_once() -> None:
    server = Server(NOT_FOUND, is_open=False)
    with pytest.raises(Unavailable, match=f"no tierlog server answers at {BASE}: .*404"):
        server.drive(load_first_map(server.context))
    assert (server.now, server.requests) == (0.0, 1)
