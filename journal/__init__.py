"""A container's log: the operations it records, the groups that frame them, logs and registers."""
