"""The segment container: one actor that owns its log, its segments and their chunk metadata."""
