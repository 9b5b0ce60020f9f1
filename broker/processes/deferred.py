"""Modules that a library imports for what a broker never asks of it: they are loaded when something in them is used.

trio imports `ssl` and `hmac` for streams of its own with TLS and DTLS. Both load OpenSSL, 5 MiB in every process, and a
broker whose listeners speak no TLS and whose clients have no passwords uses nothing of it.
"""

import importlib
import sys
from types import ModuleType
from typing import Any


class Deferred(ModuleType):
    """Stands for a module that is loaded when it is asked for a name of that one's, and has them all from then on."""

    def __getattr__(self, name: str) -> Any:
        # What every module may be asked for, and by whom everything is asked: doctest, inspect, the import itself.
        if name.startswith("__"):
            raise AttributeError(name)
        if sys.modules.get(self.__name__) is self:
            del sys.modules[self.__name__]
        module = importlib.import_module(self.__name__)
        self.__dict__.update(module.__dict__)
        return getattr(module, name)


def defer(*names: str) -> None:
    """Have these modules loaded when something in them is used. Those that are loaded stay."""
    for name in names:
        sys.modules.setdefault(name, Deferred(name))
