"""What must hold before a worker starts, and what a person is told when it has."""

import errno
import fcntl
import importlib.util
import os
import socket
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from broker.config.loader import Address, Config, is_loopback, parse_address
from broker.version import VERSION

PACKAGES = ("broker", "router", "mesh")
DEFAULT_PORT = 1883
LISTENING = "0A"  # the state of a socket in /proc/net/tcp
ORPHANS_S = 10.0  # for the workers of a killed broker to end
SPREAD = "workers"  # file in the data folder: over how many workers its sessions are spread
ROOM_BYTES = 131_072  # that a start may take, and as much again for each worker
UNFINISHED = ("worker-*/snapshot-*.log.new", "worker-*/incarnation.new", "node.new", f"{SPREAD}.new")


_SURVIVES = {
    "fsync": "a crash and a loss of power",
    "os": "a crash, but not a loss of power",
    "none": "an orderly end only",
}


class StartError(Exception):
    """Why a worker cannot start, in one sentence."""


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


@contextmanager
def locked_folder(data_dir: str) -> Iterator[Path]:
    """Create the data folder if need be and hold its lock, as lock_folder() does, until the end of the block."""
    folder, descriptor = lock_folder(data_dir)
    try:
        yield folder
    finally:
        os.close(descriptor)


def lock_folder(data_dir: str) -> tuple[Path, int]:
    """Create the data folder if need be and lock it; returns its path, and the descriptor that holds the lock.

    The lock ends when all processes that have inherited the descriptor have closed it. One whose broker was killed is
    waited for: its workers are ending.

    What somebody was writing when he was killed, beside what counts, is removed before anything is written: on a full
    disk it may be all the room that there is.

    Raises:
        StartError: another process holds it, or it cannot be created or written.
    """
    folder = Path(data_dir).absolute()
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        descriptor = os.open(folder / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise StartError(unusable(folder, error)) from error
    deadline_s = time.monotonic() + ORPHANS_S
    try:
        while True:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                holder = os.pread(descriptor, 32, 0).decode("ascii", "replace").strip() or "unknown"
                if time.monotonic() > deadline_s or not holder.isdigit() or Path("/proc", holder).exists():
                    raise StartError(
                        f"The data folder {folder} is in use by the broker with process id {holder}: stop that one or "
                        "choose another folder with --data-dir."
                    ) from None
                time.sleep(0.05)
        try:
            _remove_unfinished(folder)
            os.ftruncate(descriptor, 0)
            os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0)
        except OSError as error:
            raise StartError(unusable(folder, error)) from error
    except BaseException:
        os.close(descriptor)
        raise
    return folder, descriptor


def _remove_unfinished(folder: Path) -> None:
    for pattern in UNFINISHED:
        for path in folder.glob(pattern):
            if path.is_file():
                path.unlink()


def check_room(folder: Path, workers: int) -> None:
    """Raise StartError unless the disk has room for what a start writes.

    Without room some of it would fail, and not all of that with an error: the system ends a process that writes to a
    page of a mapped file for which there is no room.
    """
    needed = ROOM_BYTES * (1 + workers)
    disk = os.statvfs(folder)
    free = disk.f_bavail * disk.f_frsize
    if free < needed:
        raise StartError(
            f"The disk of the data folder {folder} is full: {free:,} bytes are free, and a start needs {needed:,}."
        )


def unusable(folder: Path, error: OSError) -> str:
    """Return in one sentence why a data folder, or something in it, cannot be used."""
    # Here, because whoever only asks for help has no need of it.
    from router.log.disk import is_full

    if is_full(error):
        return f"The disk of the data folder {folder} is full: make room, and start the broker again."
    where = f" ({error.filename})" if error.filename else ""
    return f"The data folder {folder} cannot be used: {error.strerror or error}{where}."


def spread_of(folder: Path) -> int | None:
    """Return over how many workers the sessions in a data folder are spread, None if there are none.

    Below zero: they were being spread over so many, and that was interrupted. Raises StartError.
    """
    try:
        return int((folder / SPREAD).read_text(encoding="ascii"))
    except FileNotFoundError:
        return 1 if (folder / "worker-0").exists() else None
    except (OSError, ValueError) as error:
        raise StartError(f"The file {folder / SPREAD} cannot be read: {error}.") from error


def note_spread(folder: Path, count: int) -> None:
    """Write down, durably, what spread_of() returns from now on."""
    beside = folder / f"{SPREAD}.new"
    with beside.open("w", encoding="ascii") as file:
        file.write(f"{count}\n")
        file.flush()
        os.fsync(file.fileno())
    beside.rename(folder / SPREAD)
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


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


def banner(config: Config, addresses: Sequence[Address], folder: Path) -> str:
    """Return what a person sees once clients can connect: where, what is not protected, and two lines to copy."""
    only_here = all(is_loopback(address) for address in addresses)
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
