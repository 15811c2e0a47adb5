"""The gateway: a store's verbs over HTTP. ``wire`` defines what travels, ``server`` answers, ``client`` asks
(docs/protocols/http.md)."""
