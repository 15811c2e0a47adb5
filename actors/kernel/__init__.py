"""The mechanics that every actor shares: mailboxes, replies, exits, supervision (docs/protocols/actors.md, A1
to A11)."""
