"""Storage: contracts in ``base``, and implementations that see ``base`` and not each other."""
