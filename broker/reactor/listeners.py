"""Listening sockets: bound, shared among workers, and what is said of an address that cannot be had."""

from __future__ import annotations

import errno
import os
import socket
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from broker.config.loader import Address, Config, parse_address
from broker.config.start_error import StartError

BACKLOG = 4096
LISTENING = "0A"  # the state of a socket in /proc/net/tcp


def bind(addresses: Iterable[str]) -> list[socket.socket]:
    """Return listening sockets for addresses of the form tcp://HOST:PORT. Raises OSError."""
    (sockets,) = bind_shared(addresses, 1)
    start_listening(sockets)
    return sockets


def bind_shared(addresses: Iterable[str], count: int) -> list[list[socket.socket]]:
    """Return sockets that do not listen yet, for each of `count` processes its own: the system shares the clients out.

    Each process has a socket for each address, in the same order. Raises OSError.
    """
    shares: list[list[socket.socket]] = [[] for _ in range(count)]
    try:
        for text in addresses:
            address = parse_address(text)
            found = socket.getaddrinfo(address.host, address.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
            for family, kind, protocol, _, where in found:
                for share in shares:
                    share.append(_bound(family, kind, protocol, where, shared=count > 1))
                    where = share[-1].getsockname()          # for port 0, the first one's is everybody's
    except OSError:
        for share in shares:
            for bound in share:
                bound.close()
        raise
    return shares


def _bound(family: int, kind: int, protocol: int, where: Any, *, shared: bool) -> socket.socket:
    bound = socket.socket(family, kind | socket.SOCK_NONBLOCK, protocol)
    try:
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if shared:
            bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        if family == socket.AF_INET6:
            bound.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        bound.bind(where)
    except OSError:
        bound.close()
        raise
    return bound


def start_listening(sockets: Iterable[socket.socket]) -> None:
    """Let clients queue up; before, they are refused. Raises OSError."""
    for bound in sockets:
        bound.listen(BACKLOG)


def check_addresses(config: Config) -> None:
    """Bind each address once and let go of it, so that a port in use is one sentence with the name of its user.

    Raises:
        StartError: an address is in use, is not this machine's, needs privileges or does not resolve.
    """
    for address in map(parse_address, config.listen):
        try:
            found = socket.getaddrinfo(
                address.host, address.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE | socket.AI_NUMERICSERV
            )
        except OSError as error:
            raise StartError(f"The host of {address} is not known: {error.strerror}.") from error
        for family, kind, protocol, _, where in found:
            try:
                with socket.socket(family, kind, protocol) as listener:
                    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                    if family == socket.AF_INET6:
                        listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
                    listener.bind(where)         # and no more: who came to it would be cut
            except OSError as error:
                if error.errno == errno.EAFNOSUPPORT and len(found) > 1:
                    continue
                raise StartError(refusal(address, error)) from error


def refusal(address: Address, error: OSError) -> str:
    """Return in one sentence why an address cannot be bound or listened on."""
    if error.errno == errno.EADDRINUSE:
        return (
            f"The address {address} is in use{_user_of(address.port)}: stop that or choose another with "
            f"--listen tcp://HOST:PORT."
        )
    if error.errno == errno.EACCES:
        return f"The address {address} needs privileges: choose a port above 1023 with --listen tcp://HOST:PORT."
    if error.errno == errno.EADDRNOTAVAIL:
        return f"The address {address} is not one of this machine's."
    return f"The address {address} cannot be listened on: {error.strerror}."


def _user_of(port: int) -> str:
    """Return " by NAME (process id N)" for the process that listens on a port, "" if that is not ours to see."""
    inodes = set()
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        try:
            lines = Path(table).read_text(encoding="ascii").splitlines()[1:]
        except OSError:
            continue
        for line in lines:
            fields = line.split()
            if fields[3] == LISTENING and int(fields[1].rpartition(":")[2], 16) == port:
                inodes.add(f"socket:[{fields[9]}]")
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if any(os.readlink(descriptor) in inodes for descriptor in (process / "fd").iterdir()):
                name = (process / "comm").read_text(encoding="utf-8", errors="replace").strip()
                return f" by {name} (process id {process.name})"
        except OSError:
            continue  # it has ended meanwhile, or belongs to somebody else
    return ""
