"""Reading: the tail cache, and the reader that joins cache, merged sources and long-term storage into one
segment."""
