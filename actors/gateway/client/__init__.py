"""Clients of a tierlog service: the store's verbs over HTTP, async and plain.

``calls`` says what each verb sends and what an answer means, ``retries`` what may be sent again,
``conversation`` puts both together as programs without I/O, which ``async_client`` and ``sync_client`` carry
out. ``connecting`` is the door.
"""
