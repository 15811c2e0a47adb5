"""Settings from environment variables, for the program ``tierlog``.

The setting ``flush_age`` of the table ``writer`` is ``TIERLOG_WRITER_FLUSH_AGE``; a setting outside the
tables is ``TIERLOG_CONTAINERS``. Values are those of the file, without quotes. A variable overrides the file,
and an option of the command line overrides both. ``TIERLOG_CHUNKS`` is an option, like ``TIERLOG_DATA``: it
names the long-term storage of a new folder.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

import attrs

from ...storage_backends.base.errors import ConfigError
from .configuration import StoreConfig, setting_of, table_of
from .configuration_file import load_config
from .units import Setting, UnitError

PREFIX = "TIERLOG_"
_OPTIONS = frozenset({"BOOKKEEPER", "CHUNKS", "CONFIG", "DATA", "MAVEN_MIRROR", "URL"})
_CLOSE = 0.8
"""How similar an unknown variable is to a setting's to count as a typo of it."""


def read_config(file: str | os.PathLike[str] | None, environ: Mapping[str, str]) -> StoreConfig:
    """The settings of ``file``, or the defaults, with those of the environment. Raises ``ConfigError``."""
    config = StoreConfig() if file is None else load_config(file)
    settings = _settings()
    changes: dict[str, dict[str, Any]] = {}
    for variable, text in environ.items():
        name = variable.removeprefix(PREFIX)
        # Without the prefix it is another program's.
        if name == variable or name in _OPTIONS:
            continue

        if name not in settings:
            _check_unknown(name, settings)
            continue

        table, field, setting = settings[name]
        try:
            changes.setdefault(table, {})[field] = setting.read_text(text)
        except UnitError as error:
            raise ConfigError(f"{variable}: {error}") from error

    # All at once: a setting may be out of the bounds of another one that the environment changes too.
    values = changes.pop("", {})
    tables = {table: attrs.evolve(getattr(config, table), **inner) for table, inner in changes.items()}
    return attrs.evolve(config, **values, **tables)


def _settings() -> dict[str, tuple[str, str, Setting]]:
    """(table, name, setting) of each variable, without the prefix."""
    found = {}
    for outer in attrs.fields(StoreConfig):
        if (setting := setting_of(outer)) is not None:
            found[outer.name.upper()] = ("", outer.name, setting)
            continue

        for inner in attrs.fields(table_of(outer)):
            found[f"{outer.name}_{inner.name}".upper()] = (outer.name, inner.name, inner.metadata[Setting])
    return found


def _check_unknown(name: str, settings: Mapping[str, tuple[str, str, Setting]]) -> None:
    """Refuse what looks like a setting: it is or begins with a table's name, or is a typo of a setting. Other
    programs may have other variables with the prefix."""
    import difflib  # only mistakes need it

    close = difflib.get_close_matches(name, settings, n=1, cutoff=_CLOSE)
    if close or any(
        table and f"{name}_".startswith(f"{table.upper()}_") for table, _, _ in settings.values()
    ):
        hint = (
            f"did you mean {PREFIX}{close[0]}?" if close else "`tierlog init` writes a file with all of them"
        )
        raise ConfigError(f"{PREFIX}{name}: there is no such setting; {hint}")
