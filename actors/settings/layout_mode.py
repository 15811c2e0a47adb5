"""Layout modes: what a store does about segments in the legacy rolling layout.

docs/decisions/0009-layout-modes.md has the reasons.
"""

from __future__ import annotations

from enum import Enum


class LayoutMode(Enum):
    NO_UPGRADE = "no-upgrade"
    """The legacy layout stays: its segments are imported on demand only, and nothing is written to it."""
    CODE_ONLY_UPGRADE = "code-only-upgrade"
    """Legacy segments are imported at first access, and their header files are kept up to date so that older
    software can go on reading."""
    LAYOUT_UPGRADE = "layout-upgrade"
    """Legacy segments are imported at first access and headers are no longer written. This cannot be
    undone."""
    INSTALL_NEW = "install-new"
    """There is no legacy layout; it is never looked up."""

    @property
    def imports_legacy(self) -> bool:
        """Whether an unknown segment name is looked up in the legacy layout."""
        return self in (LayoutMode.CODE_ONLY_UPGRADE, LayoutMode.LAYOUT_UPGRADE)

    @property
    def writes_headers(self) -> bool:
        return self is LayoutMode.CODE_ONLY_UPGRADE

    @property
    def needs_legacy_readers(self) -> bool:
        """Whether legacy software must be able to read the store, which a layout upgrade rules out."""
        return self in (LayoutMode.NO_UPGRADE, LayoutMode.CODE_ONLY_UPGRADE)
