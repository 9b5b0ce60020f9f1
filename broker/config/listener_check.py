"""Reading and checking [[listener]] tables."""

from __future__ import annotations

import ipaddress
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from broker.config.limit import ClientLimit
from broker.config.listener import Address, Listener, parse_address
from broker.config.setting import Problem, Setting, settings_of, tables_of, values_of

if TYPE_CHECKING:
    from broker.config.schema import Config

# What is set of its clients stands behind what is set of itself.
LISTENER_SETTINGS: dict[str, Setting] = {
    setting.key: setting
    for setting in sorted(settings_of(Listener), key=lambda setting: setting.key in ClientLimit.__struct_fields__)
}
TLS_SETTINGS = (
    "certfile",
    "keyfile",
    "cafile",
    "capath",
    "crlfile",
    "require_certificate",
    "psk_file",
    "psk_hint",
    "ciphers",
    "ciphersuites",
    "tls_keylog",
)
CERTIFICATE_SETTINGS = ("username_from", "client_id_from")
# With a $ in front of them, names that begin with these are no names of clients: see broker.reactor.mount_point.
NO_MOUNT_POINTS = ("SYS", "replay", "share", "shoal")
FILE_SETTINGS = ("certfile", "keyfile", "cafile", "capath", "crlfile", "psk_file")


def listeners_read(tables: object, where: str, problems: list[Problem]) -> tuple[Listener, ...]:
    """Return the listeners of the [[listener]] tables that a layer gives; what is wrong is added to the problems."""
    found = []
    for number, table in enumerate(tables_of(tables, "listener", where, problems), 1):
        # One file may stand without the brackets of a list.
        given = {
            name: [value] if name in ("certfile", "keyfile") and isinstance(value, str) else value
            for name, value in table.items()
        }
        values = values_of(
            given, LISTENER_SETTINGS, {"address": "an address"}, where, f"listener {number}", problems, _suggestion
        )
        if values is not None:
            found.append(Listener(**values))
    return tuple(found)


def _suggestion(name: str) -> str:
    import difflib

    close = difflib.get_close_matches(name, LISTENER_SETTINGS, n=1)
    return close[0] if close else "one of " + ", ".join(LISTENER_SETTINGS)


def listener_problems(
    config: Config, problem: Callable[[str, Any, str], Problem], authenticator_given: bool, closing: Sequence[str] = ()
) -> Iterator[Problem]:
    """Yield what is wrong with the listeners of a configuration whose values are each in their range.

    Args:
        problem: makes one of a key, what was found and what was expected.
        authenticator_given: the embedding program looks after who its clients are.
        closing: commands that close a broker without authentication.
    """
    seen: set[Address] = set()
    if not config.listeners:
        yield problem("listen", [], "one or more addresses")
    for number, listener in enumerate(config.listeners):
        in_list = number < len(config.listen)
        key = "listen" if in_list else f"listener {number - len(config.listen) + 1}"
        try:
            address = parse_address(listener.address)
        except ValueError as error:
            yield problem(key if in_list else f"{key}.address", listener.address, str(error).partition(" ")[2])
            continue
        if address in seen and (address.port != 0 or address.scheme == "unix"):
            yield problem(key if in_list else f"{key}.address", listener.address, "each address once")
        seen.add(address)
        yield from (
            problem(key if in_list else f"{key}.{name}", found, expected)
            for name, found, expected in _alone(listener, address, in_list)
        )
        for kind, named, tables in (
            ("authenticator", listener.authenticators, config.authenticator),
            ("authorizer", listener.authorizers, config.authorizer),
        ):
            names = [table.name for table in tables if table.name is not None]
            for name in named or ():
                if name not in names:
                    yield problem(
                        f"{key}.{kind}s",
                        name,
                        f"names of [[{kind}]] tables: " + (", ".join(names) or "none of them has a name"),
                    )
        asked = config.authenticator if listener.authenticators is None else listener.authenticators
        if authenticator_given or asked or proves_clients(listener):
            continue
        anonymous = anonymous_allowed(config, listener)
        if anonymous is None:
            yield problem(
                key if in_list else f"{key}.address",
                listener.address,
                "a loopback address, because there is no authentication" + _instead_of_loopback(closing),
            )
            closing = ()  # they close all addresses, and are told once
        elif anonymous is False:
            yield problem(
                "allow_anonymous" if listener.allow_anonymous is None else f"{key}.allow_anonymous",
                False,
                "true or unset, because there is no authentication and nobody could connect",
            )


def _instead_of_loopback(closing: Sequence[str]) -> str:
    if not closing:
        return ""
    commands = "".join(f"\n    {command}" for command in closing)
    return (
        f". These commands have clients give a password:{commands}\n"
        'What clients may do then says an [[authorizer]], such as type = "acl_file". Or allow_anonymous = true lets '
        "everybody in"
    )


def anonymous_allowed(config: Config, listener: Listener) -> bool | None:
    """Return whether clients that prove nothing may come in; None: no setting says so, and other machines reach it."""
    allowed = config.allow_anonymous if listener.allow_anonymous is None else listener.allow_anonymous
    if allowed is None and config.authenticator:
        return False
    if allowed is None and listener.where.is_loopback:
        return True
    return allowed


def proves_clients(listener: Listener) -> bool:
    """Return whether clients prove by TLS who they are."""
    return listener.where.is_tls and (
        (listener.require_certificate and bool(listener.cafile or listener.capath)) or bool(listener.psk_file)
    )


def _alone(listener: Listener, address: Address, in_list: bool) -> Iterator[tuple[str, Any, str]]:
    """Yield (setting, what was found, what was expected) for settings that do not fit one another."""
    if address.is_tls:
        yield from _tls(listener, in_list)
    else:
        for name in TLS_SETTINGS:
            if getattr(listener, name) != LISTENER_SETTINGS[name].default:
                yield name, getattr(listener, name), "a listener with TLS: tls:// or wss://"
        if not listener.proxy_protocol:
            for name in CERTIFICATE_SETTINGS:
                if getattr(listener, name):
                    yield name, getattr(listener, name), "a listener with TLS, or proxy_protocol"
    if listener.proxy_protocol and not listener.proxy_from and address.scheme != "unix":
        yield (
            "proxy_protocol",
            True,
            "proxy_from with the addresses of the proxies: without it, anybody who reaches "
            "the port could say that he comes from anywhere",
        )
    for text in listener.proxy_from:
        try:
            ipaddress.ip_network(text, strict=False)
        except ValueError:
            yield "proxy_from", text, "IP addresses and networks such as 10.0.0.0/8"
    if address.scheme == "unix" and (
        not listener.mode.isascii() or not listener.mode.isdigit() or any(digit in "89" for digit in listener.mode)
    ):
        yield "mode", listener.mode, "octal digits such as 660"
    wrong = mount_point_problem(listener.mount_point)
    if wrong is not None:
        yield "mount_point", listener.mount_point, wrong
    for path in listener.websocket_paths:
        if not path.startswith("/") or any(character.isspace() for character in path):
            yield "websocket_paths", path, "paths that begin with /"


def mount_point_problem(mount_point: str) -> str | None:
    """Return what a mount point has to be and is not; None if it is all right, or there is none."""
    if not mount_point:
        return None
    if not mount_point.endswith("/"):
        return f"a prefix that ends with /, such as {mount_point}/: it is put in front of each name as it is"
    if any(character in mount_point for character in "+#\0"):
        return "a prefix without + # and NUL"
    first_level = mount_point.partition("/")[0]
    if mount_point.startswith("$") or first_level in NO_MOUNT_POINTS:
        return "a prefix that begins with neither $ nor " + ", ".join(f"{level}/" for level in NO_MOUNT_POINTS)
    return None


def _tls(listener: Listener, in_list: bool) -> Iterator[tuple[str, Any, str]]:
    if in_list:
        yield "listen", listener.address, "a [[listener]] table with certfile and keyfile, or psk_file"
        return
    if not listener.certfile and not listener.psk_file:
        yield "certfile", list(listener.certfile), "certificates, or a psk_file"
    if len(listener.certfile) != len(listener.keyfile):
        yield "keyfile", list(listener.keyfile), f"as many keys as certificates: {len(listener.certfile)}"
    if listener.require_certificate and not (listener.cafile or listener.capath):
        yield "require_certificate", True, "cafile or capath, which sign the certificates of clients"
    if listener.crlfile and not (listener.cafile or listener.capath):
        yield "crlfile", listener.crlfile, "cafile or capath, which sign the certificates of clients"
    for name in CERTIFICATE_SETTINGS:
        if getattr(listener, name) == "psk.identity":
            if not listener.psk_file:
                yield name, "psk.identity", "a listener with psk_file"
        elif getattr(listener, name) and not (listener.require_certificate or listener.proxy_protocol):
            yield name, getattr(listener, name), "require_certificate = true"
    if listener.psk_file and listener.min_version == "1.3" and not listener.certfile:
        yield "min_version", "1.3", "1.2, as pre-shared keys need"
