"""Sorted runs: immutable, sorted files of versioned rows, and the memtable before them, which together make a
table of any size (docs/protocols/tables.md)."""
