"""`shoal passwd`: users and their passwords in a password file."""

from __future__ import annotations

import contextlib
import fcntl
import os
import secrets
import stat
from collections.abc import Iterator
from pathlib import Path

import click

from broker.auth.password_hash import ITERATIONS, ITERATIONS_MAX, KINDS, HashError, new_hash
from broker.auth.password_lines import PasswordLineError, PasswordLines, checked_name
from broker.auth.scram_cost import ITERATIONS as SCRAM_ITERATIONS
from broker.auth.scram_cost import ITERATIONS_MAX as SCRAM_ITERATIONS_MAX
from broker.auth.scram_cost import ITERATIONS_MIN as SCRAM_ITERATIONS_MIN
from broker.cli.password_prompt import fail, password_of

NEW_MODE = 0o600


@click.command()
@click.argument("file", type=click.Path(dir_okay=False, path_type=Path))
@click.argument("user", required=False)
@click.option("--delete", is_flag=True, help="Take the user out of the file.")
@click.option("--list", "as_list", is_flag=True, help="Print the users, one in a line.")
@click.option("--stdin", is_flag=True, help="Read the password from standard input, one line, and ask nobody.")
@click.option(
    "--hash",
    "kind",
    type=click.Choice(KINDS),
    default=KINDS[0],
    show_default=True,
    help="How the password is hashed; mosquitto 2.0 knows sha512-pbkdf2 only. By SCRAM, which no mosquitto "
    "knows, a client of MQTT 5.0 can prove it without sending it.",
)
@click.option(
    "--iterations",
    type=click.IntRange(1, ITERATIONS_MAX),
    help=f"Of sha512-pbkdf2, {ITERATIONS} if not given: some 130 ms for each login; of SCRAM, which cost "
    f"the client: {SCRAM_ITERATIONS}, at least {SCRAM_ITERATIONS_MIN}.",
)
def passwd(
    file: Path, user: str | None, delete: bool, as_list: bool, stdin: bool, kind: str, iterations: int | None
) -> None:
    """Add USER to a password file, or change the password.

    The password is asked for twice at the terminal. The file is made if it is not there; comments, order and mode stay.
    A broker that has it in an [[authenticator]] table takes it within seconds. It is mosquitto's kind of file.
    """
    if as_list == (user is not None):
        raise click.UsageError("expected either USER or --list")
    if delete + as_list + stdin > 1:
        raise click.UsageError("--delete, --list and --stdin exclude one another")
    if iterations is not None and (kind == "argon2id" or delete or as_list):
        raise click.UsageError("--iterations is for --hash sha512-pbkdf2 and for SCRAM")
    if (
        iterations is not None
        and kind.startswith("scram-")
        and not (SCRAM_ITERATIONS_MIN <= iterations <= SCRAM_ITERATIONS_MAX)
    ):
        raise click.UsageError(f"--iterations of SCRAM: expected {SCRAM_ITERATIONS_MIN} to {SCRAM_ITERATIONS_MAX}")
    try:
        if as_list:
            click.echo("".join(f"{name}\n" for name in _lines(file, file.read_bytes()).hashes), nl=False)
            return
        assert user is not None, "a user is required but for --list"
        try:
            name = checked_name(os.fsencode(user))
        except ValueError as error:
            fail(f"USER: found {error}")
        if delete:
            with _locked(file) as place:
                lines = _lines(file, place.read_bytes())
                if name not in lines.hashes:
                    fail(f"{file}: there is no user {name}")
                _replace(place, lines.without_user(name))
            click.echo(f"{name}: deleted from {file}.")
            return
        if file.exists():
            _lines(file, file.read_bytes())  # before anybody types anything
        try:
            stored = new_hash(password_of(name, stdin), kind, iterations)
        except HashError as error:
            fail(f"Found {error}: nothing is changed.")
        with _locked(file) as place:
            is_new = not place.exists()
            lines = _lines(file, b"" if is_new else place.read_bytes())
            known = name in lines.hashes
            _replace(place, lines.with_user(name, stored))
    except OSError as error:
        fail(f"{file}: {error.strerror}")
    click.echo(f"{name}: {'changed in' if known else 'added to'} {file}.")
    if is_new:
        click.echo(
            "\nA broker that has these lines in its shoal.toml asks for it:\n\n[[authenticator]]\n"
            f'type = "password_file"\nfile = "{file.absolute()}"'
        )


def _lines(file: Path, data: bytes) -> PasswordLines:
    try:
        return PasswordLines(data)
    except PasswordLineError as error:
        fail(f"{file}: {error}")


@contextlib.contextmanager
def _locked(file: Path) -> Iterator[Path]:
    """Keep other `shoal passwd` of the same folder away; gives where the file is, behind its symbolic links."""
    place = Path(os.path.realpath(file))
    folder = os.open(place.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(folder, fcntl.LOCK_EX)
        yield place
        os.fsync(folder)
    finally:
        os.close(folder)


def _replace(place: Path, data: bytes) -> None:
    """Put another file in a file's place at once, of the same mode and owner: a broker reads one or the other."""
    new = place.with_name(f".{place.name}.{secrets.token_hex(8)}")
    descriptor = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL, NEW_MODE)
    try:
        with open(descriptor, "wb") as file:
            with contextlib.suppress(FileNotFoundError):
                before = place.stat()
                if (before.st_uid, before.st_gid) != (os.geteuid(), os.getegid()):
                    # Only root may give a file away: else the user's own file takes the place of another's.
                    with contextlib.suppress(PermissionError):
                        os.fchown(descriptor, before.st_uid, before.st_gid)
                os.fchmod(descriptor, stat.S_IMODE(before.st_mode))
            file.write(data)
            file.flush()
            os.fsync(descriptor)
        new.rename(place)
    except BaseException:
        new.unlink(missing_ok=True)
        raise
