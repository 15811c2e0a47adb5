"""The gateway: a store's verbs over HTTP. ``wire`` says what travels, ``server`` answers, ``client`` asks
(docs/protocols/http.md)."""
