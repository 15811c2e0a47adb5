"""The gateway: a store's verbs over HTTP. ``wire`` defines the formats of requests and answers for ``server``
and ``client`` (docs/protocols/http.md)."""
