"""What Spark's executors have of their own: where they find the credentials of S3, and their log."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from support.s3_server import AWS_ENVIRONMENT

_ACCESS_KEY = AWS_ENVIRONMENT["AWS_ACCESS_KEY_ID"]
_SECRET_KEY = AWS_ENVIRONMENT["AWS_SECRET_ACCESS_KEY"]


class ExecutorsOwn:
    """Processes that are started inside ``starting()`` look into files of ``folder``, not at the variables of
    this process, and log there."""

    def __init__(self, folder: Path) -> None:
        self._credentials = folder / "credentials"
        self._config = folder / "config"
        self._log = folder / "log"
        self._seen = 0

    @contextmanager
    def starting(self) -> Iterator[None]:
        """Their environment, and their standard error, while they are started."""
        kept = {name: value for name, value in os.environ.items() if name.startswith("AWS_")}
        own = {
            "AWS_SHARED_CREDENTIALS_FILE": str(self._credentials),
            "AWS_CONFIG_FILE": str(self._config),
            "AWS_EC2_METADATA_DISABLED": "true",
        }
        _replace(kept, own)
        sys.stderr.flush()
        stderr = os.dup(2)
        with self._log.open("ab") as log:
            os.dup2(log.fileno(), 2)
            try:
                yield
            finally:
                os.dup2(stderr, 2)
                os.close(stderr)
                _replace(own, kept)

    def know(self, endpoint: str, *, access_key: str = _ACCESS_KEY) -> None:
        """From now on they have a key, and find S3 at ``endpoint`` unless Spark gives them another one."""
        self._credentials.write_text(
            f"[default]\naws_access_key_id = {access_key}\naws_secret_access_key = {_SECRET_KEY}\n"
        )
        self._config.write_text(f"[default]\nregion = us-east-1\nendpoint_url = {endpoint}\n")

    def forget_credentials(self) -> None:
        self._credentials.unlink(missing_ok=True)

    def logged(self, text: str) -> list[str]:
        """The lines with ``text`` since the last call."""
        new = self._log.read_bytes()[self._seen :]
        self._seen += len(new)
        return [line for line in new.decode(errors="replace").splitlines() if text in line]


def _replace(old: dict[str, str], new: dict[str, str]) -> None:
    for name in old:
        del os.environ[name]
    os.environ.update(new)
