"""The operations on chunked segments, one file each. Those that change something take a transaction, the
others the core."""
