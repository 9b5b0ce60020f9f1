"""The overview: a few series of numbers of the whole broker, one sample a second, of which a day is remembered.

Each worker says its numbers (`numbers_of`), and the process that is asked adds them up, turns what only grows into what
happened in a second, and keeps both the last quarter of an hour by seconds and a day by quarters of a minute. That is
what plots have as their past, and what streams of events are made of.
"""

from __future__ import annotations

import math
import time
from array import array
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Final, NamedTuple

import msgspec
import trio

from broker.admin.pagination import QueryError, Row
from router.sessions.ledger import DROP_REASONS

if TYPE_CHECKING:
    from broker.admin.backend import Backend
    from broker.telemetry.metrics import Metrics

SECOND_S: Final = 1.0
ANSWER_S: Final = 0.9  # that a sample waits for a worker
FINE_STEP_S: Final = 1
FINE_COUNT: Final = 900
COARSE_STEP_S: Final = 15
COARSE_COUNT: Final = 5_760  # 24 h
SET_BACK_S: Final = 60.0  # by which a clock may be, and what was remembered stays
GAUGE, SHARED, RATE = "gauge", "shared", "rate"


class Series(NamedTuple):
    """Numbers of one name.

    Attributes:
        name: what it is called.
        kind: GAUGE, a number now, of all workers together; SHARED, a number that they all say alike; RATE, what
            happened in a second.
        text: what it means.
        read: of one worker's metrics; of a RATE, what only grows.
    """

    name: str
    kind: str
    text: str
    read: Callable[[Metrics], float]


def _each_qos(name: str, text: str, read: Callable[[Metrics], Sequence[int]]) -> Iterator[Series]:
    for qos in range(3):
        yield Series(f"{name}_qos{qos}", RATE, text.format(qos), lambda m, qos=qos: read(m)[qos])  # type: ignore[misc]


def _drops() -> Iterator[Series]:
    for reason in DROP_REASONS:
        text = f"Messages dropped in a second: {reason}."
        yield Series(f"dropped_{reason}", RATE, text, lambda m, reason=reason: m.dropped.get(reason, 0))  # type: ignore[misc]


def _busy_s(metrics: Metrics) -> float:
    m = metrics
    return (m.receive_us + m.route_us + m.control_us + m.pump_us + m.flush_us + m.guest_us) / 1e6


SERIES: Final = (
    Series("clients", GAUGE, "Sessions with a connection.", lambda m: m.sessions_connected),
    Series("connections", GAUGE, "Connections that are open.", lambda m: m.connections_open),
    Series("sessions", GAUGE, "Sessions, connected or not.", lambda m: m.sessions),
    Series("subscriptions", GAUGE, "Subscriptions.", lambda m: m.subscriptions),
    Series("queued", GAUGE, "Messages of QoS 1 and 2 that wait in sessions.", lambda m: m.queued_messages),
    Series("queued_bytes", GAUGE, "Of these.", lambda m: m.queued_bytes),
    Series("in_flight", GAUGE, "Messages sent and not completely acknowledged.", lambda m: m.inflight_messages),
    Series("output_bytes", GAUGE, "Buffers with output that is not taken.", lambda m: m.output_buffer_bytes),
    Series("log_waiting", GAUGE, "Records that are not durable yet.", lambda m: m.storage_waiting_records),
    Series("memory_bytes", GAUGE, "Of the workers, in RAM.", lambda m: m.resident_bytes),
    Series("retained", SHARED, "Retained messages.", lambda m: m.retained_messages),
    Series("retained_bytes", SHARED, "Of these.", lambda m: m.retained_bytes),
    *_each_qos("messages_in", "Messages received in a second with QoS {}.", lambda m: m.messages_in_by_qos),
    *_each_qos("messages_out", "Messages sent in a second with QoS {}.", lambda m: m.messages_out_by_qos),
    Series("bytes_in", RATE, "Bytes read from sockets in a second.", lambda m: m.bytes_in),
    Series("bytes_out", RATE, "Bytes written to sockets in a second.", lambda m: m.bytes_out),
    Series("connections_opened", RATE, "Connections accepted in a second.", lambda m: m.connections),
    Series("connections_ended", RATE, "Connections that ended in a second.", lambda m: sum(m.ends.values())),
    Series("connects_refused", RATE, "Connections refused in a second.", lambda m: sum(m.refused.values())),
    *_drops(),
    Series("log_records", RATE, "Records written to the log in a second.", lambda m: m.storage_records),
    Series("log_bytes", RATE, "Bytes written to the log in a second.", lambda m: m.storage_bytes),
    Series("log_syncs", RATE, "Syncs of the log in a second.", lambda m: m.storage_syncs),
    Series("slow_turns", RATE, "Turns of 10 ms or more in a second.", lambda m: m.slow_turns),
    Series("busy", RATE, "Processors that turns take: 1 is a whole one.", _busy_s),
)
WORKERS: Final = "workers"
NAMES: Final = (WORKERS, *(series.name for series in SERIES))
MEANINGS: Final[Mapping[str, str]] = {
    WORKERS: "Workers that have answered.",
    **{series.name: series.text for series in SERIES},
}


def numbers_of(metrics: Metrics) -> list[float]:
    """Return one worker's numbers, in the order of SERIES."""
    return [series.read(metrics) for series in SERIES]


class Ring:
    """The last values of all series, one for each step; a fixed number of bytes, whatever happens.

    Args:
        step_s: seconds of one value, which is the mean of what it was given within them.
        count: values of each series.
    """

    def __init__(self, step_s: int, count: int) -> None:
        self.step_s = step_s
        self.count = count
        self._values = {name: array("f", [math.nan]) * count for name in NAMES}
        self._last = 0  # number of the newest step that is whole, since 1970; 0: none
        self._step = 0  # ... of the one that is being gathered
        self._sums = [0.0] * len(NAMES)
        self._seen = 0

    @property
    def size_bytes(self) -> int:
        """What the values take."""
        return sum(len(values) * values.itemsize for values in self._values.values())

    def add(self, at_s: float, row: Sequence[float]) -> None:
        """Take the values of a moment (Unix seconds); a clock that is set back by more than a minute begins anew."""
        step = int(at_s // self.step_s)
        if step < self._step and (self._step - step) * self.step_s <= SET_BACK_S:
            step = self._step
        if step != self._step:
            self._close()
            if step < self._step:
                self._forget()
            self._step = step
        for index, value in enumerate(row):
            self._sums[index] += value
        self._seen += 1

    def _close(self) -> None:
        """Write down the step that was gathered; those without a sample have none."""
        if not self._seen:
            return
        missed = min(self._step - self._last - 1, self.count) if self._last else 0
        for index, values in enumerate(self._values.values()):
            for step in range(self._step - missed, self._step):
                values[step % self.count] = math.nan
            values[self._step % self.count] = self._sums[index] / self._seen
        self._last = self._step
        self._sums = [0.0] * len(NAMES)
        self._seen = 0

    def _forget(self) -> None:
        for name in self._values:
            self._values[name] = array("f", [math.nan]) * self.count
        self._last = 0

    def last(self, name: str, count: int) -> array[float]:
        """Return the last values of a series, oldest first; those that there are not are no number (NaN)."""
        values = self._values[name]
        end = (self._last + 1) % self.count
        count = min(count, self.count)
        begin = end - count
        return values[begin:end] if begin >= 0 else values[begin:] + values[:end]

    @property
    def ends_s(self) -> int:
        """When the last of its values began, Unix seconds; 0: there is none."""
        return self._last * self.step_s


class Overview:
    """Samples of all workers, a second apart, and what is remembered of them.

    Args:
        backend: whom it asks.
    """

    def __init__(self, backend: Backend) -> None:
        self.backend = backend
        self.rings = {FINE_STEP_S: Ring(FINE_STEP_S, FINE_COUNT), COARSE_STEP_S: Ring(COARSE_STEP_S, COARSE_COUNT)}
        self._before: dict[int, tuple[float, list[float]]] = {}  # by worker: when, and what it said then
        self._row: Row = {}  # the last one
        self._number = 0  # of it
        self._sampled = trio.Event()

    async def run(self) -> None:
        """Take a sample every second, until cancelled."""
        due_s = trio.current_time()
        while True:
            await self._sample()
            # A clock that has stood still for a while is not caught up with.
            due_s = max(due_s + SECOND_S, trio.current_time())
            await trio.sleep_until(due_s)

    async def _sample(self) -> None:
        answers: dict[int, tuple[float, list[float]]] = {}

        async def ask(worker: int) -> None:
            with trio.move_on_after(ANSWER_S):
                try:
                    numbers = (await self.backend.ask(worker, "numbers", {})).get("numbers", ())
                except QueryError:
                    return  # it has just gone
                if len(numbers) == len(SERIES):  # else it is of another version than we are
                    answers[worker] = trio.current_time(), numbers

        async with trio.open_nursery() as nursery:
            for worker in self.backend.workers():
                nursery.start_soon(ask, worker)
        values = self._together(answers)
        # One that is silent now tells of more than a second when it answers again; one that is new has no past.
        self._before |= answers
        self._before = {worker: self._before[worker] for worker in self.backend.workers() if worker in self._before}
        at_s = time.time()
        for ring in self.rings.values():
            ring.add(at_s, values)
        known = self.backend.describe()
        self._row = {
            "at_ms": int(at_s * 1000),
            "ready": bool(known["ready"]),
            "draining": bool(known.get("draining", False)),
            **{name: round(value, 4) for name, value in zip(NAMES, values, strict=True)},
        }
        self._number += 1
        sampled, self._sampled = self._sampled, trio.Event()
        sampled.set()

    def _together(self, answers: Mapping[int, tuple[float, list[float]]]) -> list[float]:
        """Return the number of workers that have answered, and the series of the broker."""
        values = [0.0] * len(SERIES)
        for worker, (at_s, numbers) in answers.items():
            before_s, before = self._before.get(worker, (at_s, numbers))
            for index, (series, number) in enumerate(zip(SERIES, numbers, strict=True)):
                if series.kind == SHARED:
                    values[index] = max(values[index], number)
                elif series.kind == GAUGE:
                    values[index] += number
                elif at_s > before_s:
                    grown = number - before[index]
                    # Less than before: the worker is another process, which began at 0.
                    values[index] += (grown if grown >= 0 else number) / (at_s - before_s)
        return [float(len(answers)), *values]

    async def history(self, names: Sequence[str], step_s: int, last_s: int | None) -> bytes:
        """Return what is remembered of some series, as JSON; a worker's turns go on meanwhile.

        Args:
            names: of series.
            step_s: of which ring.
            last_s: so many seconds back; None: all.
        """
        ring = self.rings[step_s]
        count = ring.count if last_s is None else min(ring.count, -(-last_s // step_s))
        ends_s, cuts = ring.ends_s, {name: ring.last(name, count) for name in names}
        parts = []
        for name, cut in cuts.items():
            values = [None if math.isnan(value) else round(value, 4) for value in cut]
            parts.append(msgspec.json.encode(name) + b":" + msgspec.json.encode(values))
            await trio.lowlevel.checkpoint()
        return b'{"step_s":%d,"ends_s":%d,"series":{%b}}\n' % (step_s, ends_s, b",".join(parts))

    async def follow(self) -> AsyncIterator[Row]:
        """Yield the overview, then each second what is another number than this caller knows."""
        known: Row = {}
        number = 0
        while True:
            if self._number == number:
                await self._sampled.wait()
            before, known, number = known, self._row, self._number
            if before:
                yield {"event": "change", **{name: value for name, value in known.items() if before[name] != value}}
            else:
                yield {"event": "overview", **known}
