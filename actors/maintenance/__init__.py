"""Backups of all segments' metadata: their objects, and how one is taken."""
