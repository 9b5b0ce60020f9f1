"""Log lines: rendered where they arise, written by a thread of their own, so that no turn waits for a disk or a pipe.

A line passes three gates before it is written. Its level, which costs next to nothing below the configured one. A rate
limit per event name: LINES_PER_EVENT in a second, what is above is counted and reported as one `log_suppressed` line.
A bounded queue to the writer thread: what finds it full is counted and reported as one `log_dropped` line.

`configure` is called by a worker that owns its process. Without it, as in a broker inside another program, lines go
wherever that program has configured structlog to send them. structlog is loaded for that only: with what it
loads, asyncio and rich among it, it takes 8 MiB.
"""

from __future__ import annotations

import atexit
import os
import select
import threading
import time
from collections.abc import Callable
from functools import partial
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Any, cast

import msgspec

from broker.log_lines import Fields, console, json_line, timestamp

if TYPE_CHECKING:
    import structlog

    from broker.config.schema import Log

LINES_PER_EVENT = 100
WINDOW_S = 1.0
BATCH_LINES_MAX = 256
REOPEN = object()  # in the queue, between the lines of the old file and those of the new one
GATHER_S = 0.05  # for which the writer lets lines come together: who queues one wakes no thread meanwhile
VALUE_LENGTH_MAX = 4096
FLUSH_S = 1.0
STDERR = 2
LEVELS = ("debug", "info", "warning", "error")


class Window:
    """How often one event was logged in the current second, and how often it was suppressed since the start."""

    __slots__ = ("count", "reported", "started_s", "suppressed")

    def __init__(self) -> None:
        self.started_s = 0.0
        self.count = 0
        # Only callers count up `suppressed`, only the writer moves `reported`: so neither needs a lock.
        self.suppressed = 0
        self.reported = 0


class Writer:
    """The queue and the thread between those who log and the file or standard error.

    Lines are bytes without their newline. Every method may be called by any thread, and by a signal handler.
    """

    def __init__(self, config: Log) -> None:
        self.file = config.file
        self.queue_max = config.queue_max
        self.is_console = config.format == "console"
        self.descriptor = STDERR if self.file is None else _opened(self.file)
        if config.format == "auto":
            self.is_console = self.file is None and os.isatty(self.descriptor)
        # A SimpleQueue may be put to by a signal handler that interrupts a put.
        self.queue: SimpleQueue[object] = SimpleQueue()
        self.windows: dict[str, Window] = {}
        self.dropped = 0
        self.dropped_reported = 0
        self.stopped = False
        self.hurried = threading.Event()
        colours = self.is_console and os.isatty(self.descriptor) and not os.environ.get("NO_COLOR")
        self.renderer = console(colours=colours) if self.is_console else json_line
        self.thread = threading.Thread(target=self._run, name="log-writer", daemon=True)
        self.thread.start()

    def admits(self, event: str) -> bool:
        """Return whether one more line of this event may be written now, and count it."""
        window = self.windows.get(event)
        if window is None:
            window = self.windows.setdefault(event, Window())
        now_s = time.monotonic()
        if now_s - window.started_s >= WINDOW_S:
            window.started_s = now_s
            window.count = 0
        window.count += 1
        if window.count <= LINES_PER_EVENT:
            return True
        window.suppressed += 1
        if window.count == LINES_PER_EVENT + 1:
            self.queue.put(None)  # the writer now has something to report when the second is over
        return False

    def is_full(self, event: str) -> bool:
        """Return whether no more lines of this event may be written in this second, and count one that is left out."""
        window = self.windows.get(event)
        if window is None or window.count <= LINES_PER_EVENT or time.monotonic() - window.started_s >= WINDOW_S:
            return False
        window.suppressed += 1
        return True

    def put(self, line: bytes) -> None:
        """Queue a line; if the queue is full, drop and count it. Never waits."""
        if self.queue.qsize() >= self.queue_max:
            self.dropped += 1
            return
        self.queue.put(line)

    def reopen(self) -> None:
        """Have the file opened anew behind the lines that are queued, as after a rotation."""
        self.queue.put(REOPEN)
        self.hurried.set()

    def flush(self, timeout_s: float) -> bool:
        """Wait until all lines queued so far are written; return whether they were within the time."""
        done = threading.Event()
        self.queue.put(done)
        self.hurried.set()
        return done.wait(timeout_s)

    def close(self, timeout_s: float) -> None:
        """Write what is queued, within the time, and end the thread."""
        self.flush(timeout_s)
        self.stopped = True
        self.queue.put(None)
        self.hurried.set()
        self.thread.join(timeout_s)

    def _run(self) -> None:
        while not self.stopped:
            batch: list[bytes] = []
            flushes: list[threading.Event] = []
            try:
                item = self.queue.get(timeout=WINDOW_S if self._owes_report() else None)
                self.hurried.wait(GATHER_S)
                self.hurried.clear()
                while True:
                    if isinstance(item, bytes):
                        batch.append(item)
                    elif isinstance(item, threading.Event):
                        flushes.append(item)
                    elif item is REOPEN:
                        self._write(batch)
                        batch = []
                        self._reopen()
                    if len(batch) == BATCH_LINES_MAX:
                        self.hurried.set()  # there may be more
                        break
                    item = self.queue.get_nowait()
            except Empty:
                pass
            batch += self._reports(bool(flushes))
            self._write(batch)
            for flush in flushes:
                flush.set()
        if self.file is not None:
            os.close(self.descriptor)

    def _owes_report(self) -> bool:
        return self.dropped > self.dropped_reported or any(
            window.suppressed > window.reported for window in list(self.windows.values())
        )

    def _reports(self, at_once: bool) -> list[bytes]:
        """The lines about lines that are missing: for an event whose second is over, or for all at once."""
        lines = []
        now_s = time.monotonic()
        for event, window in list(self.windows.items()):
            count = window.suppressed - window.reported
            if count and (at_once or now_s - window.started_s >= WINDOW_S):
                window.reported += count
                lines.append(self._own_line("log_suppressed", suppressed_event=event, count=count))
        count = self.dropped - self.dropped_reported
        if count:
            self.dropped_reported += count
            lines.append(self._own_line("log_dropped", count=count))
        return lines

    def _own_line(self, event: str, **values: Any) -> bytes:
        fields: Fields = {
            "event": event, "logger": "logs", "level": "warning", "timestamp": timestamp(), **values}  # fmt: skip
        return self.renderer(fields)

    def _reopen(self) -> None:
        if self.file is None:
            return
        try:
            descriptor = _opened(self.file)
        except OSError as error:
            self._write([self._own_line("log_reopen_failed", file=self.file, error=str(error))])
            return
        os.close(self.descriptor)
        self.descriptor = descriptor

    def _write(self, batch: list[bytes]) -> None:
        if not batch:
            return
        rest = memoryview(b"\n".join(batch) + b"\n")
        while rest:
            try:
                rest = rest[os.write(self.descriptor, rest) :]
            except BlockingIOError:
                # Somebody who shares our standard error has made it non-blocking.
                poll = select.poll()
                poll.register(self.descriptor, select.POLLOUT)
                poll.poll()
            except OSError:
                # A full disk or a reader that is gone costs these lines, not the broker.
                self.dropped += len(batch)
                return


class Logger:
    """One part's logger: the methods of structlog's filtering bound logger, as attributes of its own once configured.

    structlog's lazy proxy costs 2.5 microseconds for a call below the level, an attribute 0.2.
    """

    METHODS = {"debug": 0, "info": 1, "warning": 2, "error": 3, "exception": 3, "critical": 4}

    def __init__(self, name: str) -> None:
        self.name = name

    def __getattr__(self, method: str) -> Any:
        import structlog

        return getattr(structlog.get_logger(self.name), method)

    def attach(self, level: str) -> None:
        least = LEVELS.index(level)
        for method, severity in self.METHODS.items():
            setattr(self, method, partial(_log, self.name, method) if severity >= least else _pass)


def _pass(event: str, **_: Any) -> None:
    """A line below the level."""


def leaves_out(event: str) -> bool:
    """Return whether a line of level info would not be written, which need not be put together then.

    One that is above the rate limit counts as suppressed by that.
    """
    return _writer is not None and (_level not in ("debug", "info") or _writer.is_full(event))


def _log(name: str, method: str, event: str, /, **fields: Any) -> None:
    writer = _writer
    if writer is None or not writer.admits(str(event)):
        return
    if method == "exception":
        method = "error"
        fields.setdefault("exc_info", True)
    fields |= {"event": event, "level": method, "timestamp": timestamp(), "logger": name, **_everywhere}
    # A value that cannot be rendered must not become an exception in somebody's turn.
    try:
        line = writer.renderer(_readable(fields))
    except Exception as error:
        line = msgspec.json.encode({"event": "log_unrenderable", "of": str(event), "error": repr(error)})
    writer.put(line)
    if method in ("error", "critical"):
        writer.hurried.set()  # it may be the last thing that is heard of this process


_writer: Writer | None = None
_level = "info"
_loggers: dict[str, Logger] = {}
_everywhere: dict[str, Any] = {}


def configure(config: Log, **everywhere: Any) -> None:
    """Send the log lines where `config` says, from all loggers. OSError if its file cannot be opened.

    Called again, it flushes and replaces what it had set up.

    Args:
        everywhere: what every line says, such as the number of the worker that it comes from.
    """
    global _writer, _level, _everywhere
    writer = Writer(config)
    _everywhere = everywhere
    if _writer is None:
        atexit.register(flush)
    else:
        _writer.close(FLUSH_S)
    _writer = writer
    _level = config.level
    for logger in _loggers.values():
        logger.attach(_level)


def level() -> str:
    """Return the least severe level that is written."""
    return _level


def set_level(name: str) -> None:
    """Write lines from this level on: debug, info, warning or error; nothing happens before `configure`."""
    global _level
    if _writer is None:
        return
    _level = name
    for logger in _loggers.values():
        logger.attach(_level)


def get(name: str) -> structlog.typing.FilteringBoundLogger:
    """Return the logger of a part of the broker, the same for the same name; each of its lines says logger=name.

    A call below the configured level costs well under a microsecond, one above it about 10.
    """
    logger = _loggers.get(name)
    if logger is None:
        logger = _loggers[name] = Logger(name)
        if _writer is not None:
            logger.attach(_level)
    return cast("structlog.typing.FilteringBoundLogger", logger)


def reopen() -> None:
    """Open the log file anew, as SIGHUP asks for; nothing happens if lines go to standard error."""
    if _writer is not None:
        _writer.reopen()


def flush(timeout_s: float = FLUSH_S) -> None:
    """Wait, for a bounded time, until the lines logged so far are written."""
    if _writer is not None:
        _writer.flush(timeout_s)


def counters() -> dict[str, int]:
    """Lines that the rate limit suppressed, and lines lost to a full queue or a failed write, since `configure`."""
    if _writer is None:
        return {"log_suppressed": 0, "log_dropped": 0}
    suppressed = sum(window.suppressed for window in list(_writer.windows.values()))
    return {"log_suppressed": suppressed, "log_dropped": _writer.dropped}


class Late:
    """A value of a log line that takes time to find out: it is found when the line is written, if it is.

    A line is rendered within the call that logs it, so `find`, called with `subject`, may look at what changes later.
    Whoever renders lines in another way, a program that the broker is embedded in, gets the value by repr().
    """

    __slots__ = ("find", "subject")

    def __init__(self, find: Callable[[Any], object], subject: Any) -> None:
        self.find = find
        self.subject = subject

    def __repr__(self) -> str:
        return str(self.find(self.subject))


def _readable(fields: Fields) -> Fields:
    """Bytes become text, and long values are cut, so that a queue of lines has a bound in bytes too.

    What takes time to find out is found out here, for lines that are written only.
    """
    for key, value in fields.items():
        if isinstance(value, Late):
            fields[key] = value = value.find(value.subject)
        if isinstance(value, bytes | bytearray | memoryview):
            fields[key] = bytes(value[: VALUE_LENGTH_MAX + 1]).decode("utf-8", "backslashreplace")
        text = fields[key]
        if isinstance(text, str) and len(text) > VALUE_LENGTH_MAX:
            fields[key] = text[:VALUE_LENGTH_MAX] + "..."
    return fields


def _opened(file: str) -> int:
    return os.open(file, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o640)
