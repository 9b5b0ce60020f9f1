"""`shoal log`: what is in the commit log, whether it is whole, its messages, and those that come.

The commands read the files and write nothing, so the broker may be running or not; only `compact` needs it stopped.
Exit codes: 0 done; 1 something in the log is damaged or missing; 2 wrong usage, or the log cannot be read; 130 ended by
Ctrl-C.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from broker.storage.worker_folders import workers_of

if TYPE_CHECKING:
    from router.log.reader import Progress, Row
    from router.log.record_scan import Scan

EXIT_DAMAGED = 1
EXIT_UNREADABLE = 2
EXIT_INTERRUPTED = 130

POLL_S = 0.1
PROGRESS_EVERY_BYTES = 4_194_304

Command = TypeVar("Command", bound=Callable[..., Any])


# What several commands share ----------------------------------------------------------------------------------------

_FOLDER_OPTIONS = (
    click.option("--data-dir", metavar="DIR", help="The broker's data folder."),
    click.option("--config", "file", type=click.Path(path_type=Path), metavar="FILE",
                 help="The broker's TOML file, which names the folder."),
)  # fmt: skip


def folder_options(command: Command) -> Command:
    """Add --data-dir and --config to a command; data_folder() makes a folder of what they give."""
    for option in reversed(_FOLDER_OPTIONS):
        command = option(command)
    return command


def data_folder(data_dir: str | None, file: Path | None) -> Path:
    """Return the data folder that options and environment name, as `shoal serve` would. Raises click.UsageError."""
    if data_dir is None:
        from broker.config.loader import ConfigError, load

        try:
            data_dir = load(file, os.environ, {}).data_dir
        except ConfigError as error:
            raise click.UsageError("\n".join(map(str, error.problems))) from None
    folder = Path(data_dir)
    if not folder.is_dir():
        raise click.UsageError(f"there is no data folder {folder}; --data-dir names another one")
    return folder


def worker_folders(folder: Path, worker: int | None = None) -> dict[int, Path]:
    """Return the folders of the workers' logs, all or one. Raises click.UsageError."""
    found = workers_of(folder)
    if not found:
        raise click.UsageError(f"there is no log in {folder}: it has no folder worker-0")
    if worker is not None and worker not in found:
        raise click.UsageError(f"there is no worker {worker} in {folder}")
    return {number: path for number, path in found.items() if worker in (None, number)}


@contextmanager
def reading() -> Iterator[None]:
    """Say in one sentence what went wrong with files; end quietly when our output is closed, or at Ctrl-C."""
    try:
        yield
        sys.stdout.flush()
    except BrokenPipeError:
        # Whoever read our output has had enough. Nothing more may be written, not even at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except OSError as error:
        where = f"{os.fsdecode(error.filename)}: " if error.filename else ""
        click.echo(f"shoal: {where}{error.strerror or error}.", err=True)
        raise SystemExit(EXIT_UNREADABLE) from None
    except KeyboardInterrupt:
        raise SystemExit(EXIT_INTERRUPTED) from None


@contextmanager
def progress_bar(label: str, length: int) -> Iterator[Progress]:
    """Show on a terminal how far we are, in bytes; otherwise nothing."""
    if length < 4 * PROGRESS_EVERY_BYTES or not sys.stderr.isatty():
        yield lambda done: None
        return
    with click.progressbar(length=length, label=label, file=sys.stderr) as bar:
        waiting = 0

        def progress(done: int) -> None:
            nonlocal waiting
            waiting += done
            if waiting >= PROGRESS_EVERY_BYTES:
                bar.update(waiting)
                waiting = 0

        yield progress
        bar.update(waiting)


def _folder_bytes(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.glob("*-*.log"))


# The commands --------------------------------------------------------------------------------------------------------


@click.group(short_help="Look into the commit log.")
def log() -> None:
    """Look into the commit log of a broker, which may be running or not."""


@log.command(short_help="What is in the log.")
@folder_options
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def inspect(data_dir: str | None, file: Path | None, as_json: bool) -> None:
    """Show what is in each worker's log: segments, snapshots, records by kind, times and sizes.

    Everything is read for that, at some hundred MB a second.
    """
    from broker.cli.log_text import inspection_json, inspection_text

    with reading():
        folder = data_folder(data_dir, file)
        reports = _examined(folder, "Reading")
        click.echo(inspection_json(folder, reports) if as_json else inspection_text(folder, reports))


@log.command(short_help="Whether the log is whole.")
@folder_options
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def verify(data_dir: str | None, file: Path | None, as_json: bool) -> None:
    """Read everything, check it, and say what is wrong and where.

    Exit code 0: all is well; 1: something is damaged or missing; 2: the log cannot be read.
    """
    from broker.cli.log_text import verdict_json, verdict_text

    with reading():
        folder = data_folder(data_dir, file)
        reports = _examined(folder, "Verifying")
        problems = _folder_problems(folder)
        click.echo((verdict_json if as_json else verdict_text)(folder, reports, problems))
        if problems or any(report.damages for report in reports):
            raise SystemExit(EXIT_DAMAGED)


@log.command(short_help="Make a snapshot of a stopped broker's log, for a quick start.")
@folder_options
def compact(data_dir: str | None, file: Path | None) -> None:
    """Write down what each worker's log has led to, so that the next start need not read it all.

    A running broker does this by itself, and nobody else may then. What is needed no more is removed by the broker,
    soon after its start, as far as its archive and its retained messages do not need it.
    """
    import secrets

    from broker.config.start_error import StartError
    from broker.storage.data_folder import locked_folder
    from broker.storage.retained_copies import complete, open_copy
    from mesh.node_identity import owner_in
    from router.log.disk import Disk
    from router.log.segments import SegmentError
    from router.recovery.snapshot import compact as make_snapshot
    from router.retained.second_copy import CopyError

    with reading():
        folder = data_folder(data_dir, file)
        folders = worker_folders(folder)
        try:
            with locked_folder(str(folder)):
                copy = open_copy(folder)
                complete(folder, copy)
                for worker, path in folders.items():
                    made = make_snapshot(
                        Disk(str(path)),
                        worker,
                        lambda: secrets.randbits(32),
                        copy,
                        owner=owner_in(folder),
                        now_us=time.time_ns() // 1000,
                    )
                    click.echo(
                        f"{path}: nothing to do, no segment has been finished since the last snapshot."
                        if made is None
                        else f"{path}: {made.name} has {made.sessions} sessions and {made.messages} messages that "
                        f"wait, {made.size:,} bytes."
                    )
        except (StartError, CopyError, SegmentError) as error:
            raise click.UsageError(str(error)) from None


def _folder_problems(folder: Path) -> list[str]:
    """Return what is wrong with what all workers share, as sentences."""
    from broker.storage.folder_check import problem_of
    from broker.storage.retained_copies import DamagedIndexError, checked_index

    problems = problem_of(folder)
    try:
        with checked_index(folder):
            pass
    except DamagedIndexError as error:
        problems.append(str(error))
    return problems


def _examined(folder: Path, label: str) -> list[Any]:
    from mesh.node_identity import owner_in
    from router.log.disk import Disk
    from router.log.verify import examine

    owner = owner_in(folder)
    folders = worker_folders(folder)
    with progress_bar(label, sum(map(_folder_bytes, folders.values()))) as progress:
        return [examine(Disk(str(path)), worker, progress, owner) for worker, path in folders.items()]


_SCAN_OPTIONS = (
    click.argument("topic_filter", metavar="[FILTER]", required=False),
    click.option("--worker", type=click.IntRange(0), help="Only the log of this worker."),
    click.option("--kind", type=click.Choice(["accepted", "all"]), default="accepted", show_default=True,
                 help="Messages as they were accepted, or every record; with FILTER every one that has a topic."),
    click.option("--json", "as_json", is_flag=True, help="Print each record as one line of JSON, with all there is."),
    click.option("-n", "limit", type=click.IntRange(1), metavar="LIMIT", help="End after so many."),
)  # fmt: skip


def _scan_options(command: Command) -> Command:
    for option in reversed(_SCAN_OPTIONS):
        command = option(command)
    return command


@log.command(short_help="The messages in the log.")
@_scan_options
@click.option("--since", metavar="TIME", help="From this time on: 2026-11-21T09:30:00Z, or -1h for an hour ago.")
@click.option("--until", metavar="TIME", help="Before this time.")
@folder_options
def cat(
    topic_filter: str | None, since: str | None, until: str | None, data_dir: str | None, file: Path | None,
    worker: int | None, kind: str, as_json: bool, limit: int | None,
) -> None:  # fmt: skip
    """Print the messages in the log whose topic matches FILTER, in the order of their times; all without FILTER.

    \b
    shoal log cat 'sensors/+/temperature' --since -15m
    shoal log cat --since 2026-11-21T09:00:00Z --until 2026-11-21T10:00:00Z --json
    """
    from heapq import merge
    from itertools import islice

    from router.log.disk import Disk
    from router.log.reader import Reader
    from router.log.record_scan import TIME_MAX, TIME_MIN

    now_us = time.time_ns() // 1000
    since_us = TIME_MIN if since is None else _moment("--since", since, now_us)
    until_us = TIME_MAX if until is None else _moment("--until", until, now_us)
    with reading():
        folders = worker_folders(data_folder(data_dir, file), worker)
        label = "" if sys.stdout.isatty() else "Reading"
        with progress_bar(label, sum(map(_folder_bytes, folders.values())) if label else 0) as progress:
            readers = [
                Reader(
                    Disk(str(path)), number, _scan(topic_filter, kind, since_us=since_us, until_us=until_us),
                    since_us=since_us, until_us=until_us, progress=progress,
                )
                for number, path in folders.items()
            ]  # fmt: skip
            # Each log is in the order of its clock, but for a clock that was set back.
            streams = [reader.rows() for reader in readers]
            rows = merge(*streams, key=_by_time) if len(streams) > 1 else streams[0]
            _print(islice(rows, limit), as_json)
        problems = [sentence for reader in readers for sentence in reader.problems]
        _tell(problems)
        if problems:
            raise SystemExit(EXIT_DAMAGED)


@log.command(short_help="The messages that come from now on.")
@_scan_options
@folder_options
def follow(
    topic_filter: str | None, data_dir: str | None, file: Path | None, worker: int | None, kind: str, as_json: bool,
    limit: int | None,
) -> None:  # fmt: skip
    """Print the messages whose topic matches FILTER as they are stored, until Ctrl-C.

    Exit code 130 after Ctrl-C.
    """
    from itertools import islice

    from router.log.disk import Disk
    from router.log.reader import Follower

    with reading():
        folders = worker_folders(data_folder(data_dir, file), worker)
        followers = [Follower(Disk(str(path)), number, _scan(topic_filter, kind)) for number, path in folders.items()]
        left = limit
        while left is None or left > 0:
            for follower in followers:
                printed = _print(islice(follower.poll(), left), as_json)
                left = None if left is None else left - printed
                _tell(follower.problems)
                follower.problems.clear()
            sys.stdout.flush()
            if left is None or left > 0:
                time.sleep(POLL_S)


def _by_time(row: Row) -> int:
    return row.time_us


def _scan(topic_filter: str | None, kind: str, **times: int) -> Scan:
    from router.log.record_scan import Scan
    from router.matching.topic_names import SHARE_PREFIX, check_topic_filter

    encoded = None
    if topic_filter is not None:
        try:
            encoded = topic_filter.encode()
        except UnicodeEncodeError:
            raise click.BadParameter("is not UTF-8", param_hint="FILTER") from None
        wrong = check_topic_filter(encoded)
        if encoded.startswith(SHARE_PREFIX):
            wrong = "a shared subscription has no place in the log: leave out $share and the name behind it"
        if wrong is not None:
            raise click.BadParameter(f"{topic_filter!r}: {wrong}", param_hint="FILTER")
    return Scan(encoded, accepted_only=kind == "accepted", **times)


def _moment(option: str, text: str, now_us: int) -> int:
    from router.log.replay_position import parse_time

    try:
        return parse_time(text, now_us)
    except ValueError as error:
        raise click.BadParameter(str(error), param_hint=option) from None


def _print(rows: Iterator[Row], as_json: bool) -> int:
    """Print records, one a line; returns how many."""
    from broker.cli.log_text import row_json, row_text

    write = sys.stdout.buffer.write
    line = row_json if as_json else row_text
    printed = 0
    for row in rows:
        write(line(row))
        printed += 1
    return printed


def _tell(problems: list[str]) -> None:
    for sentence in problems:
        click.echo(f"shoal: {sentence}.", err=True)
