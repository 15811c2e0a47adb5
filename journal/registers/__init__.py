"""Registers: compare-and-set cells in memory and in local files."""
