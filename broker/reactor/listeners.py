"""Listening sockets: bound, shared among workers, and what is said of an address that cannot be had."""

from __future__ import annotations

import contextlib
import errno
import grp
import os
import socket
import stat
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from broker.config.listener import Address, Listener
from broker.config.loader import Config
from broker.config.start_error import StartError

BACKLOG = 4096
LISTENING = "0A"  # the state of a socket in /proc/net/tcp
GONE_ERRNOS = frozenset({errno.ECONNREFUSED, errno.ENOENT})
UMASK_PRIVATE = 0o177


class ListeningSocket(NamedTuple):
    """A socket and whose it is.

    Attributes:
        listener: number of the listener, in the order of the settings; one may have several sockets (a name with an
            IPv4 and an IPv6 address).
        scheme: its listener's.
        socket: bound.
    """

    listener: int
    scheme: str
    socket: socket.socket

    @property
    def address(self) -> Address:
        """Where clients can connect."""
        name = self.socket.getsockname()
        if self.scheme == "unix":
            return Address("", 0, "unix", os.fsdecode(name))
        return Address(name[0], name[1], self.scheme)


def bind(listeners: Sequence[Listener]) -> list[ListeningSocket]:
    """Return listening sockets. Raises OSError."""
    (sockets,) = bind_shared(listeners, 1)
    start_listening(sockets)
    return sockets


def bind_shared(listeners: Sequence[Listener], count: int) -> list[list[ListeningSocket]]:
    """Return sockets that do not listen yet, for each of `count` processes its own: the system shares the clients out.

    Each process has a socket for each address, in the same order; a Unix socket is the same one for all.
    Raises OSError.
    """
    shares: list[list[ListeningSocket]] = [[] for _ in range(count)]
    try:
        for number, listener in enumerate(listeners):
            address = listener.where
            if address.scheme == "unix":
                bound = _bound_at_path(listener, address.path)
                for share in shares:
                    share.append(ListeningSocket(number, "unix", bound if share is shares[0] else bound.dup()))
                continue
            found = socket.getaddrinfo(address.host, address.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
            for family, kind, protocol, _, where in found:
                for share in shares:
                    share.append(
                        ListeningSocket(number, address.scheme, _bound(family, kind, protocol, where, shared=count > 1))
                    )
                    where = share[-1].socket.getsockname()  # for port 0, the first one's is everybody's
    except OSError:
        for share in shares:
            for one in share:
                one.socket.close()
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


def _bound_at_path(listener: Listener, path: str) -> socket.socket:
    """Bind a Unix socket; the file of a broker that is dead is replaced, that of one that lives is in use.

    Nobody may connect who is not meant to, at any moment: it has its mode before anybody listens.
    """
    _make_way(path)
    bound = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
    try:
        before = os.umask(UMASK_PRIVATE)
        try:
            bound.bind(path)
        finally:
            os.umask(before)
        if listener.group is not None:
            os.chown(path, -1, grp.getgrnam(listener.group).gr_gid)
        os.chmod(path, int(listener.mode, 8))
    except KeyError:
        bound.close()
        os.unlink(path)
        raise OSError(errno.EINVAL, f"there is no group {listener.group!r}") from None
    except OSError:
        bound.close()
        raise
    return bound


def _make_way(path: str) -> None:
    """Remove the socket file of a broker that is no more. Raises OSError if it is in use, or no socket."""
    try:
        kind = os.lstat(path).st_mode
    except FileNotFoundError:
        return
    if not stat.S_ISSOCK(kind):
        raise OSError(errno.EEXIST, "there is a file of that name, which is no socket")
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK) as probe:
        try:
            probe.connect(path)
        except OSError as error:
            if error.errno not in GONE_ERRNOS:
                raise OSError(errno.EADDRINUSE, os.strerror(errno.EADDRINUSE)) from error
        else:
            raise OSError(errno.EADDRINUSE, os.strerror(errno.EADDRINUSE))
    with contextlib.suppress(FileNotFoundError):
        os.unlink(path)


def remove_paths(sockets: Iterable[ListeningSocket]) -> None:
    """Remove the files of Unix sockets on which the broker listens no more."""
    for one in sockets:
        if one.scheme == "unix":
            with contextlib.suppress(OSError):
                os.unlink(one.socket.getsockname())


def start_listening(sockets: Iterable[ListeningSocket]) -> None:
    """Let clients queue up; before, they are refused. Raises OSError."""
    for bound in sockets:
        bound.socket.listen(BACKLOG)


def check_addresses(config: Config) -> None:
    """Bind each address once and let go of it, so that a port in use is one sentence with the name of its user.

    Raises:
        StartError: an address is in use, is not this machine's, needs privileges or does not resolve.
    """
    for listener in config.listeners:
        address = listener.where
        if address.scheme == "unix":
            try:
                _bound_at_path(listener, address.path).close()
                os.unlink(address.path)
            except OSError as error:
                raise StartError(refusal(address, error)) from error
            continue
        try:
            found = socket.getaddrinfo(
                address.host, address.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE | socket.AI_NUMERICSERV
            )
        except OSError as error:
            raise StartError(f"The host of {address} is not known: {error.strerror}.") from error
        for family, kind, protocol, _, where in found:
            try:
                with socket.socket(family, kind, protocol) as probe:
                    probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                    if family == socket.AF_INET6:
                        probe.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
                    probe.bind(where)  # and no more: who came to it would be cut
            except OSError as error:
                if error.errno == errno.EAFNOSUPPORT and len(found) > 1:
                    continue
                raise StartError(refusal(address, error)) from error


def refusal(address: Address, error: OSError) -> str:
    """Return in one sentence why an address cannot be bound or listened on."""
    setting = "http.listen" if address.scheme == "http" else "--listen tcp://HOST:PORT"
    if address.scheme == "unix":
        why = "another process listens there" if error.errno == errno.EADDRINUSE else error.strerror
        return f"The address {address} cannot be listened on: {why}."
    if error.errno == errno.EADDRINUSE:
        return f"The address {address} is in use{_user_of(address.port)}: stop that or choose another with {setting}."
    if error.errno == errno.EACCES:
        return f"The address {address} needs privileges: choose a port above 1023 with {setting}."
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
