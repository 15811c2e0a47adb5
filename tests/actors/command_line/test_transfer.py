"""Import and export, as a shell sees them."""

from __future__ import annotations

import json
import signal
from pathlib import Path

import anyio
import pytest

from support.command_line import NAME, Run, is_one_line, make_store, spawn
from support.legacy_layout import write_legacy
from tierlog.actors.store.folder_opening import system_world
from tierlog.storage_backends.chunks.filesystem import FileSystemChunkStorage
from tierlog.storage_backends.files.local import LocalFiles


@pytest.fixture
def legacy_folder(folder: Path) -> Path:
    """Long-term storage of the legacy layout, without a store."""

    async def make() -> None:
        chunks = FileSystemChunkStorage(LocalFiles(), str(folder / "lts"), system_world())
        await chunks.open()
        await write_legacy(chunks, "app/one", b"0123", b"45", sealed=True)
        await write_legacy(chunks, "app/two", b"abc")
        await chunks.create_with_content("plain", [b"plain"])

    anyio.run(make)
    return folder


def test_segments_of_the_legacy_layout_are_imported(run: Run, legacy_folder: Path) -> None:
    run("segment", "create", "app/new")
    done = run("import", "app/one", "plain")
    assert (done.code, done.err) == (0, "")
    assert run("segment", "read", "app/one").out == "012345"
    assert run("segment", "read", "plain").out == "plain"
    assert json.loads(run("segment", "info", "app/one", "--json").out)["sealed"]

    again = json.loads(run("import", "--all", "--json").out)
    assert [(each["name"], each["outcome"]) for each in again] == [
        ("app/one", "skipped"),
        ("app/two", "imported"),
    ]
    assert json.loads(run("import", "--all", "--prefix", "none/", "--json").out) == []
    for name in ("app/one", "no/such", "../x"):
        refused = run("import", name)
        assert (refused.code, is_one_line(refused.err)) == (1, True)
    assert run("chunks", "verify").code == 0


def test_one_damaged_segment_does_not_stop_the_import_of_others(run: Run, legacy_folder: Path) -> None:
    run("segment", "create", "app/new")
    run("segment", "append", "app/new", "--data-text", "new")
    (legacy_folder / "lts" / "app" / "one$offset.4").unlink()
    run("export", "app/new")
    done = run("import", "--all")

    assert done.code == 1
    outcomes = {line.split()[2]: line.split()[1] for line in done.out.splitlines()[1:]}
    assert outcomes == {"app/new": "skipped", "app/one": "failed", "app/two": "imported"}
    assert run("import", "app/one").code == 1


def test_an_import_of_a_name_without_files_advises_no_new_segment(run: Run, legacy_folder: Path) -> None:
    run("segment", "create", NAME)
    done = run("import", "nope")
    assert done.code == 1
    assert "nope" in done.err
    assert "`tierlog chunks ls`" in done.err
    assert "create" not in done.err


def test_an_export_can_be_read_in_the_legacy_layout(run: Run, folder: Path) -> None:
    make_store(folder)
    run("segment", "truncate", NAME, "3")
    run("segment", "seal", NAME)
    done = json.loads(run("export", NAME, "--json").out)
    header = folder / "lts" / f"{NAME}$header"

    assert done == [
        {
            "header": f"{NAME}$header",
            "chunks": 2,
            "length": 13,
            "start_offset": 0,
            "hidden_bytes": 3,
            "sealed": True,
        }
    ]
    assert header.stat().st_mode & 0o222 == 0
    size, *items = header.read_text().removesuffix("&").split("&")
    assert size.startswith("maxsize=")
    files = [folder / "lts" / item.partition("=")[2] for item in items]
    assert b"".join(file.read_bytes() for file in files) == b"flushed tail\n"

    assert run("export", "--all").code == 0
    header.chmod(0o644)
    header.write_bytes(b"maxsize=1&")
    refused = run("export", NAME)
    assert (refused.code, "exists with other content" in refused.err) == (1, True)
    assert run("export", NAME, "--replace").code == 0
    assert header.read_text().startswith(size + "&0=")


@pytest.mark.parametrize("times", [1, 3])
def test_ctrl_c_during_an_import_leaves_no_partial_segment(
    folder: Path, legacy_folder: Path, run: Run, times: int
) -> None:
    """The file is sparse, and so large that its checksums take minutes."""
    run("segment", "create", "app/new")
    with open(legacy_folder / "lts" / "huge", "wb") as file:
        file.truncate(1 << 38)
    with spawn(folder, "import", "huge") as process:
        assert process.stderr is not None
        owners = folder / "owners"
        while not list(owners.glob("*")):
            assert process.poll() is None, process.stderr.read()
        for _ in range(times):
            process.send_signal(signal.SIGINT)

        assert process.wait() == 130
        assert process.stderr.read() == b""
    (legacy_folder / "lts" / "huge").unlink()
    assert run("segment", "ls").out == "app/new\n"
    assert run("doctor").code == 0
