"""What must hold before a worker starts, and what a person is told when it has."""

import importlib.util
import os
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from urllib.parse import urlsplit

from broker.cli.common import WEBSOCKET_PATH
from broker.config.authenticator import DynamicSecurityTable, HttpTable, JwtTable
from broker.config.authorizer import HttpRightsTable
from broker.config.http_table import shown_url
from broker.config.listener import Listener
from broker.config.listener_check import anonymous_allowed, proves_clients
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
    """Return what a person sees once clients can connect: where, what is not protected, and two lines to copy.

    Args:
        addresses: of the listeners, in their order, with the ports that they have got.
    """
    places = list(zip(addresses, config.listeners, strict=True))
    command = _command()
    there = _there(config, places)
    first, *rest = _protection(config, places)
    return "\n".join(
        [
            f"Shoal {VERSION} is ready.",
            f"  Address:      {', '.join(map(str, addresses))}",
            f"  Workers:      {_workers(config.workers)}",
            f"  Data folder:  {folder}",
            f"                Sessions, queues and retained messages survive {_SURVIVES[config.storage.durability]}.",
            f"  Protection:   {first}",
            *(f"                {line}" for line in rest),
            "",
            "Try it in two other terminals:",
            f"  {command} sub{there} -t 'hello/#' -v",
            f"  {command} pub{there} -t hello/world -m hi",
            "",
            "Ctrl-C ends it.",
        ]
    )


def _workers(count: int) -> str:
    return f"{count} processes, which are one broker" if count > 1 else "1 process"


def _protection(config: Config, places: Sequence[tuple[Address, Listener]]) -> list[str]:
    """Return the lines that say where clients need prove nothing, where they can be overheard, what they may do."""
    open_to_all = [address for address, listener in places if _is_open(config, listener)]
    plain = [address for address, _ in places if not address.is_tls and address.scheme != "unix"]
    only_here = all(address.is_loopback for address, _ in places)
    may = "may connect" if _rules_stand(config) else "may connect, subscribe and publish"
    if len(open_to_all) == len(places):
        reach = "anyone on this machine" if only_here else "anyone who reaches these addresses"
        lines = [f"none. {reach.capitalize()} {may} without a password,"]
    elif open_to_all:
        reach = "anyone on this machine" if all(address.is_loopback for address in open_to_all) else "anyone"
        lines = [f"{reach.capitalize()} {may} without a password at", f"{', '.join(map(str, open_to_all))},"]
    else:
        by = "a password, a certificate or a key" if config.authenticator else "a certificate or a key"
        lines = [f"clients prove who they are, by {by},"]
        if not _rules_stand(config):
            lines.append("and may then subscribe and publish everything,")
    if not any(address.is_tls for address, _ in places):
        lines.append("and nothing is encrypted.")
    elif plain:
        lines.append(f"and nothing is encrypted at {', '.join(map(str, plain))}.")
    else:
        lines.append("and what goes over a network is encrypted.")
    if only_here:
        lines[-1] += " Other machines cannot connect."
    plain_urls = [shown_url(url) for url in _asked(config) if _is_overheard(url)]
    if plain_urls:
        lines.append(
            f"What {', '.join(plain_urls)} is asked and answers is not encrypted: others may read and change it."
        )
    return lines + _rules(config, places)


def _asked(config: Config) -> Iterable[str]:
    """Return the URLs that decide, or help to decide, who clients are and what they may do."""
    for table in (*config.authenticator, *config.authorizer):
        if isinstance(table, HttpTable | HttpRightsTable):
            yield from table.urls
        elif isinstance(table, JwtTable) and table.jwks_url is not None:
            yield table.jwks_url


def _is_overheard(url: str) -> bool:
    parts = urlsplit(url)
    return parts.scheme == "http" and not Address(parts.hostname or "", 0).is_loopback


def _has_roles(config: Config) -> bool:
    return any(isinstance(table, DynamicSecurityTable) for table in config.authenticator)


def _rules_stand(config: Config) -> bool:
    return bool(config.authorizer) or _has_roles(config)


def _rules(config: Config, places: Sequence[tuple[Address, Listener]]) -> list[str]:
    """Return the lines that say where it stands what clients may do, and where it does not."""
    lines = []
    files = [table.file for table in config.authorizer if not isinstance(table, HttpRightsTable)]
    urls = [shown_url(table.urls[0]) for table in config.authorizer if isinstance(table, HttpRightsTable)]
    if _has_roles(config):
        lines.append("What clients may do their roles say, by `mosquitto_ctrl dynsec`.")
    if files:
        lines.append(f"What clients may do stands in {', '.join(files)}.")
    if urls:
        lines.append(f"What clients may do says {', '.join(urls)}.")
    free = [str(address) for address, listener in places if listener.authorizers == ()]
    if free and config.authorizer and not _has_roles(config):
        lines.append(f"At {', '.join(free)} no authorizer is asked: clients may do everything there.")
    return lines


def _is_open(config: Config, listener: Listener) -> bool:
    """Return whether clients need prove nothing at a listener."""
    if config.authenticator:
        return anonymous_allowed(config, listener) is True and listener.username_from is None
    return not proves_clients(listener)


def _there(config: Config, places: Sequence[tuple[Address, Listener]]) -> str:
    """Return the options that lead `shoal sub` to a listener, the one that needs least; "" if it looks there anyway."""
    # A listener behind a proxy takes nobody without one.
    address, listener = min(places, key=lambda place: (place[1].proxy_protocol, place[0].is_tls))
    host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(address.host, address.host)
    user = (
        " --user USER"
        if config.authenticator and not _is_open(config, listener) and (listener.username_from is None)
        else ""
    )
    if address.scheme == "tcp" and host in ("127.0.0.1", "localhost") and address.port == DEFAULT_PORT:
        return user
    path = ""
    if address.is_websocket and WEBSOCKET_PATH not in listener.websocket_paths:
        path = next(iter(listener.websocket_paths), "")
    options = f" --url {Address(host, address.port, address.scheme, address.path)}{path}{user}"
    if not address.is_tls:
        return options
    if not listener.certfile:
        return f"{options} --psk KEY --psk-identity NAME"
    return f"{options} --cafile FILE" + (" --cert FILE --key FILE" if listener.require_certificate else "")


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
