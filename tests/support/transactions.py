"""What tests of transactions do again and again, on a store's public verbs."""

from __future__ import annotations

from tierlog import CommitResult, SegmentStore, StagedPart, TransactionToken

TARGET = "app/events"


async def staged(store: SegmentStore, transaction: str, **parts: bytes) -> list[StagedPart]:
    """Stage ``parts`` (name to bytes) and say what a commit takes."""
    described = []
    for part, data in parts.items():
        name = await store.stage_segment(TARGET, transaction, part)
        await store.append(name, data, expected_offset=0)
        described.append(StagedPart(name, len(data)))

    return described


async def begun(
    store: SegmentStore, transaction: str, token: TransactionToken | None = None, **parts: bytes
) -> list[StagedPart]:
    """An open transaction with ``parts``."""
    await store.begin_transaction(TARGET, transaction, token)
    return await staged(store, transaction, **parts)


async def committed(
    store: SegmentStore, transaction: str, token: TransactionToken | None = None, **parts: bytes
) -> CommitResult:
    return await store.commit_transaction(
        TARGET, transaction, await begun(store, transaction, token, **parts), token
    )
