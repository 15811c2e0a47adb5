"""Queries: requests that log nothing. Their answers wait for what they depend on like all others (rule
C1)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..requests import NameRequest, Request
from .handlers import Decision, RequestHandler

if TYPE_CHECKING:
    from ..state import ContainerState


class InfoRequest(NameRequest):
    """Answered with the segment's ``SegmentInfo``."""

    __slots__ = ()
    is_read = True


class WaitDurableRequest(Request):
    """Answered with None once everything before it is durable. A refusal that was decided outside the
    pipeline waits for this (rule C1)."""

    __slots__ = ()


def _info(state: ContainerState, request: InfoRequest) -> Decision:
    return None, state.segments.require(request.name).info(state.container, state.history)


def _wait_durable(state: ContainerState, request: WaitDurableRequest) -> Decision:
    return None, None


HANDLERS = (
    RequestHandler(InfoRequest, _info),
    RequestHandler(WaitDurableRequest, _wait_durable),
)
