"""A folder whose logs are lost, recovered from long-term storage alone, as ``recover_store`` does it, but for
the files (rules R1 to R7)."""

from __future__ import annotations

from random import Random

from tierlog.actors.container.lts_boot import claim_chain, read_boot
from tierlog.actors.container.owner import Identity
from tierlog.actors.store.lts_view import LtsContainer
from tierlog.journal.log.memory import MemoryLogService
from tierlog.journal.manifest.store_record import require_store_record
from tierlog.storage_backends.base.errors import TierlogError
from tierlog.storage_backends.chunks.memory import MemoryChunkStorage
from tierlog.storage_backends.sorted_runs.block_cache import BlockCache
from tierlog.storage_backends.sorted_runs.reader import RunReader, StoredRuns

from .copied_folder import Folder
from .invariants import Broken
from .settings import ChunksKind
from .world import Site

_CACHE_BYTES = 1 << 20


async def recover(site: Site, lost: Folder, name: str, random: Random) -> Folder:
    """Folder ``name``: the store of ``lost``, without its logs and local copies. Of what it should have the
    folder knows nothing."""
    chunks = MemoryChunkStorage(site.chunk_state, append=site.kind.chunks is ChunksKind.APPEND)
    await chunks.open()
    logs = MemoryLogService()
    try:
        record = await require_store_record(chunks)
        for index in range(record.containers):
            newest = await LtsContainer(index, chunks, record.store).newest()
            assert newest is not None
            runs = RunReader(StoredRuns(chunks), BlockCache(_CACHE_BYTES))
            boot = await read_boot(index, newest, newest.element, runs)
            if boot.published.inconsistencies:
                raise Broken(f"it does not hold that every flush can be recovered\n{boot.published}")
            log = logs.log(str(index))
            opened = await log.open(above=boot.epoch)
            owner = Identity(
                record.store, b"recovered-log...", random.randbytes(16), lost.fingerprint
            ).signature
            claim = await boot.write(log, owner, opened.epoch, site.time_ms())
            await log.close()
            await claim_chain(chunks, index, claim)
    except TierlogError as error:
        raise Broken(f"it does not hold that every flush can be recovered\n{error!r}") from error
    finally:
        await chunks.close()
    return Folder(name, logs, lost.fingerprint)
