"""Seal and unseal: metadata only. The flag is in the segment record, so it is committed together with the
length (rule F1)."""

from __future__ import annotations

from ..segment_transaction import SegmentTransaction


async def seal(txn: SegmentTransaction) -> None:
    txn.update(await txn.segment(), sealed=True)


async def unseal(txn: SegmentTransaction) -> None:
    txn.update(await txn.segment(), sealed=False)
