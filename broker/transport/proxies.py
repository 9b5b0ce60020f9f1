"""Which peers are proxies whose word about a client counts."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable

IPAddress = ipaddress.IPv4Address | ipaddress.IPv6Address


class Proxies:
    """The trusted proxies of a listener.

    Args:
        networks: IP addresses and networks, as `proxy_from` of the listener has them.
        is_unix: it is a Unix socket: who may open that is trusted.
    """

    def __init__(self, networks: Iterable[str], *, is_unix: bool) -> None:
        self._networks = [ipaddress.ip_network(text, strict=False) for text in networks]
        self._is_unix = is_unix

    def trusts(self, peer: str | None) -> bool:
        """Return whether a peer is a trusted proxy.

        Args:
            peer: HOST:PORT; None at a Unix socket, or of a peer that has gone.
        """
        if peer is None:
            return self._is_unix
        address = address_of(peer.rpartition(":")[0])
        return address is not None and self.has(address)

    def has(self, address: IPAddress) -> bool:
        """Return whether an address is in one of the networks."""
        return any(address in network for network in self._networks)


def address_of(text: str) -> IPAddress | None:
    """Return an IP address, None for anything else; an IPv4 address that is written as IPv6 is an IPv4 address."""
    try:
        address = ipaddress.ip_address(text.partition("%")[0])
    except ValueError:
        return None
    return getattr(address, "ipv4_mapped", None) or address


def forwarded_for(values: Iterable[str], proxies: Proxies) -> str | None:
    """Return the client's address as X-Forwarded-For has it: the last one that is no trusted proxy's, as HOST:PORT.

    What comes before that is the client's own word. A proxy that gives no port leaves it 0.

    Args:
        values: of the headers of this name, in their order; each a list with commas.

    Returns the first address if all are proxies', None if there is no address behind those of proxies.
    """
    found = None
    for part in reversed([part.strip() for value in values for part in value.split(",")]):
        host, port = _host_and_port(part)
        address = address_of(host)
        if address is None:
            break
        found = f"{address}:{port}"
        if not proxies.has(address):
            break
    return found


def _host_and_port(text: str) -> tuple[str, int]:
    """Take apart 192.0.2.1, 192.0.2.1:80, 2001:db8::1 and [2001:db8::1]:80, which all are in use."""
    if text.startswith("["):
        host, _, behind = text[1:].partition("]")
        port = behind.removeprefix(":")
    elif text.count(":") == 1:
        host, _, port = text.partition(":")
    else:
        host, port = text, ""
    return host, int(port) if port.isascii() and port.isdigit() and len(port) <= 5 and int(port) <= 65_535 else 0
