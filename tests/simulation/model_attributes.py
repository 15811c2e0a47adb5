"""The listing of attributes in pages, in the model's values."""

from __future__ import annotations

from typing import ClassVar

import attrs

from tierlog.actors.store.store import SegmentStore
from tierlog.storage_backends.base.segments import AttributeName, AttributePage

from .model import Outcome, Part, ReturnedPage, Segment, State, is_id, plain
from .model_calls import SegmentOp


@attrs.frozen
class ListAttributes(SegmentOp):
    """A page of them."""

    name: str
    prefix: AttributeName
    after: AttributeName | None
    limit: int
    is_query: ClassVar[bool] = True
    depends_on: ClassVar = (Part.ATTRIBUTES,)

    def change(self, state: State, segment: Segment) -> tuple[State, Outcome]:
        prefix, after = plain(self.prefix), "" if self.after is None else plain(self.after)
        found = tuple(
            (name, value)
            for name, value in segment.attributes
            if is_id(name) is is_id(prefix) and name.startswith(prefix) and name > after
        )
        return state, ReturnedPage(found[: self.limit], len(found) <= self.limit)

    async def send(self, store: SegmentStore) -> AttributePage:
        return await store.list_attributes(self.name, self.prefix, after=self.after, limit=self.limit)
