"""Addresses of clients, and networks of them, as bans and delays name them."""

from __future__ import annotations

import ipaddress
from socket import AF_INET, inet_pton
from typing import Final

Network = ipaddress.IPv4Network | ipaddress.IPv6Network
Address = ipaddress.IPv4Address | ipaddress.IPv6Address

SUBSCRIBER_BITS: Final = 64  # of an IPv6 address: one subscriber has at least all that begin alike so far


def network_of(text: str) -> Network:
    """Return an address or a network; host bits are dropped, IPv4 in IPv6 is IPv4. Raises ValueError."""
    found = ipaddress.ip_network(text, strict=False)
    if isinstance(found, ipaddress.IPv6Network):
        mapped = found.network_address.ipv4_mapped
        if mapped is not None and found.prefixlen >= 96:
            return ipaddress.ip_network(f"{mapped}/{found.prefixlen - 96}", strict=False)
    return found


def address_of(peer: str | None) -> Address | None:
    """Return the address in HOST:PORT or [HOST]:PORT; None for a Unix socket and the like."""
    if peer is None:
        return None
    host = peer.rpartition(":")[0].strip("[]").partition("%")[0]
    try:
        found = ipaddress.ip_address(host)
    except ValueError:
        return None
    if isinstance(found, ipaddress.IPv6Address) and found.ipv4_mapped is not None:
        return found.ipv4_mapped
    return found


def subscriber_of(peer: str | None) -> str:
    """Return whose clients count together: an IPv4 address, 64 bits of an IPv6 one; "" for a Unix socket."""
    if peer is None:
        return ""
    host = peer.rpartition(":")[0]
    try:
        inet_pton(AF_INET, host)
    except (OSError, ValueError):
        pass
    else:
        return host  # as it is for nearly all, and 3 us of every login less
    address = address_of(peer)
    if isinstance(address, ipaddress.IPv6Address):
        return str(ipaddress.ip_network((int(address), SUBSCRIBER_BITS), strict=False))
    return "" if address is None else str(address)
