"""What all commands of `shoal` share: which broker they are about, and what is said of an option that there is not."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import click

# What is typed by whoever comes from mosquitto's programs or from an older habit, and the option that does it here.
KNOWN_ELSEWHERE: Final[Mapping[str, tuple[str, ...]]] = {
    "--id": ("--client-identifier",), "--clientid": ("--client-identifier",), "--client-id": ("--client-identifier",),
    "-I": ("--client-identifier",), "--username": ("--user",), "--pw": ("--password",), "--pass": ("--password",),
    "--passwd": ("--password",), "--keepalive": ("--keep-alive",), "--server": ("--host",), "--broker": ("--host",),
    "-c": ("--no-clean-start", "--config"), "--disable-clean-session": ("--no-clean-start",),
    "--clean-session": ("--clean-start",), "-x": ("--session-expiry-interval",), "-D": ("--user-property", "--delete"),
    "--property": ("--user-property",), "--protocol-version": ("--mqtt-version",), "-R": ("--retain-handling",),
    "-b": ("--stdin",), "-H": ("--hash",),
    "-F": ("--json",), "-s": ("--file",), "--stdin-file": ("--file",), "--stdin-line": ("--lines",),
    "--null-message": ("--null",), "-p": ("--listen",), "--port": ("--listen",), "-h": ("--listen",),
    "--host": ("--listen",), "--bind": ("--listen",), "-v": ("--log-level",), "--verbose": ("--log-level",),
    "-d": ("--log-level",), "--debug": ("--log-level",), "-w": ("--workers",), "--threads": ("--workers",),
}  # fmt: skip
WEBSOCKET_PATH: Final = "/mqtt"  # where our commands look for one
LIKENESS: Final = 0.7  # of an option to what was typed, from which on it is worth naming

_FOLDER_OPTIONS: Final = {
    "data_dir": ("--data-dir", "DIR", None, "The broker's data folder."),
    "file": ("--config", "FILE", click.Path(path_type=Path), "The broker's TOML file, which names the folder."),
}  # fmt: skip


def said(context: click.Context) -> dict[str, Any]:
    """Return which broker was named, before the command's name or behind it, as arguments of log_cli.data_folder()."""
    return {name: context.meta.get(f"shoal.{name}") for name in _FOLDER_OPTIONS}


def prepared(command: click.Command) -> click.Command:
    """Let --data-dir and --config stand before and behind the names of a command and of what is below it.

    What stands further behind counts more. An option that there is not is answered with the one that is meant.
    """
    return _prepared(command, of_folder=False)


def _prepared(command: click.Command, of_folder: bool) -> click.Command:
    for name in _FOLDER_OPTIONS:
        own = next((option for option in command.params if _is_folder_option(option) and option.name == name), None)
        if own is not None:
            own.callback = _inherit
        elif of_folder or isinstance(command, click.Group):
            command.params.append(_folder_option(name))
    parse = command.parse_args

    def parse_args(context: click.Context, args: list[str]) -> list[str]:
        try:
            rest = parse(context, args)
        except click.NoSuchOption as error:
            error.possibilities = suggestions(error.option_name, command)  # type: ignore[misc]
            raise
        for name, value in said(context).items():
            if (
                value is not None
                and not isinstance(command, click.Group)
                and not any(_is_folder_option(option) and option.name == name for option in command.params)
            ):
                raise click.UsageError(f"{context.info_name} takes no {_FOLDER_OPTIONS[name][0]}", context)
        return rest

    command.parse_args = parse_args  # type: ignore[method-assign, assignment]
    if isinstance(command, click.Group):
        find = command.get_command
        below: dict[str, click.Command | None] = {}

        def get_command(context: click.Context, name: str) -> click.Command | None:
            if name not in below:
                found = find(context, name)
                below[name] = found and _prepared(
                    found, of_folder or any(_is_folder_option(option) for option in found.params)
                )
            return below[name]

        command.get_command = get_command  # type: ignore[method-assign, assignment]
    return command


def _is_folder_option(option: click.Parameter) -> bool:
    return (
        isinstance(option, click.Option)
        and option.name in _FOLDER_OPTIONS
        and (_FOLDER_OPTIONS[option.name][0] in option.opts)
    )


def _folder_option(name: str) -> click.Option:
    flag, metavar, kind, text = _FOLDER_OPTIONS[name]
    return click.Option([flag, name], metavar=metavar, type=kind, help=text, callback=_inherit, expose_value=False)


def _inherit(context: click.Context, option: click.Parameter, value: Any) -> Any:
    key = f"shoal.{option.name}"
    if value is not None:
        context.meta[key] = value
    return context.meta.get(key)


def suggestions(typed: str, command: click.Command) -> list[str]:
    """Return the options of a command that may have been meant, the likeliest first; few or none."""
    import difflib

    options = [
        flag
        for option in command.params
        if isinstance(option, click.Option)
        for flag in (*option.opts, *option.secondary_opts)
    ]
    meant = [flag for flag in KNOWN_ELSEWHERE.get(typed, ()) if flag in options]
    if meant or not typed.startswith("--"):
        return meant[:1]
    begun = [flag for flag in options if flag.startswith(typed) or typed.startswith(f"{flag}-")]
    return begun or difflib.get_close_matches(typed, options, n=1, cutoff=LIKENESS)
