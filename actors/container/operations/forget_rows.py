"""The end of rows that a removed segment left (rule M17)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from ....journal.operations.forget_rows import ForgetRows
from ....storage_backends.sorted_runs.rows import Row
from ..requests import Request
from .handlers import Decision, OperationHandler, RequestHandler

if TYPE_CHECKING:
    from ..state import ContainerState


class ForgetRowsRequest(Request):
    """Internal: remove rows that nothing changes any more. Answered with None."""

    __slots__ = ("keys",)

    def __init__(self, keys: Sequence[bytes]) -> None:
        self.keys = keys


def _decide(state: ContainerState, request: ForgetRowsRequest) -> Decision:
    return ForgetRows(tuple(request.keys)), None


def _apply(state: ContainerState, op: ForgetRows) -> None:
    state.table.put([Row(key, state.sequence, None) for key in op.keys])


HANDLERS = (RequestHandler(ForgetRowsRequest, _decide), OperationHandler(ForgetRows, _apply))
