"""Seal: the segment takes no more appends."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ....journal.operations.seal_segment import SealSegment
from ..requests import NameRequest
from ..transaction_table import refuse_staged
from .handlers import Decision, OperationHandler, RequestHandler

if TYPE_CHECKING:
    from ..publish import Publisher
    from ..state import ContainerState


class SealRequest(NameRequest):
    """Answered with the final length, also if the segment was sealed before."""

    __slots__ = ()


def _decide(state: ContainerState, request: SealRequest) -> Decision:
    refuse_staged(request.name, "commit_transaction seals those that it takes")
    segment = state.segments.require(request.name)
    return (None if segment.sealed else SealSegment(segment.sid)), segment.length


def _apply(state: ContainerState, op: SealSegment) -> None:
    state.change(op.sid).sealed = True


def _publish(publisher: Publisher, op: SealSegment, group: int) -> None:
    # Tails end at a seal.
    publisher.by_id[op.sid].wake()


HANDLERS = (
    RequestHandler(SealRequest, _decide),
    OperationHandler(SealSegment, _apply, _publish, from_client=True),
)
