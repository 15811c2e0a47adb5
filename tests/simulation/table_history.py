"""What is known of one table: its updates, in the order of their versions, and what reads have shown.

Every value that is put is another one, so a row tells which update wrote it, and that update's version. From
then on, and once an update is answered, no read that begins later may show an older state of the update's
keys. A row that nobody put, one whose update has two versions, and one that is gone although nobody removed
it, are violations, and so is an update whose condition did not hold."""

from __future__ import annotations

from bisect import insort
from collections.abc import Iterable, Mapping

import attrs

from tierlog.storage_backends.base.tables import ABSENT

from .invariants import Broken


@attrs.define(eq=False)
class Update:
    number: int
    rows: dict[bytes, bytes | None]
    expected: dict[bytes, int]
    event: int | None
    """The event number of its writer; None without one."""
    began: int
    is_refused: bool = False
    """It was not applied, and never will be."""
    version: int | None = None

    def __str__(self) -> str:
        event = "" if self.event is None else f", event {self.event}"
        return f"update {self.number} of {sorted(self.rows)} if {self.expected}{event}"


@attrs.define(eq=False)
class _Known:
    """The states of one key that were seen: (when, version), and each version's update."""

    seen: list[tuple[int, int]] = attrs.field(factory=list)

    def newest(self, before: int) -> int:
        """The newest version that a read which began at ``before`` must show, or a newer one."""
        return max((version for when, version in self.seen if when < before), default=ABSENT)


class TableHistory:
    def __init__(self, name: str) -> None:
        self.name = name
        self.updates: list[Update] = []
        self._by_value: dict[bytes, Update] = {}
        self._by_version: dict[int, Update] = {}
        self._known: dict[bytes, _Known] = {}
        self._clock = 0

    def now(self) -> int:
        """The number of this moment."""
        self._clock += 1
        return self._clock

    @property
    def keys(self) -> Iterable[bytes]:
        return {key: None for update in self.updates for key in update.rows}

    def begin(
        self, rows: Iterable[tuple[bytes, bool]], expected: Mapping[bytes, int], event: int | None = None
    ) -> Update:
        """An update is sent. ``rows``: keys, and whether they are put."""
        number = len(self.updates)
        values = {key: b"<%d>" % number + key if is_put else None for key, is_put in rows}
        update = Update(number, values, dict(expected), event, self.now())
        self.updates.append(update)
        self._by_value.update({value: update for value in values.values() if value is not None})
        return update

    def refused(self, update: Update) -> None:
        if update.version is not None:
            raise Broken(f"{update} of {self.name} was refused, and its rows had version {update.version}")
        update.is_refused = True

    def answered(self, update: Update, version: int | None) -> None:
        """``None``: a repeat, and the writer made another update since."""
        if update.is_refused:
            raise Broken(f"{update} of {self.name} was answered, and refused before")
        if version is not None:
            self._learn(update, version)

    def conflicted(self, update: Update, key: bytes, present: int, ended: int) -> None:
        """``update`` was refused, because ``key`` has version ``present``."""
        self.refused(update)
        if update.expected.get(key) == present:
            raise Broken(f"{update} of {self.name}: {key!r} has the expected version {present}")
        if present == ABSENT:
            self._check_absent(key, update.began, ended)
        elif present < self._floor(key, update.began):
            raise Broken(f"{update} of {self.name}: {key!r} had a newer version than {present}")

    def shows(self, key: bytes, row: tuple[bytes, int] | None, began: int, ended: int) -> None:
        """A read showed the value and version of ``key``, or that it has no row."""
        if row is None:
            self._check_absent(key, began, ended)
            return

        value, version = row
        update = self._by_value.get(value)
        if update is None or update.rows.get(key) != value:
            raise Broken(f"{key!r} of {self.name} is {value!r}, which nobody put there")
        if update.is_refused:
            raise Broken(f"{key!r} of {self.name} is {value!r} of {update}, which was refused")
        if version < self._floor(key, began):
            raise Broken(
                f"{key!r} of {self.name} is {value!r} of version {version}, and was of version "
                f"{self._floor(key, began)} before"
            )
        self._learn(update, version)

    def shows_change(self, key: bytes, value: bytes | None, version: int, began: int, ended: int) -> None:
        """A page of changes showed a row or a tombstone."""
        if value is not None:
            self.shows(key, (value, version), began, ended)
            return

        update = self._by_version.get(version)
        if update is not None and update.rows.get(key, b"") is not None:
            raise Broken(f"{key!r} of {self.name} was removed at version {version}, by {update}")
        self._check_absent(key, began, ended)

    def check_conditions(self) -> None:
        """At the end: conditions of updates that were applied held when they were."""
        ordered = [self._by_version[version] for version in sorted(self._by_version)]
        present: dict[bytes, int] = {}
        changed: dict[bytes, int] = {}
        for update in ordered:
            assert update.version is not None
            for key, expected in update.expected.items():
                # Removals may have been applied whose versions nobody knows: they make a key absent.
                is_changed = expected != ABSENT and changed.get(key, ABSENT) > expected
                if is_changed or (expected == ABSENT and self._is_certain(key, present.get(key, ABSENT))):
                    raise Broken(
                        f"{update} of {self.name} was applied at version {update.version}, and {key!r} was "
                        f"changed at version {changed[key]}"
                    )
            for key, value in update.rows.items():
                changed[key] = update.version
                present[key] = ABSENT if value is None else update.version

    def _is_certain(self, key: bytes, version: int) -> bool:
        """Whether a row of ``key`` was there from ``version`` on: no removal may have been applied unseen."""
        return version != ABSENT and not any(
            key in update.rows
            and update.rows[key] is None
            and not update.is_refused
            and update.version is None
            for update in self.updates
        )

    # --- inside ----------------------------------------------------------------------------------

    def _floor(self, key: bytes, before: int) -> int:
        known = self._known.get(key)
        return ABSENT if known is None else known.newest(before)

    def _learn(self, update: Update, version: int) -> None:
        if update.version is None:
            other = self._by_version.setdefault(version, update)
            if other is not update:
                raise Broken(f"{other} and {update} of {self.name} both have version {version}")
            update.version = version
        elif update.version != version:
            raise Broken(f"{update} of {self.name} has version {version}, and had {update.version}")
        # It is atomic: who begins now sees all of it.
        when = self.now()
        for key in update.rows:
            insort(self._known.setdefault(key, _Known()).seen, (when, version))

    def _check_absent(self, key: bytes, began: int, ended: int) -> None:
        floor = self._floor(key, began)
        if floor == ABSENT or self._by_version[floor].rows[key] is None:
            return

        # A removal that may have been applied since.
        for update in self.updates:
            if (
                key in update.rows
                and update.rows[key] is None
                and not update.is_refused
                and update.began < ended
                and (update.version is None or update.version > floor)
            ):
                return
        raise Broken(f"{key!r} of {self.name} has no row, and had version {floor}, which nobody removed")
