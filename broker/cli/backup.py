"""`shoal backup` and `shoal restore`: a copy of a broker's data while it runs, and a data folder made of such a copy.

Exit codes: 0 done; 1 something is damaged; 2 wrong usage, or it cannot be read or written; 130 ended by Ctrl-C.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import click

from broker.cli.log import EXIT_DAMAGED, EXIT_UNREADABLE, data_folder, folder_options, progress_bar, reading

if TYPE_CHECKING:
    from broker.storage.backup import Manifest


@contextmanager
def _one_sentence() -> Iterator[None]:
    from broker.config.start_error import StartError
    from broker.storage.backup import BackupError, DamagedError

    with reading():
        try:
            yield
        except (BackupError, StartError) as error:
            click.echo(f"shoal: {str(error).removesuffix('.')}.", err=True)
            sys.exit(EXIT_DAMAGED if isinstance(error, DamagedError) else EXIT_UNREADABLE)


@click.command(short_help="Copy a broker's data while it runs.")
@click.argument("target", type=click.Path(path_type=Path))
@folder_options
def backup(target: Path, data_dir: str | None, file: Path | None) -> None:
    """Copy the data of a broker, which may be running, into the folder TARGET, which is new or empty.

    What was acknowledged before the command is in the copy. `shoal log` works on the copy as on a data folder.
    """
    with _one_sentence():
        from broker.storage.backup import RETAINED, RETAINED_FILE, back_up
        from broker.storage.worker_folders import workers_of

        folder = data_folder(data_dir, file)
        workers = workers_of(folder)
        if not workers:
            raise click.UsageError(f"there is no log in {folder}: it has no folder worker-0")
        paths = [path for worker in workers.values() for path in worker.glob("*-*.log")]
        size = sum(path.stat().st_size for path in [*paths, folder / RETAINED / RETAINED_FILE] if path.is_file())
        with progress_bar("Copying", size) as progress:
            manifest = back_up(folder, target, time.time_ns() // 1000, progress)
        click.echo(f"{target}: {_summary(manifest)}, copied from {folder}.")


@click.command(short_help="Make a data folder of a backup.")
@click.argument("source", type=click.Path(path_type=Path))
@click.option("--data-dir", metavar="DIR", required=True, help="The new data folder: none there yet, or an empty one.")
def restore(source: Path, data_dir: str) -> None:
    """Check the backup in the folder SOURCE and make a data folder of it, for `shoal serve --data-dir DIR`.

    The broker that the backup is of must not go on elsewhere.
    """
    with _one_sentence():
        from broker.storage.backup import check_unused, read_manifest
        from broker.storage.backup import restore as laid_out
        from broker.storage.data_folder import locked_folder

        manifest = read_manifest(source)
        folder = Path(data_dir)
        if folder.is_dir():
            check_unused(folder)  # before a lock is left in it
        with locked_folder(data_dir) as folder, progress_bar("Restoring", manifest.size) as progress:
            manifest = laid_out(source, folder, progress)
        click.echo(f"{data_dir}: {_summary(manifest)}, restored from {source}.")


def _summary(manifest: Manifest) -> str:
    from router.log.replay_position import format_time

    records = ", ".join(
        f"worker {worker} up to record {numbers['last_number']:,}" for worker, numbers in manifest.workers.items()
    )
    return f"{records}; {len(manifest.files)} files, {manifest.size:,} bytes, as of {format_time(manifest.made_us)}"
