"""What must hold before a worker starts, and what a person is told when it has."""

import importlib.util
import os
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

from broker.config.loader import Address, Config
from broker.config.start_error import StartError
from broker.version import VERSION

PACKAGES = ("broker", "router", "mesh")
DEFAULT_PORT = 1883


_SURVIVES = {
    "fsync": "a crash and a loss of power",
    "os": "a crash, but not a loss of power",
    "none": "an orderly end only",
}


def check_packages() -> None:
    """Raise StartError unless all our packages come from where this one does.

    Their names are general ones at the top level, so another distribution may have brought one of the same name.
    """
    own = Path(__file__).resolve().parents[2]
    for package in PACKAGES:
        spec = importlib.util.find_spec(package)
        found = Path(spec.origin).resolve().parents[1] if spec and spec.origin else None
        if found != own:
            raise StartError(
                f"The package {package} comes from {found}, not from {own} as Shoal's own does: install Shoal into an "
                "environment of its own, for instance with pipx."
            )


def banner(config: Config, addresses: Sequence[Address], folder: Path) -> str:
    """Return what a person sees once clients can connect: where, what is not protected, and two lines to copy."""
    only_here = all(address.is_loopback for address in addresses)
    reach = "anyone on this machine" if only_here else "anyone who reaches these addresses"
    command = _command()
    url = _url(addresses[0])
    return "\n".join(
        [
            f"Shoal {VERSION} is ready.",
            f"  Address:      {', '.join(map(str, addresses))}",
            f"  Workers:      {_workers(config.workers)}",
            f"  Data folder:  {folder}",
            f"                Sessions, queues and retained messages survive {_SURVIVES[config.storage.durability]}.",
            f"  Protection:   none. {reach.capitalize()} may connect, subscribe and publish without a password,",
            f"                and nothing is encrypted.{' Other machines cannot connect.' if only_here else ''}",
            "",
            "Try it in two other terminals:",
            f"  {command} sub{url} -t 'hello/#' -v",
            f"  {command} pub{url} -t hello/world -m hi",
            "",
            "Ctrl-C ends it.",
        ]
    )


def _workers(count: int) -> str:
    return f"{count} processes, which are one broker" if count > 1 else "1 process"


def _url(address: Address) -> str:
    """Return the option that leads `shoal sub` to an address, "" if it looks there anyway."""
    host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(address.host, address.host)
    if host in ("127.0.0.1", "localhost") and address.port == DEFAULT_PORT:
        return ""
    return f" --url {Address(host, address.port)}"


def _command() -> str:
    """Return what to type for `shoal` in this folder and environment."""
    import shlex

    invoked = Path(sys.argv[0])
    if invoked.name != "shoal":
        return f"{shlex.quote(sys.executable)} -m broker.cli.main"
    on_path = next((path for folder in os.get_exec_path() if os.access(path := Path(folder, "shoal"), os.X_OK)), None)
    if on_path is not None and on_path.resolve() == invoked.resolve():
        return "shoal"
    absolute = invoked.absolute()
    inside = absolute.is_relative_to(Path.cwd())
    return shlex.quote(str(absolute.relative_to(Path.cwd()) if inside else absolute))


def summary(counters: Iterable[tuple[str, object]], seconds: float) -> str:
    """Return the one line that a broker leaves when it ends."""
    told = ", ".join(f"{value} {name.replace('_', ' ')}" for name, value in counters)
    return f"Shoal has stopped after {seconds:.0f} s" + (f": {told}." if told else ".")
