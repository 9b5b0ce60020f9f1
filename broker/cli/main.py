"""The command `shoal`: serve, check-config, passwd, dynsec, acl, sub, pub, log, backup, restore, admin, ..."""

import importlib
import os
import signal
import sys
import time
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

import click

from broker.cli.common import prepared
from broker.version import VERSION

if TYPE_CHECKING:
    from collections.abc import Callable

    from broker.config.loader import Address, Config
    from broker.processes.settings_in_force import SettingsInForce

# What they mean stands in broker.cli.exit_codes.
EXIT_CHECKED = 1
EXIT_CONFIG = 2
EXIT_NOT_STARTED = 3
EXIT_WORKERS = 4

# These commands are imported only where one is used, and serve only loads what a worker needs.
ELSEWHERE = {
    "sub": "broker.cli.pubsub",
    "pub": "broker.cli.pubsub",
    "log": "broker.cli.log",
    "backup": "broker.cli.backup",
    "restore": "broker.cli.backup",
    "passwd": "broker.cli.passwd",
    "dynsec": "broker.cli.dynsec",
    "acl": "broker.cli.acl",
    "admin": "broker.cli.admin",
    "top": "broker.cli.top",
    "generate": "broker.cli.generate",
    # Of another package, which no module of the broker imports: only these names are known here.
    "lake": "analytics.cli.lake",
    "analyze": "analytics.cli.analyze",
    "replay": "analytics.cli.replay",
}


class Commands(click.Group):
    """The commands of this module and, once one of them is asked for, those of the modules that have them."""

    def list_commands(self, context: click.Context) -> list[str]:
        return [*super().list_commands(context), *ELSEWHERE]

    def get_command(self, context: click.Context, name: str) -> click.Command | None:
        if name in ELSEWHERE:
            command: click.Command = getattr(importlib.import_module(ELSEWHERE[name]), name)
            return command
        return super().get_command(context, name)


@click.group(cls=Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(VERSION, prog_name="shoal", message="%(prog)s %(version)s")
def main() -> None:
    """Shoal, an MQTT broker."""


prepared(main)


@main.command()
@click.option("--workers", type=int, help="Worker processes, which are one broker; one for each core if not given.")
@click.option("--listen", multiple=True, metavar="tcp://HOST:PORT", help="Address to listen on; may be repeated.")
@click.option("--data-dir", metavar="DIR", help="Folder that one broker keeps its data in.")
@click.option("--config", "file", type=click.Path(path_type=Path), metavar="FILE", help="TOML file with settings.")
@click.option("--accept-loss", is_flag=True, help="Start although files of the log are missing, foreign or newer.")
@click.option("--log-level", metavar="LEVEL", help="debug, info, warning or error.")
def serve(
    workers: int | None,
    listen: tuple[str, ...],
    data_dir: str | None,
    file: Path | None,
    accept_loss: bool,
    log_level: str | None,
) -> None:
    """Run a broker until Ctrl-C or SIGTERM.

    Settings come from their defaults, the TOML file, the environment (SHOAL_MQTT__RECEIVE_MAXIMUM=10) and these
    options; what comes later counts more.
    """
    _claim_standard_descriptors()
    from broker.config.loader import ConfigError
    from broker.config.source import Source

    given = {"workers": workers, "listen": listen or None, "data_dir": data_dir, "log.level": log_level}
    try:
        source = Source(file, os.environ, {key: value for key, value in given.items() if value is not None})
        config = source.config
    except ConfigError as error:
        _fail(EXIT_CONFIG, "The configuration is wrong:", *map(str, error.problems))

    import msgspec

    from broker.processes.deferred import defer

    defer("ssl", "hmac")
    from broker import logs
    from broker.cli.preflight import banner, check_packages, summary
    from broker.config.host_resources import WORKERS_BY_DEFAULT_MAX, cores_available
    from broker.config.start_error import StartError
    from broker.processes.file_check import check_files
    from broker.processes.settings_in_force import SettingsInForce
    from broker.reactor.listeners import check_addresses
    from broker.storage.data_folder import check_room, lock_folder

    if config.workers == 0:
        config = msgspec.structs.replace(config, workers=min(cores_available(), WORKERS_BY_DEFAULT_MAX))
    in_force = SettingsInForce(source, config)
    started_s = time.monotonic()
    try:
        check_packages()
        with ExitStack() as held:
            folder, lock = lock_folder(config.data_dir)
            held.callback(os.close, lock)
            check_room(folder, config.workers)
            check_addresses(config)
            check_files(config)
            _open_log(config)
            _spread(config, folder, accept_loss)

            def ready(addresses: "list[Address]") -> None:
                _say(banner(config, addresses, folder))

            if config.workers > 1:
                totals = _supervise(in_force, folder, lock, accept_loss, ready)
            else:
                totals = _serve_alone(in_force, folder, accept_loss, ready)
            logs.flush()
            _say(summary(totals.items(), time.monotonic() - started_s))
    except StartError as error:
        _fail(EXIT_NOT_STARTED, str(error))


def _open_log(config: "Config") -> None:
    from broker import logs
    from broker.config.start_error import StartError

    try:
        logs.configure(config.log)
    except OSError as error:
        raise StartError(f"The log file {config.log.file} cannot be opened: {error.strerror}.") from error
    signal.signal(signal.SIGHUP, lambda *_: logs.reopen())


def _spread(config: "Config", folder: Path, accept_loss: bool) -> None:
    """Spread the sessions over the workers that there are to be, if they are spread over others."""
    from broker.config.start_error import StartError
    from broker.storage.data_folder import note_spread, spread_of, unusable
    from broker.storage.folder_check import check_folder
    from mesh.node_identity import NodeError, node_of
    from router.log.disk import make_folder

    try:
        anew = check_folder(folder, accept_loss)
        node = node_of(folder)
        spread = spread_of(folder)
        if not anew and (spread == config.workers or (spread is None and config.workers == 1)):
            return
        if spread is not None:
            from broker.processes.reshard_launch import spread_over

            spread_over(config.workers, config, folder, node, accept_loss)
        else:
            from broker.storage.worker_folders import worker_folder

            # Where `workers` is, their folders are.
            for number in range(config.workers):
                make_folder(str(worker_folder(folder, number)))
            note_spread(folder, config.workers)
    except NodeError as error:
        raise StartError(str(error)) from error
    except OSError as error:
        raise StartError(unusable(folder, error)) from error


def _serve_alone(
    in_force: "SettingsInForce", folder: Path, accept_loss: bool, ready: "Callable[[list[Address]], None]"
) -> dict[str, int]:
    from setproctitle import setproctitle

    from broker.config.start_error import StartError
    from broker.processes.host import run_worker
    from broker.processes.service_manager import ServiceManager
    from broker.storage.folder_check import log_refusal
    from router.log.segments import SegmentError

    setproctitle("shoal: broker")
    try:
        return run_worker(in_force, ready, folder, accept_loss, ServiceManager.of(os.environ))
    except SegmentError as error:
        raise StartError(log_refusal(folder, error)) from error


def _supervise(
    in_force: "SettingsInForce", folder: Path, lock: int, accept_loss: bool, ready: "Callable[[list[Address]], None]"
) -> dict[str, int]:
    import trio
    from setproctitle import setproctitle

    from broker import logs
    from broker.config.start_error import StartError
    from broker.processes.service_manager import ServiceManager
    from broker.processes.supervisor import Supervisor, WorkersError
    from broker.reactor.listeners import check_addresses
    from broker.storage.data_folder import unusable
    from broker.storage.run_folder import run_folder
    from mesh.node_identity import NodeError, node_of

    setproctitle("shoal: supervisor")
    try:
        node = node_of(folder)
    except NodeError as error:
        raise StartError(str(error)) from error
    except OSError as error:
        raise StartError(unusable(folder, error)) from error
    with run_folder(folder, lock, node) as run_dir:
        try:
            manager = ServiceManager.of(os.environ)
            supervisor = Supervisor(in_force, folder, lock, node, run_dir, accept_loss, ready, manager)
        except OSError as error:
            check_addresses(in_force.config)  # somebody took one since they were checked first
            raise StartError(f"An address cannot be bound: {error}") from error
        try:
            return trio.run(supervisor.run)
        except WorkersError as error:
            if not error.booted:
                raise StartError(str(error)) from error
            logs.flush()
            _fail(EXIT_WORKERS, str(error))


@main.command("check-config")
@click.argument("file", type=click.Path(path_type=Path))
@click.option("--show", is_flag=True, help="Print every setting as it would count.")
def check_config(file: Path, show: bool) -> None:
    """Check a TOML file, and the files that it names, as serve would see them. Exit code 1 if anything is wrong."""
    from msgspec.structs import replace

    from broker.config.loader import ConfigError, load, rendered
    from broker.config.start_error import StartError
    from broker.processes.file_check import check_files

    try:
        config = load(file, os.environ, {})
        check_files(replace(config, workers=max(2, config.workers)))  # one alone reads them as it starts
    except ConfigError as error:
        _fail(EXIT_CHECKED, *map(str, error.problems))
    except StartError as error:
        _fail(EXIT_CHECKED, str(error))
    click.echo(rendered(config) if show else f"{file}: ok", nl=not show)


def _fail(code: int, *lines: str) -> NoReturn:
    for line in lines:
        click.echo(line, err=True)
    sys.exit(code)


def _say(text: str) -> None:
    """Print to standard output; that it is closed or not read is no reason to end."""
    try:
        click.echo(text)
    except OSError:
        sys.stdout = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115  (the interpreter flushes it at its end)


def _claim_standard_descriptors() -> None:
    """Open what was closed among 0, 1 and 2, lest a socket become standard error and get log lines."""
    for descriptor in range(3):
        try:
            os.fstat(descriptor)
        except OSError:
            # Workers have it, too: without one, the first file that they open would be their standard error.
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)


if __name__ == "__main__":
    main(prog_name="shoal")
