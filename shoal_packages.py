"""Whether Shoal's packages are Shoal's: their names are general ones, so a program may have one of the same name."""

import importlib.util
import os
import sys


def check(*packages: str) -> None:
    """Raise ImportError, which says what to do, unless all these packages come from the folder that this file is in."""
    own = os.path.dirname(os.path.realpath(__file__))
    for package in packages:
        found = _file_of(package)
        if found is not None and os.path.dirname(os.path.dirname(os.path.realpath(found))) == own:
            continue
        what = f"{found} stands in the way of" if found else "there is no file of"
        raise ImportError(
            f"Shoal cannot be imported: {what} its package {package!r}, which is in {own}. Give yours another name, or "
            "put it into a package; or run Shoal in a process of its own, `shoal serve`, and connect to it.",
            name=package, path=found)  # fmt: skip


def _file_of(package: str) -> str | None:
    loaded = sys.modules.get(package)
    if loaded is not None:
        return getattr(loaded, "__file__", None)
    spec = importlib.util.find_spec(package)
    return spec.origin if spec is not None else None
