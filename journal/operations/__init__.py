"""The vocabulary of a container's log: one file per operation, its encoding beside it; ``vocabulary`` reads
and writes groups of them."""
