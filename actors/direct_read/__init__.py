"""Reading of chunks by processes other than their store's: by plain threads, without an event loop (rule
S21)."""
