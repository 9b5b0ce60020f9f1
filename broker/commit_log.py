"""A worker's commit log as the worker sees it: opened, watched, and closed."""

from __future__ import annotations

import secrets
import time
from functools import partial
from typing import TYPE_CHECKING

import trio

from broker.handshake import PendingWill
from broker.logs import get
from router.commit_log import begin, open_log
from router.disk import Disk

if TYPE_CHECKING:
    from pathlib import Path

    from router.router import Router

    from broker.acl import Acl
    from broker.settings import Storage

log = get("storage")

WATCH_S = 1.0
CLOSE_S = 10.0


class CommitLog:
    """What a worker keeps in its folder: recovered into its router, then written to.

    Args:
        settings: of the section `storage`.
        router: empty.
        acl: is asked about recovered wills when they are published; as nobody, for whose they were is not kept.
        folder: the broker's data folder, which nobody else uses.
        accept_loss: go on without what is missing, foreign or newer.

    Raises SegmentError (of router.segments), OSError.
    """

    def __init__(self, settings: Storage, router: Router, acl: Acl, folder: Path, *, accept_loss: bool = False) -> None:
        self.router = router
        home = folder / "worker-0"
        home.mkdir(mode=0o700, exist_ok=True)
        started_s = time.monotonic()
        self.opened = open_log(
            Disk(str(home)), router, worker=0, make_will=partial(PendingWill, acl, None),
            make_mark=lambda: secrets.randbits(32), now_us=time.time_ns() // 1000,
            now_ms=time.monotonic_ns() // 1_000_000, accept_loss=accept_loss,
            durability=settings.durability, segment_bytes_max=settings.segment_bytes_max)
        self.log = self.opened.log
        self._trouble: str | None = None
        for damage in self.opened.damages:
            log.warning("log_damaged", what=str(damage))
        for problem in self.opened.problems:
            log.warning("log_record_unfit", what=problem)
        log.info("recovered", records=self.opened.records, sessions=len(router.sessions),
                 retained=router.retained.count, queued=router.ledger.queued_messages,
                 seconds=round(time.monotonic() - started_s, 3), incarnation=self.log.incarnation)

    def begin(self) -> None:
        """The router records now: let the log be written, and what fell due while nobody was there happen."""
        begin(self.router, self.opened)
        self.log.start()
        self.router.expire()

    async def watch(self) -> None:
        """Say once what the disk refuses, and once that it is over."""
        while True:
            await trio.sleep(WATCH_S)
            trouble = self.log.trouble
            if trouble is not None and self._trouble is None:
                log.error("log_not_written", what=trouble, full=self.log.full, waiting_bytes=self.log.backlog_bytes)
            elif trouble is None and self._trouble is not None:
                log.info("log_written_again")
            self._trouble = trouble
            if self.log.failure is not None:
                raise self.log.failure

    def close(self) -> None:
        """Write and sync what is left."""
        if not self.log.close(CLOSE_S):
            log.error("log_not_written", what=self.log.trouble or "the disk did not answer in time",
                      waiting_bytes=self.log.backlog_bytes)
