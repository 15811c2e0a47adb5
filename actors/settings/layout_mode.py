"""What a store does about the legacy layout: the four ways of upgrading to chunk records.

Owns: the modes and what each means to the parts that ask. Does not own: what the parts then do. The reasons
are in docs/decisions/0009-layout-modes.md.
"""

from __future__ import annotations

from enum import Enum


class LayoutMode(Enum):
    NO_UPGRADE = "no-upgrade"
    """The legacy layout stays as it is: its segments come in by an import on demand, and nothing is ever
    written in that layout."""
    CODE_ONLY_UPGRADE = "code-only-upgrade"
    """Older segments are imported at first access, and header files are kept up to date, so that older
    readers go on reading."""
    LAYOUT_UPGRADE = "layout-upgrade"
    """Older segments are imported at first access, and no header is written any more. There is no way
    back."""
    INSTALL_NEW = "install-new"
    """There is no legacy layout, and nobody looks for one."""

    @property
    def imports_legacy(self) -> bool:
        """Whether an unknown name is looked up in the legacy layout."""
        return self in (LayoutMode.CODE_ONLY_UPGRADE, LayoutMode.LAYOUT_UPGRADE)

    @property
    def writes_headers(self) -> bool:
        return self is LayoutMode.CODE_ONLY_UPGRADE

    @property
    def needs_legacy_readers(self) -> bool:
        """Whether it promises something to older software, which a layout upgrade has broken for good."""
        return self in (LayoutMode.NO_UPGRADE, LayoutMode.CODE_ONLY_UPGRADE)
