"""`shoal dynsec`: the file that a broker with dynamic security begins with."""

from __future__ import annotations

import os
from pathlib import Path

import click

from broker.cli.password_prompt import fail, password_of

NEW_MODE = 0o600


@click.group()
def dynsec() -> None:
    """Begin with clients, groups and roles that `mosquitto_ctrl dynsec` changes."""


@dynsec.command()
@click.argument("file", type=click.Path(dir_okay=False, path_type=Path))
@click.argument("user")
@click.option("--stdin", is_flag=True, help="Read the password from standard input, one line, and ask nobody.")
def init(file: Path, user: str, stdin: bool) -> None:
    """Make FILE, with USER as the one administrator.

    The password is asked for twice at the terminal. A broker that has the file in an [[authenticator]] table begins
    with it, and keeps what it says in its own log from then on.
    """
    # Here, so that `shoal --help` does not load it.
    from broker.auth.dynamic_security.fields import NAME_BYTES_MAX, is_valid_text
    from broker.auth.dynamic_security.start_file import first_file
    from broker.auth.password_hash import new_hash

    if not user or not is_valid_text(user) or len(user.encode()) > NAME_BYTES_MAX:
        fail(f"USER: expected 1 to {NAME_BYTES_MAX:,} bytes without control characters")
    if file.exists():
        fail(f"{file}: it is there already, and stays as it is")
    hashed = new_hash(password_of(user, stdin)).decode()
    try:
        descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, NEW_MODE)
    except OSError as error:
        fail(f"{file}: {error.strerror}")
    with open(descriptor, "wb") as made:
        made.write(first_file(user, hashed))
        made.flush()
        os.fsync(descriptor)
    click.echo(
        f"{user}: the administrator in {file}.\n\n"
        "A broker that has these lines in its shoal.toml begins with it:\n\n"
        f'[[authenticator]]\ntype = "dynamic_security"\nfile = "{file.absolute()}"'
    )
