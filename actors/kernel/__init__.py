"""The actor kernel: bounded mailboxes, asks and replies, lifecycles as tables, supervision, shutdown with a
deadline.

Owns: the mechanics that every actor shares (rules A1 to A11, docs/protocols/actors.md). Does not own: any
actor.
"""
