"""Messages of the logs as Arrow record batches, from one position to another, for writers of a lake, readers and Spark.

A position is how far each log has been read: {worker: {incarnation, number, segment, position}}.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any, Final

from analytics.source.batches import record_batch
from analytics.source.columns import MESSAGES
from analytics.source.decoder import Decoder
from analytics.source.log_reader import End, LogError, Place, Stretch, WorkerLog, decode, node_of, worker_folders
from analytics.source.options import BYTES_PER_BATCH, ROWS_PER_BATCH, parse_options

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    import pyarrow

    from analytics.source.options import Options

WITHOUT_LIMIT: Final = 2**62  # messages

Position = dict[str, dict[str, int]]


def open_logs(options: Options) -> dict[int, WorkerLog]:
    """Return the wanted logs of a data folder as they are now, by worker. Raises LogError."""
    return {
        worker: WorkerLog(folder, worker, fail_on_loss=options.fail_on_loss)
        for worker, folder in worker_folders(options.path).items()
        if options.workers is None or worker in options.workers
    }


def advanced(
    logs: Mapping[int, WorkerLog], start: Position, most: int, ends: Mapping[int, End | None] | None = None
) -> tuple[Position, int]:
    """Return the position that is so many messages behind another one, or as many as there are, and how many that is.

    Args:
        ends: where the logs end; None: where they end now.

    Cost: reads everything in between, and decodes none of it. Raises LogError.
    """
    ahead = dict(start)
    left = most
    # Each log gets its share; what one does not need is for those behind it.
    for count, (worker, log) in enumerate(logs.items()):
        end = log.end() if ends is None else ends.get(worker)
        if end is None:
            continue
        place, found = log.walk(place_in(ahead, worker), end, max(1, left // (len(logs) - count)))
        left -= found
        if place.number:
            ahead[str(worker)] = place._asdict()
    return ahead, most - left


def between(
    logs: Mapping[int, WorkerLog], start: Position, end: Position, folder: str
) -> Iterator[tuple[int, list[Stretch]]]:
    """Yield each worker with the stretches of its log between two positions. Raises LogError."""
    for name in end:
        worker = int(name)
        if worker not in logs:
            raise LogError(f"{os.path.join(folder, f'worker-{worker}')} is gone, and was read before")
        yield worker, logs[worker].stretches(place_in(start, worker), place_in(end, worker))


def place_in(position: Mapping[str, Any], worker: int) -> Place:
    """Return how far a worker's log is in a position."""
    known = position.get(str(worker))
    return Place(**known) if known is not None else Place()


def batches(
    stretches: Iterable[Stretch], options: Options, schema: pyarrow.Schema, worker: int, node: str | None
) -> Iterator[pyarrow.RecordBatch]:
    """Yield the messages of stretches of one worker's log. Raises LogError, which names the segment and the byte.

    Args:
        options: which messages are wanted.
        schema: columns of a message.
        node: name of the node, or None.
    """
    decoder = Decoder(
        tuple(schema.names), worker=worker, node=node.encode() if node is not None else None,
        since_us=options.since_us, until_us=options.until_us, topic_filter=options.topic_filter,
    )  # fmt: skip
    for stretch in stretches:
        for taken, rows in decode(
            stretch, decoder, fail_on_loss=options.fail_on_loss, rows_max=ROWS_PER_BATCH, bytes_max=BYTES_PER_BATCH
        ):
            yield record_batch(schema, taken, rows)
    rows = decoder.rows
    if rows:
        yield record_batch(schema, decoder.take(), rows)


def read_log(
    data_dir: str, *, columns: Iterable[str] | None = None, behind: Position | None = None, **options: str
) -> pyarrow.RecordBatchReader:
    """Return the messages that the logs of a data folder have now, without Spark.

    Args:
        columns: names; None: all.
        behind: only what comes behind a position.
        options: those of the source: topicFilter, since, until, workers, failOnDataLoss.

    Raises ValueError, LogError.
    """
    import pyarrow as pa

    wanted = parse_options({"path": data_dir, **options})
    schema = MESSAGES if columns is None else pa.schema([MESSAGES.field(_known(name)) for name in columns])

    def found() -> Iterator[pa.RecordBatch]:
        node = node_of(wanted.path)
        for worker, log in open_logs(wanted).items():
            end = log.end()
            if end is not None:
                stretches = log.all_of(end, wanted.since_us, wanted.until_us, place_in(behind or {}, worker))
                yield from batches(stretches, wanted, schema, worker, node)

    worker_folders(wanted.path)  # so that a wrong folder is told at once
    return pa.RecordBatchReader.from_batches(schema, found())


def _known(name: str) -> str:
    if name not in MESSAGES.names:
        raise ValueError(f"there is no column {name!r}; there are {', '.join(MESSAGES.names)}")
    return name
