"""The operations on chunked segments. Those that change something take a transaction, the others the context."""
