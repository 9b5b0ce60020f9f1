"""Data folders with a commit log in them, on a real disk, and the command `shoal` run on them."""

from __future__ import annotations

import os
import struct
from pathlib import Path
from typing import Any

from click.testing import CliRunner, Result

from broker.cli.main import main
from router.core.message import message
from router.log.disk import Disk
from router.log.log_writer import Log
from router.log.record_buffer import RecordBuffer
from router.log.record_cursor import Cursor
from router.log.segments import HEADER_COPY_AT, RECORDS_AT, Header, create_segment, segment_name
from tests.support.commit_logs import open_log, turn

RECORD_BYTES = 25 + 19 + 1 + 1 + 40  # of one that turn() makes


def shoal(*arguments: str | Path) -> Result:
    return CliRunner().invoke(main, [str(argument) for argument in arguments])


def content(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


def worker_folder(folder: Path, worker: int = 0) -> Path:
    path = folder / f"worker-{worker}"
    path.mkdir(parents=True, exist_ok=True)
    (path / "incarnation").write_text("1\n")
    return path


def write(folder: Path, *turns: int, close: bool = True, **options: Any) -> Log:
    """Write turns of so many messages, 70 and some bytes each, numbered and timed from 1 on; a segment per turn."""
    options = {"segment_bytes_max": RECORDS_AT + 1, "durability": "os", **options}
    log, _ = open_log(Disk(str(worker_folder(folder))), **options)
    for number in turns:
        log.append(turn(log, number))
        assert log.commit()
    if close:
        assert log.close()
    return log


def write_messages(folder: Path, *messages: tuple[int, str, bytes], worker: int = 0) -> None:
    """Write messages: time in µs, topic name, payload."""
    make_folder = worker_folder(folder, worker)
    if worker:
        # open_log() is for worker 0, and so are its headers.
        disk = Disk(str(make_folder))
        os.close(create_segment(disk, Header(worker, 1, 7, 1, 1, 0, 1)))
        buffer = RecordBuffer(0)
        for number, (time_us, name, payload) in enumerate(messages, 1):
            buffer.add_accepted(time_us, number, message(name.encode(), payload, 1), b"c", 1)
        buffer.stamp(7)
        with open(make_folder / segment_name(1), "ab") as file:
            file.write(bytes(buffer))
        return
    log, _ = open_log(Disk(str(make_folder)))
    buffer = RecordBuffer(log.appended)
    for number, (time_us, name, payload) in enumerate(messages, log.appended + 1):
        buffer.add_accepted(time_us, number, message(name.encode(), payload, 1), b"c", 1)
    log.append(buffer)
    log.close()


def write_snapshot(folder: Path, number: int, first_number: int, end: tuple[Any, ...] | None = None) -> Path:
    """Write a snapshot that stands for the records before first_number, with one message."""
    path = worker_folder(folder) / f"snapshot-{number:012d}.log"
    header = Header(0, 1, 99, number, 1, 5, 1).encode()
    buffer = RecordBuffer(0)
    buffer.add("snapshot", 5, first_number, 0)
    buffer.add("ended", 5, b"c")
    before = len(memoryview(buffer))
    accepted = RecordBuffer(2)
    accepted.add_accepted(2, 3, message(b"t", b"x", 1), b"c", 1)
    accepted.stamp(1)
    cursor = Cursor(bytes(accepted), 0, 1, 2)
    assert cursor.step()
    buffer.add_stored(cursor, 1)
    buffer.add("snapshot_end", 5, *(end or (3, struct.pack("<QQ", 3, RECORDS_AT + before))))
    buffer.stamp(99)
    path.write_bytes(header.ljust(HEADER_COPY_AT, b"\0") + header + bytes(buffer))
    return path


def flip(path: Path, offset: int) -> None:
    data = bytearray(path.read_bytes())
    data[offset] ^= 0x10
    path.write_bytes(bytes(data))


def segment(folder: Path, number: int) -> Path:
    return folder / "worker-0" / segment_name(number)
