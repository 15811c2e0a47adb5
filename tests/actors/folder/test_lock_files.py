"""Lock files: created, listed, removed."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import cast

import pytest
from msgspec.structs import replace

from tierlog.actors.folder.lock_files import (
    SUPERVISOR,
    OpenElsewhere,
    Owner,
    create_lock_file,
    create_only_lock_file,
    describe_opening,
    list_owners,
    remove_lock_file,
)
from tierlog.storage_backends.base.errors import NotOwner
from tierlog.storage_backends.base.files import Close, FileHandle, Lock, Open, Program
from tierlog.storage_backends.files.local import LocalFiles

pytestmark = pytest.mark.anyio

DATA = "/data"
FIRST = Owner("a" * 32, 100, "host", 1_700_000_000_000)
SECOND = Owner("b" * 32, 200, "host", 1_700_000_000_001)


async def test_owners_are_listed_while_they_live(tmp_path: Path) -> None:
    folder, files = f"{tmp_path}/owners", LocalFiles()
    assert await files.run(list_owners(folder)) == []
    first = await files.run(create_lock_file(folder, FIRST))
    second = await files.run(create_lock_file(folder, SECOND))

    assert await files.run(list_owners(folder)) == [FIRST, SECOND]
    await files.run(remove_lock_file(folder, FIRST, first))
    assert await files.run(list_owners(folder)) == [SECOND]
    await files.run(remove_lock_file(folder, SECOND, second))
    assert not Path(folder).exists()


async def test_a_file_that_another_opening_removes_before_it_is_locked_is_made_again(tmp_path: Path) -> None:
    folder, files = f"{tmp_path}/owners", LocalFiles()

    def program() -> Program[FileHandle]:
        create, result, opened = create_lock_file(folder, FIRST), None, 0
        while True:
            try:
                call = create.send(result)
            except StopIteration as ended:
                assert opened == 2
                return cast(FileHandle, ended.value)

            result = yield call
            if isinstance(call, Open):
                opened += 1
                if opened == 1:
                    os.unlink(call.path)

    handle = await files.run(program())
    assert await files.run(list_owners(folder)) == [FIRST]
    await files.run(remove_lock_file(folder, FIRST, handle))


async def test_an_opening_lists_the_lock_files_once(tmp_path: Path) -> None:
    """Beside the check of its own, once it is locked."""
    folder, files, calls = f"{tmp_path}/owners", LocalFiles(), list[str]()
    identity = tmp_path / "store"
    identity.touch()

    def counted(program: Program[FileHandle]) -> Program[FileHandle]:
        result = None
        while True:
            try:
                call = program.send(result)
            except StopIteration as ended:
                return cast(FileHandle, ended.value)
            calls.append(type(call).__name__)
            result = yield call

    handle = await files.run(counted(create_only_lock_file(DATA, folder, FIRST, str(identity))))
    assert calls.count("ListFolder") == 2
    await files.run(remove_lock_file(folder, FIRST, handle))


@pytest.mark.parametrize(
    ("other", "message"),
    [
        (
            replace(FIRST, owner_id="b" * 32),
            "this process has /data open already: use that store, or close",
        ),
        (replace(FIRST, owner_id="b" * 32, host="other"), "open in process 100 on host: stop that process"),
        (replace(FIRST, owner_id="b" * 32, start="later"), "open in process 100 on host: stop that process"),
        (
            SECOND,
            "^/data is open in process 100 on host: stop that process, or fence it with take_over=True$",
        ),
    ],
)
async def test_an_opening_beside_another_one_is_refused_with_what_to_do(
    tmp_path: Path, other: Owner, message: str
) -> None:
    folder, files = f"{tmp_path}/owners", LocalFiles()
    (tmp_path / "store").touch()
    first = await files.run(create_lock_file(folder, FIRST))
    with pytest.raises(NotOwner, match=message):
        await files.run(create_only_lock_file(DATA, folder, other, f"{tmp_path}/store"))
    await files.run(remove_lock_file(folder, FIRST, first))


@pytest.mark.parametrize(
    ("owner", "advice"),
    [
        (FIRST, "stop that process first"),
        (replace(FIRST, role="host-0"), "a host of a service whose supervisor has ended: stop it first"),
        (replace(FIRST, role=SUPERVISOR, url="http://h"), "at http://h: stop that service first"),
    ],
)
def test_who_cannot_take_over_gets_no_advice_to_fence(owner: Owner, advice: str) -> None:
    message = describe_opening("/data", [owner], use_service="stop that service first")
    assert message.endswith(advice)
    assert "fence" not in message


async def test_an_opening_during_another_one_is_refused(tmp_path: Path) -> None:
    """Both may be in one process."""
    files, identity = LocalFiles(), tmp_path / "store"
    identity.touch()

    def locked() -> Program[FileHandle]:
        handle: FileHandle = yield Open(str(identity))
        yield Lock(handle)
        return handle

    guard = await files.run(locked())
    with pytest.raises(NotOwner, match="^/data is being opened, in this process or another: open it in one"):
        await files.run(create_only_lock_file(DATA, f"{tmp_path}/owners", FIRST, str(identity)))
    await files.run(closing(guard))
    assert not (tmp_path / "owners").exists()


async def test_the_lock_file_of_a_service_has_its_url(tmp_path: Path) -> None:
    folder, files = f"{tmp_path}/owners", LocalFiles()
    served = Owner("c" * 32, 300, "host", 1_700_000_000_002, role=SUPERVISOR, url="http://127.0.0.1:8470")
    handle = await files.run(create_lock_file(folder, served))
    assert await files.run(list_owners(folder)) == [served]
    await files.run(remove_lock_file(folder, served, handle))


async def test_a_refusal_names_the_service_and_not_one_of_its_hosts(tmp_path: Path) -> None:
    folder, files, identity = f"{tmp_path}/owners", LocalFiles(), tmp_path / "store"
    identity.touch()
    url = "http://127.0.0.1:8470"
    supervisor = Owner("b" * 32, 300, "host", 1_700_000_000_002, role=SUPERVISOR, url=url)
    hosts = [Owner(letter * 32, 200, "host", 1_700_000_000_003, role="host-0") for letter in "ac"]
    held = [(owner, await files.run(create_lock_file(folder, owner))) for owner in (supervisor, *hosts)]

    with pytest.raises(NotOwner, match=re.escape(f"tierlog.connect({url!r})")) as refused:
        await files.run(create_only_lock_file(DATA, folder, Owner("d" * 32, 100, "host", 0), str(identity)))

    assert "process 300 on host" in str(refused.value)
    for owner, handle in held:
        await files.run(remove_lock_file(folder, owner, handle))


async def test_a_refusal_by_hosts_without_a_supervisor_says_how_the_service_goes_on(tmp_path: Path) -> None:
    """Fencing is for those who give the service up."""
    folder, files, identity = f"{tmp_path}/owners", LocalFiles(), tmp_path / "store"
    identity.touch()
    left_behind = replace(FIRST, role="host-0")
    handle = await files.run(create_lock_file(folder, left_behind))

    with pytest.raises(OpenElsewhere, match="start `tierlog serve` again, .* fence") as refused:
        await files.run(create_only_lock_file(DATA, folder, SECOND, str(identity)))

    assert refused.value.owners == [left_behind]
    await files.run(remove_lock_file(folder, left_behind, handle))


async def test_a_dead_process_is_listed_as_dead_and_the_next_opening_removes_its_file(tmp_path: Path) -> None:
    """The lock goes with the process; the file stays."""
    folder, files = f"{tmp_path}/owners", LocalFiles()
    handle = await files.run(create_lock_file(folder, FIRST))
    await files.run(closing(handle))
    (owner,) = await files.run(list_owners(folder))
    assert (owner.owner_id, owner.pid, owner.alive) == (FIRST.owner_id, 100, False)

    second = await files.run(create_lock_file(folder, SECOND))
    assert await files.run(list_owners(folder)) == [SECOND]
    await files.run(remove_lock_file(folder, SECOND, second))


def closing(handle: FileHandle) -> Program[None]:
    """The end of a process closes its descriptors."""
    yield Close(handle)


@pytest.mark.parametrize("data", [b"", b"{", b"[]", b'{"pid": "x"}', b"\xff\xfe", b'{"pid": 1, "host": "h"}'])
async def test_a_torn_file_is_an_unknown_owner(tmp_path: Path, data: bytes) -> None:
    """A crash may have left anything."""
    (tmp_path / FIRST.owner_id).write_bytes(data)

    assert await LocalFiles().run(list_owners(str(tmp_path))) == [
        Owner(FIRST.owner_id, 0, "unknown", 0, alive=False)
    ]


async def test_a_swept_owner_can_still_withdraw(tmp_path: Path) -> None:
    """Another opening may take a file that is not locked yet for a leftover; closing the store must work all
    the same."""
    files = LocalFiles()
    handle = await files.run(create_lock_file(str(tmp_path), FIRST))
    (tmp_path / FIRST.owner_id).unlink()
    await files.run(remove_lock_file(str(tmp_path), FIRST, handle))

    assert await files.run(list_owners(str(tmp_path))) == []
    assert handle.fd == -1  # type: ignore[attr-defined]
