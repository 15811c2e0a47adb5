"""Where bytes rest: contracts in ``base``, and their implementations, which see only ``base`` and not each
other."""
