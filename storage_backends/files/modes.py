"""The modes of new files and folders: only the user who runs the process can read them, write them, or hold
their locks. The modes of existing ones stay as they are."""

from __future__ import annotations

import os

FILE = 0o600
READ_ONLY_FILE = 0o400
FOLDER = 0o700
WRITABLE_BY_OTHERS = 0o022


def make_folders(path: str) -> None:
    """Make a folder and its missing parents; existing is fine."""
    parent = os.path.dirname(path)
    if parent and not os.path.isdir(parent):
        make_folders(parent)
    try:
        os.mkdir(path, FOLDER)
    # Another process may have made it since.
    except FileExistsError:
        if not os.path.isdir(path):
            raise
