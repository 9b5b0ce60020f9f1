"""A worker's commit log as the worker sees it: opened, watched, and closed."""

from __future__ import annotations

import errno
import json
import os
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from random import SystemRandom
from typing import TYPE_CHECKING, Any

import trio

import router
from broker.config.schema import Archive
from broker.logs import get
from broker.storage.readahead_disk import ReadAheadDisk
from broker.storage.retained_copies import RETAINED, is_complete, log_begins, open_copy, owner_text
from broker.storage.retired_logs import trim_left_logs
from broker.storage.worker_folders import worker_folder
from mesh.node_identity import owner_in
from router.log.retention import archive_needs
from router.recovery.open_log import begin, deadlines_in_slices, open_log, remove_snapshots, remove_unfinished

if TYPE_CHECKING:
    from broker.config.schema import Storage
    from router.retained.lmdb_index import RetainedIndex
    from router.router import Router

log = get("storage")

SAID_OF = {
    "log": ("log_not_written", "log_written_again"),
    "retained": ("retained_not_written", "retained_written_again"),
    "snapshot": ("snapshot_not_written", "snapshot_written_again"),
}

DUE_AT_START_MAX = 64  # sessions that end, and wills, before clients are let in; the others in turns to come
WATCH_S = 1.0
COMPACT_LOOK_S = 1.0
RETENTION_LOOK_S = 30.0
CLOSE_S = 10.0


def open_index(folder: Path, worker: int = 0, workers: int = 1, *, accept_loss: bool = False) -> RetainedIndex:
    """Open the index of retained messages in the broker's data folder, as one of the workers that use it at once.

    A damaged one is set aside and made anew by whoever opens it first. Where others go on with it for 10 s, although it
    says that it is damaged, this fails. Raises OSError, and SegmentError (of router.log.segments) if something is lost.
    """
    # Here, because it takes lmdb along, which nobody needs who keeps nothing.
    from router.retained.lmdb_index import RetainedIndex

    folder.mkdir(mode=0o700, exist_ok=True)
    index = RetainedIndex(
        str(folder / RETAINED),
        worker=worker,
        workers=workers,
        logs=log_begins(folder),
        node=owner_text(folder),
        accept_loss=accept_loss,
    )
    if index.report is not None:
        log.warning("retained_damaged", what=index.report)
    return index


class CommitLog:
    """What a worker keeps in its folder: recovered into its router, then written to.

    Args:
        settings: of the section `storage`.
        of_router: empty; its index is what open_index() returned, and is closed with the log.
        make_will: of a recovered will, as open_log() has it.
        folder: the broker's data folder, which nobody else uses.
        worker: the worker's number.
        workers: how many there are.
        accept_loss: go on without what is missing, foreign or newer.
        archive: of the section `archive`: what is kept beyond what a restart needs; None for nothing.

    Raises SegmentError (of router.log.segments), OSError.
    """

    def __init__(
        self,
        settings: Storage,
        of_router: Router,
        make_will: Callable[..., Any],
        folder: Path,
        *,
        worker: int = 0,
        workers: int = 1,
        accept_loss: bool = False,
        archive: Archive | None = None,
    ) -> None:
        self.router = of_router
        self.index: RetainedIndex = of_router.retaining.index
        known = self.index.applied
        self.settings = settings
        self.archive = archive or Archive()
        self.folder = folder
        self.workers = workers
        self.home = worker_folder(folder, worker)
        self.home.mkdir(mode=0o700, exist_ok=True)
        self.deadlines_run = False
        started_s = time.monotonic()
        disk = ReadAheadDisk(str(self.home))
        try:
            self.opened = open_log(
                disk,
                of_router,
                worker=worker,
                owner=owner_in(folder),
                make_will=make_will,
                make_mark=lambda: SystemRandom().getrandbits(32),
                now_us=time.time_ns() // 1000,
                now_ms=time.monotonic_ns() // 1_000_000,
                accept_loss=accept_loss,
                durability=settings.durability,
                segment_bytes_max=settings.segment_bytes_max,
            )
        finally:
            disk.stop()
        self.log = self.opened.log
        self.copy = open_copy(folder)
        self.copy.cut(worker, self.log.appended)
        self._troubles: dict[str, str | None] = {}
        if self.log.headers and self.log.headers[0].first_number > known + 1:
            log.warning("retained_incomplete", known_up_to=known, log_begins_with=self.log.headers[0].first_number)
        for damage in self.opened.damages:
            log.warning("log_damaged", what=str(damage))
        for problem in self.opened.problems:
            log.warning("log_record_unfit", what=problem)
        log.info(
            "recovered",
            records=self.opened.records,
            sessions=len(of_router.sessions),
            retained=of_router.retaining.count,
            queued=of_router.ledger.queued_messages,
            seconds=round(time.monotonic() - started_s, 3),
            incarnation=self.log.incarnation,
        )

    def begin(self, wake: Callable[[], None]) -> None:
        """The router records now: let the log be written.

        Args:
            wake: is called from another thread when the log has got further.
        """
        begin(self.router, self.opened)
        commit_log, index = self.log, self.index

        def on_durable() -> None:
            wake()
            # Where the log does not wait for the disk (`none`), it says durable before it has written.
            index.durable(min(commit_log.durable, commit_log.written))

        commit_log.when_durable(on_durable)
        commit_log.start()
        index.pass_over(commit_log.written)
        index.durable(commit_log.written)
        if index.is_shared:
            # Others see a retained message when the index has it, and its publisher is told then.
            index.on_applied = wake
        index.start()

    def start_deadlines(self) -> Iterator[None]:
        """Let sessions end and delayed wills be published in their time; what fell due while no process ran, in turns.

        Once, when it is known who wants them. The router has been told the time. There may be turns where it
        yields.
        """
        assert not self.deadlines_run, "deadlines are started once"
        yield from deadlines_in_slices(self.router, self.opened)
        self.deadlines_run = True
        self.router.expire(DUE_AT_START_MAX)

    async def watch(self) -> None:
        """Say once what the disk refuses, and once that it is over."""
        while True:
            await trio.sleep(WATCH_S)
            self._say("log", self.log.trouble, full=self.log.full, waiting_bytes=self.log.backlog_bytes)
            # Nobody waits for the index, and what it lacks is in the log.
            self._say("retained", self.index.trouble, waiting=self.index.pending)
            for failure in (self.log.failure, self.index.failure):
                if failure is not None:
                    raise failure
            if self.index.is_damaged:
                if self.index.is_shared:
                    # All workers end, so that the first to start again has it alone and makes it anew.
                    raise OSError(errno.EIO, "the index of retained messages is damaged, and has to be built anew")
                if not self._troubles.get("damage"):
                    self._troubles["damage"] = "said"
                    log.error(
                        "retained_damaged",
                        what="a retained message cannot be read: the next start builds the index anew",
                        values=self.index.damaged_values,
                    )

    def _say(self, name: str, trouble: str | None, **details: object) -> None:
        before = self._troubles.get(name)
        not_written, written_again = SAID_OF[name]
        if trouble is not None and before is None:
            log.error(not_written, what=trouble, **details)
        elif trouble is None and before is not None:
            log.info(written_again)
        self._troubles[name] = trouble

    async def compact(self) -> None:
        """Whenever the log has grown by `compact_bytes`, have a snapshot made and remove what is needed no more.

        What a look cannot open, because there are no descriptors left, say, the next one may: clients do not wait.
        """
        due = self.settings.compact_bytes
        at_bytes = due - sum(self._sizes(self.log.snapshot))
        retention_due_s = 0.0
        copy_seen = False
        while True:
            trouble = None
            try:
                if not copy_seen:
                    if self.log.worker == 0 and not is_complete(self.folder, self.copy):
                        await self._run_compaction("copy")
                    copy_seen = True
                else:
                    if trio.current_time() >= retention_due_s:
                        retention_due_s = trio.current_time() + RETENTION_LOOK_S
                        self._remove()
                        if self.log.worker == 0:
                            await self._trim_left()
                    if self.log.bytes_written >= at_bytes and len(self.log.headers) >= 2:
                        at_bytes = self.log.bytes_written + due
                        await self._compact_once()
            except OSError as error:
                trouble = str(error)
            self._say("snapshot", trouble)
            await trio.sleep(COMPACT_LOOK_S)

    def _sizes(self, segment: int) -> list[int]:
        return [(self.home / header.name).stat().st_size for header in self.log.headers if header.segment >= segment]

    def _remove(self) -> None:
        """Have the segments removed that neither a restart nor the archive needs."""
        headers = list(self.log.headers)
        # What the index has not got is in no snapshot.
        self.index.pass_over(self.log.appended)
        lacking = self.index.applied + 1
        if not self.log.snapshot:
            return
        # Nor is it gone from the log before a second copy has it.
        lacking = min(lacking, self.copy.covered(self.log.worker) + 1)
        needed = min(
            self.log.snapshot, max((header.segment for header in headers if header.first_number <= lacking), default=0)
        )
        if self.archive.topic_filters and needed:
            try:
                sizes = [(self.home / header.name).stat().st_size for header in headers]
            except FileNotFoundError:
                return  # it is being removed just now: the next look is soon enough
            needed = min(
                needed,
                archive_needs(
                    headers,
                    sizes,
                    time.time_ns() // 1000,
                    archiving=True,
                    age_s=self.archive.retention_age_s,
                    bytes_max=self.archive.retention_bytes,
                ),
            )
        self.log.discard(needed)

    async def _trim_left(self) -> None:
        """See to the logs of workers beyond the number that there are."""
        try:
            await trio.to_thread.run_sync(trim_left_logs, self.folder, self.workers, self.archive)
        except OSError as error:
            log.error("left_logs_not_trimmed", what=str(error))

    async def _run_compaction(self, *only: str) -> dict[str, Any] | None:
        """Have broker.processes.snapshot_main do its work, and return the snapshot; None if there is none."""
        package = Path(router.__file__).parents[1]
        done = await trio.run_process(
            [sys.executable, "-m", "broker.processes.snapshot_main", str(self.home), str(self.log.worker), *only],
            capture_stdout=True,
            capture_stderr=True,
            check=False,
            env={**os.environ, "PYTHONPATH": str(package)},
        )
        if done.returncode:
            await trio.to_thread.run_sync(remove_unfinished, self.log.disk)  # if it was killed, say
            log.error(
                "retained_not_copied" if only else "log_not_compacted",
                exit_code=done.returncode,
                what=done.stderr.decode(errors="replace").strip().rpartition("\n")[2],
            )
            return None
        told: dict[str, Any] = json.loads(done.stdout)
        if told["copy"] is not None:
            log.warning("retained_copied_anew", what=told["copy"])
        snapshot: dict[str, Any] | None = told["snapshot"]
        return snapshot

    async def _compact_once(self) -> None:
        started_s = trio.current_time()
        self.index.pass_over(self.log.appended)
        made = await self._run_compaction()
        if made is None:
            return
        await trio.to_thread.run_sync(self.index.flush, WATCH_S)
        self.log.adopt(made["name"], made["segment"], made["end_offset"])
        self._remove()
        await trio.to_thread.run_sync(remove_snapshots, self.log.disk, made["segment"])
        log.info(
            "log_compacted",
            segment=made["segment"],
            sessions=made["sessions"],
            messages=made["messages"],
            snapshot_bytes=made["size"],
            seconds=round(trio.current_time() - started_s, 3),
        )

    def close(self) -> None:
        """Write and sync what is left, then what the index has not got of it."""
        if not self.log.close(CLOSE_S):
            log.error(
                "log_not_written",
                what=self.log.trouble or "the disk did not answer in time",
                waiting_bytes=self.log.backlog_bytes,
            )
        self.index.pass_over(self.log.appended)
        self.index.durable(min(self.log.durable, self.log.written))
        if not self.index.close(CLOSE_S) and self.index.trouble is not None:
            log.warning("retained_not_written", what=self.index.trouble, waiting=self.index.pending)
        self.copy.close()
