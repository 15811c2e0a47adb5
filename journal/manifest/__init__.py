"""The manifest: what long-term storage says of the store (``_system/store``) and of each container (the chain
of its journal), without the log."""
