"""What a container logs: one file per record type. Importing the package imports them all, which registers
them."""

from importlib import import_module
from pkgutil import iter_modules

for _module in iter_modules(__path__):
    import_module(f"{__name__}.{_module.name}")
