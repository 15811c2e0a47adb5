"""Spark's archives are left out where the same versions are installed, and nothing else is."""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from tierlog.spark_bridge.worker_python import without_archives


@pytest.fixture
def installed(tmp_path: Path) -> str:
    for package in ("pyspark", "py4j"):
        folder = tmp_path / "installed" / package
        folder.mkdir(parents=True)
        (folder / "version.py").write_text("__version__ = '1'\n")
    return str(tmp_path / "installed")


def archive(path: Path, package: str, version: str) -> str:
    with zipfile.ZipFile(path, "w") as made:
        made.writestr(f"{package}/version.py", f"__version__ = {version!r}\n")
    return str(path)


def test_archives_of_what_is_installed_are_left_out(tmp_path: Path, installed: str) -> None:
    spark = archive(tmp_path / "pyspark.zip", "pyspark", "1")
    gateway = archive(tmp_path / "py4j-1-src.zip", "py4j", "1")
    own = archive(tmp_path / "own.zip", "own", "1")

    path = os.pathsep.join((spark, gateway, own, "folder"))
    assert without_archives({"PYTHONPATH": path, "HOME": "h"}, installed) == {
        "PYTHONPATH": os.pathsep.join((own, "folder")),
        "HOME": "h",
    }
    assert without_archives({"PYTHONPATH": spark}, installed) == {}
    assert without_archives({"HOME": "h"}, installed) == {"HOME": "h"}


def test_an_archive_of_another_version_stays(tmp_path: Path, installed: str) -> None:
    path = {"PYTHONPATH": archive(tmp_path / "pyspark.zip", "pyspark", "2")}

    assert without_archives(path, installed) == path


def test_an_archive_of_what_is_not_installed_stays(tmp_path: Path) -> None:
    path = {"PYTHONPATH": archive(tmp_path / "pyspark.zip", "pyspark", "1")}

    assert without_archives(path, str(tmp_path)) == path


def test_what_is_no_archive_stays(tmp_path: Path, installed: str) -> None:
    (tmp_path / "pyspark.zip").write_text("no archive")
    path = {"PYTHONPATH": os.pathsep.join((str(tmp_path / "pyspark.zip"), str(tmp_path / "pyspark-no.zip")))}

    assert without_archives(path, installed) == path


@pytest.mark.parametrize("compression", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED])
def test_an_archive_that_is_damaged_anywhere_stays_or_reads_as_it_should(
    tmp_path: Path, installed: str, compression: int
) -> None:
    """A byte of it, or all that follows."""
    whole = tmp_path / "whole.zip"
    with zipfile.ZipFile(whole, "w", compression) as made:
        made.writestr("pyspark/version.py", "__version__ = '1'\n")
    data, stayed = whole.read_bytes(), 0
    for place in range(len(data)):
        damaged = (bytes((*data[:place], data[place] ^ 0xFF, *data[place + 1 :])), data[:place])
        for kind, content in enumerate(damaged):
            # Python keeps the directory of each archive that it has read.
            path = tmp_path / f"pyspark-{place}-{kind}.zip"
            path.write_bytes(content)
            kept = without_archives({"PYTHONPATH": str(path)}, installed)
            assert kept in ({}, {"PYTHONPATH": str(path)})
            stayed += bool(kept)
    assert stayed > len(data)


def test_an_archive_or_a_package_with_a_version_that_is_no_text_stays(tmp_path: Path, installed: str) -> None:
    spark, gateway = tmp_path / "pyspark.zip", archive(tmp_path / "py4j-1-src.zip", "py4j", "1")
    with zipfile.ZipFile(spark, "w") as made:
        made.writestr("pyspark/version.py", b"\xff\xfe")
    (Path(installed) / "py4j" / "version.py").write_bytes(b"\xff\xfe")
    path = {"PYTHONPATH": os.pathsep.join((str(spark), gateway))}

    assert without_archives(path, installed) == path


def test_workers_import_the_pyspark_that_is_installed() -> None:
    """Spark's own archive has its version, and arguments are passed on."""
    pyspark = pytest.importorskip("pyspark", reason="needs PySpark: pip install -e '.[dev,spark]'")
    archives = sorted((Path(pyspark.__file__).parent / "python" / "lib").glob("*.zip"))
    assert archives
    command = [sys.executable, "-m", "tierlog.spark_bridge.worker_python"]
    shown = "import sys, pyspark, py4j; print(pyspark.__file__, 'zip' in py4j.__file__, sys.argv[1:])"

    found = subprocess.run(
        [*command, "-c", shown, "one", "two"],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(map(str, archives))},
        capture_output=True,
        text=True,
        check=True,
    ).stdout

    assert found == f"{pyspark.__file__} False ['one', 'two']\n"
