"""A model test of a container's system table: it is a dictionary, through any sequence of commits, cycles,
merges, checkpoints, failures of long-term storage, lost local copies, and crashes at any moment (rules M8 to
M11)."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from random import Random

import anyio
import anyio.lowlevel
import pytest
from msgspec.structs import replace

from support.container_world import OPTIONS, ContainerWorld, Owner, virtual_time
from support.stores import make
from support.table_rows import records_of
from tierlog.journal.manifest.chain import runs_prefix
from tierlog.storage_backends.base.errors import MetadataConflict, TierlogError
from tierlog.testing.faulty_chunk_storage import Call, Fault, FaultKind

pytestmark = [pytest.mark.anyio, virtual_time]

KEYS = [f"z:{letter}" for letter in "abcdefgh"]
RUNS = runs_prefix(0)
LIVES, STEPS = 4, 14
KINDS = (FaultKind.BEFORE, FaultKind.AFTER, FaultKind.FULL)


class Life:
    """What is known of the records, and one owner after the other."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.world = ContainerWorld(replace(OPTIONS, merge_fan_out=self.random.randint(2, 4)))
        self.known: dict[str, tuple[int, bytes]] = {}
        self.doubt: dict[str, bytes | None] = {}
        """What the commit would have written during which the owner ended."""
        self.values = 0

    async def run(self) -> None:
        async with self.world.owner() as owner:
            await make(owner.store, "s", b"abc")
        for _ in range(LIVES):
            async with anyio.create_task_group() as tasks:
                owner = await self.world.start(tasks)
                await self.recover(owner)
                await self.live(owner, tasks)
            self.world.chunks.script = None
            if self.random.random() < 0.3:
                self.lose_local_copies()
        async with self.world.owner() as owner:
            await self.recover(owner)
            left: list[set[str]] = []
            for _ in range(3):
                await self.flush(owner)
                await anyio.sleep(600)
                left.append(self.unreferenced(owner))
            await self.check(owner)
            assert not left[1] & left[2], (
                "a merge's sources wait for the next cycle, and nothing waits for two"
            )

    def unreferenced(self, owner: Owner) -> set[str]:
        """The runs in long-term storage that the newest element does not name."""
        stored = {name for name in self.world.memory.chunks if name.startswith(RUNS)}
        assert {run.name for run in owner.container.state.table.runs} <= stored
        return stored - set(owner.container.state.manifest.runs_among(stored))

    async def live(self, owner: Owner, tasks: anyio.abc.TaskGroup) -> None:
        """Live until a crash at a random moment of the last step but one, or a clean end."""
        actions = [self.commit] * 5 + [self.flush] * 3 + [self.wait, self.checkpoint, self.forget_blocks]
        for step in range(STEPS):
            action = self.random.choice(actions)
            self.world.chunks.script = self.fault() if self.random.random() < 0.25 else None
            if step == STEPS - 2 and self.random.random() < 0.8:
                tasks.start_soon(self.crash, owner, self.random.randrange(120))
            if not await self.survives(owner, action):
                return
            await self.check(owner)
        owner.container.stop()
        await owner.ended.wait()

    async def survives(self, owner: Owner, action: Callable[[Owner], Awaitable[None]]) -> bool:
        try:
            await action(owner)
        except TierlogError:
            assert owner.scope.cancel_called
        return not owner.scope.cancel_called

    @staticmethod
    async def crash(owner: Owner, turns: int) -> None:
        for _ in range(turns):
            await anyio.lowlevel.checkpoint()
        owner.scope.cancel()

    def fault(self) -> Callable[[Call], Fault | None]:
        """Some of the next creations of runs or elements fail."""
        kind, skipped = self.random.choice(KINDS), self.random.randrange(3)

        def script(call: Call) -> Fault | None:
            nonlocal skipped
            if call.verb != "create_with_content" or not call.name.startswith("_system/containers/"):
                return None
            skipped -= 1
            return Fault(kind) if skipped < 0 else None

        return script

    # --- actions --------------------------------------------------------------------------------

    async def commit(self, owner: Owner) -> None:
        """Up to three keys, on the right versions or one wrong one."""
        writes: dict[str, bytes | None] = {}
        for key in self.random.sample(KEYS, self.random.randint(1, 3)):
            self.values += 1
            writes[key] = None if self.random.random() < 0.3 else b"%d" % self.values
        expected = {key: self.known[key][0] if key in self.known else 0 for key in writes}
        wrong = self.random.random() < 0.2
        if wrong:
            expected[min(writes)] += 1
        self.doubt = {} if wrong else dict(writes)
        try:
            version = await owner.container.metadata.commit(expected, writes)
        except MetadataConflict:
            assert wrong
            return
        assert not wrong
        self.doubt = {}
        for key, value in writes.items():
            if value is None:
                self.known.pop(key, None)
            else:
                self.known[key] = (version, value)

    async def flush(self, owner: Owner) -> None:
        await owner.store.append("s", b"x")
        try:
            await owner.store.flush()
        except TierlogError:
            if owner.scope.cancel_called or self.world.chunks.script is None:
                raise

    async def wait(self, owner: Owner) -> None:
        """For merges, and for attempts that follow failed ones."""
        await anyio.sleep(self.random.choice((0.1, 2, 70)))

    async def checkpoint(self, owner: Owner) -> None:
        await owner.checkpoint()

    async def forget_blocks(self, owner: Owner) -> None:
        owner.container.options.table_cache.clear()

    def lose_local_copies(self) -> None:
        for path in self.world.files.disk.files_below("/"):
            self.world.files.disk.unlink(path)

    # --- checks ---------------------------------------------------------------------------------

    async def recover(self, owner: Owner) -> None:
        """A commit during which the owner ended has taken effect as a whole, or not at all."""
        found = await owner.container.metadata.records("z:")
        if self.doubt and any(
            (found[key][1] if key in found else None) != (self.known[key][1] if key in self.known else None)
            for key in self.doubt
        ):
            for key, value in self.doubt.items():
                assert (found[key][1] if key in found else None) == value
                self.known.pop(key, None)
                if value is not None:
                    self.known[key] = found[key]
        self.doubt = {}
        await self.check(owner)

    async def check(self, owner: Owner) -> None:
        """Without what was committed while the owner ended."""
        metadata = owner.container.metadata
        assert await metadata.records("z:") == self.known
        _, found = await metadata.look_up(KEYS)
        assert found == self.known
        key = self.random.choice(KEYS)
        assert await metadata.get(key) == self.known.get(key)
        if owner.container.copies.statistics().copies == len(owner.container.state.table.runs):
            assert {
                key: record for key, record in records_of(owner.container).items() if key.startswith("z:")
            } == self.known


@pytest.mark.parametrize("seed", range(10))
async def test_a_system_table_is_a_dictionary_whatever_happens(seed: int) -> None:
    await Life(seed).run()


@pytest.mark.extended
@pytest.mark.parametrize("seed", range(10, 70))
async def test_a_system_table_is_a_dictionary_in_many_more_lives(seed: int) -> None:
    await Life(seed).run()
