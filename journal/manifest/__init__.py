"""The manifest: what long-term storage records of the store (``_system/store``) and each container (the
chain of its journal), without the log."""
