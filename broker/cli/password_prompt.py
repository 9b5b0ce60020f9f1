"""A password from the terminal or from standard input, never from the command line, which others see."""

from __future__ import annotations

import os
import sys
from typing import NoReturn

import click

PASSWORD_BYTES_MAX = 65_535  # what a CONNECT can carry (1.5.6)
EXIT_FAILED = 1


def password_of(user: str, stdin: bool) -> bytes:
    """Return the password that is typed twice, or comes by standard input."""
    if stdin:
        password = sys.stdin.buffer.read(PASSWORD_BYTES_MAX + 3).removesuffix(b"\n").removesuffix(b"\r")
        if b"\n" in password:
            fail("standard input: found several lines, expected the password alone")
    else:
        if not sys.stdin.isatty():
            fail("standard input is no terminal: --stdin reads the password from it")
        password = os.fsencode(
            click.prompt(f"Password of {user}", hide_input=True, default="", show_default=False, err=True)
        )
        if password and password != os.fsencode(
            click.prompt("The same again", hide_input=True, default="", show_default=False, err=True)
        ):
            fail("The two are not the same: nothing is changed.")
    if not password:
        fail("An empty password: nothing is changed.")
    if len(password) > PASSWORD_BYTES_MAX:
        fail(f"A password of more than {PASSWORD_BYTES_MAX} bytes, which no CONNECT can carry: nothing is changed.")
    return password


def fail(text: str) -> NoReturn:
    """Say what is wrong, and end."""
    click.echo(text, err=True)
    sys.exit(EXIT_FAILED)
