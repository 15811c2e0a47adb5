"""Registers: compare-and-set cells in local files."""
