"""Damaged folders on the real disk: each opens whole or is refused in one line, and leaves neither memory nor
descriptors behind. Which damage is noticed, and where, is in ``test_damage.py``."""

from __future__ import annotations

import gc
import os
import resource
import shutil
from contextlib import suppress
from pathlib import Path
from random import Random

import pytest

from support.stores import config
from tierlog import TierlogError, open_store
from tierlog.actors.settings.configuration import SupervisionConfig, TimeoutsConfig

pytestmark = [pytest.mark.anyio, pytest.mark.one_loop]
IMPATIENT = config(
    supervision=SupervisionConfig(restarts=1, backoff=0.001, backoff_max=0.001),
    timeouts=TimeoutsConfig(unavailable=0.1),
)
DATA = bytes(range(256)) * 20
RSS_MAX = 32 << 20
"""Bytes by which the process may have grown."""


async def make_folder(folder: Path) -> None:
    async with open_store(folder, containers=1, config=IMPATIENT) as store:
        await store.create_segment("s")
        await store.append("s", DATA)
        await store.flush()
        await store.append("s", DATA)


def damage(folder: Path, random: Random) -> str:
    """Change one file in one way; returns what was done."""
    files = sorted(path for path in folder.rglob("*") if path.is_file() and path.stat().st_size)
    path = random.choice(files)
    content = bytearray(path.read_bytes())
    at = random.randrange(len(content))
    how = random.choice(["flip", "cut", "zeros", "remove"])
    if how == "flip":
        content[at] ^= 1 << random.randrange(8)
    elif how == "cut":
        del content[at:]
    elif how == "zeros":
        content[at : at + 64] = bytes(len(content[at : at + 64]))
    path.write_bytes(content)
    if how == "remove":
        path.unlink()
    return f"{how} at {at} of {path.relative_to(folder)}"


async def refusal_of(folder: Path) -> TierlogError | None:
    try:
        async with open_store(folder, containers=1, config=IMPATIENT) as store:
            assert await store.read("s", 0, len(DATA)) == DATA
            assert await store.read("s", len(DATA), len(DATA)) == DATA
    except TierlogError as error:
        # Its traceback would keep the frames of the opening.
        return error.with_traceback(None)
    return None


async def open_damaged(sound: Path, copy: Path, random: Random) -> bool:
    """Whether a damaged copy is refused."""
    shutil.copytree(sound, copy)
    what = damage(copy, random)
    refusal = await refusal_of(copy)
    shutil.rmtree(copy)
    if refusal is not None:
        assert "\n" not in str(refusal), what
        assert 0 < len(str(refusal)) < 1000, what
    return refusal is not None


def open_below(folder: Path) -> list[str]:
    """Its files and folders that this process has open."""
    opened = []
    for number in os.listdir("/proc/self/fd"):
        with suppress(FileNotFoundError):  # that of the list itself
            opened.append(os.readlink(f"/proc/self/fd/{number}"))
    return [path for path in opened if path.startswith(f"{folder}/")]


def resident_bytes() -> int:
    with open("/proc/self/statm", encoding="ascii") as stream:
        return int(stream.read().split()[1]) * resource.getpagesize()


@pytest.mark.parametrize("count", [40, pytest.param(200, marks=pytest.mark.extended)])
async def test_damaged_folders_are_refused_in_one_line_and_forgotten(tmp_path: Path, count: int) -> None:
    sound, random = tmp_path / "sound", Random(count)
    await make_folder(sound)
    for number in range(5):  # what is made once is made now
        await open_damaged(sound, tmp_path / f"early{number}", random)
    gc.collect()
    resident = resident_bytes()
    refused = 0
    for number in range(count):
        refused += await open_damaged(sound, tmp_path / f"copy{number}", random)
    gc.collect()
    assert 0 < refused < count
    assert open_below(tmp_path) == []
    assert resident_bytes() - resident < RSS_MAX
