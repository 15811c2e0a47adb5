"""Beside a service: who would shut all of it out has to mean it (rule V14). Only the supervisor's lease shows
that there is one, which may run anywhere. It is no fence (rule D5): a supervisor that starts a moment later
is not seen."""

from __future__ import annotations

import os
import socket
from contextlib import suppress

import anyio

from ...journal.coordination.contract import IDENTITY, SUPERVISOR, Coordination, Lease, LeaseHeld
from ...journal.coordination.lease_record import decode_lease, lease_name
from ...journal.coordination.objects import OBSERVED, ObjectCoordination
from ...storage_backends.base.errors import DataCorruption, NotOwner
from ...storage_backends.base.world import World
from ...storage_backends.chunks.s3_location import S3Location, parse_location
from ..folder.chunk_location import ChunkLocation, s3_options
from ..telemetry.logging import get_logger
from .nesting import CHUNKS, IDENTITY_BYTES, is_identity

_LOOKS = 8
"""How often a lease is looked at within its duration. Its holder renews it three times."""
_RELEASE_SECONDS = 5.0
_log = get_logger("node")


async def refuse_supervised(coordination: Coordination, duration: float, shown: str, remedy: str) -> None:
    """Raises ``NotOwner`` if a supervisor renews its lease of the store ``shown``; ``remedy`` says what else
    to do. A lease that nobody renews is waited for, and released, so that nobody waits for it again.
    ``duration`` is that of a lease, in seconds."""
    name = lease_name(SUPERVISOR)
    record = await coordination.load(name)
    with suppress(DataCorruption):  # it may be held, which shows below
        if record is None or not decode_lease(record.data, coordination.place(name)).held:
            return

    ours, former = f"process {os.getpid()} of {socket.gethostname()}", ""
    lease: Lease | None = None
    while lease is None:
        try:
            lease = await coordination.take_lease(SUPERVISOR, ours, duration)
        except LeaseHeld as error:
            # Another one that took it may be an opening too, which releases it at once.
            if error.is_renewed and error.holder == former:
                raise NotOwner(
                    f"{shown} is in a service, which {error.holder} supervises: {remedy}"
                ) from error
            if error.holder != former:
                former = error.holder
                _log.warning("lease_awaited", holder=former, seconds=OBSERVED * error.duration)
            await anyio.sleep(error.duration / _LOOKS)
    if former:
        _log.warning("lease_ended", place=coordination.place(name), holder=former)
    # Else it would hold up the next one.
    with anyio.move_on_after(_RELEASE_SECONDS, shield=True):
        await lease.release()


async def refuse_supervised_chunks(
    location: ChunkLocation, duration: float, world: World, remedy: str
) -> None:
    """``refuse_supervised`` for long-term storage. If that is of a store in a bucket, the lease is beside it.
    Nothing there shows the service of any other store."""
    if not location.is_bucket:
        return
    chunks = parse_location(location.chunks)
    above = chunks.prefix.removesuffix(CHUNKS)
    if above == chunks.prefix or (above and not above.endswith("/")):
        return
    # Imported for the stores that need it: its client takes long.
    from ...storage_backends.chunks.s3_objects import S3Objects

    place = S3Location(chunks.bucket, above)
    objects = S3Objects(place, s3_options(location))
    await objects.open()
    try:
        if is_identity(await objects.find_elsewhere(f"{above}{IDENTITY}", IDENTITY_BYTES)):
            coordination = ObjectCoordination(objects, "", world)
            await refuse_supervised(coordination, duration, str(place), remedy)
    finally:
        with anyio.CancelScope(shield=True):
            await objects.close()
