"""Clients of a tierlog service: the store's verbs over HTTP, async and plain.

``requests`` has what each verb sends and what an answer means, ``retries`` what may be sent again.
``attempts`` combines both into programs without I/O, which ``async_client`` and ``sync_client`` run.
``connect`` opens them."""
